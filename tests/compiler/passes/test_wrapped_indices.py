"""Gathers and sums of rows that count negative indices from the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.compiler.passes.expansions import keep_negative_indices
from volta_fn.core.jaxpr import ClosedJaxpr

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)
INDICES = np.array([3, -1, -12, 11, 3, 0, 40, -40], np.int32)
INSIDE = INDICES[:6]
GPU = vf.devices("gpu")[0]


def rewritten(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return the names of a program's equations after the pass."""
    program: ClosedJaxpr = vf.make_jaxpr(function)(*arguments)
    return [eqn.primitive.name for eqn in keep_negative_indices(program).eqns]


def on_gpu(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    with vf.default_device(GPU):
        return np.asarray(vf.jit(function)(*[vnp.asarray(x) for x in arguments]))


def test_rows_are_gathered_by_the_original_indices() -> None:
    assert "wrapped_gather" in rewritten(lambda x, i: x[i], TABLE, INSIDE)
    np.testing.assert_array_equal(on_gpu(lambda x, i: x[i], TABLE, INSIDE), TABLE[INSIDE])
    shaped = INSIDE.reshape(2, 3)
    np.testing.assert_array_equal(on_gpu(lambda x, i: x[i], TABLE, shaped), TABLE[shaped])
    np.testing.assert_array_equal(on_gpu(lambda x, i: x[:, i], TABLE.T, INSIDE), TABLE.T[:, INSIDE])


def test_indices_outside_are_clipped_or_filled_as_before() -> None:
    def taken(x: Any, i: Any) -> Any:
        return vnp.take(x, i, axis=0, mode="fill")

    result = on_gpu(taken, TABLE, INDICES)
    np.testing.assert_array_equal(np.isnan(result).all(1), [False] * 6 + [True] * 2)
    np.testing.assert_array_equal(result, np.asarray(vf.jit(taken)(TABLE, INDICES)))
    np.testing.assert_array_equal(on_gpu(lambda x, i: x[i], TABLE, INDICES), np.asarray(vf.jit(lambda x, i: x[i])(TABLE, INDICES)))


@pytest.mark.parametrize("count", [6, 600])
def test_the_gradient_adds_by_the_original_indices(count: int) -> None:
    indices = np.resize(INSIDE, count)
    gradient = vf.grad(lambda x, i: (x[i] * vnp.arange(count, dtype=vnp.float32)[:, None]).sum())
    assert "wrapped_scatter_add" in rewritten(gradient, TABLE, indices)
    expected = np.zeros_like(TABLE)
    np.add.at(expected, indices, np.arange(count, dtype=np.float32)[:, None] * np.ones(5, np.float32))
    np.testing.assert_allclose(on_gpu(gradient, TABLE, indices), expected, rtol=1e-6)


ROWS = vf.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))


def gathered(x: Any, i: Any) -> Any:
    return vf.lax.gather(x, i[:, None], ROWS, slice_sizes=(1, 5), mode="clip")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: gathered(x, vnp.where(i < 0, i + 11, i)),  # another size
        lambda x, i: gathered(x, vnp.where(i < 1, i + 12, i)),  # another bound
        lambda x, i: gathered(x, vnp.where(i > 0, i + 12, i)),  # another comparison
        lambda x, i: gathered(x, vnp.where(i < 0, i, i + 12)),  # the other way
        lambda x, i: x[i, i],  # single elements
        lambda x, i: vnp.take_along_axis(x[:6], i[:, None], 1),  # one of each row: comparisons
    ],
)
def test_other_indices_stay(function: Callable[..., Any]) -> None:
    assert "wrapped_gather" in rewritten(lambda x, i: gathered(x, vnp.where(i < 0, i + 12, i)), TABLE, INSIDE)
    assert "wrapped_gather" not in rewritten(function, TABLE, INSIDE)


def test_what_the_primitives_mean() -> None:
    program = keep_negative_indices(vf.make_jaxpr(lambda x, i: x[i])(TABLE, INSIDE))
    (eqn,) = [e for e in program.eqns if e.primitive.name == "wrapped_gather"]
    assert eqn.primitive.evaluate is not None
    np.testing.assert_array_equal(eqn.primitive.evaluate(TABLE, INSIDE[:, None], **eqn.params), TABLE[INSIDE])
    program = keep_negative_indices(vf.make_jaxpr(vf.grad(lambda x, i: x[i].sum()))(TABLE, INSIDE))
    (eqn,) = [e for e in program.eqns if e.primitive.name == "wrapped_scatter_add"]
    assert eqn.primitive.evaluate is not None
    expected = np.zeros_like(TABLE)
    np.add.at(expected, INSIDE, 1)
    actual = eqn.primitive.evaluate(np.zeros_like(TABLE), INSIDE[:, None], np.ones((6, 5), np.float32), **eqn.params)
    np.testing.assert_array_equal(actual, expected)
