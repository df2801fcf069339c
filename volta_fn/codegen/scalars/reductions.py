"""Reductions: their neutral numbers, and the operation that combines two numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes

#: The elementwise primitive that is one step of a reduction.
STEPS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
    "reduce_xor": "xor",
}


def identity(op: str, dtype: np.dtype) -> np.ndarray:
    """The number that changes nothing, as a zero-dimensional array."""
    return np.asarray(_IDENTITIES[op](dtype)).astype(dtype)


def _lowest(dtype: np.dtype) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return False if dtype.kind == "b" else -np.inf


def _highest(dtype: np.dtype) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.inf


def _all_ones(dtype: np.dtype) -> Any:
    return np.iinfo(dtype).max if dtype in dtypes.UNSIGNED else True if dtype.kind == "b" else -1


_IDENTITIES: dict[str, Any] = {
    "reduce_sum": lambda dtype: 0,
    "reduce_prod": lambda dtype: 1,
    "reduce_max": _lowest,
    "reduce_min": _highest,
    "reduce_and": _all_ones,
    "reduce_or": lambda dtype: 0,
    "reduce_xor": lambda dtype: 0,
}
