"""The error function's family and the normal distribution function."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.primitives.declare import promoted
from volta_fn.scipy.special.arguments import composite
from volta_fn.transforms.custom.custom_jvp import custom_jvp

erf = promoted(lax.erf, "erf", "Return the error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.")
erfc = promoted(lax.erfc, "erfc", "Return 1 - erf(x), to full relative precision for large x.")
ndtr = promoted(lax.ndtr, "ndtr", "Return the probability that a standard normal number is at most x.")
erfinv = promoted(lax.erf_inv, "erfinv", "Return the inverse of erf; infinite at -1 and 1, NaN beyond.")

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def _log_density(x: Array) -> Array:
    return -0.5 * (x * x) - _HALF_LOG_TWO_PI


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
    near = vnp.exp(vnp.where(far, 0.0, _log_density(vnp.where(far, border, x)) - out))
    return out, tangent * vnp.where(far, -far_x / _series(far_x, series_order), near)


# Coefficients of ndtri: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37, 1988.

_Rational = tuple[tuple[float, ...], tuple[float, ...]]

_CENTRE: _Rational = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
        1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
        5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL: _Rational = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
        3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
        6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0,
    ),
)  # fmt: skip
_FAR_TAIL: _Rational = (
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
        2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720,
    ),
    (
        2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
        1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0,
    ),
)  # fmt: skip


def _ratio(x: Array, coefficients: _Rational) -> Array:
    top, bottom = (vnp.full_like(x, c[0]) for c in coefficients)
    for a, b in zip(coefficients[0][1:], coefficients[1][1:], strict=True):
        top, bottom = top * x + a, bottom * x + b
    return top / bottom


@custom_jvp
def _ndtri(p: Array) -> Array:
    centred = p - 0.5
    is_central = vnp.abs(centred) <= 0.425
    centre = centred * _ratio(0.180625 - vnp.where(is_central, centred * centred, 0.0), _CENTRE)
    outside = vnp.where(is_central, 0.25, vnp.minimum(p, 1.0 - p))
    depth = vnp.sqrt(-vnp.log(outside))
    is_far = depth > 5.0
    reach = vnp.where(is_far, _ratio(vnp.where(is_far, depth - 5.0, 0.0), _FAR_TAIL), _ratio(depth - 1.6, _TAIL))
    out = vnp.where(is_central, centre, vnp.where(centred < 0, -reach, reach))
    out = vnp.where(p == 0, -np.inf, vnp.where(p == 1, np.inf, out))
    return vnp.where((p < 0) | (p > 1), np.nan, out)


_ndtri.defjvps(lambda g, out, p: g * vnp.exp(-_log_density(out)))


@composite
def ndtri(p: Any) -> Array:
    """Return the quantile of the standard normal distribution, inverse of `ndtr`.

    >>> vf.scipy.special.ndtri(vf.numpy.array([0.025, 0.5, 0.975])).round(4)
    Array([-1.96,  0.  ,  1.96], dtype=float32)
    """
    return _ndtri(p)
