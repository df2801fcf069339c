"""The greatest of rows that are short, long and very long, few of many and many of few."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.keys import numbers
from tests.targets.wgsl.library.checking import check


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int32", "float64"])
def test_short_rows(dtype: str) -> None:
    check("top_k", [numbers(dtype, (90, 3))], {"k": 7, "axis": 0})


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "k"), [("float32", (5, 40), 1, 40), ("int16", (2, 5000), 1, 9), ("uint8", (4100,), 0, 300)]
)
def test_rows(dtype: str, shape: tuple[int, ...], axis: int, k: int) -> None:
    check("top_k", [numbers(dtype, shape)], {"k": k, "axis": axis})


@pytest.mark.parametrize("k", [1, 200])
def test_pieces_of_pieces(k: int) -> None:
    check("top_k", [numbers("float32", (100_000,))], {"k": k, "axis": 0})


def test_many_or_no_ties_in_any_order() -> None:
    """Rows whose elements are all kept at first, or none, or all in one place."""
    rising = np.arange(6001, dtype=np.float32)
    steps = np.where(rising < 5000, rising // 100, -1)
    check("top_k", [np.stack([rising, rising[::-1], np.zeros_like(rising), steps, -steps])], {"k": 50, "axis": 1})


@pytest.mark.parametrize("dtype", ["uint32", "uint8", "float16"])
def test_what_comes_last_of_all_is_found_before_what_is_not_there(dtype: str) -> None:
    x = np.zeros((3, 9000), dtype)
    x[1, ::90] = 1
    check("top_k", [x], {"k": 150, "axis": 1})
    check("top_k", [np.ascontiguousarray(x.T)], {"k": 150, "axis": 0})
