"""The greatest of rows that are short, long and very long, few of many and many of few."""

from __future__ import annotations

import pytest

from tests.backends.keys import numbers
from tests.backends.wgsl.library.checking import check


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int32", "float64"])
def test_short_rows(dtype: str) -> None:
    check("top_k", [numbers(dtype, (90, 3))], {"k": 7, "dimension": 0})


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "k"), [("float32", (5, 40), 1, 40), ("int16", (2, 5000), 1, 9), ("uint8", (4100,), 0, 300)]
)
def test_rows(dtype: str, shape: tuple[int, ...], axis: int, k: int) -> None:
    check("top_k", [numbers(dtype, shape)], {"k": k, "dimension": axis})


def test_rounds() -> None:
    x = numbers("float32", (100_000,))
    check("top_k", [x], {"k": 200, "dimension": 0})
