"""Bits of integers: shifts, and counts of bits. Dtypes keep their width; unsigned views give signed integers their bit pattern."""

from __future__ import annotations

import numpy as np


def _unsigned(x: np.ndarray) -> np.ndarray:
    """The same bits as an unsigned integer."""
    return x.view(f"u{x.dtype.itemsize}")


# NumPy's shifts are defined for every count: one that is negative or not below the width shifts all bits out. That is XLA's meaning.


def shift_left(x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """x << count, with zeros moving in; 0 for a count outside 0, …, width - 1."""
    return np.left_shift(x, count)


def shift_right_arithmetic(x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """x >> count, with copies of the sign bit moving in (of unsigned integers, too); only copies for a count outside 0, …, width - 1."""
    signed = f"i{x.dtype.itemsize}"
    return np.right_shift(x.view(signed), count.view(signed)).view(x.dtype)


def shift_right_logical(x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """x >> count, with zeros moving in; 0 for a count outside 0, …, width - 1."""
    return np.right_shift(_unsigned(x), _unsigned(count)).view(x.dtype)


def population_count(x: np.ndarray) -> np.ndarray:
    """The number of bits that are 1."""
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def clz(x: np.ndarray) -> np.ndarray:
    """The number of zeros above the highest bit that is 1; the width for 0."""
    width = 8 * x.dtype.itemsize
    smeared = _unsigned(x)
    step = 1
    while step < width:
        smeared = smeared | (smeared >> smeared.dtype.type(step))
        step *= 2
    return (width - np.bitwise_count(smeared)).astype(x.dtype)
