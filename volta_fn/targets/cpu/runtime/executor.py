"""The executor: machine code that runs a program's commands.

Equations without machine code are computed by NumPy, in functions that the executor calls. Ctrl-C waits while such a function runs.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers import Slot
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.ir.specification import interpret
from volta_fn.core.jaxpr import Equation
from volta_fn.interrupts import SIGINT, get_handler, set_handler, valid_signals
from volta_fn.primitives.callbacks import pure_callback_p
from volta_fn.runtime.internals.array_calls import Status
from volta_fn.runtime.internals.fastcall import Addresses, FunctionMaker, make_entry, write_entry
from volta_fn.runtime.internals.result_allocator import FUNCTIONS, Empty, make_empty, write_blocks
from volta_fn.runtime.internals.threads import silenced
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.routine import SignalWord
from volta_fn.targets.cpu.runtime import cache
from volta_fn.targets.cpu.runtime.pool import Workers, write_pool
from volta_fn.targets.numpy.backend import make_kernel, written
from volta_fn.targets.numpy.program import workspace

# Ctrl-C in programs that call Python's functions.
#
# A handler that raises at the first instruction of such a function, or after its last one, would end nothing: ctypes prints the
# exception and returns an undefined status to the program. So the handler waits while such a function runs.

#: The code in which the handler waits.
_protected: set[CodeType] = set()
#: Handlers that wait in the main thread, with their arguments.
_waiting: list[tuple[Callable[..., Any], int, FrameType | None]] = []


def protected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have handlers wait while this function runs, but not those it calls."""
    _protected.add(function.__code__)
    return function


def deliver() -> None:
    """Call the handlers that wait."""
    while _waiting:
        handler, number, frame = _waiting.pop()
        handler(number, frame)


def interruptible(enter: Callable[..., int]) -> Callable[..., int]:
    """Return an entry of a program with calls of Python, which Ctrl-C ends."""

    @protected
    def call(*arrays: Any) -> int:
        if threading.get_ident() != threading.main_thread().ident or not callable(handler := get_handler(SIGINT)):
            return enter(*arrays)

        def handle(number: int, frame: FrameType | None) -> None:
            if _is_protected(frame):
                _waiting.append((handler, number, frame))
            else:
                handler(number, frame)

        set_handler(SIGINT, handle)
        try:
            return _execute(enter, arrays)
        finally:
            set_handler(SIGINT, handler)
            deliver()

    return call


def _is_protected(frame: FrameType | None) -> bool:
    """Tell whether a signal came in protected code.

    It may have been passed on by the handler of another signal that came there.
    """
    if frame is None or frame.f_code in _protected:
        return frame is not None
    handlers = {getattr(get_handler(number), "__code__", None) for number in valid_signals()}
    while frame is not None and frame.f_code in handlers:
        frame = frame.f_back
    return frame is not None and frame.f_code in _protected


def _execute(enter: Callable[..., int], arrays: tuple[Any, ...]) -> int:
    """Call `enter` in a frame that is not protected.

    A signal that arrives in its machine code is handled at once, and ends loops.
    """
    return enter(*arrays)


# Equations that NumPy computes, as functions that the executor calls.
#
# Their exceptions are kept, and raised when the program has ended.

_failures = threading.local()


@protected
def fail(error: BaseException) -> int:
    """Keep an exception for the end of the program, and return `Status.FAILED`."""
    _failures.exception = error
    return Status.FAILED


def failure() -> BaseException:
    """Return the exception of this thread's last failure."""
    error: BaseException = _failures.exception
    del _failures.exception
    return error


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)

SlotArray = tuple[Slot, tuple[int, ...], Any]


