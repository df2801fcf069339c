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


#: The first bit of magnitudes, and the number of bits below half a unit in the last place of bfloat16 from there on.
_STICKY = ((24, 16), (39, 31), (54, 46))


def with_sticky_bits(x: V, signed: bool) -> V:
    """Replace bits that float32 would round away by one below all ties of bfloat16.

    The result is exact in float32, and rounding that to bfloat16 rounds as if it were the first time.
    """
    magnitude = x.below(0).select(~x, x) if signed else x
    for first, low in _STICKY:
        if first < x.bits:
            rest = x & ((1 << low) - 1)
            inexact = magnitude.compare("uge", 1 << first) & rest.compare("ne", 0)
            x = inexact.select((x - rest) + (1 << (low - 1)), x)
    return x


Formula = Callable[..., Values]


def in_float64(formula: Formula) -> Formula:
    """Decorate a formula to compute float32 in float64 where that is at hand."""

    @functools.wraps(formula)
    def widened(*operands: Values) -> Values:
        if operands[0].bits == 64 or not operands[0].widens:
            return formula(*operands)
        return formula(*[x.widened() for x in operands]).narrowed()

    return widened


def in_float64_unless_fused(formula: Formula) -> Formula:
    """Decorate a formula of float32 to compute in float64 without a compiler.

    There rounding errors of products are not cheap, and NumPy's exponential is off by some units.
    """
    widened = in_float64(formula)

    @functools.wraps(formula)
    def evaluated(*operands: Values) -> Values:
        return (formula if operands[0].fuses else widened)(*operands)

    return evaluated
