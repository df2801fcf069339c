"""The routines of kernels, and of equations by the names of their primitives."""

from __future__ import annotations

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import RoutineMaker
from volta_fn.targets.cpu import convolution, library, loops, matmul
from volta_fn.targets.cpu.routine import Routine

ROUTINES: dict[str, RoutineMaker] = {**matmul.ROUTINES, **convolution.ROUTINES, **library.ROUTINES}

#: Primitives whose routines let the result be the memory of the operand at a position.
IN_PLACE: dict[str, int] = library.IN_PLACE


def kernel_routine(kernel: Kernel) -> Routine | None:
    """Generate the routine of a kernel, as a product or as loops; None if unsupported."""
    return matmul.contraction(kernel) or loops.routine(kernel)