class HostCall:
    """A function of NumPy arrays as a function of the table of slots."""

    def __init__(
        self,
        compute: Callable[..., Any],
        operands: Sequence[SlotArray],
        results: Sequence[SlotArray],
        *,
        copies: bool = False,
        into: bool = False,
        workspace: int = 0,
    ) -> None:
        self.compute = silenced(compute)
        #: Whether the function may keep its operands, whose memory is the program's.
        self.copies = copies
        #: Whether it writes its results to arrays, a list of which is its first argument; else it returns a sequence of new arrays.
        self.into = into
        #: The bytes that it needs for itself.
        self.workspace = workspace
        self.slots = [slot for slot, _, _ in (*operands, *results)]
        self._operands = [_array_at(*operand) for operand in operands]
        self._results = [_array_at(*result) for result in results]
        self.function = _FUNCTION(self._call)

    @property
    def address(self) -> int:
        """The function's address, valid as long as this object lives."""
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    @protected
    def _call(self, table: int) -> int:
        try:
            deliver()
            arrays = [operand(table) for operand in self._operands]
            if self.into:
                self.compute([result(table) for result in self._results], *arrays)
                return 0
            values = self.compute(*[a.copy() for a in arrays] if self.copies else arrays)
            for result, value in zip(self._results, values, strict=True):
                result(table)[...] = value
        except BaseException as error:  # it is raised again when the program has ended
            return fail(error)
        return 0


def equation_call(eqn: Equation, operands: Sequence[Slot], results: Sequence[Slot]) -> HostCall:
    """Make the host call of an equation, which NumPy computes."""
    avals = tuple([v.aval for v in eqn.invars])
    compute = make_kernel(eqn.primitive, avals, eqn.params)
    sources = [(slot, a.shape, a.dtype) for slot, a in zip(operands, avals, strict=True)]
    targets = [(slot, v.aval.shape, v.aval.dtype) for slot, v in zip(results, eqn.outvars, strict=True)]
    if written(eqn) and not eqn.primitive.holds_programs:
        several = eqn.primitive.multiple_results
        into = lambda outs, *arrays: compute(*arrays, out=outs if several else outs[0])  # noqa: E731  # a function of one line
        return HostCall(into, sources, targets, into=True, workspace=workspace(eqn))
    listed = compute if eqn.primitive.multiple_results else lambda *arrays: (compute(*arrays),)
    copies = eqn.primitive.effectful or eqn.primitive is pure_callback_p  # the user's function
    return HostCall(listed, sources, targets, copies=copies, workspace=workspace(eqn))


def kernel_call(kernel: Kernel, operands: Sequence[Slot], results: Sequence[Slot]) -> HostCall:
    """Make the host call of a kernel without machine code, which is interpreted."""
    sources = [(slot, (b.size,), b.dtype) for slot, b in zip(operands, kernel.inputs, strict=True)]
    targets = [(slot, s.shape, b.dtype) for slot, s, b in zip(results, kernel.stores, kernel.outputs, strict=True)]
    return HostCall(partial(interpret, kernel), sources, targets)


def _array_at(slot: Slot, shape: tuple[int, ...], dtype: Any) -> Callable[[int], np.ndarray]:
    """Return the function that gives the array at a slot of a table.

    The slot gets its number later.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return lambda table: np.empty(shape, dtype)
    at, memory, ndarray = ctypes.c_size_t.from_address, (ctypes.c_char * size).from_address, np.ndarray
    return lambda table: ndarray(shape, dtype, memory(at(table + 8 * slot.number).value))


# The runtime's own machine code, compiled with the first program.

_lock = threading.Lock()


class SupportCode(NamedTuple):
    """State shared by all programs of a process.

    Whoever asks for it first (`support_code_of_process`) compiles it and starts the worker threads.
    """

    #: Makes built-ins of programs.
    functions: FunctionMaker
    workers: Workers
    #: `numpy.empty` of large arrays.
    large_empty: Empty


def support_code_of_process() -> SupportCode:
    """Return the process's support code, compiled by whichever thread asks first."""
    with _lock:
        return _start_support_code()


