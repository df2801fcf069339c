"""The routines of single equations, by the names of their primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.backends.native import convolution, library, matmul
from volta_fn.backends.native.routine import Routine
from volta_fn.core.aval import ShapedArray

#: How an equation becomes a routine: (operands' types, parameters) -> routine, or None if it has none.
RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any]], Routine | None]

ROUTINES: dict[str, RoutineMaker] = {**matmul.ROUTINES, **convolution.ROUTINES, **library.ROUTINES}

#: Primitives whose routines let the result be the memory of the operand at a position.
IN_PLACE: dict[str, int] = library.IN_PLACE
