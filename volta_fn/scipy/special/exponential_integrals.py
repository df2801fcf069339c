"""Exponential integrals, and the scaled complementary error function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args
from volta_fn.primitives.formulas.error import ERFC_COEFFICIENTS, ERFC_LIMITS, ERFC_POLE
from volta_fn.scipy.special.arguments import composite
from volta_fn.scipy.special.integrals import wofz
from volta_fn.scipy.special.stirling import rising
from volta_fn.transforms.custom.custom_jvp import custom_jvp

#: From here on Ei's asymptotic series is exact to the last bit of float64.
_FAR = 40.0


def _power_series(n: Array, x: Array) -> Array:
    """Return En(x) for integers n >= 1 and 0 < x <= 1 (Abramowitz & Stegun 5.1.12).

    The term of power n - 1 has the logarithm.
    """
    total, power = vnp.zeros_like(x), vnp.ones_like(x)
    logarithm = lax.digamma(vnp.maximum(n, 1.0)) - vnp.log(x)
    for k in range(20):
        own = n == k + 1.0
        total = total + power * vnp.where(own, logarithm, 1.0 / vnp.where(own, 1.0, n - (k + 1.0)))
        power = power * (-x / (k + 1.0))
    return total


def _fraction(n: Array, x: Array) -> Array:
    """Return e^x En(x) for x > 1 by a continued fraction (Abramowitz & Stegun 5.1.22).

    It is evaluated by Lentz's method; fractions that have converged stay as they are.
    """
    eps = dtypes.finfo(x.dtype).eps

    def go_on(state: Any) -> Array:
        return vnp.any(vnp.abs(state[-1] - 1.0) > eps)

    def step(state: Any) -> Any:
        k, c, d, value, last = state
        top, bottom = -k * (n + (k - 1.0)), x + n + 2.0 * k
        c, d = bottom + top / c, 1.0 / (top * d + bottom)
        factor = vnp.where(vnp.abs(last - 1.0) > eps, c * d, 1.0)
        return k + 1.0, c, d, value * factor, factor

    huge, first = vnp.full_like(x, 1.0 / dtypes.finfo(x.dtype).tiny), 1.0 / (x + n)
    return lax.while_loop(go_on, step, (vnp.ones((), x.dtype), huge, first, first, vnp.zeros_like(x)))[3]


@custom_jvp
def _expn(n: Array, x: Array) -> Array:
    inside = (n >= 0) & (n == vnp.floor(n)) & (x > 0) & vnp.isfinite(x) & vnp.isfinite(n)
    near, far = inside & (x <= 1.0) & (n > 0), inside & (x > 1.0)
    small = _power_series(vnp.where(near, n, 1.0), vnp.where(near, x, 1.0))
    point = vnp.where(far, x, 2.0)
    large = vnp.exp(-point) * _fraction(vnp.where(far, n, 1.0), point)
    out = vnp.where(far, large, vnp.where(near, small, vnp.exp(-x) / x))
    ends = vnp.where(x == np.inf, 0.0, vnp.where(x == 0, vnp.where(n > 1, 1.0 / vnp.where(n > 1, n - 1.0, 1.0), np.inf), np.nan))
    valid = (n >= 0) & (n == vnp.floor(n)) & vnp.isfinite(n)
    return vnp.where(inside, out, vnp.where(valid, ends, np.nan))


_expn.defjvps(None, lambda g, out, n, x: g * -vnp.where(n == 0, out * (1.0 + 1.0 / x), _expn(vnp.maximum(n - 1.0, 0.0), x)))


@composite
def expn(n: Any, x: Any) -> Array:
    """Return En(x), the integral of exp(-x t) / t^n over t from 1 to infinity.

    n is an integer >= 0 and x >= 0; the result is NaN for others. It is differentiable by x, and computed by a power series up to 1, by a
    continued fraction beyond (Abramowitz & Stegun 5.1.12 and 5.1.22).

    >>> vf.scipy.special.expn(2, vf.numpy.array([0.0, 1.0])).round(4)
    Array([1.    , 0.1485], dtype=float32)
    """
    return _expn(*vnp.broadcast_arrays(n, x))


@composite
def exp1(x: Any) -> Array:
    """Return E1(x), the integral of exp(-t) / t from x to infinity; NaN for x < 0.

    >>> vf.scipy.special.exp1(1.0).round(4)
    Array(0.2194, dtype=float32)
    """
    return _expn(vnp.ones_like(x), x)


def _positive_series(x: Array) -> Array:
    """Return x + x^2 / (2 2!) + x^3 / (3 3!) + …, for 0 < x < _FAR."""
    eps = dtypes.finfo(x.dtype).eps

    def go_on(state: Any) -> Array:
        k, power, total = state
        return vnp.any(power > eps * k * total)

    def step(state: Any) -> Any:
        k, power, total = state
        power = power * (x / (k + 1.0))
        return k + 1.0, power, total + power / (k + 1.0)

    return lax.while_loop(go_on, step, (vnp.ones((), x.dtype), x, x))[2]


def _asymptotic(x: Array) -> Array:
    """Return e^x / x (1 + 1/x + 2!/x^2 + …) for x >= _FAR, finite where e^x is not."""
    total = vnp.ones_like(x)
    for k in range(int(_FAR) - 2, 0, -1):
        total = 1.0 + total * (k / x)
    root = vnp.exp(0.5 * x)
    return root * (total / x) * root


@custom_jvp
def _expi(x: Array) -> Array:
    far, near = (x >= _FAR) & (x < np.inf), (x > 0) & (x < _FAR)
    small, large = vnp.where(near, x, 1.0), vnp.where(far, x, _FAR)
    positive = vnp.where(near, np.euler_gamma + vnp.log(small) + _positive_series(small), _asymptotic(large))
    negative = -_expn(vnp.ones_like(x), vnp.where(x < 0, -x, 1.0))
    out = vnp.where(x > 0, vnp.where(x == np.inf, x, positive), vnp.where(x < 0, negative, -np.inf))
    return vnp.where(vnp.isnan(x), x, out)


def _expi_slope(x: Array) -> Array:
    root = vnp.exp(0.5 * x)
    return root / x * root


_expi.defjvps(lambda g, out, x: g * _expi_slope(x))


@composite
def expi(x: Any) -> Array:
    """Return Ei(x), the principal value of the integral of exp(t) / t from -inf to x.

    It is -inf at 0 and -E1(-x) left of it; on the right it is computed by a power series up to 40 and an asymptotic one beyond (Abramowitz
    & Stegun 5.1.10 and 5.1.51).

    >>> vf.scipy.special.expi(vf.numpy.array([-1.0, 1.0])).round(4)
    Array([-0.2194,  1.8951], dtype=float32)
    """
    return _expi(x)


def _odd_products(count: int, last: int) -> tuple[float, ...]:
    """Return (-1)^k times the odd numbers up to 2 k + `last`, for each k < `count`."""
    return tuple(float((-1) ** k * math.prod(range(1, 2 * k + last + 1, 2))) for k in range(count))


#: From here on the derivative of erfcx uses the asymptotic series.
_SLOPE_BY_SERIES = {4: 5.0, 8: 10.0}


@custom_jvp
def _erfcx(x: Array) -> Array:
    width = x.dtype.itemsize
    limit, size = ERFC_LIMITS[width], vnp.abs(x)
    near = vnp.minimum(size, limit) + ERFC_POLE
    mapped = (1.0 + 2.0 * ERFC_POLE / limit) - (2.0 * ERFC_POLE + 2.0 * ERFC_POLE * ERFC_POLE / limit) / near
    far = vnp.maximum(size, limit)
    tail = rising(0.5 / far / far, _odd_products(8, -1)) / (far * math.sqrt(math.pi))
    right = vnp.where(size > limit, tail, rising(mapped, ERFC_COEFFICIENTS[width][::-1]) / near)
    # On the left e^(x^2) dominates; its exponent is split so that the larger summand is exact.
    reach = vnp.minimum(size, 30.0)
    head = vnp.round(8.0 * reach) / 8.0
    return vnp.where(x < 0, 2.0 * (vnp.exp(head * head) * vnp.exp((reach - head) * (reach + head))) - right, right)


def _erfcx_slope(x: Array, out: Array) -> Array:
    """Return 2 x erfcx(x) - 2 / sqrt(pi), whose terms cancel far on the right.

    There it is the derivative of the asymptotic series.
    """
    border = _SLOPE_BY_SERIES[x.dtype.itemsize]
    far = x > border
    safe = vnp.where(far, x, border)
    series = -rising(0.5 / safe / safe, _odd_products(13, 1)) / math.sqrt(math.pi) / safe / safe
    return vnp.where(far, series, 2.0 * (vnp.where(far, 0.0, x) * out) - 2.0 / math.sqrt(math.pi))


_erfcx.defjvps(lambda g, out, x: g * _erfcx_slope(x, out))


@composite
def _real_erfcx(x: Any) -> Array:
    return _erfcx(x)


@fused
def erfcx(x: Any) -> Array:
    """Return exp(x^2) erfc(x), which neither overflows nor underflows for large x.

    Of complex numbers it is `wofz(1j * x)`. That of real ones is computed by Chebyshev interpolation (Schonfelder 1978),
    far on the right by the asymptotic series (Abramowitz & Stegun 7.1.23).

    >>> vf.scipy.special.erfcx(vf.numpy.array([0.0, 100.0])).round(6)
    Array([1.      , 0.005642], dtype=float32)
    """
    (value,) = promote_args("erfcx", (x,), dtypes.INEXACT)
    return wofz(lax.mul(value, 1j)) if value.dtype in dtypes.COMPLEX else _real_erfcx(value)
