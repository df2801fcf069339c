"""Conversions, choices and markers that do nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.compiler.passes.common import left, special
from volta_fn import lax

X = special(np.float32)

LOSSLESS = [
    (np.float16, np.float32),
    (ml_dtypes.bfloat16, np.float32),
    (np.float32, np.float64),
    (np.int8, np.int32),
    (np.uint8, np.int16),
    (np.int8, np.float16),
    (np.int32, np.float64),
    (np.bool_, np.int32),
    (np.bool_, np.float32),
]
LOSSY = [
    (np.float32, np.float16),
    (np.float16, ml_dtypes.bfloat16),
    (ml_dtypes.bfloat16, np.float16),
    (np.int32, np.float32),
    (np.int64, np.float64),
    (np.int8, np.uint8),
    (np.uint32, np.int32),
    (np.float32, np.int32),
    (np.uint64, np.int64),
    (np.complex64, np.float32),
    (np.bool_, ml_dtypes.float8_e8m0fnu),  # which has no 0
]


@pytest.mark.parametrize(("narrow", "wide"), LOSSLESS)
def test_there_and_back_is_nothing_through_a_wider_dtype(narrow: Any, wide: Any) -> None:
    back = lambda x: lax.convert_element_type(lax.convert_element_type(x, wide), narrow)
    assert left(back, special(narrow)) == []


@pytest.mark.parametrize(("dtype", "through"), LOSSY)
def test_there_and_back_stays_through_a_dtype_that_loses_values(dtype: Any, through: Any) -> None:
    back = lambda x: lax.convert_element_type(lax.convert_element_type(x, through), dtype)
    assert left(back, special(dtype)) == ["convert_element_type"] * 2


def test_markers_go() -> None:
    assert left(lambda x: lax.stop_gradient(x), X) == []
    assert left(lambda x: vf.lax.optimization_barrier(x), X) == ["optimization_barrier"]


def test_known_choices() -> None:
    y = X[::-1].copy()
    assert left(lambda x, y: lax.select_n(np.bool_(True), x, y), X, y) == []
    assert left(lambda x, y: lax.select_n(np.int32(0), x, y), X, y) == []
    assert left(lambda x: lax.select_n(x > 0, x, x), X) == []
    assert left(lambda x, y: lax.select_n(lax.bitwise_not(x > y), x, y), X, y) == ["gt", "select_n"]
    wide = lambda x, y: lax.select_n(np.bool_(False), x, y)
    assert left(wide, X, np.stack([y, y])) == ["broadcast_in_dim"]
    assert left(lambda x: lax.select_n(x > 0, np.float32(0.0), np.float32(-0.0)), X) == ["gt", "select_n"]
