"""Samples of the cumulative operations."""

from __future__ import annotations

import numpy as np

from tests.samples.sample import COMPLEX, FLOATS, NUMBERS, REALS, Arg, Sample, constant, distinct, normal
from volta_fn import lax

SAMPLES = [
    Sample("cumsum", lambda x: lax.cumsum(x, 1), (Arg((2, 4)),), lambda x: np.cumsum(x, 1, x.dtype), dtypes=NUMBERS, linear=(0,)),
    Sample(
        "cumsum", lambda x: lax.cumsum(x, 0, reverse=True), (Arg((4, 2)),), lambda x: np.cumsum(x[::-1], 0)[::-1],
        linear=(0,), label="reverse",
    ),
    Sample("cumsum", lambda x: lax.cumsum(x), (Arg((0, 2)),), lambda x: x, label="empty"),
    Sample("cumprod", lambda x: lax.cumprod(x, 1), (Arg((2, 5)),), lambda x: np.cumprod(x, 1, x.dtype), dtypes=NUMBERS),
    Sample(
        "cumprod", lambda x: lax.cumprod(x, 0, reverse=True), (Arg((5,), constant([2.0, 0.0, 3.0, 0.0, 1.5])),),
        lambda x: np.cumprod(x[::-1])[::-1], dtypes=("float64", *COMPLEX), label="zeros",
    ),
    Sample(
        "cummax", lambda x: lax.cummax(x, 1), (Arg((2, 7), distinct()),), lambda x: np.maximum.accumulate(x, 1), dtypes=REALS, exact=True,
    ),
    Sample(
        "cummin", lambda x: lax.cummin(x, 0, reverse=True), (Arg((6, 2), distinct()),), lambda x: np.minimum.accumulate(x[::-1], 0)[::-1],
        dtypes=REALS,
    ),
    Sample(
        "cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), (Arg((2, 5), normal(3.0)),), lambda x: np.logaddexp.accumulate(x, 1),
        dtypes=FLOATS,
    ),
    Sample(
        "cumlogsumexp", lambda x: lax.cumlogsumexp(x, 0, reverse=True), (Arg((4,)),), lambda x: np.logaddexp.accumulate(x[::-1])[::-1],
        label="reverse",
    ),
]  # fmt: skip
