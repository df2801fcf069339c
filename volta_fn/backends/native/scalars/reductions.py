"""Reductions: their neutral numbers, one step of combining, and combining the lanes of a register."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.backends.native.llvm.text import Function, element_of, i64
from volta_fn.backends.native.scalars.lanes import Lanes
from volta_fn.backends.native.scalars.number import Number
from volta_fn.backends.native.scalars.operations import apply

_STEPS = {
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


def combine(f: Function, op: str, x: Number, y: Number) -> Number:
    """One step of a reduction, lane by lane. NaN wins against anything in maxima and minima."""
    return apply(f, _STEPS[op], (x, y), x.dtype, {})


def horizontal(f: Function, op: str, x: Number) -> Number:
    """The lanes (a power of two of them) combined: the upper half with the lower half, until one is left."""
    while x.lanes > 1:
        half = x.lanes // 2
        x = combine(f, op, _taken(f, x, 0, half), _taken(f, x, half, half))
    return x


def _taken(f: Function, x: Number, start: int, count: int) -> Number:
    """Some of the lanes."""
    if count == 1:
        element = [f.let(element_of(p.type), f"extractelement {p}, {i64(start)}") for p in x.parts]
        return Number(x.dtype, tuple(element))
    return Number(x.dtype, tuple([Lanes(f, p).taken(range(start, start + count)).value for p in x.parts]))
