"""Cumulative sums, products, extremes and log-sum-exps in NumPy.

Each result has the operand's dtype; float16 and bfloat16 accumulate in float32. ``reverse`` accumulates from the end of the axis.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from volta_fn.core.primitive import PRIMITIVES, reduction_of

#: The number of elements behind an axis from which on they accumulate together.
_ROW = 64
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def cumulative(operand: np.ndarray, *, name: str, axis: int, reverse: bool) -> np.ndarray:
    """Evaluate the cumulative primitive of that name by the ufunc of its step; integers wrap around, and NaN stays."""
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
    """The same with all that stands at one place of the axis as one step, where NumPy would stride through memory."""
    out = x.copy()
    rows = np.moveaxis(out, axis, 0)
    for i in range(1, len(rows)):
        ufunc(rows[i - 1], rows[i], out=rows[i])
    return out
