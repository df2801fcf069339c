"""The routines of kernels, and of single equations by the names of their primitives."""

from __future__ import annotations

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import RoutineMaker
from volta_fn.targets.cpu import convolution, library, loops, matmul
from volta_fn.targets.cpu.routine import Routine

ROUTINES: dict[str, RoutineMaker] = {**matmul.ROUTINES, **convolution.ROUTINES, **library.ROUTINES}

#: Primitives whose routines let the result be the memory of the operand at a position.
IN_PLACE: dict[str, int] = library.IN_PLACE


def kernel_routine(kernel: Kernel) -> Routine | None:
    """The routine of a kernel: as a product, if it is one, else as loops; None if there is none."""
    return matmul.contraction(kernel) or loops.routine(kernel)
