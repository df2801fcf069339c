"""Gathers, scatters and dynamic slices at indices anywhere, of shapes from Hypothesis and of sizes that are shared out to tasks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.targets.cpu.library.checking import check
from tests.targets.cpu.running import Pointers, entries
from tests.targets.index_cases import COLUMNS, COMBINED, MODES, ROWS, gathers
from tests.targets.reference import assert_same, reference
from volta_fn.compiler.pipeline import lower
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.targets.cpu.library import IN_PLACE, ROUTINES
from volta_fn.targets.cpu.target import TARGET


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("entries_of_an_index", [1, 2])
def test_single_elements_of_which_few_lie_outside(mode: GatherScatterMode, dtype: str, entries_of_an_index: int) -> None:
    """Sixteen at a time are inside, or looked at one by one."""
    x = np.random.default_rng(0).normal(size=(300,) if entries_of_an_index == 1 else (300, 90)).astype(np.float32)
    indices = np.random.default_rng(1).integers(0, 90, (1005, entries_of_an_index)).astype(dtype)
    for number, outside in ((20, 125), (21, 300), (22, -1), (1003, -300), (500, 2**62)):
        if np.iinfo(dtype).min <= outside <= np.iinfo(dtype).max:
            indices[number, -1] = outside
    numbers = GatherDimensionNumbers((), tuple(range(x.ndim)), tuple(range(x.ndim)))
    check("gather", [x, indices], {"dimension_numbers": numbers, "slice_sizes": (1,) * x.ndim, "mode": mode, "fill_value": None})


@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize("width", [None, 4])
def test_negative_positions_count_from_the_end(mode: str, width: int | None) -> None:
    x = np.random.default_rng(0).normal(size=(300, width or 1)).astype(np.float32)
    x = x if width else x[:, 0].copy()
    indices = np.random.default_rng(1).integers(-300, 300, 1005).astype(np.int32)
    indices[:400] = abs(indices[:400]) % 300
    indices[[450, 700]] = [-301, 300]
    front = np.where(indices < 0, indices + 300, indices)
    wanted = x[np.clip(front, 0, 299)]
    if mode == "fill":
        wanted[(front < 0) | (front > 299)] = np.nan
    jitted = vf.jit(lambda x, i: x.at[i].get(mode=mode))
    items = lower(jitted.lower(x, indices).jaxpr, TARGET).items
    assert [item.node.primitive.name for item in items if isinstance(item.node, Equation)] == ["wrapped_gather"]
    np.testing.assert_array_equal(jitted(x, indices), wanted)


@pytest.mark.parametrize("name", ["scatter_add", "scatter_mul"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, new = (rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in ((5, 40), (30, 40)))
    params = {"dimension_numbers": ScatterDimensionNumbers(*ROWS), "mode": MODES[0], "unique_indices": False}
    check(name, [x, rng.integers(0, 5, (30, 1)).astype(np.int32), new], params)


def run_in_place(name: str, inputs: list[np.ndarray], params: dict[str, Any]) -> np.ndarray:
    """Return the result in the memory of the operand that it may overwrite."""
    routine = ROUTINES[name](tuple([ShapedArray(x.shape, x.dtype) for x in inputs]), params)
    assert routine is not None
    held = [x.copy() for x in inputs]
    room = np.zeros(max(1, routine.workspace), np.uint8)
    pointers = Pointers([x.ctypes.data for x in (*held, held[IN_PLACE[name]], room)])
    symbols = tuple([phase.symbol for phase in routine.launches])
    for phase, address in zip(routine.launches, entries(routine.text, symbols), strict=True):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)(pointers.address, 0, phase.tasks)
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
