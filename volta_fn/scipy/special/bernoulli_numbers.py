"""Bernoulli's numbers."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any

import numpy as np

from volta_fn.core.array import Array, from_host
from volta_fn.core.aval import as_integer
from volta_fn.dtypes import as_dtype
from volta_fn.errors import ArgumentError


def bernoulli(n: int, *, dtype: Any = None) -> Array:
    """Return Bernoulli's numbers B_0, B_1 = -1/2, …, B_n (default: as float32).

    They are computed as fractions and rounded once; those beyond the dtype's range are infinite. Raises `ArgumentError` for n < 0.

    >>> vf.scipy.special.bernoulli(4)
    Array([ 1.        , -0.5       ,  0.16666667,  0.        , -0.03333334],      dtype=float32)
    """
    count = as_integer(n, "bernoulli: n")
    if count < 0:
        raise ArgumentError(f"bernoulli: n must not be negative, got {count}")
    numbers: list[Fraction] = []
    for k in range(count + 1):
        zero = k > 1 and k % 2 == 1
        total = sum((comb(k + 1, j) * b for j, b in enumerate(numbers) if b), Fraction(0))
        numbers.append(Fraction(0) if zero else Fraction(1) if k == 0 else -total / (k + 1))
    return from_host(np.array([_rounded(b) for b in numbers]).astype(as_dtype(np.float32 if dtype is None else dtype)))


def _rounded(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return np.inf if number > 0 else -np.inf
