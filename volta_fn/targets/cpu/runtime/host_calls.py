"""Functions of NumPy that programs call, and Ctrl-C while they run."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any

import numpy as np

from volta_fn.compiler.buffers import Slot
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.ir.specification import interpret
from volta_fn.core.jaxpr import Equation
from volta_fn.interrupts import SIGINT, get_handler, set_handler, valid_signals
from volta_fn.primitives.callbacks import pure_callback_p
from volta_fn.runtime.internals.array_calls import Status
from volta_fn.runtime.internals.threads import silenced
from volta_fn.targets.numpy.backend import make_kernel, out_results
from volta_fn.targets.numpy.memory import workspace

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
