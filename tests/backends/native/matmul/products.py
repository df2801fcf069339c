"""Running `dot_general` as a routine, and NumPy's answer in wider numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.backends.native.running import run_routine
from volta_fn.backends.native.matmul import ROUTINES
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import dot_general_p

MATRICES = (((1,), (0,)), ((), ()))


def native(lhs: np.ndarray, rhs: np.ndarray, dims: Any, preferred: Any = None, pieces: int = 1) -> np.ndarray:
    """The product by machine code."""
    params = {"dimension_numbers": dims, "preferred_element_type": None if preferred is None else np.dtype(preferred)}
    avals = ShapedArray(lhs.shape, lhs.dtype, False), ShapedArray(rhs.shape, rhs.dtype, False)
    out = dot_general_p.result_avals(avals, params)
    routine = ROUTINES["dot_general"](avals, params)
    assert routine is not None
    return run_routine(routine, [lhs, rhs], [(out.shape, out.dtype)], pieces)[0]


def expected(lhs: np.ndarray, rhs: np.ndarray, dims: Any, dtype: Any) -> np.ndarray:
    """The product in `dtype`, by einsum."""
    (lhs_inner, rhs_inner), (lhs_stack, rhs_stack) = dims
    left, right = list(range(lhs.ndim)), list(range(20, 20 + rhs.ndim))
    for i, j in (*zip(lhs_inner, rhs_inner, strict=True), *zip(lhs_stack, rhs_stack, strict=True)):
        right[j] = left[i]
    out = [left[i] for i in lhs_stack]
    out += [left[i] for i in range(lhs.ndim) if i not in (*lhs_inner, *lhs_stack)]
    out += [right[j] for j in range(rhs.ndim) if j not in (*rhs_inner, *rhs_stack)]
    return np.einsum(lhs.astype(dtype), left, rhs.astype(dtype), right, out)
