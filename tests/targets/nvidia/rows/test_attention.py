"""Attention of one query, run by an emulator, beside its evaluation in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.targets.nvidia.emulation import Emulator
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE
from volta_fn import nn
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import LoweredProgram, TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.core.primitive import evaluation_of
from volta_fn.primitives.call import Axes, Form
from volta_fn.targets.nvidia import rows
from volta_fn.targets.nvidia.target import NvidiaTarget

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
TOLERANCES = {BFLOAT16: 4e-3, FLOAT16: 5e-4, np.dtype(np.float32): 1e-6}


def attend(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None) -> Any:
    """Attend with a mask or without one."""
    return nn.dot_product_attention(q, k, v, bias, mask=mask)


def arrays_of(batch: int, keys: int, heads: int, groups: int, width: int, dtype: np.dtype, mask: str) -> list[np.ndarray]:
    """Return random operands (batch, rows, heads, features), and a mask."""
    rng = np.random.default_rng(keys)
    shapes = (batch, 1, heads, width), (batch, keys, groups, width), (batch, keys, groups, width)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    if mask:
        shape = {"rows": (batch, 1, 1, keys), "shared": (1, 1, 1, keys), "heads": (batch, heads, 1, keys)}[mask]
        arrays.append(rng.random(shape) > 0.3)
    return arrays


def lowered(arrays: list[np.ndarray], device: TargetCapabilities) -> LoweredProgram:
    """Return the program of attention to arrays."""
    types = [vf.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    return lower(vf.jit(attend).lower(*types).jaxpr, NvidiaTarget(device))


def check(arrays: list[np.ndarray], device: TargetCapabilities) -> None:
    """Run the program's only item, and compare its results."""
    program = lowered(arrays, device)
    (item,) = program.items
    assert isinstance(item.node, Equation)
    assert item.node.primitive.name == "attention_routine"
    values = dict(zip(program.closed.jaxpr.invars, arrays, strict=True))
    operands = [values[program.root(v)].reshape(v.aval.shape) for v in item.operands]  # type: ignore[arg-type]
    assert item.key is not None
    routine = item.key.make()
    assert len(routine.dispatches) == 2
    results = [np.full(v.aval.shape, np.nan, v.aval.dtype) for v in item.results]
    buffers = [*operands, *results, *[np.full(size // 4, np.nan, np.float32) for size in routine.workspaces]]
    for dispatch in routine.dispatches:
        Emulator(dispatch.source).run([buffers[number] for number in dispatch.buffers], dispatch.workgroups[0])
    evaluate = evaluation_of(item.node.primitive)
    assert evaluate is not None
    wide = [x if x.dtype == np.bool_ else x.astype(np.float64) for x in operands]
    for result, expected in zip(results, evaluate(*wide, **item.node.params), strict=True):
        actual, expected = result.astype(np.float64), expected.reshape(result.shape)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(actual[~finite], expected[~finite])
        assert np.abs(actual[finite] - expected[finite]).max() <= TOLERANCES[result.dtype] * np.abs(expected[finite]).max()


@pytest.mark.parametrize("device", [pytest.param(AMPERE, id="ampere"), pytest.param(HOPPER, id="hopper")])
@pytest.mark.parametrize(
    ("batch", "keys", "heads", "groups", "width", "dtype", "mask"),
    [
        (1, 100, 3, 1, 32, BFLOAT16, "shared"),
        (2, 64, 4, 2, 64, FLOAT16, ""),
        (2, 130, 7, 1, 64, BFLOAT16, "rows"),
        (1, 70, 2, 2, 128, BFLOAT16, "heads"),
    ],
)
def test_results(
    device: TargetCapabilities, batch: int, keys: int, heads: int, groups: int, width: int, dtype: np.dtype, mask: str
) -> None:
    check(arrays_of(batch, keys, heads, groups, width, dtype, mask), device)


def test_a_query_that_sees_no_key_weights_all_equally() -> None:
    arrays = arrays_of(2, 130, 2, 1, 64, BFLOAT16, "rows")
    arrays[3][1] = False
    check(arrays, HOPPER)


def test_blocks_that_see_no_key_count_nothing() -> None:
    arrays = arrays_of(1, 192, 2, 1, 64, BFLOAT16, "rows")
    arrays[3][:] = np.arange(192) < 10
    check(arrays, HOPPER)


def test_infinite_logits_have_no_weight() -> None:
    """A block's keys may all have logits of minus infinity: their values do not count."""
    arrays = arrays_of(1, 192, 2, 1, 64, BFLOAT16, "")
    arrays[0][:], arrays[1][:, 64:128] = np.abs(arrays[0]), -np.inf
    check(arrays, HOPPER)


def test_hidden_keys_have_weights_where_visible_logits_are_infinite() -> None:
    """By the definition, a hidden key's logit is finite; keys beyond the end have none."""
    arrays = arrays_of(1, 100, 2, 1, 64, BFLOAT16, "rows")
    arrays[0][:], arrays[1][:, 80:], arrays[3][:] = np.abs(arrays[0]), -np.inf, np.arange(100) >= 80
    check(arrays, HOPPER)


def test_infinite_values_stay_infinite() -> None:
    """Keys beyond the end, for which the last one is read again, add nothing to it."""
    arrays = arrays_of(1, 70, 2, 1, 64, BFLOAT16, "")
    arrays[2][0, 69, 0, 5] = np.inf
    check(arrays, HOPPER)


def test_features_are_contiguous() -> None:
    form = Form(Axes((0, 3), 1, 2), *[Axes((0, 2), 1, 3)] * 2, None, 0.125, -1e38)
    q, k = ShapedArray((2, 1, 64, 8), BFLOAT16), ShapedArray((2, 128, 8, 64), BFLOAT16)
    assert not rows.attends_by_one_query((q, k, k), form, HOPPER)
    assert rows.attends_by_one_query((ShapedArray((2, 1, 8, 64), BFLOAT16), k, k), form._replace(q=form.k), HOPPER)


@pytest.mark.parametrize(
    ("keys", "heads", "groups", "width", "device"),
    [
        (32, 4, 2, 64, HOPPER),  # too few keys
        (4096, 4, 2, 64, HOPPER),  # too many
        (128, 18, 2, 64, HOPPER),  # heads of a group
        (128, 4, 2, 48, HOPPER),  # features
        (128, 4, 2, 64, NONE),
    ],
)
def test_what_has_no_kernel(keys: int, heads: int, groups: int, width: int, device: TargetCapabilities) -> None:
    program = lowered(arrays_of(1, keys, heads, groups, width, BFLOAT16, "rows"), device)
    for item in program.items:
        if isinstance(item.node, Equation) and item.node.primitive.name == "attention_routine":
            assert item.key is not None
            assert all("\ndefine" not in dispatch.source for dispatch in item.key.make().dispatches)
