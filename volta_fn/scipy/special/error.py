"""The error function's family and the normal distribution function."""

from __future__ import annotations

import functools
import math
from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.primitives.declare import promoted
from volta_fn.primitives.elementwise.special import normal_pdf
from volta_fn.scipy.special.arguments import composite
from volta_fn.transforms.custom.custom_jvp import custom_jvp

erf = promoted(lax.erf, "erf", "Return the error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.")
erfc = promoted(lax.erfc, "erfc", "Return 1 - erf(x), to full relative precision for large x.")
ndtr = promoted(lax.ndtr, "ndtr", "Return the probability that a standard normal number is at most x.")
erfinv = promoted(lax.erf_inv, "erfinv", "Return the inverse of erf; infinite at -1 and 1, NaN beyond.")

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def _log_density(x: Array) -> Array:
    return -(0.5 * x) * x - _HALF_LOG_TWO_PI  # x * x may overflow


#: Below these the distribution function nears the smallest normal number of its dtype.
_SERIES_BELOW = {4: -10.0, 8: -35.0}


def log_ndtr(x: Any, series_order: int = 3) -> Array:
    """Return the log of the normal distribution function, exact far into both tails.

    Far on the left it is computed by the first terms, up to `series_order`, of the asymptotic series for erfc (Abramowitz & Stegun
    26.2.12). Raises `ArgumentError` unless 0 <= series_order <= 30.

    >>> vf.scipy.special.log_ndtr(vf.numpy.array([-30.0, 0.0]))
    Array([-454.32123  ,   -0.6931472], dtype=float32)
    """
    if not 0 <= series_order <= 30:
        raise ArgumentError(f"log_ndtr: series_order must be between 0 and 30, got {series_order}")
    return _log_ndtr(x, series_order=series_order)


@composite
def _log_ndtr(x: Any, *, series_order: int) -> Array:
    return _log_distribution(x, series_order)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _log_distribution(x: Array, series_order: int) -> Array:
    border = _SERIES_BELOW[x.dtype.itemsize]
    far = x < border
    # The branch not selected must be finite, or its derivative times zero is NaN.
    near_x, far_x = vnp.where(far, border, x), vnp.where(far, x, border)
    right = near_x > 0
    tail = lax.ndtr(-vnp.abs(near_x))
    near = vnp.where(right, vnp.log1p(-tail), vnp.log(tail))
    return vnp.where(far, _log_density(far_x) - vnp.log(-far_x) + vnp.log(_series(far_x, series_order)), near)


def _series(x: Array, order: int) -> Array:
    """Return 1 - 1/x^2 + 1·3/x^4 - 1·3·5/x^6 …."""
    inverse = 1.0 / (x * x)
    total = vnp.ones_like(x)
    for k in range(order, 0, -1):
        total = 1.0 - (2 * k - 1) * inverse * total
    return total


@_log_distribution.defjvp
def _(series_order: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Differentiate: density over distribution function, by its series far left."""
    (x,), (tangent,) = primals, tangents
    out = _log_distribution(x, series_order)
    border = _SERIES_BELOW[x.dtype.itemsize]
    far = x < border
    far_x = vnp.where(far, x, border)
    near_x = vnp.where(far, border, x)
    near = normal_pdf(near_x, 0.0, 1.0) / lax.ndtr(near_x)
    return out, tangent * vnp.where(far, -far_x / _series(far_x, series_order), near)


@composite
def ndtri(p: Any) -> Array:
    """Return the quantile of the standard normal distribution, inverse of `ndtr`.

    >>> vf.scipy.special.ndtri(vf.numpy.array([0.025, 0.5, 0.975])).round(4)
    Array([-1.96,  0.  ,  1.96], dtype=float32)
    """
    return lax.ndtri(p)
