"""The order of elements.

Sort keys, and how cumulative operations combine elements along an axis.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of
from volta_fn.primitives.formulas.values import Values

# ------------------------------------------------------------------------------
# Sort keys: unsigned integers in the order of numbers of any dtype.
#
# Negative floats have all bits flipped, the others their sign; every NaN is the greatest key. Zeros of either sign are equal, but a key
# that is to be turned back into its number must distinguish them: such *faithful* keys of -0.0 and 0.0 are neighbours.
# ------------------------------------------------------------------------------

_V = TypeVar("_V", bound=Values)

#: The bits of infinity.
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}


def is_float(dtype: np.dtype) -> bool:
    """Return True if numbers of the dtype have signed zeros and NaN."""
    return dtype in dtypes.FLOATS


def sort_key(bits: _V, dtype: np.dtype, *, faithful: bool) -> _V:
    """Emit the key of a number of a dtype, in an integer that may have more bits."""
    sign, mask = _sign_and_mask(dtype)
    if not is_float(dtype):
        return bits ^ sign if dtype.kind == "i" else bits
    size = bits & (sign - 1)
    key = bits ^ bits.compare("uge", sign).select(bits.like(mask), sign)
    if not faithful:
        key = size.equals(0).select(sign, key)
    return size.compare("ugt", INFINITY[dtype.name]).select(mask, key)


def number_of_key(key: _V, dtype: np.dtype) -> _V:
    """Emit the bits of the number of a faithful key (of a NaN, of some NaN)."""
    sign, mask = _sign_and_mask(dtype)
    if not is_float(dtype):
        return key ^ sign if dtype.kind == "i" else key
    return key ^ key.compare("ult", sign).select(key.like(mask), sign)


def _sign_and_mask(dtype: np.dtype) -> tuple[int, int]:
    return 1 << (8 * dtype.itemsize - 1), (1 << 8 * dtype.itemsize) - 1


# ------------------------------------------------------------------------------
# Cumulative operations: how elements are combined, and along which axis.
# ------------------------------------------------------------------------------


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
