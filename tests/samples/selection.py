"""Samples of select_n; clamp is elementwise and derives its own."""

from __future__ import annotations

import numpy as np

from tests.samples.sample import ALL, Arg, Sample, integers, normal
from volta_fn import lax

_BOOL = Arg((2, 3), normal(), "bool")

SAMPLES = [
    Sample(
        "select_n",
        lambda p, x, y: lax.select_n(p, x, y),
        (_BOOL, Arg((2, 3)), Arg((2, 3))),
        lambda p, x, y: np.where(p, y, x),
        dtypes=ALL,
        linear=(1, 2),
    ),
    Sample(
        "select_n",
        lambda p, x, y: lax.select_n(p, x, y),
        (Arg((3,), normal(), "bool"), Arg((2, 1)), Arg(())),
        lambda p, x, y: np.where(p, y, x),
        dtypes=("int32", "float64", "complex128"),
        linear=(1, 2),
        label="broadcast",
    ),
    Sample(
        "select_n",
        lambda i, x, y, z: lax.select_n(i, x, y, z),
        (Arg((4,), integers(0, 3), "int32"), Arg((4,)), Arg((4,)), Arg((4,))),
        lambda i, *cases: np.choose(i, cases),
        dtypes=("bfloat16", "float32", "float64", "complex64"),
        linear=(1, 2, 3),
        label="three",
    ),
    Sample("select_n", lambda p, x: lax.select_n(p, x), (_BOOL, Arg((3,))), lambda p, x: np.tile(x, (2, 1)), linear=(1,), label="one"),
    Sample(
        "select_n",
        lambda p, x, y: lax.select(p, x, y),
        (Arg((), normal(), "bool"), Arg((0, 2)), Arg((0, 2))),
        lambda p, x, y: x,
        linear=(1, 2),
        label="empty",
    ),
]
