"""Equations that NumPy computes, as functions that the executor calls.

Their exceptions are kept, and raised when the program has ended.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Slot
from volta_fn.compiler.ir.interpret import interpret
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.core.jaxpr import Equation
from volta_fn.runtime.internals.errstate import silenced
from volta_fn.targets.cpu.runtime.host_interrupts import deliver, protected
from volta_fn.targets.numpy.backend import make_kernel, written
from volta_fn.targets.numpy.workspace import workspace

#: The status of a host function that raised an exception.
FAILED = 1

_failures = threading.local()


@protected
def fail(error: BaseException) -> int:
    """Keep an exception for the end of the program, and return the status `FAILED`."""
    _failures.exception = error
    return FAILED


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
        #: Whether it writes its results into arrays, a list of which it is given first; else it returns a sequence of new ones.
        self.into = into
        #: The bytes that it needs for itself.
        self.workspace = workspace
        self.slots = [slot for slot, _, _ in (*operands, *results)]
        self._operands = [_array_at(*operand) for operand in operands]
        self._results = [_array_at(*result) for result in results]
        self.function = _FUNCTION(self._run)

    @property
    def address(self) -> int:
        """The function's address; it is there as long as this object."""
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    @protected
    def _run(self, table: int) -> int:
        try:
            deliver()
            arrays = [operand(table) for operand in self._operands]
            if self.into:
                self.compute([result(table) for result in self._results], *arrays)
                return 0
            found = self.compute(*[a.copy() for a in arrays] if self.copies else arrays)
            for result, value in zip(self._results, found, strict=True):
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
    copies = eqn.primitive.effectful or eqn.primitive.name == "pure_callback"  # the user's function
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
