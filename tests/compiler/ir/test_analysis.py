"""Inputs that an output may overwrite, and loads of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.compiler.fusion import fuse
from volta_fn.compiler.ir.axes import KernelAnalysis, overwritable
from volta_fn.compiler.target import Target

X = jnp.ones((4, 4))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: x + y, [0, 1]),
        (lambda x, y: x + y.T, [0]),
        (lambda x, y: x[::-1] * 2 + y, [1]),
        (lambda x, y: x * y[0], [0]),
        (lambda x, y: x + x.T + y, [1]),
        (lambda x, y: x - x.sum(1, keepdims=True) + y, [0, 1]),
        (lambda x, y: (x + y, x - x.sum(1, keepdims=True)), []),
        (lambda x, y: (x + y).astype(jnp.int32), []),
    ],
    ids=["sum", "turned", "reversed", "row", "both ways", "rows summed", "stored before rows are summed", "other dtype"],
)
def test_inputs_that_may_be_overwritten(function: Callable[..., Any], expected: list[int]) -> None:
    (item,) = fuse(vf.make_jaxpr(function)(X, X), Target()).nodes
    names = {var: number for number, var in enumerate(fuse(vf.make_jaxpr(function)(X, X), Target()).closed.jaxpr.invars)}
    assert len(names) == 2
    assert [*overwritable(item.kernel, 0)] == expected


def test_an_output_with_fewer_elements_than_the_loop_has_turns_overwrites_nothing() -> None:
    """Turns of one row share its element of the first output, and read the input there until the last of them."""
    (item,) = fuse(vf.make_jaxpr(lambda x, z: (x + 1.0, z * 2.0 + x[:, :, None]))(X, jnp.ones((4, 4, 3))), Target()).nodes
    assert len(item.kernel.stores) == 2
    by_size = {buffer.size: number for number, buffer in enumerate(item.kernel.inputs)}
    assert [overwritable(item.kernel, number) for number in range(2)] == [(), (by_size[48],)]


def test_neighbours_are_loads_of_the_same_few_elements() -> None:
    function = lambda x: x[:, 1] + x[:, 2] * x[:, 4] - x[:, 6] + x[0, 1]
    (item,) = fuse(vf.make_jaxpr(function)(jnp.ones((5, 7))), Target()).nodes
    analysis = KernelAnalysis(item.kernel)
    of_rows = {load.index[1].offset: n for n, load in analysis.loads.items() if load.index[0].terms}
    assert analysis.neighbours(of_rows[1], 7) == {of_rows[column]: column - 1 for column in (1, 2, 4, 6)}
    assert analysis.neighbours(of_rows[2], 3) == {of_rows[1]: 0, of_rows[2]: 1}
    assert analysis.neighbours(of_rows[6], 3) == {of_rows[4]: 0, of_rows[6]: 2}
