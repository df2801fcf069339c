"""Routines: machine code generated for a kernel or an equation.

A routine is LLVM IR with entry points, each called a *launch*. A launch does a number of independent *tasks*, which the runtime shares out
to threads; the next launch begins when all are done. The tasks, and so the results, are the same for any number of threads. An entry point
is ``void symbol(ptr buffers, i64 begin, i64 end)``: it does the tasks from `begin` up to `end`. `buffers` is an array of pointers: to the
operands, the results, and (if the routine asks for some) a workspace, in this order. Arrays are contiguous, and aligned to their elements
at least; results and workspaces are uninitialised, and a result shares memory with an operand only where the target lets it
(`Target.overwritable`). The pointer before the first one is that to the call's `SignalWord` record, for tasks that may take long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.target import RoutineKey
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, SharedFunction, Value, element_of, i64, least
from volta_fn.targets.cpu.scalars import Number, apply

#: The parameters of an entry point.
BUFFERS, BEGIN, END = Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")
#: The most operands and results of a routine.
MOST_ARRAYS = 511
#: Estimated nanoseconds from which a launch wakes other threads, which takes about as long, and from which those that are awake help.
WORTH_WAKING, WORTH_SHARING = 20_000.0, 4_000.0


def entry_point(module: Module, symbol: str) -> Function:
    """Begin an entry point, whose parameters are `BUFFERS`, `BEGIN` and `END`."""
    return Function(module, symbol, [BUFFERS, BEGIN, END])


def buffer_pointer(f: Function, number: int, buffers: Value = BUFFERS) -> Value:
    """Emit the pointer to a buffer, an operand, a result or the workspace."""
    return f.load("ptr", f.at(buffers, "ptr", i64(number)), 8)


class SignalWord(IntEnum):
    """Words of a call's record of signals."""

    #: ``i64 handle(ptr record)`` has Python handle signals, at most once a second, and returns the status.
    HANDLE = 0
    #: 0 unless the program is to end.
    STATUS = 1
    #: The second in which signals were last handled.
    SECOND = 2


def signals_of(f: Function, buffers: Value) -> Value:
    """Emit the address of the record of signals of the call whose buffers these are."""
    return buffer_pointer(f, -1, buffers)


def signal_status(f: Function, signals: Value) -> Value:
    """Emit the status of a call, which another thread may have set."""
    return f.let("i64", f"load atomic i64, {f.at(signals, 'i64', i64(SignalWord.STATUS))} monotonic, align 8")


def handle_signals(f: Function, signals: Value) -> Value:
    """Emit the handling of signals; return the status.

    Unless it is 0, the routine ends without its results.
    """
    return f.let("i64", f"call i64 {f.load('ptr', signals, 8).name}({signals})")


@dataclass(frozen=True)
class Launch:
    """An entry point: one parallel loop over tasks."""

    symbol: str
    #: The number of independent tasks; each should take 20 µs or more, if there is enough work.
    tasks: int
    #: Estimated nanoseconds of all tasks on one thread (`WORTH_WAKING`, `WORTH_SHARING`).
    cost: float
    #: Whether it restores what earlier launches have changed outside of the program, and so runs even if a signal's handler has raised.
    #: It has one task, as threads begin no tasks of a program that is to end, and comes right after the only launch that takes long.
    restores: bool = False
    #: Whether it only copies an operand to the result, and is left out where these share memory.
    is_copy: bool = False
    #: Whether it handles signals itself, which only the thread with the launch may do: another would wait for Python's lock, which that
    #: thread may hold. So it has one task, and does not run together with others.
    polls: bool = False


@dataclass(frozen=True)
class Routine:
    """Generated code, to be compiled."""

    text: str
    launches: tuple[Launch, ...]
    #: Bytes of workspace that it needs, aligned to 64.
    workspace: int = 0
    #: Functions that the text declares, and which other routines use, too.
    shared: tuple[SharedFunction, ...] = ()
    #: Whether it has numbers of float16, which some machines cannot convert.
    has_float16: bool = False

    @classmethod
    def of(cls, module: Module, launches: Sequence[Launch], workspace: int = 0) -> Routine:
        """Return the routine of a module."""
        has_float16 = any(element_of(type_) == "half" for type_ in module.types)
        return cls(str(module), tuple(launches), workspace, tuple(module.shared.values()), has_float16)


