"""Quotients of gamma functions, or their logarithms by Stirling's series.

Differences of `lgamma` would cancel: lgamma(x) is (x - 1/2) log x - x + log(2π)/2 plus a small remainder. The formulas below cancel the
large terms analytically. The exponential of a logarithm of size v has an error of v / 2 ulp, so that quotients of moderate arguments are
computed as what they are.
"""

from __future__ import annotations

import functools
import math
import operator

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array

#: From here on the remainder's series is exact to the last bit of float64.
LEAST = 10.0

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
#: Bernoulli's numbers B_2k / (2k (2k - 1)) (Abramowitz & Stegun 6.1.41).
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


#: Up to here gamma functions, and powers of such numbers by such numbers, do not overflow float32.
_MOST, _MOST_OF_POWERS = 34.0, 25.0


def _are_moderate(*xs: Array, most: float = _MOST) -> Array:
    """Return where positive numbers and their gamma functions are not large."""
    return functools.reduce(operator.and_, [(x > 1e-30) & (x < most) for x in xs])


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


def rise(a: Array, b: Array) -> Array:
    """Return |gamma(a + b) / gamma(a)|."""
    total, rest = _exact_sum(a, b)
    direct = _are_moderate(a, total)
    base, top = vnp.where(direct, a, 1.0), vnp.where(direct, total, 1.0)
    moved = lax.stop_gradient(1.0 + lax.digamma(top) * vnp.where(direct, rest, 0.0))
    by_logarithm = vnp.exp(log_rise(vnp.where(direct, 1.0, a), vnp.where(direct, 1.0, b)))
    return vnp.where(direct, lax.gamma_function(top) * moved / lax.gamma_function(base), by_logarithm)


def beta_size(a: Array, b: Array) -> Array:
    """Return |beta(a, b)|."""
    direct = _are_moderate(a, b, a + b)
    large, small = vnp.where(direct, vnp.maximum(a, b), 1.0), vnp.where(direct, vnp.minimum(a, b), 1.0)
    by_logarithm = vnp.exp(log_beta(vnp.where(direct, 1.0, a), vnp.where(direct, 1.0, b)))
    return vnp.where(direct, lax.gamma_function(small) / rise(large, small), by_logarithm)


def combinations(n: Array, k: Array) -> Array:
    """Return gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n / 2."""
    direct = n < _MOST - 1.0
    few = vnp.where(direct, 0.0, k)
    by_logarithm = vnp.exp(log_rise(vnp.where(direct, 0.0, n) - few + 1.0, few) - lax.lgamma(few + 1.0))
    things, chosen = vnp.where(direct, n, 0.0), vnp.where(direct, k, 0.0)
    return vnp.where(direct, rise(things - chosen + 1.0, chosen) / lax.gamma_function(chosen + 1.0), by_logarithm)


def gamma_weight(a: Array, x: Array) -> Array:
    """Return x^a e^-x / gamma(a) for a >= 0, x > 0."""
    direct = _are_moderate(a, x, most=_MOST_OF_POWERS)
    shape, point = vnp.where(direct, a, 1.0), vnp.where(direct, x, 1.0)
    by_logarithm = vnp.exp(log_gamma_weight(vnp.where(direct, 1.0, a), vnp.where(direct, 1.0, x)))
    return vnp.where(direct, lax.pow(point, shape) * vnp.exp(-point) / lax.gamma_function(shape), by_logarithm)


def beta_weight(a: Array, b: Array, x: Array) -> Array:
    """Return x^a (1 - x)^b / beta(a, b)."""
    direct = _are_moderate(a, b, a + b)
    p, q = vnp.where(direct, a, 1.0), vnp.where(direct, b, 1.0)
    other, rest = _exact_sum(vnp.ones_like(x), -x)
    moved = lax.stop_gradient(1.0 + q * rest / other)
    by_logarithm = vnp.exp(log_beta_weight(vnp.where(direct, 1.0, a), vnp.where(direct, 1.0, b), x))
    return vnp.where(direct, lax.pow(x, p) * (lax.pow(other, q) * moved) / beta_size(p, q), by_logarithm)


def _exact_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x + y rounded, and the rounding error (Knuth)."""
    total = x + y
    added = total - x
    return total, (x - (total - added)) + (y - added)
