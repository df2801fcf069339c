"""Densities and quotients of gamma functions, without large terms that cancel.

lgamma(x) is (x - 1/2) log x - x + log(2 pi)/2 plus a small remainder, for which Stirling has a series.
"""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.exponential import exp
from volta_fn.primitives.formulas.gamma import gamma_positive
from volta_fn.primitives.formulas.logarithm import log
from volta_fn.primitives.formulas.powers import pow
from volta_fn.primitives.formulas.values import Values

#: From here on the remainder's series is exact to the last bit of float64.
LEAST = 10.0

#: Bernoulli's numbers B_2k / (2k (2k - 1)), k = 7, …, 1 (Abramowitz & Stegun 6.1.41).
_SERIES = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)

#: Where e^-x x^10 is 0, and e^(-x/2) a normal number, by width.
_ZERO_FROM = {32: 150.0, 64: 1400.0}

#: Terms of (atanh(s) - s) / s^3 for |s| <= 1/4, by width.
_ATANH_TERMS = {32: 5, 64: 13}


def remainder(x: Values) -> Values:
    """Return lgamma(x) minus its three large terms, for x >= LEAST."""
    inverse = 1.0 / x
    return inverse * (inverse * inverse).polynomial(_SERIES)


def excess(u: Values, ratio: Values) -> Values:
    """Return u - log(1 + u), where 1 + u = `ratio` > 0, to full precision.

    With s = u / (2 + u) the logarithm is 2 atanh(s), and u - 2 s = u s.
    """
    close = u.abs().below(0.4)
    near = close.select(u, 0.0)
    s = near / (near + 2.0)
    square = s * s
    series = square.polynomial([2.0 / (2 * k + 3) for k in reversed(range(_ATANH_TERMS[u.bits]))])
    return close.select(s * (near - square * series), u - log(close.select(1.0, ratio)))


def power_over_gamma(a: Values, x: Values) -> Values:
    """Return x^a e^-x / gamma(a + 1) for finite a >= 0, x > 0."""
    far = a.compare("oge", LEAST)
    base, argument = far.select(a, LEAST), far.select(x, LEAST)
    mu = (argument - base) / base
    by_series = exp(-(base * excess(mu, argument / base) + remainder(base))) / (base.sqrt() * math.sqrt(2.0 * math.pi))
    shape, point = far.select(1.0, a), far.select(1.0, x.capped(_ZERO_FROM[x.bits]))
    root = exp(point * -0.5)
    direct = point.called("pow", pow, shape) * root / (shape + 1.0).called("gamma_positive", gamma_positive) * root
    return far.select(by_series, direct)
