"""Logarithms and exponentials that keep their precision, with finite derivatives."""

from __future__ import annotations

import math

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array


def log1mexp(y: Array) -> Array:
    """Return log(1 - exp(-y)) for y > 0 (Mächler, "Accurately computing", 2012)."""
    small = y < math.log(2.0)
    near, far = vnp.where(small, y, 1.0), vnp.where(small, 1.0, y)
    return vnp.where(small, vnp.log(-vnp.expm1(-near)), vnp.log1p(-vnp.exp(-far)))


def log1p_square(x: Array) -> Array:
    """Return log(1 + x²), also where x² overflows."""
    large = vnp.abs(x) > 1.0
    near, far = vnp.where(large, 0.0, x), vnp.where(large, x, 1.0)
    return vnp.where(large, 2.0 * vnp.log(vnp.abs(far)) + vnp.log1p((1.0 / far) ** 2), vnp.log1p(near * near))


def exp_or_infinity(x: Array) -> Array:
    """Return exp(x), with derivatives 0 where it overflows."""
    overflows = x > math.log(dtypes.finfo(x.dtype).max)
    return vnp.where(overflows, np.inf, vnp.exp(vnp.where(overflows, 0.0, x)))


def log_power(x: Array, power: Array) -> Array:
    """Return log(x^power) for x >= 0, which is 0 for the zeroth power of 0.

    Where it is infinite, its derivatives are 0.
    """
    at_zero = x == 0
    infinite = vnp.where(power > 0, -np.inf, np.inf)
    return vnp.where(at_zero, vnp.where(power == 0, 0.0, infinite), power * vnp.log(vnp.where(at_zero, 1.0, x)))


def log_probability(p: Array, complement: Array) -> Array:
    """Return log(p) of a probability, given 1 - p as well."""
    small = p < 0.5
    none = p <= 0
    low = vnp.log(vnp.where(small & ~none, p, 1.0))
    return vnp.where(none, -np.inf, vnp.where(small, low, vnp.log1p(-vnp.where(small, 0.0, complement))))