@functools.cache
def _start_support_code() -> SupportCode:
    name = cache.name_of("support code")
    compiled = cache.read_compiled(name)
    if compiled is None:
        module = Module()
        for write in (write_pool, write_executor, write_entry, write_blocks):
            write(module)
        compiled = cache.Compiled(compile_object(str(module)))
        cache.write_compiled(name, compiled)
    work, reset, *others = load_object(compiled.code, ["work", "reset", *Addresses._fields, *FUNCTIONS])
    addresses, allocator = Addresses(*others[: len(Addresses._fields)]), others[len(Addresses._fields) :]
    return SupportCode(make_entry(addresses), Workers(work, reset), make_empty(allocator))


# The executor: machine code that runs a program's commands, 64-bit words.
#
# A program works on a *table* of pointers, whose entries are *slots*: the caller's arrays, constants, buffers in the program's own memory
# (the *arena*), and slots whose pointers commands set. Commands follow one another; those that hold others say how many words these take.
#
# ====== ==========================================================================================================================
# RUN    function, tasks, mode, n, slot…: run a launch of a routine, as `Mode` says.
# HOST   function: call ``i64 function(ptr table)``; a result other than 0 ends the program.
# COPY   to, from, bytes: copy memory.
# POINT  to, from: make a slot point to where another does.
# SWAP   a, b: exchange two slots' pointers.
# ROW    to, base, bytes, counter: make a slot point to row number ``counter`` of the array at `base`, rows of so many bytes.
# LOOP   count, counter, first, step, words: run the commands in the next `words` words `count` times; counter is first, first + step, …
# WHILE  slot, words of condition, words of body: run the condition, and while the bool at `slot` is true the body and the condition.
# SWITCH slot, n, words…: of the n bodies that follow, run that whose number (int32, clamped) is at `slot`.
# ====== ==========================================================================================================================
#
# A *counter* is a slot too, which holds a number instead of a pointer.


class Op(IntEnum):
    """The first word of a command."""

    RUN = 0
    HOST = 1
    COPY = 2
    POINT = 3
    SWAP = 4
    ROW = 5
    LOOP = 6
    WHILE = 7
    SWITCH = 8


class Mode(IntFlag):
    """How a launch runs: by itself on the calling thread, unless these say otherwise."""

    #: Other threads help.
    SHARED = 1
    #: It takes so long that signals are handled after it, and a handler that raised ends the program.
    ENDS = 2


#: The most buffers of a routine: its operands, results and a workspace.
MOST_BUFFERS = 512


_CODE, _END, _TABLE, _SIGNALS = Value("ptr", "%code"), Value("ptr", "%end"), Value("ptr", "%table"), Value("ptr", "%signals")
_OK = i64(Status.OK)
#: Iterations of a loop from one reading of the clock, which costs a few nanoseconds, to the next.
_CLOCK_INTERVAL = 8


