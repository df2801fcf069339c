"""Functions that compute in float64 whatever the width: rare ones, for which one set of coefficients is enough."""

from __future__ import annotations

import functools
from collections.abc import Callable

from volta_fn.backends.native.scalars.lanes import Lanes


def wide(function: Callable[..., Lanes]) -> Callable[..., Lanes]:
    """The function in float64, for operands of float32 too."""

    @functools.wraps(function)
    def widened(*operands: Lanes) -> Lanes:
        if operands[0].bits == 64:
            return function(*operands)
        return function(*[x.cast("fpext", "double") for x in operands]).cast("fptrunc", "float")

    return widened
