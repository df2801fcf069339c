"""The greatest of rows, of sizes that each way of finding them takes, with ties, NaN and zeros of either sign."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cpu.library.checking import check
from tests.targets.keys import numbers


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("size", "k"), [(5, 5), (100, 3), (200, 1), (1000, 40), (1000, 999)])
def test_top_k(dtype: str, size: int, k: int) -> None:
    check("top_k", [numbers(dtype, (3, size))], {"k": k, "axis": 1})
    check("top_k", [numbers(dtype, (size, 2), 1)], {"k": k, "axis": 0})


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
@pytest.mark.parametrize("k", [1, 100, 70_000])
def test_long_rows(dtype: str, k: int) -> None:
    x = numbers(dtype, (2, 140_000))
    check("top_k", [x], {"k": k, "axis": 1})
    check("top_k", [np.sort(x, axis=1)], {"k": k, "axis": 1})
