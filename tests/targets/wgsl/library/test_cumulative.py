"""Cumulative operations along every axis, of lengths that each way of accumulating takes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.wgsl.library.checking import check, routine_of
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.lazy_imports import load

CASES = [("cumsum", dtype, reverse) for dtype in ("float32", "uint8", "float16") for reverse in (False, True)]


@pytest.mark.parametrize(("name", "dtype", "reverse"), [*CASES, ("cumprod", "int32", True), ("cummax", "float16", False)])
def test_rows_and_columns(name: str, dtype: str, reverse: bool) -> None:
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    x = rng.uniform(0.9, 1.1, (3, 301)).astype(kind) if kind.kind == "f" else rng.integers(0, 50, (3, 301)).astype(kind)
    check(name, [x], {"axis": 1, "reverse": reverse}, exact=False)
    check(name, [x], {"axis": 0, "reverse": reverse}, exact=False)
    check(name, [x[:, :300].copy()], {"axis": 1, "reverse": reverse}, exact=False)


@pytest.mark.parametrize(("name", "shape", "axis"), [("cumsum", (9000,), 0), ("cummin", (2, 9001), 1), ("cumprod", (700, 2), 0)])
def test_long_lines(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.int32)
    check(name, [x], {"axis": axis, "reverse": False})


def test_more_tiles_than_are_scanned_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("volta_fn.targets.wgsl.library.cumulative"), "_EACH_OF_MANY", 4)
    check("cumsum", [np.random.default_rng(0).integers(-3, 4, 1024 * 2050 + 1).astype(np.int32)], {"axis": 0, "reverse": False})


def test_nan_stays() -> None:
    x = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    x[1200] = np.nan
    check("cummax", [x], {"axis": 0, "reverse": False})
    check("cummin", [x], {"axis": 0, "reverse": True})


@pytest.mark.parametrize("base", [1, 2, 3])
def test_windows_of_an_axis_without_elements(base: int) -> None:
    params = {"window_dimensions": (2,), "window_strides": (1,), "padding": ((3, 3),), "base_dilation": (base,), "window_dilation": (1,)}
    check("reduce_window_sum", [np.zeros(0, np.float32)], params)


def test_products_overflow_one_by_one() -> None:
    x = np.repeat(np.array([1e-30, 1e30], np.float32), 600)
    check("cumprod", [x], {"axis": 0, "reverse": False})


@pytest.mark.parametrize("name", ["cumsum", "cumlogsumexp"])
@pytest.mark.parametrize(("shape", "axis"), [((70_001,), 0), ((2000, 300), 0)])
def test_long_sums_do_not_add_up_rounding_errors(name: str, shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("volta_fn.targets.wgsl.library.cumulative"), "_ENOUGH", 1)  # as if there were many rows
    x, params = np.full(shape, 0.1, np.float32), {"axis": axis, "reverse": False}
    routine = routine_of(name, [x], params, capabilities())
    (result,) = run_routine(routine, [x], [(x.shape, x.dtype)])
    ufunc = np.add if name == "cumsum" else np.logaddexp
    np.testing.assert_allclose(result, ufunc.accumulate(x.astype(np.float64), axis), rtol=3e-6)
