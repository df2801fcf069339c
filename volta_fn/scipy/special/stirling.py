"""Logarithms of quotients of gamma functions by Stirling's series.

Differences of `lgamma` would cancel: lgamma(x) is (x - 1/2) log x - x + log(2π)/2 plus a small remainder. The formulas below cancel the
large terms analytically.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array

#: From here on the remainder's series is exact to the last bit of float64.
LEAST = 10.0

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
#: Bernoulli's numbers B_2k / (2k (2k - 1)) (Abramowitz & Stegun 6.1.41).
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def rising(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Evaluate the polynomial with these coefficients, the constant first."""
    total = vnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _remainder(x: Array) -> Array:
    """Return lgamma(x) minus its three large terms, for x >= LEAST."""
    inverse = 1.0 / x
    return inverse * rising(inverse * inverse, _SERIES)


def excess(ratio: Array, beyond: Array) -> Array:
    """Return u - log(1 + u) for u = `beyond` and 1 + u = `ratio`, to full precision.

    Where the two terms almost cancel it is the sum of a series.
    """
    close = vnp.abs(beyond) < 0.1
    near, far = vnp.where(close, beyond, 0.0), vnp.where(close, 1.0, ratio)
    return vnp.where(close, excess_near(near), beyond - vnp.log(far))


def excess_near(u: Array) -> Array:
    """Return u - log(1 + u) for |u| < 0.1 as the sum of a series."""
    terms = 16 if u.dtype == np.float64 else 9  # the first one left out is less than 1e-8 of the sum
    return u * u * rising(-u, tuple(1.0 / (k + 2) for k in range(terms)))


def log_rise(a: Array, b: Array) -> Array:
    """Return log |gamma(a + b) / gamma(a)|."""
    total = a + b
    large = (a >= LEAST) & (total >= LEAST)
    base = vnp.where(large, a, LEAST)
    top = vnp.where(large, total, LEAST)
    step = vnp.where(large, b, 0.0)
    by_series = (base - 0.5) * vnp.log1p(step / base) + step * (vnp.log(top) - 1.0) + (_remainder(top) - _remainder(base))
    return vnp.where(large, by_series, lax.lgamma(vnp.where(large, 1.0, total)) - lax.lgamma(vnp.where(large, 1.0, a)))


def log_beta(a: Array, b: Array) -> Array:
    """Return log |beta(a, b)|."""
    large, small = vnp.maximum(a, b), vnp.minimum(a, b)
    return lax.lgamma(small) - log_rise(large, small)


def log_gamma_weight(a: Array, x: Array) -> Array:
    """Return log(x^a e^-x / gamma(a)) for a >= 0, x > 0, without large terms at x ≈ a."""
    large = a >= LEAST
    base, argument = vnp.where(large, a, LEAST), vnp.where(large, x, LEAST)
    by_series = 0.5 * vnp.log(base) - _HALF_LOG_TWO_PI - _remainder(base) - base * excess(argument / base, (argument - base) / base)
    other, point = vnp.where(large, 1.0, a), vnp.where(large, 1.0, x)
    return vnp.where(large, by_series, other * vnp.log(point) - point - lax.lgamma(other))


def log_beta_weight(a: Array, b: Array, x: Array) -> Array:
    """Return log(x^a (1 - x)^b / beta(a, b)), without large terms near the mean."""
    large = (a >= LEAST) & (b >= LEAST)
    p, q, left = vnp.where(large, a, LEAST), vnp.where(large, b, LEAST), vnp.where(large, x, 0.5)
    total, right = p + q, 1.0 - left
    distance = p * excess(left * total / p, left * (q / p) - right) + q * excess(right * total / q, right * (p / q) - left)
    spread = 0.5 * (vnp.log(p) + vnp.log(q / total)) - _HALF_LOG_TWO_PI
    by_series = spread - (_remainder(p) + _remainder(q) - _remainder(total)) - distance
    other, another, point = vnp.where(large, 1.0, a), vnp.where(large, 1.0, b), vnp.where(large, 0.5, x)
    plain = other * vnp.log(point) + another * vnp.log1p(-point) - log_beta(other, another)
    return vnp.where(large, by_series, plain)
