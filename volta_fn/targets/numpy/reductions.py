"""Reductions and cumulative reductions in NumPy.

Cumulative results have the operand's dtype; float16 and bfloat16 accumulate in float32. ``reverse`` accumulates from the end of the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Primitive, reduction_of

#: The number of elements per index of an axis from which on they accumulate together.
_ROW = 64
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def cumulative(operand: np.ndarray, *, name: str, axis: int, reverse: bool) -> np.ndarray:
    """Evaluate a cumulative primitive by the ufunc of its step.

    Integers wrap around, and NaN stays.
    """
    ufunc = PRIMITIVES[reduction_of(name).step].evaluate
    assert isinstance(ufunc, np.ufunc)
    return _accumulate(ufunc, operand, axis, reverse)


def _accumulate(ufunc: np.ufunc, operand: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    wide = np.dtype(np.float32) if operand.dtype in _HALF else operand.dtype
    x = np.flip(operand, axis) if reverse else operand
    x = x.astype(wide, copy=False)
    if math.prod(x.shape[axis + 1 :]) >= _ROW:
        out = _accumulate_rows(ufunc, x, axis)
    else:
        out = ufunc.accumulate(x, axis=axis, dtype=wide)
    out = out.astype(operand.dtype, copy=False)
    return np.flip(out, axis) if reverse else out


def _accumulate_rows(ufunc: np.ufunc, x: np.ndarray, axis: int) -> np.ndarray:
    """Accumulate rows across the axis, where NumPy would stride through memory."""
    out = x.copy()
    rows = np.moveaxis(out, axis, 0)
    for i in range(1, len(rows)):
        ufunc(rows[i - 1], rows[i], out=rows[i])
    return out


def typed_reductions() -> dict[str, Callable[..., Callable[..., np.ndarray]]]:
    """Return makers of the kernels of reductions that NumPy computes precisely.

    Their step is a ufunc that rounds nothing, or adds (which NumPy does pairwise).
    """
    steps: dict[str, Any] = {
        name: PRIMITIVES[p.reduction.step].evaluate for name, p in PRIMITIVES.items() if p.reduction and not p.reduction.index_of
    }
    return {name: partial(_typed, PRIMITIVES[name], step) for name, step in steps.items() if step in (np.add, np.maximum, np.minimum)}


#: So many rows are summed in blocks, so that rounding errors do not add up.
_MANY = 256


def _sum_by_axes(inner: tuple[int, ...], outer: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    """Sum along the last axes, then along each of the outer ones.

    NumPy sums the last axes pairwise. Of outer axes it adds all rows one after another, and with them their rounding errors.
    """
    total: np.ndarray = np.add.reduce(x, axis=inner) if inner else x
    for axis in reversed(outer):
        total = _sum_of_rows(np.moveaxis(total, axis, 0))
    return total


def _sum_of_rows(rows: np.ndarray) -> np.ndarray:
    """Sum along the first axis; many rows by sums of blocks."""
    total: np.ndarray
    if len(rows) < _MANY:
        total = np.add.reduce(rows, axis=0)
        return total
    size = math.isqrt(len(rows))
    covered = len(rows) // size * size
    blocks = rows[:covered].reshape(-1, size, *rows.shape[1:])
    total = np.add.reduce(np.add.reduce(blocks, axis=1), axis=0)
    return total if covered == len(rows) else total + np.add.reduce(rows[covered:], axis=0)


def _typed(primitive: Primitive, step: np.ufunc, operand: ShapedArray, *, axes: tuple[int, ...]) -> Callable[..., np.ndarray]:
    if operand.dtype.itemsize > 2 and operand.dtype in dtypes.INEXACT and operand.size:
        last_kept = max([axis for axis in range(operand.ndim) if axis not in axes], default=-1)
        outer, inner = tuple([axis for axis in sorted(axes) if axis < last_kept]), tuple([axis for axis in axes if axis > last_kept])
        if step is np.add and math.prod([operand.shape[axis] for axis in outer]) >= _MANY:
            return partial(_sum_by_axes, inner, outer)
        return partial(step.reduce, axis=axes)
    evaluate: Any = primitive.evaluate
    return partial(evaluate, axes=axes)
