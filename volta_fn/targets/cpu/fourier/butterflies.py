"""Fourier transforms of a few complex numbers in registers.

They are forward transforms without scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.targets.cpu.scalars.values import Lanes


class Complex(NamedTuple):
    """Complex numbers, one per lane."""

    re: Lanes
    im: Lanes

    def plus(self, other: Complex) -> Complex:
        """Return the sum."""
        return Complex(self.re + other.re, self.im + other.im)

    def minus(self, other: Complex) -> Complex:
        """Return the difference."""
        return Complex(self.re - other.re, self.im - other.im)

    def turned(self) -> Complex:
        """Return the product with -i."""
        return Complex(self.im, -self.re)

    def times(self, other: Complex) -> Complex:
        """Return the product."""
        re = self.re.fma(other.re, -(self.im * other.im))
        return Complex(re, self.re.fma(other.im, self.im * other.re))

    def grown(self, factor: Complex) -> Complex:
        """Return the product with 1 + a number, whose error is small if that number is."""
        return self.plus(self.times(factor))

    def scaled(self, factor: float) -> Complex:
        """Return the product with a number."""
        return Complex(self.re * factor, self.im * factor)

    def conjugate(self) -> Complex:
        """Return the conjugate."""
        return Complex(self.re, -self.im)


def butterfly(x: Sequence[Complex]) -> list[Complex]:
    """Return Σ_j x[j] exp(-2πi j k / r) for every k < r, where r is 2, 4, 8 or odd."""
    r = len(x)
    if r == 2:
        return [x[0].plus(x[1]), x[0].minus(x[1])]
    if r % 2:
        return _odd(x)
    even, odd = butterfly(x[::2]), butterfly(x[1::2])
    odd = [_rotated(z, k, r) for k, z in enumerate(odd)]
    return [a.plus(b) for a, b in zip(even, odd, strict=True)] + [a.minus(b) for a, b in zip(even, odd, strict=True)]


def _rotated(z: Complex, k: int, r: int) -> Complex:
    """Return z exp(-2πi k / r) for k < r / 2, r a power of two up to 8."""
    if not k:
        return z
    if 4 * k == r:
        return z.turned()
    turned = z.plus(z.turned()).scaled(math.sqrt(0.5))
    return turned if 8 * k == r else turned.turned()


def _odd(x: Sequence[Complex]) -> list[Complex]:
    """Combine the cosines with sums of pairs, the sines with their differences."""
    r = len(x)
    pairs = range(1, (r + 1) // 2)
    sums, differences = [x[j].plus(x[r - j]) for j in pairs], [x[j].minus(x[r - j]) for j in pairs]
    first = x[0]
    for term in sums:
        first = first.plus(term)
    results = [first] * r
    for k in pairs:
        cosines, sines = x[0], None
        for j, both, between in zip(pairs, sums, differences, strict=True):
            angle = 2 * math.pi * (j * k % r) / r
            c, s = math.cos(angle), math.sin(angle)
            cosines = Complex(both.re.fma(c, cosines.re), both.im.fma(c, cosines.im))
            sines = between.scaled(s) if sines is None else Complex(between.re.fma(s, sines.re), between.im.fma(s, sines.im))
        assert sines is not None
        results[k], results[r - k] = cosines.plus(sines.turned()), cosines.minus(sines.turned())
    return results
