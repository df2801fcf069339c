"""The incomplete gamma functions (the gamma distribution function), derivatives.

Three formulas share the quadrant of a > 0, x >= 0: a power series up to x = a + 1, a continued fraction beyond, and Temme's uniform
asymptotic expansion where a is large. Each also gives its derivative by a divided by the density x^(a-1) e^-x / gamma(a): that ratio
neither overflows nor underflows, and it is the derivative by a of a gamma random number at a fixed quantile.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.special.arguments import composite
from volta_fn.scipy.special.stirling import excess, gamma_weight, rising
from volta_fn.transforms.custom.custom_jvp import custom_jvp

#: From here on Temme's expansion is used; below, series and fraction need some hundred terms at most.
_LARGE = 1e4


class _Values(NamedTuple):
    """Both functions, and minus the a-derivative of the lower one over the density."""

    lower: Array
    upper: Array
    slope: Array


def _series(a: Array, x: Array) -> _Values:
    """Return x · density · Σ_n x^n / (a … (a + n)) (Abramowitz & Stegun 6.5.29)."""
    eps = dtypes.finfo(x.dtype).eps

    def go_on(state: Any) -> Array:
        _, term, slope, total, _ = state
        return vnp.any((term > eps * total) | (term * slope > eps * total))

    def step(state: Any) -> Any:
        n, term, slope, total, change = state
        term, slope = term * (x / (a + n)), slope + 1.0 / (a + n)
        return n + 1.0, term, slope, total + term, change - term * slope

    one, zero = vnp.ones_like(x), vnp.zeros_like(x)
    _, _, _, total, change = lax.while_loop(go_on, step, (vnp.ones((), x.dtype), one, zero, one, zero))
    lower = gamma_weight(a, x) / a * total
    return _Values(lower, 1.0 - lower, -(x / a) * (total * (vnp.log(x) - lax.digamma(a + 1.0)) + change))


def _fraction(a: Array, x: Array) -> _Values:
    """Return x times the density times a continued fraction, with derivatives by a.

    The fraction is Abramowitz & Stegun 6.5.31, evaluated by Lentz's method. One that has converged stays as it is, so that rounding errors
    do not accumulate while others go on.
    """
    eps = dtypes.finfo(x.dtype).eps

    def unsettled(factor: Array, change: Array) -> Array:
        return (vnp.abs(factor - 1.0) > 2 * eps) | (vnp.abs(change) > 2 * eps)

    def go_on(state: Any) -> Array:
        return vnp.any(unsettled(*state[-2:]))

    def step(state: Any) -> Any:
        n, c, c_slope, d, d_slope, value, slope, *last = state
        top, bottom = -n * (n - a), x + 2.0 * n + 1.0 - a
        c, c_slope = bottom + top / c, -1.0 + n / c - top * c_slope / (c * c)
        below, below_slope = top * d + bottom, n * d + top * d_slope - 1.0
        d, d_slope = 1.0 / below, -below_slope / (below * below)
        moves = unsettled(*last)
        factor, change = vnp.where(moves, c * d, 1.0), vnp.where(moves, c_slope * d + c * d_slope, 0.0)
        return n + 1.0, c, c_slope, d, d_slope, value * factor, slope * factor + value * change, factor, change

    huge, zero = vnp.full_like(x, 1.0 / dtypes.finfo(x.dtype).tiny), vnp.zeros_like(x)
    first = 1.0 / (x + 1.0 - a)
    state = (vnp.ones((), x.dtype), huge, zero, first, first * first, first, first * first, zero, zero)
    value, slope = lax.while_loop(go_on, step, state)[5:7]
    upper = gamma_weight(a, x) * value
    return _Values(1.0 - upper, upper, x * (value * (vnp.log(x) - lax.digamma(a)) + slope))


#: C_0, C_1, C_2 of Temme, "The asymptotic expansion of the incomplete gamma functions", 1979, in rising powers of eta.
_TEMME = (
    (
        -1 / 3, 1 / 12, -2 / 135, 1 / 864, 0.0003527336860670194, -0.00017875514403292181, 3.9192631785224378e-5, -2.1854485106799922e-6,
        -1.85406221071516e-6, 8.296711340953086e-7,
    ),
    (
        -1 / 540, -1 / 288, 1 / 378, -0.00099022633744855967, 0.00020576131687242798, -4.0187757201646091e-7, -1.8098550334489978e-5,
        7.6491609160811101e-6,
    ),
    (0.0041335978835978836, -0.0026813271604938272, 0.00077160493827160494, 2.0093878600823045e-6),
)  # fmt: skip


def _expansion(a: Array, x: Array) -> _Values:
    """Return erfc(eta sqrt(a/2))/2 and a correction (Temme 1979).

    With mu = x/a - 1, eta^2/2 = mu - log(1 + mu), and eta has mu's sign.
    """
    mu = (x - a) / a
    # Beyond an excess of 1 the density underflows, but the series in eta would still grow.
    eta = vnp.sign(mu) * vnp.sqrt(2.0 * vnp.minimum(excess(x / a, mu), 1.0))
    c0, c1, c2 = (rising(eta, c) for c in _TEMME)
    slopes = [rising(eta, tuple(k * v for k, v in enumerate(c))[1:]) for c in _TEMME]
    correction = c0 + (c1 + c2 / a) / a
    weight = vnp.exp(-0.5 * a * (eta * eta)) / vnp.sqrt(2.0 * math.pi * a)
    root = eta * vnp.sqrt(0.5 * a)
    lower, upper = 0.5 * lax.erfc(-root) - weight * correction, 0.5 * lax.erfc(root) + weight * correction
    ratio = vnp.where(eta == 0, 1.0, mu / vnp.where(eta == 0, 1.0, eta))
    slope = -ratio / a
    drift = correction * (mu - 0.5 * (eta * eta) - 0.5 / a) + slope * (slopes[0] + slopes[1] / a) - (c1 + 2.0 * c2 / a) / (a * a)
    # Stirling's series converts the expansion's weight to the density.
    stirling = 1.0 + (1.0 / 12.0 + (1.0 / 288.0 - 139.0 / 51840.0 / a) / a) / a
    return _Values(lower, upper, -(x / a) * stirling * (0.5 * eta - ratio - drift))


def _values(a: Array, x: Array) -> _Values:
    """Combine the formulas where each holds; elsewhere they get harmless arguments."""
    large = a >= _LARGE
    beyond = ~large & (x > a + 1.0)
    before = ~large & ~beyond & (x > 0)
    series = _series(vnp.where(before, a, 1.0), vnp.where(before, x, 0.5))
    fraction = _fraction(vnp.where(beyond, a, 1.0), vnp.where(beyond, x, 4.0))
    inside = large & vnp.isfinite(a) & vnp.isfinite(x)
    expansion = _expansion(vnp.where(inside, a, _LARGE), vnp.where(inside, x, _LARGE))
    chosen = [vnp.where(large, e, vnp.where(beyond, f, s)) for e, f, s in zip(expansion, fraction, series, strict=True)]
    # At the boundary of the quadrant.
    all_below, all_above = vnp.isinf(x) | (a == 0), (x == 0) & (a > 0) | vnp.isinf(a)
    lower, upper, slope = (
        vnp.where(all_below, low, vnp.where(all_above, high, value))
        for value, low, high in zip(chosen, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), strict=True)
    )
    invalid = (a < 0) | (x < 0) | vnp.isnan(a) | vnp.isnan(x) | (a == 0) & (x == 0) | vnp.isinf(a) & vnp.isinf(x)
    return _Values(*[vnp.where(invalid, np.nan, value) for value in (lower, upper, slope)])


def _declare(which: int, sign: float) -> Any:

    @custom_jvp
    def function(a: Array, x: Array) -> Array:
        return _values(a, x)[which]

    @function.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (a, x), (a_tangent, x_tangent) = primals, tangents
        values = _values(a, x)
        return values[which], sign * gamma_weight(a, x) / x * (x_tangent - values.slope * a_tangent)

    return function


_lower, _upper = _declare(0, 1.0), _declare(1, -1.0)


@composite
def gammainc(a: Any, x: Any) -> Array:
    """Return the regularised lower incomplete gamma function.

    It is the probability that a gamma random number of shape `a` is at most x. NaN for a < 0 or x < 0.

    >>> vf.scipy.special.gammainc(1.0, vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([0.    , 0.6321, 0.8647], dtype=float32)
    """
    return _lower(*vnp.broadcast_arrays(a, x))


@composite
def gammaincc(a: Any, x: Any) -> Array:
    """Return the upper incomplete gamma function 1 - gammainc(a, x), precise if small.

    >>> vf.scipy.special.gammaincc(1.0, vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([1.    , 0.3679, 0.1353], dtype=float32)
    """
    return _upper(*vnp.broadcast_arrays(a, x))


#: Their names in `jax.lax`.
igamma, igammac = gammainc, gammaincc


@composite
def random_gamma_grad(a: Any, sample: Any) -> Array:
    """Return dx/da of a gamma number x at a fixed quantile (Figurnov et al. 2018).

    >>> vf.lax.random_gamma_grad(2.0, vf.numpy.array([1.0, 2.0])).round(3)
    Array([0.751, 1.086], dtype=float32)
    """
    return _values(*vnp.broadcast_arrays(a, sample)).slope


@composite
def igamma_grad_a(a: Any, x: Any) -> Array:
    """Return the derivative of `lax.igamma` by its first argument.

    >>> vf.lax.igamma_grad_a(2.0, vf.numpy.array([1.0, 2.0])).round(3)
    Array([-0.276, -0.294], dtype=float32)
    """
    a, x = vnp.broadcast_arrays(a, x)
    return -gamma_weight(a, x) / x * _values(a, x).slope
