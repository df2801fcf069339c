"""Chains, masks, groups, hyper-parameters in the state, lookahead, monitors: how transformations are put together."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, ArgumentTypeError, TreeError

PARAMS = {"w": vf.numpy.ones((2, 2)), "b": vf.numpy.zeros(2), "none": None}


@tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class Model:
    """A pytree that can be called, as layers are."""

    weight: object
    bias: object

    def __call__(self, x):
        return x


def update(tx, grads=PARAMS, params=PARAMS, **extra):
    """Return the updates of a first step."""
    return tx.update(grads, tx.init(params), params, **extra)[0]


def test_extra_arguments_reach_those_who_take_them():
    plain = optim.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))
    updates = update(
        optim.chain(plain, optim.polyak_sgd(max_learning_rate=0.5), optim.identity()), {"x": np.float32(1)}, {"x": 1.0}, value=9.0
    )
    assert float(updates["x"]) == -0.5
    multi = optim.MultiSteps(optim.sgd(1.0), 1)
    assert float(update(optim.chain(multi, optim.scale(2.0)), 3.0, 1.0, other=None)) == -6.0


@pytest.mark.parametrize("wrong", [lambda: optim.chain(3), lambda: optim.chain(optim.adam), lambda: optim.masked("adam", True)])
def test_other_objects_than_transformations_are_refused(wrong):
    with pytest.raises(ArgumentTypeError, match="gradient transformation"):
        wrong()


def test_states_of_other_chains_are_refused():
    two, one = optim.chain(optim.scale(1.0), optim.scale(1.0)), optim.chain(optim.scale(1.0))
    for state in (one.init(PARAMS), {}, None):
        with pytest.raises(TreeError, match="tuple of 2"):
            two.update(PARAMS, state)
    named = optim.named_chain(("a", optim.scale(1.0)))
    with pytest.raises(TreeError, match="keys"):
        named.update(PARAMS, two.init(PARAMS))
    with pytest.raises(ArgumentError, match="unique"):
        optim.named_chain(("a", optim.scale(1.0)), ("a", optim.scale(1.0)))


def test_masks_are_trees_prefixes_or_functions():
    model = Model(vf.numpy.ones((2, 2)), (vf.numpy.ones(2), vf.numpy.ones(1)))
    expected = [-1.0, 1.0, 1.0]
    masks = [
        Model(True, False),
        Model(np.bool_(True), (False, False)),
        Model(vf.numpy.array(True), vf.numpy.array(False)),
        lambda params: tree.map(lambda p: p.ndim == 2, params),
    ]
    for mask in masks:
        tx = optim.masked(optim.scale(-1.0), mask)
        assert [float(u.ravel()[0]) for u in tree.leaves(update(tx, model, model))] == expected
    assert tree.leaves(optim.masked(optim.adam(0.1), masks[0]).init(model).inner_state[0].mu)[0].shape == (2, 2)
    assert [float(u.ravel()[0]) for u in tree.leaves(update(optim.masked(optim.scale(-1.0), False), model, model))] == [1.0, 1.0, 1.0]


def test_masked_steps_run_under_jit_and_scan():
    tx = optim.chain(
        optim.masked(optim.adam(0.1), {"w": True, "b": False, "none": False}),
        optim.add_decayed_weights(0.1, {"w": False, "b": True, "none": None}),
    )

    def step(state, _):
        updates, state = tx.update(PARAMS, state, PARAMS)
        return state, updates

    _, stacked = vf.lax.scan(step, tx.init(PARAMS), None, length=3)
    np.testing.assert_allclose(stacked["w"][2], vf.jit(step)(vf.jit(step)(vf.jit(step)(tx.init(PARAMS), 0)[0], 0)[0], 0)[1]["w"], rtol=1e-6)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ({"w": 1, "b": True, "none": None}, ArgumentTypeError),
        ({"w": "yes", "b": True, "none": None}, ArgumentTypeError),
        ({"w": np.ones(2, bool), "b": True, "none": None}, ArgumentTypeError),
        ({"w": True, "none": None}, TreeError),
        (lambda params: [True], TreeError),
    ],
)
def test_other_masks_are_refused(mask, error):
    with pytest.raises(error):
        optim.masked(optim.scale(1.0), mask).init(PARAMS)


def test_traced_masks_are_refused():
    with pytest.raises(ArgumentTypeError, match="traced"):
        vf.jit(lambda flag: update(optim.masked(optim.scale(1.0), flag)))(True)


def test_extra_arguments_are_masked_on_demand():
    def take(updates, state, params=None, *, more, **extra):
        return tree.map(lambda u, g: u + g, updates, more), state

    inner = optim.GradientTransformationExtraArgs(optim.init_empty_state, take)
    tx = optim.masked(inner, {"w": True, "b": False, "none": None}, mask_compatible_extra_args=True)
    assert float(update(tx, more=PARAMS)["w"][0, 0]) == 2.0
    with pytest.raises(TreeError):
        update(optim.masked(inner, {"w": True, "b": False, "none": None}), more=PARAMS)


def test_groups_have_settings_of_their_own():
    labels = lambda params: tree.map(lambda p: "matrix" if p.ndim == 2 else "other", params)
    tx = optim.partition({"matrix": optim.sgd(1.0), "other": optim.adam(0.5), "unused": optim.sgd(9.0)}, labels)
    grads = tree.map(vf.numpy.ones_like, PARAMS)
    updates = vf.jit(tx.update)(grads, tx.init(PARAMS), PARAMS)[0]
    np.testing.assert_allclose(updates["w"], -1.0)
    np.testing.assert_allclose(updates["b"], -0.5, rtol=1e-6)
    model = Model(vf.numpy.ones((2, 2)), vf.numpy.ones(2))
    by_prefix = optim.multi_transform({1: optim.sgd(1.0), 2: optim.set_to_zero()}, Model(1, 2))
    assert [float(u.ravel()[0]) for u in tree.leaves(update(by_prefix, model, model))] == [-1.0, 0.0]
    with pytest.raises(ArgumentError, match="labels"):
        optim.partition({"matrix": optim.sgd(1.0)}, labels).init(PARAMS)


def test_frozen_parameters_stay():
    tx = optim.selective_transform(optim.adam(0.1), freeze_mask={"w": True, "b": False, "none": None})
    updates = update(tx, tree.map(vf.numpy.ones_like, PARAMS))
    assert not np.any(np.asarray(updates["w"]))
    assert np.all(np.asarray(updates["b"]) != 0)
    assert len(tree.leaves(tx.init(PARAMS).inner_states["train"])) == 3  # a count and two moments of one array


class Halving:
    """A schedule with a state: halves with every step on which it is told to."""

    def init(self):
        return vf.numpy.ones(())

    def update(self, state, *, halve, **extra):
        return vf.numpy.where(halve, state / 2, state)

    def __call__(self, state, **extra):
        return state


def test_hyper_parameters_are_in_the_state():
    tx = optim.inject_hyperparams(optim.adamw, static_args=("mask",))(
        learning_rate=optim.linear_schedule(0.0, 1.0, 2), weight_decay=0.5, mask=lambda params: tree.map(lambda p: True, params)
    )
    state = tx.init(PARAMS)
    assert sorted(state.hyperparams) == ["b1", "b2", "eps", "eps_root", "learning_rate", "weight_decay"]
    seen = []
    for _ in range(3):
        updates, state = vf.jit(tx.update)(PARAMS, state, PARAMS)
        seen.append(float(state.hyperparams["learning_rate"]))
    assert seen == [0.0, 0.5, 1.0]
    state = state._replace(hyperparams={**state.hyperparams, "weight_decay": 0.0})
    more, _ = tx.update(PARAMS, state, PARAMS)
    assert float(more["w"][0, 0]) > float(updates["w"][0, 0])


@pytest.mark.wide
def test_hyper_parameters_may_have_states_and_dtypes():
    tx = optim.inject_hyperparams(optim.sgd)(learning_rate=Halving())
    state = tx.init(1.0)
    for halve, expected in ((True, -1.0), (False, -0.5), (False, -0.5)):
        updates, state = tx.update(np.float32(1.0), state, halve=halve)
        assert float(updates) == expected
    wide = {"w": np.ones(1)}
    assert optim.inject_hyperparams(optim.sgd)(0.1).init(wide).hyperparams["learning_rate"].dtype == np.float64
    narrow = optim.inject_hyperparams(optim.adam, hyperparam_dtype="bfloat16")(0.1)
    assert narrow.init(wide).hyperparams["b1"].dtype.name == "bfloat16"
    assert update(narrow, wide, wide)["w"].dtype == np.float64
    with pytest.raises(ArgumentError, match="unknown"):
        optim.inject_hyperparams(optim.sgd, static_args="unknown")


def test_gradients_of_hyper_parameters():
    """Learning the learning rate: through the state."""
    tx = optim.inject_hyperparams(optim.sgd)(learning_rate=0.1)
    state = tx.init(2.0)

    def loss(rate):
        updates, _ = tx.update(np.float32(4.0), state._replace(hyperparams={"learning_rate": rate}))
        return optim.apply_updates(np.float32(2.0), updates) ** 2

    assert float(vf.grad(loss)(0.25)) == -8.0


@pytest.mark.parametrize("reset", [False, True])
def test_lookahead_agrees_with_optax(reset):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    results = []
    for library, jit in ((optim, vf.jit), (optax, jax.jit)):
        tx = library.lookahead(library.adam(0.1), sync_period=3, slow_step_size=0.5, reset_state=reset)
        params = library.LookaheadParams.init_synced({"w": np.ones(3, "float32")})
        state, step = tx.init(params), jit(tx.update)
        for i in range(7):
            updates, state = step({"w": np.arange(3, dtype="float32") - i}, state, params)
            params = library.apply_updates(params, updates)
        results.append(params)
    np.testing.assert_allclose(results[0].fast["w"], results[1].fast["w"], rtol=1e-5)
    np.testing.assert_allclose(results[0].slow["w"], results[1].slow["w"], rtol=1e-5)


def test_lookahead_explains_itself():
    with pytest.raises(ArgumentError):
        optim.lookahead(optim.sgd(1.0), 0, 0.5)
    with pytest.raises(ArgumentTypeError, match="init_synced"):
        optim.lookahead(optim.sgd(1.0), 1, 0.5).init(PARAMS)


def test_monitors_look_on():
    tx = optim.chain(
        optim.snapshot("raw", optim.global_norm),
        optim.clip_by_global_norm(1.0),
        optim.monitor({"norm": optim.global_norm, "average": optim.measure_with_ema(optim.global_norm, 0.5)}),
    )
    state = tx.init({"w": vf.numpy.zeros(2)})
    for gradient in ([3.0, 4.0], [0.3, 0.4]):
        updates, state = vf.jit(tx.update)({"w": np.array(gradient, "float32")}, state)
    np.testing.assert_allclose(updates["w"], [0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(state[0].measurement["raw"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(state[2].measurements["norm"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(state[2].measurements["average"], (0.25 + 0.25) / 0.75, rtol=1e-6)
