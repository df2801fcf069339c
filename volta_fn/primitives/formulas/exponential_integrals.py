"""Exponential integrals, and the scaled complementary error function."""

from __future__ import annotations

import math
from collections.abc import Sequence

from volta_fn.primitives.formulas.error import ERFC_LIMITS, erfc_scaled
from volta_fn.primitives.formulas.exponential import exp, log
from volta_fn.primitives.formulas.gamma import digamma
from volta_fn.primitives.formulas.values import Values, in_float64

#: From here on Ei's asymptotic series is exact to the last bit of float64.
_FAR = 40.0
_EULER = 0.5772156649015329

#: Terms of En's power series up to 1, levels of its fraction c0 + c1 / x beyond, and terms of Ei's power series c0 + c1 x, by width.
_POWER_TERMS = {32: 12, 64: 20}
_LEVELS = {32: (4.0, 24.0), 64: (6.0, 90.0)}
_EI_TERMS = {32: (14.0, 1.9), 64: (22.0, 2.6)}


@in_float64
def expn(n: Values, x: Values) -> Values:
    """Return En(x), the integral of exp(-x t) / t^n from t = 1 to infinity.

    NaN unless n is an integer >= 0 and x >= 0.
    """
    valid = n.compare("oge", 0.0) & n.below(math.inf) & n.floor().equals(n) & x.compare("oge", 0.0)
    inside = valid & x.above(0.0) & x.below(math.inf)
    first = n.equals(0.0)
    order, point = (inside & ~first).select(n, 1.0), inside.select(x, 1.0)
    far = point.above(1.0)
    root = exp(point * -0.5)
    near = _power_series(far.select(1.0, order), far.select(1.0, point))
    distant = root / _fraction(far.select(order, 1.0), far.select(point, 4.0)) * root
    out = first.select(root / point * root, far.select(distant, near))
    at_zero = n.above(1.0).select(1.0 / n.above(1.0).select(n - 1.0, 1.0), math.inf)
    ends = x.equals(0.0).select(at_zero, 0.0)
    return inside.select(out, valid.select(ends, math.nan))


def _power_series(n: Values, x: Values) -> Values:
    """Return En(x) for integers n >= 1 and 0 < x <= 1 (Abramowitz & Stegun 5.1.12).

    The term of power n - 1 has the logarithm.
    """
    total, power = x.like(0.0), x.like(1.0)
    logarithm = n.called("digamma", digamma) - log(x)
    for k in range(_POWER_TERMS[x.bits]):
        single = n.equals(k + 1.0)
        total = total + power * single.select(logarithm, 1.0 / single.select(1.0, n - (k + 1.0)))
        power = power * (x * (-1.0 / (k + 1.0)))
    return total


def _fraction(n: Values, x: Values) -> Values:
    """Return x + n - n / (x + n + 2 - 2 (n + 1) / …), which divides e^-x to En(x).

    It is for x > 1 (Abramowitz & Stegun 5.1.22).
    """
    first, factor = _LEVELS[x.bits]
    last = (first + factor / x).ceil()
    base = x + n

    def level(k: Values, value: Values) -> Sequence[Values]:
        m = last - k
        return [m.above(0.0).select(base + (2.0 * m - 2.0) - m * (n + (m - 1.0)) / value, value)]

    return x.iterated(last, level, base + 2.0 * last)[0]


@in_float64
def expi(x: Values) -> Values:
    """Return Ei(x), the principal value of the integral of exp(t) / t from -inf to x.

    Left of 0 it is -E1(-x).
    """
    right = x.above(0.0)
    far = x.compare("oge", _FAR) & x.below(math.inf)
    near = right & x.below(_FAR)
    small = near.select(x, 1.0)
    positive = near.select(_EULER + log(small) + _positive_series(near, small), _asymptotic(far.select(x, _FAR)))
    negative = -expn(x.like(1.0), x.below(0.0).select(-x, 1.0))
    out = right.select(x.equals(math.inf).select(x, positive), x.below(0.0).select(negative, -math.inf))
    return x.is_nan().select(x, out)


def _positive_series(where: Values, x: Values) -> Values:
    """Return x + x^2 / (2 2!) + x^3 / (3 3!) + …."""
    first, factor = _EI_TERMS[x.bits]

    def add(n: Values, power: Values, total: Values) -> Sequence[Values]:
        k = n + 2.0
        power = power * (x / k)
        return [power, total + power / k]

    return x.iterated(where.select((first + factor * x).ceil(), 1.0), add, x, x)[1]


def _asymptotic(x: Values) -> Values:
    """Return e^x / x (1 + 1/x + 2!/x^2 + …) for x >= _FAR, finite where e^x is not."""
    inverse = 1.0 / x
    total = x.like(1.0)
    for k in range(int(_FAR) - 2, 0, -1):
        total = total * (inverse * float(k)) + 1.0
    root = exp(0.5 * x)
    return root * (total * inverse) * root


@in_float64
def erfcx(x: Values) -> Values:
    """Return exp(x^2) erfc(x).

    It is Schonfelder's interpolant (1978), far on the right the asymptotic series (Abramowitz & Stegun 7.1.23).
    On the left e^(x^2) dominates; its exponent is split so that the larger summand is exact.
    """
    limit, size = ERFC_LIMITS[x.bits // 8], x.abs()
    far = size.floored(limit)
    inverse = 1.0 / far
    square = inverse * inverse * 0.5
    odd = [float((-1) ** k * math.prod(range(1, 2 * k, 2))) for k in range(8)]
    tail = inverse * square.polynomial(odd[::-1]) * (1.0 / math.sqrt(math.pi))
    right = size.above(limit).select(tail, erfc_scaled(size.capped(limit)))
    reach = size.capped(30.0)
    head = (reach * 8.0).nearest() * 0.125
    left = 2.0 * (exp(head * head) * exp((reach - head) * (reach + head))) - right
    return x.below(0.0).select(left, right)
