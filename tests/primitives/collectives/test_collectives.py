"""Collectives over named axes: values and derivatives against JAX, several names, nesting, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import ArgumentError, GradientError, ShapeError

X = np.arange(18, dtype=np.float32).reshape(3, 2, 3) / 10

CALLS: list[Any] = [
    lambda np_, lax_, x: lax_.psum(x, "i") * x,
    lambda np_, lax_, x: lax_.pmean(np_.sin(x), "i"),
    lambda np_, lax_, x: lax_.psum({"x": x, "n": 2}, "i")["x"],
    lambda np_, lax_, x: x * lax_.psum(1, "i"),
    lambda np_, lax_, x: x * lax_.axis_index("i"),
    lambda np_, lax_, x: lax_.all_gather(x, "i") * x,
    lambda np_, lax_, x: lax_.all_gather(x, "i", axis=1, tiled=True),
    lambda np_, lax_, x: lax_.all_gather(x, "i", axis=-1),
    lambda np_, lax_, x: lax_.ppermute(x * x, "i", [(0, 2), (2, 1), (1, 0)]),
    lambda np_, lax_, x: lax_.pshuffle(x, "i", [2, 0, 1]),
    lambda np_, lax_, x: lax_.all_to_all(x, "i", 1, 0) * 2,
    lambda np_, lax_, x: lax_.all_to_all(x.T, "i", 0, 1, tiled=True) * 2,
    lambda np_, lax_, x: lax_.pswapaxes(x, "i", 1),
    lambda np_, lax_, x: lax_.psum_scatter(x.T, "i"),
    lambda np_, lax_, x: lax_.psum_scatter(x.T, "i", tiled=True),
    lambda np_, lax_, x: x * lax_.axis_size("i"),
]


@pytest.mark.parametrize("call", CALLS)
def test_values_and_gradients_are_those_of_jax(call: Any) -> None:
    jax = pytest.importorskip("jax")

    def results(api: Any, np_: Any, lax_: Any) -> list[Any]:
        mapped = api.vmap(lambda x: call(np_, lax_, x), axis_name="i")
        weights = np.arange(7.0, dtype=np.float32)
        loss = lambda x: np_.sum(np_.ravel(mapped(x)) ** 2 * np_.resize(weights, (mapped(x).size,)))
        return [mapped(X), api.grad(loss)(X), api.jvp(mapped, (X,), (X + 1,))[1], api.vmap(mapped, 1, 1)(np.stack([X, -X], 1))]

    for ours, theirs in zip(results(vf, jnp, lax), jax.jit(lambda: results(jax, jax.numpy, jax.lax))(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_blocks_without_elements_keep_their_shapes() -> None:
    empty = np.zeros((3, 6, 0), np.float32)
    assert vf.vmap(lambda x: lax.psum_scatter(x, "i", tiled=True), axis_name="i")(empty).shape == (3, 2, 0)
    assert vf.vmap(lambda x: lax.all_to_all(x, "i", 0, 1, tiled=True), axis_name="i")(empty).shape == (3, 2, 0)


@pytest.mark.parametrize("concat", [0, 1, -2])
def test_exchanged_blocks(concat: int) -> None:
    """What arrives at example i, written out; the cotangent goes the way back."""
    values = np.arange(36, dtype=np.float32).reshape(3, 6, 2)
    exchange = vf.vmap(lambda x: lax.all_to_all(x, "i", 0, concat, tiled=True), axis_name="i")
    arrived = exchange(values)
    for i, row in enumerate(np.asarray(arrived)):
        np.testing.assert_array_equal(row, np.concatenate([sender[2 * i : 2 * i + 2] for sender in values], concat))
    (back,) = vf.vjp(exchange, values)[1](arrived)
    np.testing.assert_array_equal(back, values)
    np.testing.assert_array_equal(vf.vmap(exchange)(np.stack([values, 2 * values]))[1], 2 * arrived)


def test_extremes() -> None:
    for ours, reduction in ((lax.pmax, np.max), (lax.pmin, np.min)):
        mapped = vf.vmap(lambda x, ours=ours: ours(x, "i"), axis_name="i")
        np.testing.assert_array_equal(mapped(X)[1], reduction(X, 0))
        with pytest.raises(GradientError, match="has no derivative"):
            vf.vmap(vf.grad(lambda x, ours=ours: jnp.sum(ours(x, "i"))), axis_name="i")(X)


def test_several_names() -> None:
    both = vf.vmap(vf.vmap(lambda x: (lax.psum(x, ("i", "j")), lax.axis_index(("i", "j")), lax.psum(x, "j")), axis_name="j"), axis_name="i")
    total, index, inner = both(X[:, :, 0])
    np.testing.assert_allclose(total, np.full((3, 2), X[:, :, 0].sum()), rtol=1e-6)
    np.testing.assert_array_equal(index, np.arange(6).reshape(3, 2))
    np.testing.assert_allclose(inner, np.repeat(X[:, :, 0].sum(1)[:, None], 2, 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: lax.psum(x, "j"), ArgumentError, r"no axis named 'j' is in scope \(bound here: \['i'\]\)"),
        (lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), ArgumentError, "at most once"),
        (lambda x: lax.ppermute(x, "i", [(0, 3)]), ArgumentError, "3 examples"),
        (lambda x: lax.pshuffle(x, "i", [0, 0, 1]), ArgumentError, "does not permute"),
        (lambda x: lax.all_to_all(x, "i", 0, 1), ShapeError, "must have the axis's size 3"),
        (lambda x: lax.all_to_all(x, "i", 0, 1, tiled=True), ShapeError, r"dimension 0 of shape \(2, 3\) does not divide among 3 examples"),
        (lambda x: lax.all_to_all(x, ("i", "i"), 0, 1), ArgumentError, "names an axis twice"),
        (lambda x: lax.psum_scatter(x, "i"), ShapeError, "must have the axis's size 3"),
        (lambda x: lax.psum_scatter(x, "i", tiled=True), ShapeError, "does not divide among 3"),
        (lambda x: lax.all_gather(x, ("i", "i")), ArgumentError, "one axis name"),
    ],
)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        vf.vmap(call, axis_name="i")(X)
    with pytest.raises(ArgumentError, match="no axis named"):
        call(X[0])


@pytest.mark.parametrize("options", [{"split_axis": 0, "concat_axis": 1}, {"split_axis": 1, "concat_axis": 0, "tiled": True}])
def test_all_to_all_over_two_axes(options):
    jax = pytest.importorskip("jax")
    x = np.arange(2 * 3 * 6 * 6.0, dtype=np.float32).reshape(2, 3, 6, 6)

    def exchanged(library):
        exchange = lambda x: library.lax.all_to_all(x, ("i", "j"), **options)
        return library.vmap(library.vmap(exchange, axis_name="j"), axis_name="i")(x)

    assert np.array_equal(exchanged(vf), exchanged(jax))