def routine_of(key: RoutineKey) -> Routine | None:
    """Generate a routine; None if the target has none.

    Nor has it one of float16 on a machine that converts none.
    """
    # LLVM would call functions that no library has, and never ends on WebAssembly's vectors of them.
    routine: Routine | None = key.make()
    return routine if routine is None or host().converts_float16 or not routine.has_float16 else None


# Routines under construction: entry points whose bodies do one task.

#: Bytes that a task of moving memory should touch.
TASK_BYTES = 1 << 17

#: ``body(f, pointers, task)`` writes one task; pointers are those of the operands, the results, and the workspace if there is one.
Body = Callable[[Function, list[Value], Value], None]


class RoutineWriter:
    """A routine under construction; launches are added in the order in which they run."""

    def __init__(self, name: str, buffers: int) -> None:
        self.module = Module()
        self._name = name
        self._buffers = buffers
        self._launches: list[Launch] = []

    def launch(self, tasks: int, cost: float, body: Body, *, restores: bool = False, is_copy: bool = False, polls: bool = False) -> None:
        """Add an entry point."""
        assert tasks == 1 or not (restores or polls), "see `Launch`"
        symbol = f"{self._name}_{len(self._launches)}{'_copy' * is_copy}"
        f = entry_point(self.module, symbol)
        pointers = [buffer_pointer(f, k) for k in range(self._buffers)]

        def iteration(task: Value, _: list[Value]) -> None:
            body(f, pointers, task)

        f.loop(BEGIN, END, 1, [], iteration)
        f.finish()
        self._launches.append(Launch(symbol, tasks, cost, restores, is_copy, polls))

    def routine(self, workspace: int = 0) -> Routine:
        """Return the routine. `buffers` includes the workspace, if there is one."""
        return Routine.of(self.module, self._launches, workspace)


def empty_routine() -> Routine:
    """Return the routine of results without elements."""
    return Routine("", ())


def chunk_count(size: int, smallest: int, most: int = 64) -> int:
    """Return the number of chunks of at least `smallest` elements, and at most `most`."""
    return max(1, min(most, size // max(1, smallest)))


def even_count(count: int) -> int:
    """Return about so many tasks, of which two threads have equal shares.

    If there are several, four threads have, too.
    """
    return count if count <= 2 else max(1, round(count / 4)) * 4


def task_range(f: Function, task: Value, size: int, count: int, grain: int = 1) -> tuple[Value, Value]:
    """Emit the range, out of `size` elements, of one of `count` tasks.

    All ranges but the last are multiples of `grain`.
    """
    step = -(-size // (count * grain)) * grain
    begin = least(f, f.times(task, step), i64(size))
    return begin, least(f, f.plus(begin, i64(step)), i64(size))


# Numbers in routines: lanes, conversions, and loops over runs of them.

_HALF = (np.dtype(np.float16), np.dtype(dtypes.bfloat16))


def lanes_for(dtype: np.dtype) -> int:
    """Return how many numbers a vector has: a register's worth, but at most 16."""
    return min(16, host().lanes(accumulator(dtype).itemsize))


def converted(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Emit numbers in another dtype; float16 and bfloat16 are held as float32 already."""
    if x.dtype == dtype:
        return x
    if x.dtype in _HALF and dtype == np.float32:
        return Number(dtype, x.components)
    return apply(f, "convert_element_type", (x,), dtype, {"new_dtype": dtype, "weak_type": False})


def map_run(f: Function, begin: Value, end: Value, lanes: int, write: Callable[[Value, int, Value | None], None]) -> None:
    """Call ``write(i, lanes, count)`` for vectors from `begin` up to `end`.

    Of the last one perhaps only `count` lanes exist.
    """

    def full_vector(i: Value, _: list[Value]) -> None:
        write(i, lanes, None)

    size = f.minus(end, begin)
    rest = f.remainder(size, lanes)
    last = f.minus(end, rest)
    if f.known(last) is None or f.known(last) != f.known(begin):
        f.loop(begin, last, lanes, [], full_vector)
    if f.known(rest) == 0:
        return

    def remainder() -> None:
        write(last, lanes, rest)

    remainder() if f.known(rest) else f.branch(f.compare("icmp sgt", rest, i64(0)), remainder)
