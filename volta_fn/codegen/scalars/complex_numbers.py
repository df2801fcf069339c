"""Complex numbers: pairs of floats with operators, and what the elementwise operations are for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn.codegen.scalars.functions.integer_powers import integer_pow
from volta_fn.codegen.scalars.values import Values


class Complex(NamedTuple):
    """re + i im, of a lane's own class of `Values`."""

    re: Any
    im: Any

    def __add__(self, other: Complex) -> Complex:  # type: ignore[override]  # tuples add otherwise
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __mul__(self, other: Complex) -> Complex:  # type: ignore[override]  # tuples multiply otherwise
        """As NumPy has it where there is a fused multiply-add."""
        return Complex(self.re.fma(other.re, -(self.im * other.im)), self.re.fma(other.im, self.im * other.re))

    def __truediv__(self, other: Complex) -> Complex:
        """Smith's algorithm (1962), as NumPy has it: the larger part of the divisor is divided by, so that no square overflows."""
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
        """re - i im."""
        return Complex(self.re, -self.im)

    def abs(self) -> Values:
        """The distance from 0: of parts in float32 by way of float64; else scaled by the larger part, so that no square overflows."""
        large = self.re.abs().at_least(self.im.abs())
        infinite = self.re.abs().equals(math.inf) | self.im.abs().equals(math.inf)
        if self.re.bits == 32:
            re, im = self.re.widened(), self.im.widened()
            distance = re.fma(re, im * im).sqrt().narrowed()
        else:
            ratio = self.re.abs().at_most(self.im.abs()) / large
            distance = large.equals(0.0).select(0.0, large * ratio.fma(ratio, 1.0).sqrt())
            distance = self.re.compare("uno", self.im).select(math.nan, distance)
        return infinite.select(math.inf, distance)


ComplexOperation = Callable[..., Any]

COMPLEX: dict[str, ComplexOperation] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "integer_pow": integer_pow,
    "conj": lambda x: x.conj(),
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "eq": lambda x, y: x.re.equals(y.re) & x.im.equals(y.im),
    "ne": lambda x, y: x.re.compare("une", y.re) | x.im.compare("une", y.im),
}
