"""Functions that compute in float64 whatever the width, so that one set of coefficients is enough; and what they are where float64 is not
at hand."""

from __future__ import annotations

import functools
from collections.abc import Callable

from volta_fn.codegen.scalars.values import Values

Function = Callable[..., Values]


def wide(single: Function) -> Callable[[Function], Function]:
    """Decorates a function of float64: of float32 it is the same in float64, or `single` where a lane has no float64 to spare."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def widened(*operands: Values) -> Values:
            if operands[0].bits == 64:
                return function(*operands)
            if not operands[0].widens:
                return single(*operands)
            return function(*[x.widened() for x in operands]).narrowed()

        return widened

    return decorate
