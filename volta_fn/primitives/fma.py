"""The fused multiply-add, x y + z rounded once: what makes a result the same where compilers fuse and where they do not."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes
from volta_fn.primitives.arithmetic import mul
from volta_fn.primitives.declare import Elementwise, elementwise
from volta_fn.primitives.scalar_functions.blocks import blockwise

#: 2^27 + 1: multiplying by it and taking away the excess leaves the upper 26 bits of a float64.
_SPLITTER = 134217729.0


@blockwise()
def _evaluate(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    if x.dtype == np.float64:
        return _fused(x, y, z)
    return x.astype(np.float64) * y + z  # the product is exact


def _fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Product and sum with their rounding errors, exactly (Dekker 1971, Knuth's two-sum), and then one addition of the errors."""
    product = x * y
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    product_error = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
    total = product + z
    part = total - product
    total_error = (product - (total - part)) + (z - part)
    fused = total + (total_error + product_error)
    return np.where(np.isfinite(fused), fused, np.where(np.isinf(z) & np.isfinite(x) & np.isfinite(y), z, total))


def _split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


fma: Elementwise = elementwise(
    "fma", _evaluate, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y, z: mul(g, y), lambda g, out, x, y, z: mul(g, x), lambda g, out, x, y, z: g],
    doc="x * y + z, rounded once (float64: provided that x * y does not overflow).",
)  # fmt: skip
