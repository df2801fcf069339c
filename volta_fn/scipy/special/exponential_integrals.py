"""Exponential integrals, and the scaled complementary error function."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args
from volta_fn.scipy.special.arguments import composite
from volta_fn.scipy.special.integrals import wofz

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
