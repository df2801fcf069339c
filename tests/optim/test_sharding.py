"""Optimizers over a named axis: sharded states and averaged gradients, with `vmap` as the axis, beside the optimizer itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax, optim

#: Arrays that share a message, and one that does not.
PARAMS = {
    "w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5), "b": np.float32(0.5), "e": np.zeros((0, 2), np.float32),
    "long": np.linspace(-1, 1, (1 << 16) + 1, dtype=np.float32), "c": np.linspace(0, 1, 7, dtype=np.float32),
}  # fmt: skip
GRADS = {name: np.random.default_rng(1).normal(size=(4, *np.shape(value))).astype(np.float32) for name, value in PARAMS.items()}


def whole(optimizer: Any, steps: int) -> Any:
    """Return parameters and state after some steps with the mean gradients."""
    mean = vf.tree.map(lambda g: g.mean(0), GRADS)
    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(steps):
        updates, state = optimizer.update(mean, state, params)
        params = optim.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("optimizer", [optim.sgd(0.1, momentum=0.9), optim.adamw(0.1)])
def test_sharded_states_give_the_same_updates(optimizer: Any, average: bool) -> None:
    sharded = optim.shard_states(optimizer, "data", average=average)

    def steps(grads: Any) -> Any:
        params, state = PARAMS, sharded.init(PARAMS)
        arguments = grads if average else optim.average_gradients(grads, "data")
        for _ in range(3):
            updates, state = sharded.update(arguments, state, params)
            params = optim.apply_updates(params, updates)
        return params, state, optim.gather_states(optimizer, state, PARAMS, "data")

    params, state, gathered = vf.vmap(steps, axis_name="data")(GRADS)
    wanted_params, wanted_state = whole(optimizer, 3)
    for actual, wanted in zip(vf.tree.leaves((params, gathered)), vf.tree.leaves((wanted_params, wanted_state)), strict=True):
        for row in np.asarray(actual):
            np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-6)
    sizes = lambda tree: sum(np.size(leaf) for leaf in vf.tree.leaves(tree))
    assert sizes(state) <= sizes(wanted_state) + 4 * 2 * len(PARAMS)  # not four times as much, but for padding


def test_short_arrays_of_a_dtype_share_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: dict[str, list[Any]] = {"psum_scatter": [], "all_gather": []}
    for name, called in shapes.items():
        original = getattr(lax, name)
        monkeypatch.setattr(
            lax, name, lambda x, axis, original=original, called=called: called.append((x.shape, x.dtype.name)) or original(x, axis)
        )
    sharded = optim.shard_states(optim.sgd(0.1), "data")
    grads = {**GRADS, "half": np.ones((4, 3), np.float16)}
    updates, _ = vf.vmap(lambda g: sharded.update(g, sharded.init(g)), axis_name="data")(grads)
    assert set(shapes["psum_scatter"]) == {((4, 4 + 1 + 0 + 2), "float32"), ((4, 16385), "float32"), ((4, 1), "float16")}
    assert set(shapes["all_gather"]) == {((7,), "float32"), ((16385,), "float32"), ((1,), "float16")}
    assert {name: x.dtype.name for name, x in updates.items()} == {name: "float16" if name == "half" else "float32" for name in grads}
    np.testing.assert_array_equal(updates["half"], np.full((4, 3), np.float16(-0.1)))


def test_a_whole_state_is_shared_out_again() -> None:
    optimizer = optim.adam(0.1)
    _, state = whole(optimizer, 2)

    def back(_: Any) -> Any:
        parts = optim.scatter_states(optimizer, state, "data")
        return optim.gather_states(optimizer, parts, PARAMS, "data")

    for count in (1, 2, 3):
        actual = vf.vmap(back, axis_name="data")(np.zeros(count))
        for leaf, wanted in zip(vf.tree.leaves(actual), vf.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(np.asarray(leaf)[-1], wanted)
