"""Bessel functions of the first kind, modified ones and others."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError
from volta_fn.primitives.declare import promoted
from volta_fn.scipy.special.arguments import composite

i0e = promoted(lax.bessel_i0e, "i0e", "Return exp(-|x|) I0(x), the scaled modified Bessel function of order 0.")
i1e = promoted(lax.bessel_i1e, "i1e", "Return exp(-|x|) I1(x), the scaled modified Bessel function of order 1.")


@composite
def i0(x: Any) -> Array:
    """Return I0(x), the modified Bessel function of order 0.

    >>> vf.scipy.special.i0(1.0).round(4)
    Array(1.2661, dtype=float32)
    """
    return lax.bessel_i0(x)


@composite
def i1(x: Any) -> Array:
    """Return I1(x), the modified Bessel function of order 1.

    >>> vf.scipy.special.i1(1.0).round(4)
    Array(0.5652, dtype=float32)
    """
    return lax.bessel_i1(x)


def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Array:
    """Return the Bessel functions J_0(z), …, J_v(z), stacked in front.

    They are computed by Miller's backward recurrence from order `n_iter` (Abramowitz & Stegun 9.12, example 1), which must exceed |z| by
    about 5 |z|^(1/3) + 10. Small values have an absolute error of some roundings of the largest one. Raises `ArgumentError` unless
    0 <= v < n_iter.

    >>> vf.scipy.special.bessel_jn(vf.numpy.array([0.0, 1.0]), v=1).round(4)
    Array([[1.    , 0.7652],
           [0.    , 0.4401]], dtype=float32)
    """
    order, start = as_integer(v, "bessel_jn: v"), as_integer(n_iter, "bessel_jn: n_iter")
    if not 0 <= order < start:
        raise ArgumentError(f"bessel_jn: v and n_iter must be 0 <= v < n_iter, got {order} and {start}")
    return _bessel_jn(z, order=order, start=start)


@composite
def _bessel_jn(z: Any, *, order: int, start: int) -> Array:
    """Recur in h with J_k = (z/2)^k / k! h_k, which neither over- nor underflows.

    The sum J_0 + 2 J_2 + 2 J_4 + … = 1 is evaluated by Horner's rule on the way.
    """
    half = 0.5 * z

    def step(state: tuple[Array, Array, Array], k: Array) -> tuple[tuple[Array, Array, Array], Array]:
        above, value, total = state
        below = value - half * half / (k * (k + 1.0)) * above
        weight = vnp.where(k == 1.0, 1.0, vnp.where(k % 2.0 == 1.0, 2.0, 0.0))
        return (value, below, weight * below + half / k * total), below

    one = vnp.ones_like(z)
    orders = lax.convert_element_type(np.arange(start, 0, -1, dtype=np.float32), z.dtype)
    total, values = lax.scan(step, (one, one, vnp.full_like(z, 2.0 * (start % 2 == 0))), orders)
    powers = [one]
    for k in range(1, order + 1):
        powers.append(powers[-1] * (half / k))
    return vnp.stack(powers) * values[::-1][: order + 1] / total[2]
