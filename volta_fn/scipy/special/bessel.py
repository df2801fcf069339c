"""Modified Bessel functions of the first kind."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.declare import promoted
from volta_fn.scipy.special.arguments import composite
from volta_fn.transforms.custom_jvp import custom_jvp

i0e = promoted(lax.bessel_i0e, "i0e", "Return exp(-|x|) I0(x), the scaled modified Bessel function of order 0.")
i1e = promoted(lax.bessel_i1e, "i1e", "Return exp(-|x|) I1(x), the scaled modified Bessel function of order 1.")


@composite
def i0(x: Any) -> Array:
    """Return I0(x), the modified Bessel function of order 0.

    >>> vf.scipy.special.i0(1.0).round(4)
    Array(1.2661, dtype=float32)
    """
    return _i0(x)


@composite
def i1(x: Any) -> Array:
    """Return I1(x), the modified Bessel function of order 1.

    >>> vf.scipy.special.i1(1.0).round(4)
    Array(0.5652, dtype=float32)
    """
    return _i1(x)


@custom_jvp
def _i0(x: Array) -> Array:
    return _grown(x, lax.bessel_i0e(x))


@custom_jvp
def _i1(x: Array) -> Array:
    return _grown(x, lax.bessel_i1e(x))


def _grown(x: Array, scaled: Array) -> Array:
    """Return exp(|x|) scaled in two steps: it may be finite where exp(|x|) is not."""
    root = vnp.exp(0.5 * vnp.abs(x))
    return scaled * root * root


def _i1_slope(x: Array) -> Array:
    """Return I0(x) - I1(x) / x, which is one half at zero."""
    at_zero = x == 0
    quotient = vnp.where(at_zero, 0.5, lax.bessel_i1e(x) / vnp.where(at_zero, 1.0, x))
    return _grown(x, lax.bessel_i0e(x) - quotient)


_i0.defjvps(lambda g, out, x: g * _i1(x))
_i1.defjvps(lambda g, out, x: g * _i1_slope(x))
