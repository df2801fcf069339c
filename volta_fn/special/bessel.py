"""Modified Bessel functions of the first kind."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.declare import promoted
from volta_fn.special.composite import composite

i0e = promoted(lax.bessel_i0e, "i0e", "exp(-|x|) I0(x), the scaled modified Bessel function of order 0.")
i1e = promoted(lax.bessel_i1e, "i1e", "exp(-|x|) I1(x), the scaled modified Bessel function of order 1.")


@composite
def i0(x: Any) -> Array:
    """I0(x), the modified Bessel function of order 0.

    >>> import volta_fn as vf
    >>> vf.special.i0(1.0).round(4)
    Array(1.2661, dtype=float32)
    """
    return vnp.exp(vnp.abs(x)) * lax.bessel_i0e(x)


@composite
def i1(x: Any) -> Array:
    """I1(x), the modified Bessel function of order 1.

    >>> import volta_fn as vf
    >>> vf.special.i1(1.0).round(4)
    Array(0.5652, dtype=float32)
    """
    return vnp.exp(vnp.abs(x)) * lax.bessel_i1e(x)
