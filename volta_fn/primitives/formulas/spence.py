"""Spence's function, the dilogarithm of 1 - x."""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.gamma import BERNOULLI
from volta_fn.primitives.formulas.logarithm import log, log1p
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.values import Values

#: Of spence(exp(-u)) = u - u^2 / 4 + Σ B_2k u^(2k + 1) / (2k + 1)! for |u| <= log 2, in powers of u^2.
_SERIES = (*(b / math.factorial(2 * k + 1) for k, b in reversed([*enumerate(BERNOULLI[:9], 1)])), 1.0)


@in_float64
def spence(x: Values) -> Values:
    """Return minus the integral of log(t) / (t - 1) from 1 to x; NaN for x < 0.

    Reflections lead to a series in the logarithm (Lewin, Polylogarithms and Associated Functions, 1981, chapter 1): of 1 - x for x < 1/2,
    of 1 - 1/x for x > 2.
    """
    small, large = x.below(0.5), x.above(2.0)
    logarithm = log(x)
    ratio = small.select(-x, large.select(-1.0 / large.select(x, 2.0), -0.5))
    reflected = log1p(ratio)
    series = _series(-(small | large).select(reflected, logarithm))
    product = x.equals(0.0).select(0.0, logarithm * reflected)
    out = small.select(math.pi**2 / 6 - product - series, series)
    return large.select(series - logarithm * logarithm * 0.5 - product - math.pi**2 / 6, out)


def _series(u: Values) -> Values:
    square = u * u
    return u * square.polynomial(_SERIES) - square * 0.25
