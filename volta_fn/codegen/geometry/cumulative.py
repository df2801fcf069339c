"""Cumulative operations: how elements are combined, and along which axis."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of


class CumulativeOp(NamedTuple):
    """A cumulative operation on an array.

    Attributes:
        name: the name of the primitive.
        reduction: how it combines elements.
        stored: the dtype in memory.
        dtype: the dtype that is accumulated in.
        rows, size, columns: the sizes of the axes before, of, and after the accumulation.
        reverse: whether it begins at the end.
    """

    name: str
    reduction: Reduction
    stored: np.dtype
    dtype: np.dtype
    rows: int
    size: int
    columns: int
    reverse: bool


def cumulative_op(name: str, operand: ShapedArray, dtype: np.dtype, axis: int, reverse: bool) -> CumulativeOp:
    """Return the operation of a primitive along an axis, accumulated in a dtype."""
    before, after = math.prod(operand.shape[:axis]), math.prod(operand.shape[axis + 1 :])
    return CumulativeOp(name, reduction_of(name), operand.dtype, dtype, before, operand.shape[axis], after, reverse)
