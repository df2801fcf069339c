"""Modified Bessel functions of the first kind."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.declare import promote_args, promoted

i0e = promoted(lax.bessel_i0e, "i0e", "exp(-|x|) I0(x), the scaled modified Bessel function of order 0.")
i1e = promoted(lax.bessel_i1e, "i1e", "exp(-|x|) I1(x), the scaled modified Bessel function of order 1.")


def i0(x: Any) -> Array:
    """I0(x), the modified Bessel function of order 0."""
    (value,) = promote_args("i0", (x,), dtypes.FLOATS)
    return vnp.exp(vnp.abs(value)) * lax.bessel_i0e(value)


def i1(x: Any) -> Array:
    """I1(x), the modified Bessel function of order 1."""
    (value,) = promote_args("i1", (x,), dtypes.FLOATS)
    return vnp.exp(vnp.abs(value)) * lax.bessel_i1e(value)
