"""Samples of `jit`'s primitive: nested calls, constants, several results."""

from __future__ import annotations

import numpy as np

from tests.samples.sample import Arg, Sample, integers
from volta_fn import jit, lax

_TABLE = np.arange(3.0)

SAMPLES = [
    Sample("jit", jit(lambda x: lax.sin(x)), (Arg((2, 3)),), np.sin, dtypes=("float16", "bfloat16", "float32", "float64", "complex128")),
    Sample("jit", jit(lambda x: jit(lax.exp)(jit(lax.neg)(x))), (Arg((3,)),), lambda x: np.exp(-x), label="nested"),
    Sample(
        "jit",
        jit(lambda x, y: (lax.mul(x, y), y, lax.sub(y, x))),
        (Arg((2, 1)), Arg((3,))),
        lambda x, y: (x * y, y, y - x),
        label="several",
    ),
    Sample(
        "jit",
        jit(lambda x: lax.mul(x, lax.convert_element_type(_TABLE, x.dtype))),
        (Arg((2, 3)),),
        lambda x: x * _TABLE,
        linear=(0,),
        label="constant",
    ),
    Sample(
        "jit",
        jit(lambda x, i: (lax.mul(x, x), lax.add(i, i))),
        (Arg((3,)), Arg((3,), integers(0, 5), "int32")),
        lambda x, i: (x * x, i + i),
        result_dtype=lambda d: (d, "int32"),
        label="integers",
    ),
    Sample("jit", jit(lambda x: (lax.sign(x), lax.floor(x))), (Arg((3,)),), lambda x: (np.sign(x), np.floor(x)), label="flat"),
    Sample("jit", jit(lambda x: ()), (Arg((3,)),), check=lambda inputs, outputs: None, differentiable=(), label="nothing"),
    Sample("jit", jit(lambda x: lax.broadcast(lax.exp(x), (2,))), (Arg(()),), lambda x: np.full(2, np.exp(x)), label="0d"),
    Sample("jit", jit(lambda x: lax.sin(x)), (Arg((0, 2)),), np.sin, label="empty"),
]
