"""The incomplete beta function (the beta distribution function) and derivatives.

A continued fraction (Abramowitz & Stegun 26.5.8) converges fast for x up to the distribution's mean; beyond it the complement's does.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.primitive import Zero
from volta_fn.scipy.special.arguments import composite
from volta_fn.scipy.special.stirling import beta_weight
from volta_fn.transforms.custom.custom_jvp import custom_jvp
from volta_fn.transforms.forward import jvp


def _fraction(a: Array, b: Array, x: Array) -> Array:
    """Return 1 / (1 + d1 / (1 + d2 / (1 + …))) by Lentz's method, two terms at a time.

    A fraction that has converged stays as it is, so that rounding errors do not accumulate while others go on.
    """
    info = dtypes.finfo(x.dtype)

    def unsettled(change: Array) -> Array:
        return vnp.abs(change - 1.0) > 2 * info.eps

    def away_from_zero(value: Array) -> Array:
        return vnp.where(vnp.abs(value) < info.tiny, info.tiny, value)

    def go_on(state: Any) -> Array:
        return vnp.any(unsettled(state[-1]))

    def step(state: Any) -> Any:
        n, c, d, value, last = state
        change = vnp.ones_like(x)
        for term in (
            n * (b - n) * x / ((a + 2.0 * n - 1.0) * (a + 2.0 * n)),
            -(a + n) * (a + b + n) * x / ((a + 2.0 * n) * (a + 2.0 * n + 1.0)),
        ):
            d, c = 1.0 / away_from_zero(1.0 + term * d), away_from_zero(1.0 + term / c)
            change = change * (c * d)
        change = vnp.where(unsettled(last), change, 1.0)
        return n + 1.0, c, d, value * change, change

    one = vnp.ones_like(x)
    first = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    return lax.while_loop(go_on, step, (vnp.ones((), x.dtype), one, first, first, vnp.zeros_like(x)))[3]


def _regularised(a: Array, b: Array, x: Array) -> Array:
    """Return the function inside the quadrant of a, b > 0, for x between 0 and 1."""
    beyond = x > (a + 1.0) / (a + b + 2.0)
    p, q, y = vnp.where(beyond, b, a), vnp.where(beyond, a, b), vnp.where(beyond, 1.0 - x, x)
    small = beta_weight(p, q, y) * _fraction(p, q, y) / p
    return vnp.where(beyond, 1.0 - small, small)


def _inside(a: Array, b: Array, x: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """Return where `_regularised` holds, and its arguments; elsewhere harmless ones."""
    inside = (a > 0) & (b > 0) & (x > 0) & (x < 1) & vnp.isfinite(a) & vnp.isfinite(b)
    return inside, (vnp.where(inside, a, 1.0), vnp.where(inside, b, 1.0), vnp.where(inside, x, 0.5))


@custom_jvp
def _betainc(a: Array, b: Array, x: Array) -> Array:
    inside, arguments = _inside(a, b, x)
    at_zero, at_one = (a == 0) | (b == np.inf), (b == 0) | (a == np.inf)  # where all the probability is
    valid = (a >= 0) & (b >= 0) & (x >= 0) & (x <= 1) & ~(at_zero & at_one)
    edge = vnp.where(at_zero & (x > 0), 1.0, vnp.where(at_one & (x < 1), 0.0, x))
    return vnp.where(inside, _regularised(*arguments), vnp.where(valid, edge, np.nan))


@functools.partial(_betainc.defjvp, symbolic_zeros=True)
def _betainc_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Differentiate by x (the density), and by a and b only if asked for."""
    inside, at = _inside(*primals)
    out_tangent = vnp.zeros_like(at[2])
    for argument, tangent in enumerate(tangents):
        if type(tangent) is Zero:
            continue
        direction = tuple([vnp.full_like(v, i == argument) for i, v in enumerate(at)])
        slope = beta_weight(*at) / (at[2] * (1.0 - at[2])) if argument == 2 else jvp(_regularised, at, direction)[1]
        out_tangent = out_tangent + vnp.where(inside, slope, 0.0) * tangent
    return _betainc(*primals), out_tangent


@composite
def betainc(a: Any, b: Any, x: Any) -> Array:
    """Return the regularised incomplete beta function of x with shape `a` and `b`.

    It is the probability that a beta random number is at most x. All arguments broadcast, and it is differentiable by each. NaN for
    negative a or b, if both are 0 or infinite, and unless 0 <= x <= 1.

    >>> vf.scipy.special.betainc(2.0, 3.0, vf.numpy.array([0.0, 0.5, 1.0])).round(4)
    Array([0.    , 0.6875, 1.    ], dtype=float32)
    """
    return _betainc(*vnp.broadcast_arrays(a, b, x))
