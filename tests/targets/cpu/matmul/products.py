"""Running `dot_general` as a routine."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.targets.cpu.running import run_routine
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.targets.cpu.matmul import ROUTINES


def native(lhs: np.ndarray, rhs: np.ndarray, dims: Any, preferred: Any = None, chunks: int = 1) -> np.ndarray:
    """Return the product by machine code."""
    params = {"dimension_numbers": dims, "preferred_element_type": None if preferred is None else np.dtype(preferred)}
    avals = ShapedArray(lhs.shape, lhs.dtype, False), ShapedArray(rhs.shape, rhs.dtype, False)
    out = dot_general_p.result_avals(avals, params)
    routine = ROUTINES["dot_general"](avals, params)
    assert routine is not None
    return run_routine(routine, [lhs, rhs], [(out.shape, out.dtype)], chunks)[0]
