"""Categories, permutations and choices against JAX, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from volta_fn import random
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

X = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
LOGITS = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
P = np.array([0.1, 0.2, 0.3, 0.15, 0.25], np.float32)


def assert_equal(call) -> None:
    """Compare a call of our module with the same call of JAX's."""
    jax = pytest.importorskip("jax")
    with jax.threefry_partitionable(True):
        theirs = np.asarray(call(jax.random, jax.random.key(11)))
    ours = np.asarray(call(random, random.key(11)))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("x", [1, 2, 5, 1000, 3000, np.array([3, 1, 2], np.int8), X, X[:, :0]], ids=str)
def test_permutation(x):
    assert_equal(lambda r, k: r.permutation(k, x))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("independent", [False, True])
def test_permutation_along_an_axis(axis, independent):
    assert_equal(lambda r, k: r.permutation(k, X, axis, independent))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape, replace", [((2, 3), True), ((), True), ((2,), False), ((3,), False)])
def test_choice_along_an_axis(axis, shape, replace):
    assert_equal(lambda r, k: r.choice(k, X, shape, replace, axis=axis))


@pytest.mark.parametrize("replace", [True, False])
def test_choice_of_integers(replace):
    assert_equal(lambda r, k: r.choice(k, 20, (4, 5), replace))
    assert_equal(lambda r, k: r.choice(k, 5, (4,), replace, P))
    assert_equal(lambda r, k: r.choice(k, X[0], (2, 2), replace, np.array([1, 2, 3, 4], np.float32)))


def test_choice_with_probabilities_follows_them():
    counts = np.bincount(np.asarray(random.choice(random.key(0), 5, (50_000,), p=P)), minlength=5)
    np.testing.assert_allclose(counts / 50_000, P, atol=0.01)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_categorical(axis):
    batch = tuple(np.delete(LOGITS.shape, axis).tolist())
    assert_equal(lambda r, k: r.categorical(k, LOGITS, axis))
    assert_equal(lambda r, k: r.categorical(k, LOGITS, axis, shape=(7, *batch)))
    assert_equal(lambda r, k: r.categorical(k, LOGITS, axis, shape=(2, *batch), replace=False))
    assert_equal(lambda r, k: r.categorical(k, LOGITS, axis, shape=(2, *batch), mode="high"))


def test_categorical_follows_the_logits():
    draws = np.asarray(random.categorical(random.key(0), np.log(P), shape=(50_000,)))
    np.testing.assert_allclose(np.bincount(draws, minlength=5) / 50_000, P, atol=0.01)


def test_impossible_categories_are_never_drawn():
    logits = np.array([-np.inf, 0.0, -np.inf], np.float32)
    assert set(np.asarray(random.categorical(random.key(0), logits, shape=(100,))).tolist()) == {1}


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda k: random.permutation(k, 5.0), DTypeError, "integer"),
        (lambda k: random.permutation(k, X, 3), ShapeError, "axis=3"),
        (lambda k: random.choice(k, 0, (3,)), ArgumentError, "nothing to choose"),
        (lambda k: random.choice(k, 3, (4,), replace=False), ArgumentError, "4 of 3"),
        (lambda k: random.choice(k, 5, 3), ArgumentTypeError, r"\(3,\)"),
        (lambda k: random.choice(k, 4, (2,), p=P), ShapeError, "each of 4"),
        (lambda k: random.categorical(k, LOGITS, shape=(5,)), ShapeError, "must end with"),
        (lambda k: random.categorical(k, np.arange(3)), DTypeError, "floats"),
        (lambda k: random.categorical(k, P, shape=(6,), replace=False), ArgumentError, "6 of 5"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(random.key(0))


@pytest.mark.parametrize(("shape", "axis"), [((1, 4), -1), ((3, 1), -3), ((1, 1), 1)])
def test_logits_broadcast_to_the_shape_as_in_jax(shape, axis):
    jax = pytest.importorskip("jax")
    logits = np.log(np.random.default_rng(0).uniform(size=np.insert(shape, axis % 3, 5)).astype(np.float32))
    result = random.categorical(random.PRNGKey(3), logits, axis, shape=(2, 3, 4))
    np.testing.assert_array_equal(result, jax.random.categorical(jax.random.PRNGKey(3), logits, axis, shape=(2, 3, 4)))
