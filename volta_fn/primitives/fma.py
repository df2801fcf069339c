"""The fused multiply-add, x y + z rounded once.

With it a result is the same where compilers fuse and where they do not.
"""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes
from volta_fn.primitives.arithmetic import mul
from volta_fn.primitives.declare import Elementwise, elementwise
from volta_fn.primitives.formulas.numpy_values import blockwise, fused_multiply_add


def _evaluate(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return blockwise(fused_multiply_add, x, y, z)


fma: Elementwise = elementwise(
    "fma", _evaluate, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y, z: mul(g, y), lambda g, out, x, y, z: mul(g, x), lambda g, out, x, y, z: g],
    doc="x * y + z, rounded once (float64: provided that x * y does not overflow).",
)  # fmt: skip
