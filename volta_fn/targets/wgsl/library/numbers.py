"""Numbers in routines: in what they are computed, and arrays of them that are written."""

from __future__ import annotations

import numpy as np

from volta_fn.dtypes import accumulator, bfloat16
from volta_fn.targets.wgsl.scalars import Array, Shader

_HALF = (np.dtype(np.float16), np.dtype(bfloat16))


def summing(dtype: np.dtype) -> np.dtype:
    """The dtype in which numbers are combined that is no less than 32 bits wide."""
    if dtype.itemsize >= 4 or dtype in _HALF:
        return accumulator(dtype)
    return np.dtype(np.int32 if dtype.kind == "i" else np.uint32)


def result_array(shader: Shader, number: int, dtype: np.dtype, size: int) -> Array:
    """A buffer that `fill` writes."""
    return shader.buffer(number, dtype, written=True, size=size if dtype.itemsize < 4 else 0)
