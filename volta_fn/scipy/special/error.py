"""The error function's family, and integrals of exponentials."""

from __future__ import annotations

import functools
import math
from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.primitives.elementwise.special import normal_pdf
from volta_fn.scipy.special.gamma_family import composite
from volta_fn.transforms.custom_derivatives import custom_jvp

# The error function's family and the normal distribution function.

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


# Exponential integrals, and the scaled complementary error function.


@composite
def expn(n: Any, x: Any) -> Array:
    """Return En(x), the integral of exp(-x t) / t^n over t from 1 to infinity.

    n is an integer >= 0 and x >= 0; the result is NaN for others. It is differentiable by x, and computed by a power series up to 1, by a
    continued fraction beyond (Abramowitz & Stegun 5.1.12 and 5.1.22).

    >>> vf.scipy.special.expn(2, vf.numpy.array([0.0, 1.0])).round(4)
    Array([1.    , 0.1485], dtype=float32)
    """
    return lax.expn(*vnp.broadcast_arrays(n, x))


@composite
def exp1(x: Any) -> Array:
    """Return E1(x), the integral of exp(-t) / t from x to infinity; NaN for x < 0.

    >>> vf.scipy.special.exp1(1.0).round(4)
    Array(0.2194, dtype=float32)
    """
    return lax.expn(vnp.ones_like(x), x)


@composite
def expi(x: Any) -> Array:
    """Return Ei(x), the principal value of the integral of exp(t) / t from -inf to x.

    It is -inf at 0 and -E1(-x) left of it; on the right it is computed by a power series up to 40 and an asymptotic one beyond (Abramowitz
    & Stegun 5.1.10 and 5.1.51).

    >>> vf.scipy.special.expi(vf.numpy.array([-1.0, 1.0])).round(4)
    Array([-0.2194,  1.8951], dtype=float32)
    """
    return lax.expi(x)


@composite
def _real_erfcx(x: Any) -> Array:
    return lax.erfcx(x)


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


# Integrals: Dawson, Fresnel, sine, cosine, Spence, Owen's T, Faddeeva's w.

dawsn = promoted(lax.dawsn, "dawsn", "Return Dawson's integral, exp(-x^2) times the integral of exp(t^2) from 0 to x.")
spence = promoted(lax.spence, "spence", "Return minus the integral of log(t) / (t - 1) from 1 to x, which is the dilogarithm of 1 - x.")
owens_t = promoted(lax.owens_t, "owens_t", "Return Owen's T(h, a), the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / 2 pi from 0 to a.")


def fresnel(x: Any) -> tuple[Array, Array]:
    """Return the integrals S and C of sin(pi t^2 / 2) and cos(pi t^2 / 2) from 0 to x.

    They are computed by Chebyshev interpolation, beyond 5/2 of their amplitudes (Abramowitz & Stegun 7.3.5).

    >>> [integral.round(4).item() for integral in vf.scipy.special.fresnel(vf.numpy.float32(1.0))]
    [0.438..., 0.7799...]
    """
    (value,) = promote_args("fresnel", (x,), dtypes.FLOATS)
    return lax.fresnel_sin(value), lax.fresnel_cos(value)


def sici(x: Any) -> tuple[Array, Array]:
    """Return the sine and the cosine integral, Si(x) and Ci(|x|).

    Si is the integral of sin(t) / t from 0 to x, and Ci is minus that of cos(t) / t from |x| to infinity; Ci(0) is -inf, and it is NaN at
    -inf, as in SciPy. They are computed by Chebyshev interpolation, beyond 10 of their amplitudes (Abramowitz & Stegun 5.2.6).

    >>> [integral.round(4).item() for integral in vf.scipy.special.sici(vf.numpy.float32(1.0))]
    [0.9460..., 0.337...]
    """
    (value,) = promote_args("sici", (x,), dtypes.FLOATS)
    return lax.sin_integral(value), lax.cos_integral(value)


def wofz(z: Any) -> Array:
    """Return the Faddeeva function exp(-z^2) erfc(-i z), complex.

    Each component is accurate by itself. It is computed by Laplace's continued fraction far from zero, elsewhere by algorithm 916 (Zaghloul
    and Ali 2011), with the border of S. G. Johnson's Faddeeva package.

    >>> vf.scipy.special.wofz(vf.numpy.array([0.0, 1.0j])).round(4)
    Array([1.    +0.j, 0.4276+0.j], dtype=complex64)
    """
    (value,) = promote_args("wofz", (z,), dtypes.INEXACT)
    value = lax.convert_element_type(value, dtypes.complex_dtype(value.dtype), value.weak_type)
    x, y = lax.real(value), lax.imag(value)
    return lax.complex(lax.faddeeva_real(x, y), lax.faddeeva_imag(x, y))
