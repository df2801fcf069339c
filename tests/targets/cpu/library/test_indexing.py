"""Gathers, scatters and dynamic slices at indices anywhere, of shapes from Hypothesis and of sizes that are shared out to tasks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.cpu.library.checking import check
from tests.targets.cpu.running import entries
from tests.targets.index_cases import COLUMNS, COMBINED, MODES, ROWS, gathers
from tests.targets.reference import assert_same, reference
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.data_movement.indexing import GatherScatterMode, ScatterDimensionNumbers
from volta_fn.targets.cpu.library import IN_PLACE, ROUTINES


@given(gathers())
@settings(max_examples=40)
def test_gathers(case: tuple[np.ndarray, np.ndarray, dict[str, Any]]) -> None:
    x, indices, params = case
    check("gather", [x, indices], params | {"fill_value": None})


@given(gathers(), st.sampled_from(COMBINED))
@settings(max_examples=40)
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
    x, indices = rng.normal(size=(700, 200)).astype(np.float32), rng.integers(-50, 800, (1500, 1)).astype(np.int32)
    check("gather", [x, indices], {"dimension_numbers": ROWS, "slice_sizes": (1, 200), "mode": mode, "fill_value": None})
    check("gather", [x, indices], {"dimension_numbers": COLUMNS, "slice_sizes": (700, 1), "mode": mode, "fill_value": None})
    for name in COMBINED:
        params = {"dimension_numbers": ScatterDimensionNumbers(*ROWS), "mode": mode, "unique_indices": False}
        check(name, [x, indices, rng.normal(size=(1500, 200)).astype(np.float32)], params)


@pytest.mark.parametrize("name", ["scatter_add", "scatter_mul"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, new = (rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in ((5, 40), (30, 40)))
    params = {"dimension_numbers": ScatterDimensionNumbers(*ROWS), "mode": MODES[0], "unique_indices": False}
    check(name, [x, rng.integers(0, 5, (30, 1)).astype(np.int32), new], params)


def run_in_place(name: str, inputs: list[np.ndarray], params: dict[str, Any]) -> np.ndarray:
    """The result in the memory of the operand that it may overwrite."""
    routine = ROUTINES[name](tuple([ShapedArray(x.shape, x.dtype) for x in inputs]), params)
    assert routine is not None
    held = [x.copy() for x in inputs]
    room = np.zeros(max(1, routine.workspace), np.uint8)
    pointers = np.array([x.ctypes.data for x in (*held, held[IN_PLACE[name]], room)], np.int64)
    symbols = tuple([phase.symbol for phase in routine.launches])
    for phase, address in zip(routine.launches, entries(routine.text, symbols), strict=True):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)(pointers.ctypes.data, 0, phase.tasks)
    return held[IN_PLACE[name]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", COMBINED)
def test_scatters_in_place(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, new = (rng.integers(1, 4, shape).astype(dtype) for shape in ((9, 33), (6, 33)))
    inputs = [x, rng.integers(-2, 11, (6, 1)).astype(np.int32), new]
    params = {"dimension_numbers": ScatterDimensionNumbers(*ROWS), "mode": MODES[0], "unique_indices": False}
    assert_same(run_in_place(name, inputs, params), reference(name, inputs, params)[0])


@pytest.mark.parametrize("start", [-3, 0, 2, 50])
@pytest.mark.parametrize("index", [np.int8, np.uint64])
def test_dynamic_slices(start: int, index: type[np.integer]) -> None:
    rng = np.random.default_rng(0)
    starts = [np.asarray(start).astype(index), np.asarray(1).astype(index)]
    for shape, block in (((6, 5), (2, 3)), ((700, 300), (600, 290))):
        x, new = rng.normal(size=shape), rng.normal(size=block)
        check("dynamic_slice", [x, *starts], {"slice_sizes": block})
        check("dynamic_update_slice", [x, new, *starts], {})
        inputs = [x, new, *starts]
        assert_same(run_in_place("dynamic_update_slice", inputs, {}), reference("dynamic_update_slice", inputs, {})[0])
