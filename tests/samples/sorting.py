"""Samples of sort, top_k, argmax and argmin."""

from __future__ import annotations

import numpy as np

from tests.samples.sample import ALL, Arg, Sample, distinct, integers
from volta_fn import lax

REALS = tuple(name for name in ALL if not name.startswith("complex"))


def _by_two_keys(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
    order = np.lexsort((y, x), axis=0)
    return tuple(np.take_along_axis(a, order, 0) for a in (x, y, z))


def _top(x: np.ndarray, k: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    indices = np.argsort(-x if x.dtype.kind == "f" else -x.astype(int), axis=axis, kind="stable")
    indices = np.take(indices, range(k), axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int32)


SAMPLES = [
    Sample("sort", lambda x: lax.sort(x), (Arg((2, 5), distinct()),), np.sort, dtypes=ALL, exact=True),
    Sample("sort", lambda x: lax.sort(x, 0, is_stable=False), (Arg((5, 2), distinct()),), lambda x: np.sort(x, 0), label="first axis"),
    Sample("sort", lambda x: lax.sort(x), (Arg((2, 0)),), np.sort, label="empty"),
    Sample(
        "sort", lambda x, y, z: lax.sort((x, y, z), dimension=0, num_keys=2),
        (Arg((6,), integers(0, 2), "int32"), Arg((6,), distinct()), Arg((6,))), _by_two_keys, label="keys",
        result_dtype=lambda dtype: (np.dtype(np.int32), dtype, dtype),
    ),
    Sample(
        "top_k", lambda x: lax.top_k(x, 2), (Arg((3, 5), distinct()),), lambda x: _top(x, 2, 1), dtypes=REALS,
        result_dtype=lambda dtype: (dtype, np.dtype(np.int32)),
    ),
    Sample(
        "top_k", lambda x: lax.top_k(x, 2, axis=0), (Arg((40, 2), distinct()),), lambda x: _top(x, 2, 0),
        result_dtype=lambda dtype: (dtype, np.dtype(np.int32)), label="few of many",
    ),
    Sample(
        "argmax", lambda x: lax.argmax(x, 1, "int32"), (Arg((3, 5), distinct()),), lambda x: x.argmax(1),
        dtypes=REALS, result_dtype=lambda _: np.dtype(np.int32),
    ),
    Sample(
        "argmin", lambda x: lax.argmin(x, 0, "uint8"), (Arg((5, 3), distinct()),), lambda x: x.argmin(0),
        dtypes=REALS, result_dtype=lambda _: np.dtype(np.uint8),
    ),
]  # fmt: skip
