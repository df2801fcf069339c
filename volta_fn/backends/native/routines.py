"""The routines of single equations, by the names of their primitives."""

from __future__ import annotations

from volta_fn.backends.native import convolution, library, matmul
from volta_fn.compiler.bodies import RoutineMaker

ROUTINES: dict[str, RoutineMaker] = {**matmul.ROUTINES, **convolution.ROUTINES, **library.ROUTINES}

#: Primitives whose routines let the result be the memory of the operand at a position.
IN_PLACE: dict[str, int] = library.IN_PLACE
