"""Integrals: Dawson, Fresnel, sine, cosine, Spence, Owen's T, Faddeeva's w."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.primitives.declare import promote_args, promoted

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
