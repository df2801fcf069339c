"""About how long operations take, for deciding how much work is worth a thread, and what is worth computing twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.backends.native.llvm.host import host

#: Cycles per vector of 512 bits of float32.
_CYCLES = {
    "div": 16.0, "rem": 30.0, "sqrt": 20.0, "rsqrt": 30.0, "cbrt": 30.0, "pow": 45.0, "exp": 9.0, "exp2": 9.0, "expm1": 20.0, "log": 14.0,
    "log2": 14.0, "log1p": 25.0, "logistic": 25.0, "tanh": 25.0, "sinh": 25.0, "cosh": 20.0, "asinh": 45.0, "acosh": 45.0, "atanh": 40.0,
    "sin": 15.0, "cos": 15.0, "tan": 35.0, "asin": 30.0, "acos": 30.0, "atan": 30.0, "atan2": 40.0, "erf": 25.0, "erfc": 45.0,
    "erf_inv": 60.0, "lgamma": 250.0, "digamma": 250.0,
}  # fmt: skip


def cost(op: str, in_dtypes: Sequence[np.dtype]) -> float:
    """About how many nanoseconds an operation takes for an element, on one thread."""
    dtype = in_dtypes[-1]
    width = max(dtype.itemsize, 4) if dtype.kind in "fcV" else dtype.itemsize
    scale = 3.0 if dtype.kind == "c" else 2.0 if width == 8 and op in _CYCLES else 1.0
    return _CYCLES.get(op, 1.0) * scale * width / host().vector_bytes / 3.0
