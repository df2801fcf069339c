"""Winograd's transforms, which replace products of short correlations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

# Winograd's transforms (Toom and Cook): polynomials by their values at points.
#
# A correlation of m outputs with r taps along an axis meets n = m + r - 1 elements. Seen as polynomials, its operands are known from their
# values at n points, one of them infinity, where multiplying is n products instead of m r. Here n is 4 (the points 0, 1, -1) or 6 (and 2,
# -2), as in Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016):
#
# y = A' ((B' x) * (G w)),  A'[j, i] = p_i ** j,  G[i, k] = f_i * p_i ** k
#
# and at infinity only the last output and the last tap count.

_POINTS = {4: (0, 1, -1), 6: (0, 1, -1, 2, -2)}
_FACTORS = {4: (1.0, 0.5, 0.5), 6: (1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24)}

T = TypeVar("T")


class Algebra(Protocol[T]):
    """Arithmetic with known factors, on whatever a code generator computes with."""

    def plus(self, x: T, y: T) -> T:
        """Return x + y."""

    def minus(self, x: T, y: T) -> T:
        """Return x - y."""

    def more(self, x: T, factor: float, y: T) -> T:
        """Return x + factor y."""

    def times(self, factor: float, x: T) -> T:
        """Return factor x."""


def transform_input(a: Algebra[T], x: Sequence[T]) -> list[T]:
    """Return B' x for n elements of the input."""
    if len(x) == 4:
        return [a.minus(x[0], x[2]), a.plus(x[1], x[2]), a.minus(x[2], x[1]), a.minus(x[3], x[1])]
    even, odd = a.more(x[4], -4, x[2]), a.more(x[3], -4, x[1])
    high, low = a.minus(x[4], x[2]), a.minus(x[3], x[1])
    first, last = a.more(a.more(x[4], 4, x[0]), -5, x[2]), a.more(a.more(x[5], 4, x[1]), -5, x[3])
    return [first, a.plus(even, odd), a.minus(even, odd), a.more(high, 2, low), a.more(high, -2, low), last]


def transform_taps(a: Algebra[T], w: Sequence[T], count: int) -> list[T]:
    """Return G w for r taps, at `count` points."""
    points = []
    for point, factor in zip(_POINTS[count], _FACTORS[count], strict=True):
        points.append(_combined(a, [factor * point**k for k in range(len(w))], w))
    return [*points, w[-1]]


def _combined(a: Algebra[T], factors: Sequence[float], xs: Sequence[T]) -> T:
    """Return the sum of factors times values; the first factor is not 0."""
    total = a.times(factors[0], xs[0])
    for factor, x in zip(factors[1:], xs[1:], strict=True):
        if factor:
            total = a.more(total, factor, x)
    return total


def inverse_transform(a: Algebra[T], values: Sequence[T], outputs: int) -> list[T]:
    """Return A' times values at all points: the sums of the outputs."""
    pairs = [(values[i], values[i + 1]) for i in range(1, len(values) - 1, 2)]
    sums, differences = [a.plus(x, y) for x, y in pairs], [a.minus(x, y) for x, y in pairs]
    sums_of_outputs = []
    for j in range(outputs):
        terms = differences if j % 2 else sums
        total = terms[0]
        if len(terms) > 1:
            total = a.more(total, 2**j, terms[1])
        if j == 0:
            total = a.plus(total, values[0])
        if j == outputs - 1:
            total = a.plus(total, values[-1])
        sums_of_outputs.append(total)
    return sums_of_outputs
