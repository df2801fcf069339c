"""Gathers, scatters and dynamic slices at indices anywhere, of shapes from Hypothesis and of sizes that each way of scattering takes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.index_cases import COLUMNS, COMBINED, MODES, ROWS, gathers
from tests.targets.reference import reference
from tests.targets.wgsl.library.checking import check, least_capabilities, results
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices import distribution
from volta_fn.core.trace import ProcessAxis, ProcessGrid
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.targets.wgsl.library.movement import gather


@given(gathers())
@settings(max_examples=15)
def test_gathers(case: tuple[np.ndarray, np.ndarray, dict[str, Any]]) -> None:
    x, indices, params = case
    check("gather", [x, indices], params | {"fill_value": None})


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("size", [(1 << 31) + 16, (1 << 31) - 1])
def test_positions_in_the_longest_arrays(size: int, wraps: bool) -> None:
    """Where an array has more elements than an int32 can number, no literal of one exceeds its range."""
    avals = ShapedArray((size,), np.dtype(np.int8)), ShapedArray((5, 1), np.dtype(np.int32))
    numbers = GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    params = {"dimension_numbers": numbers, "slice_sizes": (1,), "mode": GatherScatterMode.CLIP, "fill_value": None}
    routine = gather(avals, params, TargetCapabilities(), wraps=wraps)
    assert routine is not None
    last = size - 1 if wraps else min(size, 1 << 31) - 1  # that a position reaches
    (dispatch,) = routine.dispatches
    assert all(int(number) < 1 << 31 for number in re.findall(r"\b(\d+)i\b", dispatch.source))
    assert re.search(rf"\b{last}[iu]\b", dispatch.source)


@given(gathers(), st.sampled_from(COMBINED))
@settings(max_examples=20)
def test_scatters(case: tuple[np.ndarray, np.ndarray, dict[str, Any]], name: str) -> None:
    x, indices, params = case
    if x.dtype.kind == "c" and name[8:] in ("min", "max"):
        return
    (updates,) = reference("gather", [x, indices], params | {"fill_value": 0})
    numbers = ScatterDimensionNumbers(*params["dimension_numbers"])
    new = np.random.default_rng(0).integers(-4, 5, updates.shape).astype(x.dtype)
    check(name, [x, indices, new], {"dimension_numbers": numbers, "mode": params["mode"], "unique_indices": False})


@pytest.mark.parametrize("mode", MODES)
def test_many_rows(mode: GatherScatterMode) -> None:
    rng = np.random.default_rng(0)
    x, indices = rng.normal(size=(70, 20)).astype(np.float32), rng.integers(-5, 80, (300, 1)).astype(np.int32)
    check("gather", [x, indices], {"dimension_numbers": ROWS, "slice_sizes": (1, 20), "mode": mode, "fill_value": None})
    check("gather", [x, indices], {"dimension_numbers": COLUMNS, "slice_sizes": (70, 1), "mode": mode, "fill_value": None})


HOW = [*[("scatter_add", dtype) for dtype in ("float32", "int32", "float16", "uint8")], *[(name, "float32") for name in COMBINED[2:]]]


@pytest.mark.parametrize(("name", "dtype"), [("scatter", "float32"), ("scatter", "uint8"), *HOW])
def test_many_updates(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, new = rng.integers(1, 4, (60, 6)).astype(dtype), rng.integers(1, 3, (500, 6)).astype(dtype)
    params = {"dimension_numbers": ScatterDimensionNumbers(*ROWS), "mode": MODES[1], "unique_indices": False}
    check(name, [x, rng.integers(-5, 70, (500, 1)).astype(np.int32), new], params, exact=False)
    # Most go to one row, which is combined in pieces.
    check(name, [x, np.minimum(rng.integers(0, 400, (500, 1)), 59).astype(np.int32), new], params, exact=False)


@pytest.mark.parametrize(("name", "dtype"), [("scatter_add", "float32"), ("scatter_add", "float16"), ("scatter_max", "float32")])
def test_many_updates_of_long_rows(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    params = {"dimension_numbers": ScatterDimensionNumbers(*ROWS), "mode": MODES[1], "unique_indices": False}
    places = rng.integers(-5, 150, (500, 1)).astype(np.int32)
    places[places > 62] = 17  # more than half of all, which is combined in pieces
    for width in (33, 128):  # single elements, and fours
        x, new = rng.integers(-3, 4, (60, width)).astype(dtype), rng.integers(-2, 3, (500, width)).astype(dtype)
        check(name, [x, places, new], params)


@pytest.mark.parametrize(("name", "dtype"), [("scatter_add", "int32"), ("scatter_max", "int32"), ("scatter_min", "uint32")])
def test_many_numbers_for_few_places(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    numbers = ROWS._replace(offset_dims=())
    params = {"dimension_numbers": ScatterDimensionNumbers(*numbers), "mode": MODES[1], "unique_indices": False}
    x, new = rng.integers(1, 99, 300).astype(dtype), rng.integers(0, 200, 16_500).astype(dtype)
    check(name, [x, rng.integers(-5, 310, (16_500, 1)).astype(np.int32), new], params)


@pytest.mark.parametrize("start", [-3, 50])
@pytest.mark.parametrize("index", [np.int8, np.uint64])
def test_dynamic_slices(start: int, index: type[np.integer]) -> None:
    rng = np.random.default_rng(0)
    starts = [np.asarray(start).astype(index), np.asarray(1).astype(index)]
    for dtype, shape, block in ((np.float32, (6, 8), (2, 4)), (np.int8, (70, 31), (60, 29))):
        x, new = rng.integers(-99, 99, shape).astype(dtype), rng.integers(-99, 99, block).astype(dtype)
        check("dynamic_slice", [x, *starts], {"slice_sizes": block})
        check("dynamic_update_slice", [x, new, *starts], {})


def test_more_starts_than_bindings() -> None:
    x = np.random.default_rng(0).normal(size=(2,) * 9).astype(np.float32)
    starts = [np.asarray(d % 3 - 1, np.int32) for d in range(9)]
    check("dynamic_slice", [x, *starts], {"slice_sizes": (1,) * 8 + (2,)})
    check("dynamic_update_slice", [x, -x[:1, :1, :, :1, :1, :1, :1, :1], *starts], {})


def test_more_workgroups_than_one_dimension_has() -> None:
    x = np.arange(9000, dtype=np.int32)
    indices = x[::-1, None].copy()
    params = {"dimension_numbers": ROWS._replace(offset_dims=()), "slice_sizes": (1,), "mode": MODES[0], "fill_value": None}
    (got,) = results("gather", [x, indices], params, least_capabilities()._replace(groups=11), [x])
    np.testing.assert_array_equal(got, x[::-1])


@pytest.mark.parametrize(("rank", "rows", "columns"), [(0, 0, 0), (4, 1, 0), (3, 1, 1), (5, 1, 2)])
def test_positions_along_axes(rank: int, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "current", lambda: SimpleNamespace(rank=rank, size=6))
    grid = ProcessGrid(("row", "column"), (2, 3), (0, 1, 2, 4, 3, 5))
    for name, position in (("row", rows), ("column", columns)):
        axis_names = (ProcessAxis(name, grid),)
        (got,) = results("axis_index", [], {"axis_names": axis_names}, least_capabilities(), [np.zeros((), np.int32)])
        assert got == position
