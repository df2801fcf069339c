"""`example_libraries.optimizers`: the steps are JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.example_libraries import optimizers as theirs

import volta_fn as vf
from volta_fn.errors import ShapeError, TreeError
from volta_fn.example_libraries import optimizers as ours

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda o: o.sgd(o.exponential_decay(0.1, 2, 0.5)),
    "momentum": lambda o: o.momentum(o.inverse_time_decay(0.1, 2, 0.5), 0.9),
    "nesterov": lambda o: o.nesterov(o.inverse_time_decay(0.1, 2, 0.5, staircase=True), 0.9),
    "adagrad": lambda o: o.adagrad(o.polynomial_decay(0.1, 3, 0.01, 2.0)),
    "rmsprop": lambda o: o.rmsprop(0.1),
    "rmsprop_momentum": lambda o: o.rmsprop_momentum(o.piecewise_constant([1, 3], [0.1, 0.05, 0.01])),
    "adam": lambda o: o.adam(o.constant(0.1)),
    "adamax": lambda o: o.adamax(0.1),
    "sm3": lambda o: o.sm3(0.1),
}
PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3) / 5, "b": (np.float32([1.0, 0.0]), np.float32([3.0]))}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_jaxs(name: str) -> None:
    results = []
    for ja, module in ((vf, ours), (jax, theirs)):
        init, update, get_params = OPTIMIZERS[name](module)
        state = init(PARAMS)
        step = lambda i, state, ja=ja, u=update, g=get_params: u(i, ja.tree.map(lambda p: p * p - 0.3 * p, g(state)), state)
        step = step if (ja, name) == (jax, "sm3") else ja.jit(step)  # JAX cannot trace its own
        for i in range(5):
            state = step(i, state)
        assert isinstance(state, module.OptimizerState)
        results.append([np.asarray(x) for x in jax.tree.leaves(get_params(state))])
        packed = module.pack_optimizer_state(module.unpack_optimizer_state(state))
        assert [np.asarray(x).tolist() for x in jax.tree.leaves(get_params(packed))] == [x.tolist() for x in results[-1]]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_norms_and_clipping() -> None:
    np.testing.assert_allclose(ours.l2_norm(PARAMS), theirs.l2_norm(PARAMS), rtol=1e-6)
    for limit in (0.5, 100.0):
        clipped, wanted = ours.clip_grads(PARAMS, limit), theirs.clip_grads(PARAMS, limit)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6), clipped, wanted)


def test_unfit_arguments_raise() -> None:
    init, update, _ = ours.sgd(0.1)
    with pytest.raises(TreeError, match="structure"):
        update(0, {"w": 1.0}, init(PARAMS))
    with pytest.raises(ShapeError, match="one value more"):
        ours.piecewise_constant([1, 2], [0.1, 0.2])
    with pytest.raises(ShapeError, match="a number or a schedule"):
        ours.sgd(np.ones(2))
    with pytest.raises(TreeError, match="JoinPoint"):
        ours.pack_optimizer_state(PARAMS)


def test_sm3_of_a_number() -> None:
    init, update, get = ours.sm3(0.1, momentum=0.0)
    state = update(0, vf.numpy.float32(4.0), init(vf.numpy.float32(1.0)))
    assert np.asarray(get(state)) == np.float32(0.9)  # the gradient's sign, as the only square is its own
    assert np.asarray(get(update(1, vf.numpy.float32(3.0), state))) == np.float32(0.9) - np.float32(0.1) * np.float32(3.0 / 5.0)
