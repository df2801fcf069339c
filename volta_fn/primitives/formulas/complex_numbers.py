"""Complex numbers: pairs of floats with operators."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from volta_fn.primitives.formulas.values import Values


class Complex(NamedTuple):
    """re + i im, of a target's own class of `Values`."""

    re: Any
    im: Any

    def __add__(self, other: Complex) -> Complex:  # type: ignore[override]  # tuples add otherwise
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __mul__(self, other: Complex) -> Complex:  # type: ignore[override]  # tuples multiply otherwise
        """Multiply as NumPy does where there is a fused multiply-add."""
        return Complex(self.re.fma(other.re, -(self.im * other.im)), self.re.fma(other.im, self.im * other.re))

    def __truediv__(self, other: Complex) -> Complex:
        """Divide by Smith's algorithm (1962), as NumPy does.

        It divides by the larger component of the divisor, so that no square overflows.
        """
        flat = other.re.abs().compare("oge", other.im.abs())
        large, small = flat.select(other.re, other.im), flat.select(other.im, other.re)
        both_zero = large.abs().equals(0.0)
        ratio = small / large
        scale = 1.0 / (large + small * ratio)
        first, second = flat.select(self.re, self.im), flat.select(self.im, self.re)
        re = (first + second * ratio) * scale
        im = second - first * ratio
        im = flat.select(im, first * ratio - second) * scale
        zero = other.re.abs()
        return Complex(both_zero.select(self.re / zero, re), both_zero.select(self.im / zero, im))

    def conj(self) -> Complex:
        """Return re - i im."""
        return Complex(self.re, -self.im)


def distance(x: Values, y: Values) -> Values:
    """Return sqrt(x^2 + y^2) without squares that overflow.

    float32 computes in float64 where it can; else both are scaled by a power of two.
    """
    large = x.abs().at_least(y.abs())
    infinite = x.abs().equals(math.inf) | y.abs().equals(math.inf)
    if x.bits == 32 and x.widens:
        a, b = x.widened(), y.widened()
        return infinite.select(math.inf, a.fma(a, b * b).sqrt().narrowed())
    huge, tiny = large.above(1e15), large.below(1e-15)
    down = huge.select(2.0**-64, tiny.select(2.0**64, x.like(1.0)))
    up = huge.select(2.0**64, tiny.select(2.0**-64, x.like(1.0)))
    a, b = x * down, y * down
    root = a.mad(a, b * b).sqrt() * up
    return infinite.select(math.inf, x.compare("uno", y).select(math.nan, root))
