"""Sorting, of lengths that each way of sorting takes, with ties, NaN and zeros of either sign."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cpu.library.checking import check
from tests.targets.cpu.running import run_routine
from tests.targets.keys import numbers, params
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.cpu.library import ROUTINES


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]
)
@pytest.mark.parametrize("size", [1, 16, 100, 300, 5000])
def test_one_operand(dtype: str, size: int) -> None:
    check("sort", [numbers(dtype, (3, size))], params(1))
    check("sort", [numbers(dtype, (size, 2))], params(0, stable=False))


@pytest.mark.parametrize("size", [7, 50, 200, 4500])
def test_zeros_keep_their_order(size: int) -> None:
    x = np.where(np.arange(size) % 3 == 0, -0.0, np.where(np.arange(size) % 5 == 0, 0.0, -1.0)).astype(np.float32)
    routine = ROUTINES["sort"]((ShapedArray(x.shape, x.dtype),), params(0))
    assert routine is not None
    (got,) = run_routine(routine, [x], [(x.shape, x.dtype)])
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x[np.argsort(x, kind="stable")]))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "int64", "complex128"])
@pytest.mark.parametrize("size", [30, 700])
def test_several_operands(dtype: str, size: int) -> None:
    keys, places = numbers(dtype, (2, size)), np.tile(np.arange(size, dtype=np.int32), (2, 1))
    check("sort", [keys, places], params(1))
    check("sort", [keys, places, numbers("complex64", (2, size))], params(1))
    check("sort", [numbers("int8", (2, size)), keys, places], params(1, keys=2))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_one_long_row_is_cut(dtype: str) -> None:
    x = numbers(dtype, (70_000,))
    check("sort", [x], params(0))
    check("sort", [x, np.arange(len(x), dtype=np.int32)], params(0))
    check("sort", [numbers("int8", x.shape), x, x], params(0, keys=2))
