"""The CPU as a device: NumPy for operations, machine code for programs.

Machine code needs llvmlite; VOLTA_NATIVE=0 switches it off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from volta_fn.core.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.lazy_imports import load
from volta_fn.runtime.llvm.host import may_compile
from volta_fn.targets.numpy.backend import NumpyBackend

if TYPE_CHECKING:
    from volta_fn.compiler.program import Pipeline


class CpuBackend(NumpyBackend):
    """The backend of the CPU: NumPy arrays as buffers, programs in machine code."""

    def __init__(self) -> None:
        #: Whether programs become machine code.
        self.native = may_compile()

    @property
    def target(self) -> Any:
        """The target that programs are lowered for; None if NumPy runs them."""
        return load("volta_fn.targets.cpu.target").TARGET if self.native else None

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Callable[..., tuple[Any, ...]]:
        """Return a program as a function (donate, *buffers) -> buffers."""
        return _native_program().of(closed, donated, pipeline).function() if self.native else super().compile(closed, donated, pipeline)

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> int:
        """Return the most bytes of values that are neither arguments nor results."""
        return (
            _native_program().of(closed, donated, pipeline).temporaries if self.native else super().temporaries(closed, donated, pipeline)
        )


@functools.cache
def _native_program() -> Any:
    """Load the class of native programs, when the first one is compiled."""
    return load("volta_fn.targets.cpu.runtime.program").Program


def discover() -> list[Device]:
    """Return the CPU: one device with all its cores."""
    return [Device("cpu", 0, "cpu", CpuBackend())]
