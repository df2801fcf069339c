"""Clipping beyond what test_optimizers compares: limits that hold, units, gradients of single examples and their privacy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, ShapeError

GRADS = {
    "w": np.random.default_rng(0).normal(size=(5, 4, 3)).astype("float32"),
    "b": np.random.default_rng(1).normal(size=(5, 3)).astype("float32"),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_norms_stay_below_their_limits(dtype):
    x = {"w": vf.numpy.asarray(GRADS["w"][0], dtype) * 100, "b": vf.numpy.asarray(GRADS["b"][0], dtype)}
    clipped = {
        name: tx.update(x, tx.init(x))[0] for name, tx in (("all", optim.clip_by_global_norm(1.0)), ("each", optim.clip_by_block_norm(0.5)))
    }
    assert all(leaf.dtype == np.dtype(dtype) for leaf in tree.leaves(clipped))
    assert float(optim.global_norm(clipped["all"])) == pytest.approx(1.0, rel=2e-3)
    assert [float(optim.global_norm(clipped["each"][name])) for name in x] == pytest.approx([0.5, 0.5], rel=2e-3)
    inside = optim.clip_by_block_norm(1e9)
    np.testing.assert_array_equal(inside.update(x, inside.init(x))[0]["b"], x["b"])


def test_infinite_norms_leave_nothing_finite_but_zero():
    x = vf.numpy.array([np.inf, 1.0])
    updates, _ = optim.clip_by_global_norm(1.0).update(x, optim.EmptyState())
    assert np.isnan(updates[0]) and updates[1] == 0


def test_units():
    norms = optim.unitwise_norm(vf.numpy.array([[3.0, 1.0], [4.0, 0.0]]))
    np.testing.assert_allclose(norms, [[5.0, 1.0], [5.0, 1.0]])
    for shape, expected in (((), 1), ((4,), 4), ((1, 4, 1), 4), ((3, 2, 2), 3), ((2, 3, 4, 5), 24), ((2, 2, 2, 2, 3), 16)):
        np.testing.assert_allclose(optim.unitwise_norm(vf.numpy.ones(shape)), expected**0.5, rtol=1e-6)
    np.testing.assert_allclose(optim.unitwise_norm(vf.numpy.ones((1, 2, 3, 4, 5, 6)), axis=(0, 5)), 6**0.5, rtol=1e-6)
    with pytest.raises(ShapeError, match="axis="):
        optim.unitwise_norm(vf.numpy.ones((2,) * 6))
    with pytest.raises(ShapeError):
        optim.unitwise_clip(np.ones(2), np.ones(3), np.ones(2))
    with pytest.raises(ArgumentError):
        optim.adaptive_grad_clip(-1.0)


ZERO_LIMITS = {
    "clip": lambda g: _updated(optim.clip(0.0), g),
    "clip_by_global_norm": lambda g: _updated(optim.clip_by_global_norm(0.0), g),
    "clip_by_block_norm": lambda g: _updated(optim.clip_by_block_norm(0.0), g),
    "clip_by_block_rms": lambda g: _updated(optim.clip_by_block_rms(0.0), g),
    "adaptive_grad_clip": lambda g: _updated(optim.adaptive_grad_clip(0.0), g),
    "per_example_global_norm_clip": lambda g: optim.per_example_global_norm_clip(g, 0.0)[0],
    "per_example_layer_norm_clip": lambda g: optim.per_example_layer_norm_clip(g, 0.0)[0],
    "projection_l1_ball": lambda g: optim.projections.projection_l1_ball(g, 0.0),
    "projection_l1_sphere": lambda g: optim.projections.projection_l1_sphere(g, 0.0),
    "projection_l2_ball": lambda g: optim.projections.projection_l2_ball(g, 0.0),
    "projection_linf_ball": lambda g: optim.projections.projection_linf_ball(g, 0.0),
    "projection_simplex": lambda g: optim.projections.projection_simplex(g, 0.0),
}


def _updated(tx, grads):
    return tx.update(grads, tx.init(grads), grads)[0]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ZERO_LIMITS)
def test_a_limit_of_zero_leaves_zeros(name, dtype):
    """Of zeros, too, and of a limit that a schedule has taken to zero in a program."""
    for grads in ({k: np.zeros_like(g) for k, g in GRADS.items()}, GRADS):
        grads = tree.map(lambda g: vf.numpy.asarray(g, dtype), grads)
        for apply in (ZERO_LIMITS[name], vf.jit(ZERO_LIMITS[name])):
            for leaf in tree.leaves(apply(grads)):
                np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_norms_of_zero_divide_nothing():
    zeros = {k: np.zeros_like(g) for k, g in GRADS.items()}
    for tx in (optim.contrib.normalize(), optim.normalize_by_update_norm()):
        assert not any(np.any(leaf) for leaf in tree.leaves(_updated(tx, zeros)))
    value, vector = optim.power_iteration(np.zeros((3, 3), "float32"))
    assert value == 0 and not np.any(vector)


def test_projections_of_float16_sum_in_float32():
    x = vf.numpy.asarray([300.0, -400.0], "float16")
    np.testing.assert_allclose(optim.projections.projection_l2_ball(x), [0.6, -0.8], rtol=1e-3)


def test_examples_are_clipped_as_by_optax():
    optax = pytest.importorskip("optax")
    for limit in (0.5, 4.0, 100.0):
        (ours, clipped), (theirs, expected) = (library.per_example_global_norm_clip(GRADS, limit) for library in (optim, optax))
        assert int(clipped) == int(expected)
        for name in GRADS:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
        for uniform in (True, False):
            ours, theirs = (library.per_example_layer_norm_clip(GRADS, limit, uniform) for library in (optim, optax))
            for name in GRADS:
                np.testing.assert_allclose(ours[0][name], theirs[0][name], rtol=1e-5, atol=1e-6)
                assert int(ours[1][name]) == int(theirs[1][name])
    assert int(optim.per_example_global_norm_clip({}, 1.0)[1]) == 0
    zeros, clipped = optim.per_example_global_norm_clip([np.zeros((3, 2), "float32")], 1.0)
    assert not np.any(zeros[0]) and int(clipped) == 0


def test_private_gradients_are_optax_s():
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    params = tree.map(lambda g: g[0], GRADS)
    with jax.threefry_partitionable(True):
        theirs = optax.contrib.differentially_private_aggregate(1.0, 0.5, jax.random.key(5))
        expected, _ = theirs.update(GRADS, theirs.init(params))
    ours = optim.differentially_private_aggregate(1.0, 0.5, vf.random.key(5))
    updates, state = vf.jit(ours.update)(GRADS, ours.init(params), params)
    for name in GRADS:
        assert updates[name].shape == params[name].shape
        np.testing.assert_allclose(updates[name], expected[name], rtol=1e-5, atol=1e-6)
    again, _ = ours.update(GRADS, ours.init(params))
    other, _ = ours.update(GRADS, state)
    np.testing.assert_allclose(again["w"], updates["w"], rtol=1e-6)
    assert not np.allclose(other["w"], updates["w"])


def test_one_example_moves_a_private_sum_by_its_limit_at_most():
    tx = optim.dpsgd(1.0, l2_norm_clip=0.1, noise_multiplier=0.0, key=0)
    wild = tree.map(lambda g: vf.numpy.asarray(g).at[2].multiply(1e6), GRADS)
    without = tree.map(lambda g: vf.numpy.asarray(g).at[2].set(0.0), GRADS)
    a, b = (tx.update(grads, tx.init(None))[0] for grads in (wild, without))
    assert 5 * float(optim.global_norm(tree.map(lambda x, y: x - y, a, b))) <= 0.1 * (1 + 1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("grads", [{"w": np.ones((2, 3)), "b": np.ones((3, 3))}, {"w": np.ones((2, 3)), "b": np.float32(1)}])
def test_gradients_that_are_not_of_examples_are_refused(grads):
    tx = optim.differentially_private_aggregate(1.0, 1.0, 0)
    for call in (
        lambda: tx.update(grads, tx.init(None)),
        lambda: optim.per_example_global_norm_clip(grads, 1.0),
        lambda: optim.per_example_layer_norm_clip(grads, 1.0),
    ):
        with pytest.raises(ShapeError, match="vmap"):
            call()
