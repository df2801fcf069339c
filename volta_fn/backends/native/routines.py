"""The routines of kernels, and of single equations by the names of their primitives."""

from __future__ import annotations

from volta_fn.backends.native import convolution, library, loops, matmul
from volta_fn.backends.native.routine import Routine
from volta_fn.compiler.bodies import RoutineMaker
from volta_fn.compiler.kernels.ir import Kernel

ROUTINES: dict[str, RoutineMaker] = {**matmul.ROUTINES, **convolution.ROUTINES, **library.ROUTINES}

#: Primitives whose routines let the result be the memory of the operand at a position.
IN_PLACE: dict[str, int] = library.IN_PLACE


def kernel_routine(kernel: Kernel) -> Routine | None:
    """The routine of a kernel: as a product, if it is one, else as loops; None if there is none."""
    return matmul.contraction(kernel) or loops.routine(kernel)
