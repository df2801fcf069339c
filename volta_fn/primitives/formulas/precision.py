"""More digits than a dtype has: rounding errors, and float32 in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from volta_fn.primitives.formulas.values import Values

V = TypeVar("V", bound=Values)


def exact_product(x: V, y: V | float) -> tuple[V, V]:
    """Return x y rounded, and the rounding error."""
    product = x * y
    return product, x.product_error(y, product)


def exact_sum(x: V, y: V) -> tuple[V, V]:
    """Return x + y rounded, and the rounding error (Knuth)."""
    total = (x + y).held()
    added = (total - x).held()
    return total, (x - (total - added)) + (y - added)


def exact_sum_ordered(x: V | float, y: V) -> tuple[V, V]:
    """Return x + y rounded, and the error, for |x| >= |y| (Dekker)."""
    total = (x + y).held()
    return total, y - (total - x)


Formula = Callable[..., Values]


def in_float64(formula: Formula) -> Formula:
    """Decorate a formula to compute float32 in float64 where that is at hand."""

    @functools.wraps(formula)
    def widened(*operands: Values) -> Values:
        if operands[0].bits == 64 or not operands[0].widens:
            return formula(*operands)
        return formula(*[x.widened() for x in operands]).narrowed()

    return widened
