"""Programs ready to run: functions of NumPy arrays, with those that they call.

Programs are compiled, or loaded from the disk.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.buffers import Output
from volta_fn.compiler.ir.kernel import Kernel, interpret
from volta_fn.core.arrays.array import ArraySpec
from volta_fn.core.caches import Finalized
from volta_fn.core.devices.device import Executable
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.errors import OutOfMemoryError
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import pure_callback_p
from volta_fn.runtime.fastcall import MOST_OPERANDS, MOST_RESULTS, ProgramWord, Status, release
from volta_fn.runtime.native_calls import silenced
from volta_fn.runtime.result_allocator import LARGE
from volta_fn.runtime.threads import compile_uninterrupted
from volta_fn.signals import SIGINT, get_handler, set_handler, valid_signals
from volta_fn.targets.cpu.runtime.artifact import Artifact, key_of, read_program, write_program
from volta_fn.targets.cpu.runtime.executor import support_code_of_process
from volta_fn.targets.numpy.backend import make_kernel, out_results
from volta_fn.targets.numpy.memory import workspace

if TYPE_CHECKING:
    from volta_fn.compiler.emission import Slot
    from volta_fn.compiler.target import Passes


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
    """Tell whether a signal came in protected code."""
    # It may have been passed on by the handler of another signal that came there.
    if frame is None or frame.f_code in _protected:
        return frame is not None
    handlers = {getattr(get_handler(number), "__code__", None) for number in valid_signals()}
    while frame is not None and frame.f_code in handlers:
        frame = frame.f_back
    return frame is not None and frame.f_code in _protected


def _execute(enter: Callable[..., int], arrays: tuple[Any, ...]) -> int:
    """Call `enter` in a frame that is not protected."""
    # A signal that arrives in its machine code is handled at once, and ends loops.
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

#: A slot, and the shape and dtype of the array there.
SlotArray = tuple["Slot", tuple[int, ...], Any]


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
    if out_results(eqn) and not eqn.primitive.holds_programs:
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


# Programs ready to run: functions of NumPy arrays, compiled or from the disk.

#: Records of programs. The tables of collected programs are freed when another program is created.
_records: Finalized[np.ndarray] = Finalized()


@functools.cache
def _compiler() -> Any:
    """Load the compiler, when the first program is compiled that is not on disk."""
    return load("volta_fn.targets.cpu.runtime.compile")


class Program:
    """A compiled program: a function ``(donate, *arrays) -> arrays``."""

    @classmethod
    def of(cls, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Program:
        """Return a traced program, compiled unless it is on disk."""
        return compile_uninterrupted(cls._of, closed, donated, pipeline)

    @classmethod
    def _of(cls, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Program:
        key = key_of(closed, donated)
        cached = None if key is None else read_program(key)
        if cached is not None:
            return cls(cached.artifact, cached.code.addresses, [cached.code])
        built = _compiler().build(closed, donated, pipeline)
        if key is not None and not built.hosts:
            write_program(key, built.artifact, [(launch.entry, launch.symbol) for launch in built.launches])
        return cls(built.artifact, [launch.address for launch in built.launches], [launch.code for launch in built.launches], built.hosts)

    def __init__(self, artifact: Artifact, addresses: Sequence[int], code: Sequence[Any], hosts: Sequence[Any] = ()) -> None:
        """Take a program, its launches' addresses in loaded code, and host functions."""
        self.outputs, self.reuse, layout = artifact.outputs, dict(artifact.reuse), artifact.layout
        large = support_code_of_process().large_empty
        #: The allocator, shape and dtype of each array that a call makes.
        shapes = {output.result: output.shape for output in reversed(artifact.outputs)}  # of the first output that each array is
        self.specs = [
            (large if math.prod(s) * d.itemsize >= LARGE else np.empty, shapes.get(number, s), d)
            for number, (s, d) in enumerate(artifact.specs)
        ]
        self.code = artifact.words.copy()
        self.code[artifact.launch_words] = np.array(addresses, np.int64)[artifact.words[artifact.launch_words]]
        self.template = np.zeros(layout.slots, np.int64)
        constants = layout.callers + len(layout.offsets)
        self.template[layout.callers : constants] = layout.offsets
        self.template[constants : constants + len(layout.constants)] = [array.ctypes.data for array in layout.constants]
        self.references = (hosts, layout.constants, code)
        #: Whether steps run in NumPy.
        self.calls_host = bool(hosts)
        words = {
            ProgramWord.CODE: self.code.ctypes.data,
            ProgramWord.END: self.code.ctypes.data + self.code.nbytes,
            ProgramWord.SLOTS: layout.slots,
            ProgramWord.CALLER: layout.callers,
            ProgramWord.ARENA_FIRST: layout.callers,
            ProgramWord.ARENA_SLOTS: len(layout.offsets),
            ProgramWord.ARENA_BYTES: layout.arena,
            ProgramWord.TEMPLATE: self.template.ctypes.data,
            ProgramWord.TABLE: 0,
            ProgramWord.LONG: int(artifact.long),
        }
        self.record = np.array([words[name] for name in ProgramWord], np.int64)
        for record in _records.drain():
            release(record)
        _records.add(self, self.record)
        enter = support_code_of_process().functions.function(self.record)
        self.enter = interruptible(enter) if hosts else enter
        #: See `Executable.copied`.
        self.copied: list[int] = []
        #: Whether the outputs are the arrays that a call makes, in order.
        self.is_plain = [(o.result, o.shape) for o in self.outputs] == [(number, shape) for number, (_, shape, _) in enumerate(self.specs)]
        #: Bytes of the arena, and of what one function of NumPy needs for itself.
        self.temporaries = layout.arena + max([host.workspace for host in hosts], default=0)

    def executable(self) -> Executable:
        """Return the program for `jit`; the common case skips output remapping.

        In that case all results are freshly allocated.
        """
        if self.reuse or not self.is_plain:
            return Executable(self, None, self.copied)
        specs, enter, retry = self.specs, self.enter, self._retry

        def run_program(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            results = [empty(shape, dtype) for empty, shape, dtype in specs]
            status = enter(*arguments, *results)
            return results if not status else retry(status, arguments)

        if self.calls_host or not specs:  # a built-in's fallback would call a failing callback again
            return Executable(run_program, None, self.copied)
        takes_few = self.record[ProgramWord.CALLER] - len(specs) <= MOST_OPERANDS and len(specs) <= MOST_RESULTS
        of_arrays = self._of_arrays if takes_few else None
        if len(specs) > 1:
            return Executable(run_program, of_arrays, self.copied)
        ((empty, shape, dtype),) = specs

        def run_single_result(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            out = empty(shape, dtype)
            status = enter(*arguments, out)
            return (out,) if not status else retry(status, arguments)

        return Executable(run_single_result, of_arrays, self.copied)

    def _of_arrays(
        self, specs: Sequence[ArraySpec], within: type[tuple] | type[list] | None, fallback: Callable[..., Any]
    ) -> Callable[..., Any]:
        """See `OfArrays`."""
        makes = [functools.partial(empty, shape, dtype) for empty, shape, dtype in self.specs]
        return support_code_of_process().functions.of_arrays(self, self.record, makes, specs, within, fallback)

    def __call__(self, donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
        """Return the results; donated arguments may be overwritten if `donate` says so."""
        over = self.reuse if donate else {}
        results = [
            _shaped(arguments[over[number]], shape) if number in over else empty(shape, dtype)
            for number, (empty, shape, dtype) in enumerate(self.specs)
        ]
        status = self.enter(*arguments, *results)
        if status:
            results = self._retry(status, arguments)
        return results if self.is_plain else [self._result(output, arguments, results) for output in self.outputs]

    def _result(self, output: Output, arguments: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> np.ndarray:
        if output.result is not None:
            array = results[output.result]
        else:
            array = output.constant if output.constant is not None else arguments[output.argument or 0]
        return _shaped(array, output.shape)

    def _retry(self, status: int, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program again, with contiguous copies of arguments.

        Raises the error of any status but `NOT_CONTIGUOUS`. Returns new results: those of the first attempt may be in arguments' memory.
        """
        if status == Status.NO_MEMORY:
            raise OutOfMemoryError(f"a program needs {self.temporaries} bytes for values between its arguments and its results")
        if status != Status.NOT_CONTIGUOUS:
            raise failure()
        self.copied.extend([number for number, argument in enumerate(arguments) if not argument.flags.c_contiguous])
        results = [empty(shape, dtype) for empty, shape, dtype in self.specs]
        contiguous = [np.require(a, requirements=["C", "A"]) for a in arguments]
        status = self.enter(*contiguous, *results)
        return results if not status else self._retry(status, contiguous)


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape else array.reshape(shape)
