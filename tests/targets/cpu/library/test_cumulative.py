"""Cumulative operations along axes of many sizes, and how accurate their sums are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.targets.cpu.library.checking import check
from tests.targets.cpu.running import run_routine
from tests.targets.reference import reference
from volta_fn.core.aval import ShapedArray
from volta_fn.dtypes import as_dtype, finfo
from volta_fn.targets.cpu.library import ROUTINES

NAMES = ("cumsum", "cumprod", "cummax", "cummin")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "axis"), [((7, 37), 1), ((5, 300), 0), ((40, 3), 0), ((2, 9, 130), 1), ((140_000,), 0)])
def test_shapes(name: str, reverse: bool, shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(0)
    params = {"axis": axis, "reverse": reverse}
    for dtype in ("float32", "int16", "float64"):
        quarters = rng.integers(-9, 9, shape) / 4  # whose sums are exact
        x = (quarters * 4 if dtype == "int16" else quarters if name == "cumsum" else rng.normal(size=shape)).astype(dtype)
        check(name, [x], params)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_narrow_and_complex(name: str, dtype: str) -> None:
    x = np.random.default_rng(0).uniform(0.9, 1.1, (3, 50)).astype(dtype)
    check(name, [x], {"axis": 1, "reverse": False}, exact=False)
    check(name, [x], {"axis": 0, "reverse": True}, exact=False)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int16", "float32"])
def test_nothing_is_written_beyond_a_last_vector_of_any_size(dtype: str, reverse: bool) -> None:
    for rest in (1, 2, 15, 17, 31, 33):
        for shape, axis in (((3, 128 + rest), 0), ((2, 128 + rest), 1), ((131_072 + rest,), 0)):
            check("cummax", [(np.arange(math.prod(shape)) % 5).reshape(shape).astype(dtype)], {"axis": axis, "reverse": reverse})


def test_nan_and_infinity() -> None:
    x = np.array([1, np.inf, 2, -np.inf, 3, np.nan, 4] * 5, np.float32)
    for name in NAMES:
        check(name, [x], {"axis": 0, "reverse": False})


@pytest.mark.parametrize("name", ["cumsum", "cumlogsumexp"])
@pytest.mark.parametrize(("shape", "axis"), [((70_001,), 0), ((2000, 40), 0), ((3, 2000), 1)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_long_sums_round_once(name: str, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    kind = as_dtype(dtype)
    x = np.full(shape, 0.1).astype(kind)  # sums of equal numbers round in one direction
    x[np.arange(shape[0]) % 7 == 3] = -2
    params = {"axis": axis, "reverse": False}
    routine = ROUTINES[name]((ShapedArray(x.shape, x.dtype),), params)
    assert routine is not None
    (result,) = run_routine(routine, [x], [(x.shape, x.dtype)])
    exact = (np.add if name == "cumsum" else np.logaddexp).accumulate(x.astype(np.float64), axis)
    (eager,) = reference(name, [x], params)
    for array in (result, eager):
        np.testing.assert_allclose(array.astype(np.float64), exact, rtol=0.51 * float(finfo(kind).eps), atol=1e-6)