def write_executor(module: Module) -> None:
    """Define ``i64 @execute(ptr code, ptr end, ptr table)``, which returns a status.

    The status is 0, that of the host function that ended the program, or `INTERRUPTED`.
    """
    module.declare("memcpy", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    _write_execute(module)
    for op, write in _WRITERS.items():
        _Command(module, op.name.lower(), write).finish()
    _write_commands(module)
    _write_attend(module)


class _Command(Function):
    """The function ``i64 @do_<name>(code, table, after, signals)`` of a command.

    It stores in `after` where the next command is.
    """

    def __init__(self, module: Module, name: str, write: Callable[[_Command], Value]) -> None:
        parameters = [_CODE, _TABLE, Value("ptr", "%after"), _SIGNALS]
        super().__init__(module, f"do_{name}", parameters, "i64", "nounwind")
        self.status = write(self)

    def finish(self, result: Value | None = None) -> None:
        """Return the status."""
        super().finish(result or self.status)

    def word(self, number: int | Value) -> Value:
        """Emit a word of the command."""
        index = i64(number) if isinstance(number, int) else number
        return self.load("i64", self.at(_CODE, "i64", index), 8)

    def slot(self, number: Value) -> Value:
        """Emit the address of a slot."""
        return self.at(_TABLE, "ptr", number)

    def pointer(self, number: Value) -> Value:
        """Emit a slot's pointer."""
        return self.load("ptr", self.slot(number), 8)

    def words(self, start: Value, count: Value) -> tuple[Value, Value]:
        """Emit the start and the end of `count` words of the command."""
        return self.at(_CODE, "i64", start), self.at(_CODE, "i64", self.binary("add", start, count))

    def leave(self, words: int | Value) -> None:
        """Emit the end of the command, after `words` words."""
        count = i64(words) if isinstance(words, int) else words
        self.store(self.at(_CODE, "i64", count), Value("ptr", "%after"), 8)

    def execute(self, start: Value, end: Value) -> Value:
        """Emit the execution of commands, and return their status."""
        return self.call("commands", "i64", start, end, _TABLE, _SIGNALS)

    def until_failure(self, status: Value, more: Callable[[], Value]) -> Value:
        """Emit `more` if the status so far is good, and return its status."""
        good = self.compare("icmp eq", status, _OK)
        return self.branch(good, lambda: [more()], lambda: [status])[0]

    def attend(self, iteration: Value) -> Value:
        """Emit the handling of signals in some iterations; return its status."""
        due = self.compare("icmp eq", self.binary("and", iteration, i64(_CLOCK_INTERVAL - 1)), i64(0))
        return self.branch(due, lambda: [self.call("attend", "i64", _SIGNALS)], lambda: [_OK])[0]


def _run(f: _Command) -> Value:
    function = f.cast("inttoptr", f.word(1), "ptr")
    tasks, mode, count = f.word(2), f.word(3), f.word(4)
    buffers = f.at(f.alloca("ptr", MOST_BUFFERS + 1, 8), "ptr", i64(1))
    f.store(_SIGNALS, f.at(buffers, "ptr", i64(-1)), 8)

    def gather(i: Value, _: list[Value]) -> None:
        pointer = f.pointer(f.word(f.binary("add", i, i64(5))))
        f.store(pointer, f.at(buffers, "ptr", i), 8)

    f.loop(i64(0), count, 1, [], gather)

    def has(flag: Mode) -> Value:
        return f.compare("icmp ne", f.binary("and", mode, i64(flag)), i64(0))

    def share() -> None:
        f.run("share", function, buffers, tasks)

    def alone() -> None:
        f.do(f"call void {function.name}({buffers}, i64 0, {tasks})")

    f.branch(has(Mode.SHARED), share, alone)
    f.leave(f.binary("add", count, i64(5)))
    return f.branch(has(Mode.ENDS), lambda: [f.call("attend", "i64", _SIGNALS)], lambda: [_OK])[0]


def _host(f: _Command) -> Value:
    function = f.cast("inttoptr", f.word(1), "ptr")
    status = f.let("i64", f"call i64 {function.name}({_TABLE})")
    f.leave(2)
    return status


def _copy(f: _Command) -> Value:
    f.run("llvm.memcpy.p0.p0.i64", f.pointer(f.word(1)), f.pointer(f.word(2)), f.word(3), Value("i1", "false"))
    f.leave(4)
    return _OK


def _point(f: _Command) -> Value:
    f.store(f.pointer(f.word(2)), f.slot(f.word(1)), 8)
    f.leave(3)
    return _OK


def _swap(f: _Command) -> Value:
    first, second = f.slot(f.word(1)), f.slot(f.word(2))
    x, y = f.load("ptr", first, 8), f.load("ptr", second, 8)
    f.store(y, first, 8)
    f.store(x, second, 8)
    f.leave(3)
    return _OK


def _row(f: _Command) -> Value:
    counter = f.load("i64", f.slot(f.word(4)), 8)
    row = f.at(f.pointer(f.word(2)), "i8", f.binary("mul", counter, f.word(3)))
    f.store(row, f.slot(f.word(1)), 8)
    f.leave(5)
    return _OK


def _begin_loop(f: Function) -> tuple[str, str, str]:
    """Emit the start of a loop; return the labels of its test, its body and its end."""
    again, iteration, over = f.fresh("again"), f.fresh("turn"), f.fresh("over")
    f.do(f"br label %{again}")
    f.label(again)
    return again, iteration, over


def _loop(f: _Command) -> Value:
    count, counter, first, step, words = f.word(1), f.slot(f.word(2)), f.word(3), f.word(4), f.word(5)
    start, end = f.words(i64(6), words)
    status, number = f.alloca("i64", align=8), f.alloca("i64", align=8)
    f.store(_OK, status, 8)
    f.store(i64(0), number, 8)
    again, iteration, over = _begin_loop(f)
    i = f.load("i64", number, 8)
    good = f.compare("icmp eq", f.load("i64", status, 8), _OK)
    f.do(f"br {f.binary('and', good, f.compare('icmp slt', i, count))}, label %{iteration}, label %{over}")
    f.label(iteration)
    f.store(f.binary("add", first, f.binary("mul", i, step)), counter, 8)
    f.store(f.until_failure(f.attend(i), lambda: f.execute(start, end)), status, 8)
    f.store(f.binary("add", i, i64(1)), number, 8)
    f.do(f"br label %{again}")
    f.label(over)
    f.leave(f.binary("add", words, i64(6)))
    return f.load("i64", status, 8)


def _while(f: _Command) -> Value:
    slot, condition_words, body_words = f.word(1), f.word(2), f.word(3)
    condition, body = f.words(i64(4), condition_words)
    _, end = f.words(f.binary("add", condition_words, i64(4)), body_words)
    status, count = f.alloca("i64", align=8), f.alloca("i64", align=8)
    f.store(i64(0), count, 8)
    again, iteration, over = _begin_loop(f)
    asked = f.execute(condition, body)
    f.store(asked, status, 8)
    holds = f.compare("icmp ne", f.load("i8", f.pointer(slot), 1), Value("i8", "0"))
    f.do(f"br {f.binary('and', holds, f.compare('icmp eq', asked, _OK))}, label %{iteration}, label %{over}")
    f.label(iteration)
    number = f.binary("add", f.load("i64", count, 8), i64(1))
    f.store(number, count, 8)
    done = f.until_failure(f.attend(number), lambda: f.execute(body, end))
    f.store(done, status, 8)
    f.do(f"br {f.compare('icmp eq', done, _OK)}, label %{again}, label %{over}")
    f.label(over)
    f.leave(f.binary("add", f.binary("add", condition_words, body_words), i64(4)))
    return f.load("i64", status, 8)


def _switch(f: _Command) -> Value:
    slot, count = f.word(1), f.word(2)
    index = f.cast("sext", f.load("i32", f.pointer(slot), 4), "i64")
    last = f.binary("sub", count, i64(1))
    index = f.intrinsic("llvm.smax.i64", "i64", index, i64(0))
    index = f.intrinsic("llvm.smin.i64", "i64", index, last)

    def pass_body(i: Value, carried: list[Value]) -> list[Value]:
        """Emit the words before the chosen body, and before the end of all."""
        before, total = carried
        words = f.word(f.binary("add", i, i64(3)))
        earlier = f.compare("icmp slt", i, index)
        return [f.binary("add", before, f.select(earlier, words, i64(0))), f.binary("add", total, words)]

    before, total = f.loop(i64(0), count, 1, [i64(0), i64(0)], pass_body)
    head = f.binary("add", count, i64(3))
    start, end = f.words(f.binary("add", head, before), f.word(f.binary("add", index, i64(3))))
    status = f.execute(start, end)
    f.leave(f.binary("add", head, total))
    return status


_WRITERS: dict[Op, Callable[[_Command], Value]] = {
    Op.RUN: _run,
    Op.HOST: _host,
    Op.COPY: _copy,
    Op.POINT: _point,
    Op.SWAP: _swap,
    Op.ROW: _row,
    Op.LOOP: _loop,
    Op.WHILE: _while,
    Op.SWITCH: _switch,
}


def _write_execute(module: Module) -> None:
    """Define ``i64 @execute(code, end, table)``, which makes a record of signals."""
    f = Function(module, "execute", [_CODE, _END, _TABLE], "i64")
    signals = f.alloca("i64", len(SignalWord), 8)
    for word, value in ((SignalWord.HANDLE, Value("ptr", "@attend")), (SignalWord.STATUS, _OK), (SignalWord.SECOND, i64(0))):
        f.store(value, f.at(signals, "i64", i64(word)), 8)
    f.finish(f.call("commands", "i64", _CODE, _END, _TABLE, signals))


def _write_commands(module: Module) -> None:
    """Define ``i64 @commands(code, end, table, signals)``, which returns a status."""
    doers = ", ".join(f"ptr @do_{op.name.lower()}" for op in Op)
    module.declare("doers", f"@doers = internal constant [{len(Op)} x ptr] [{doers}]")
    f = Function(module, "commands", [_CODE, _END, _TABLE, _SIGNALS], "i64")
    next_command = f.alloca("ptr", align=8)
    status = f.alloca("i64", align=8)
    f.store(_CODE, next_command, 8)
    f.store(_OK, status, 8)
    again, iteration, over = _begin_loop(f)
    code = f.load("ptr", next_command, 8)
    good = f.compare("icmp eq", f.load("i64", status, 8), _OK)
    f.do(f"br {f.binary('and', good, f.compare('icmp ult', code, _END))}, label %{iteration}, label %{over}")
    f.label(iteration)
    doer = f.load("ptr", f.at(Value("ptr", "@doers"), "ptr", f.load("i64", code, 8)), 8)
    f.store(f.let("i64", f"call i64 {doer.name}({code}, {_TABLE}, {next_command}, {_SIGNALS})"), status, 8)
    f.do(f"br label %{again}")
    f.label(over)
    f.finish(f.load("i64", status, 8))


def _write_attend(module: Module) -> None:
    """Define ``i64 @attend(ptr signals)``, which has Python handle signals.

    It does so when the second has changed, since Python's lock may have to be waited for. The status is `INTERRUPTED` if a handler raised.
    """
    for name, signature in (("time", "i64 @time(ptr)"), ("ensure", "i32 @PyGILState_Ensure()")):
        module.declare(name, f"declare {signature}")
    module.declare("check", "declare i32 @PyErr_CheckSignals()")
    module.declare("release", "declare void @PyGILState_Release(i32)")
    f = Function(module, "attend", [_SIGNALS], "i64")
    second, status = (f.at(_SIGNALS, "i64", i64(word)) for word in (SignalWord.SECOND, SignalWord.STATUS))
    now, before = f.call("time", "i64", Value("ptr", "null")), f.load("i64", second, 8)

    def handle() -> None:
        state = f.call("PyGILState_Ensure", "i32")
        raised = f.call("PyErr_CheckSignals", "i32")
        f.run("PyGILState_Release", state)
        outcome = f.select(f.compare("icmp eq", raised, Value("i32", "0")), _OK, i64(Status.INTERRUPTED))
        f.do(f"store atomic {outcome}, {status} monotonic, align 8")

    def next_second() -> None:
        f.store(now, second, 8)
        f.branch(f.compare("icmp ne", before, i64(0)), handle)  # the program has just begun

    f.branch(f.compare("icmp ne", now, before), next_second)
    f.finish(f.load("i64", status, 8))
