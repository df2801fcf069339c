"""Shaders of fused programs against the interpreter: rows, columns, transposes, long rows, masks, random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn.numpy as jnp
from tests.backends.wgsl.loops.kernels import agrees
from tests.compiler.kernels.cases import ROWS, inputs_of, kernels_of, shaped
from tests.compiler.kernels.oracle import partition_of
from volta_fn import lax

#: Lengths of less than a vector, of vectors, of some more, and of rows that are not kept in registers.
LENGTHS = [3, 16, 65, 300, 5000]

#: Programs with functions of which there are no shaders yet.
_LATER = {"softmax", "log-softmax-gradient", "cross-entropy", "softmax-of-columns", "gelu"}
_NOW = [row for row in ROWS if row[0] not in _LATER]


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("function", "args"), [r[1:] for r in _NOW], ids=[r[0] for r in _NOW])
def test_rows(function: Callable[..., Any], args: Callable[[int], tuple[Any, ...]], size: int) -> None:
    for kernel in kernels_of(function, *args(size)):
        agrees(kernel, inputs_of(kernel), f"rows of {size}", 8.0)


@pytest.mark.parametrize("columns", [36, 37])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int8", "uint8", "uint16", "int64", "uint64", "bool"])
def test_dtypes(dtype: str, columns: int) -> None:
    where = lambda x, y: (jnp.where(x == y, x, y), x[::-1], x.T, lax.pad(x, np.zeros((), x.dtype), [(1, 1, 0), (2, 0, 0)]))
    for kernel in partition_of(where, shaped(20, columns, dtype=dtype), shaped(20, columns, dtype=dtype)).kernels:
        agrees(kernel, inputs_of(kernel), dtype)
    if dtype != "bool":
        reductions = lambda x: (x.sum(1), x.sum(0), x.max(1), x.min(0), lax.argmax(x, 1), lax.argmin(x, 0))
        for kernel in partition_of(reductions, shaped(columns, 40, dtype=dtype)).kernels:
            agrees(kernel, inputs_of(kernel), dtype)


def test_nan_wins_and_the_first_of_equals() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (50, 40)).astype(np.float32)
    x[5, 7] = x[5, 30] = x[6, 0] = x[7, 39] = x[20, 3] = np.nan
    x[8] = -np.inf
    x[9] = np.inf
    for axis in (0, 1):
        f = lambda x, axis=axis: (x.max(axis), x.min(axis), lax.argmax(x, axis), lax.argmin(x, axis))
        for kernel in kernels_of(f, shaped(50, 40)):
            agrees(kernel, [x], "extremes")


def test_reductions_of_nothing() -> None:
    f = lambda x: (x.sum(1), x.prod(1), lax.reduce_max(x, (1,)), (x + 1.0).sum(0))
    for kernel in kernels_of(f, shaped(3, 0)):
        agrees(kernel, inputs_of(kernel), "reductions of nothing")
