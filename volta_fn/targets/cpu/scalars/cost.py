"""Estimated costs of operations, for scheduling and recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from volta_fn.core.primitive import PRIMITIVES
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value
from volta_fn.targets.cpu.scalars.values import Lanes, inlined

#: Measured cycles per vector of 512 bits of float32; a formula that is not listed takes a cycle an instruction, about.
_CYCLES = {
    "div": 10.0, "rem": 15.0, "sqrt": 12.0, "rsqrt": 22.0, "cbrt": 100.0, "pow": 80.0, "exp": 9.0, "exp2": 9.0, "expm1": 11.0, "log": 10.0,
    "log2": 10.0, "log1p": 18.0, "logistic": 15.0, "tanh": 15.0, "sinh": 18.0, "cosh": 15.0, "asinh": 110.0, "acosh": 90.0, "atanh": 70.0,
    "sin": 11.0, "cos": 11.0, "tan": 20.0, "asin": 14.0, "acos": 14.0, "atan": 14.0, "atan2": 20.0, "erf": 17.0, "erfc": 24.0,
    "erf_inv": 45.0, "erf_inv_of_uniform": 28.0, "ndtr": 14.0, "gelu": 14.0, "lgamma": 200.0, "digamma": 300.0, "bessel_i0e": 60.0, "bessel_i1e": 60.0,
    "threefry2x32_word": 27.0, "philox4x32_word": 250.0, "logaddexp": 35.0,
}  # fmt: skip


def cost(op: str, in_dtypes: Sequence[np.dtype]) -> float:
    """About how many nanoseconds an operation takes for an element, on one thread."""
    dtype = in_dtypes[-1]
    width = max(dtype.itemsize, 4) if dtype.kind in "fcV" else dtype.itemsize
    scale = 3.0 if dtype.kind == "c" else 1.5 if width == 8 and op in _CYCLES else 1.0
    return (_CYCLES.get(op) or _instructions(op)) * scale * width / host().vector_bytes / 3.0


@cache
def _instructions(op: str) -> float:
    """About how many instructions a formula is."""
    formula = PRIMITIVES[op].formula
    if formula is None:
        return 1.0
    module = Module()
    f = Function(module, "f", [Value("float", f"%x{k}") for k in range(PRIMITIVES[op].arity)])
    inlined(op, formula, *[Lanes(f, x) for x in f.parameters])
    return float(str(module).count(" = "))
