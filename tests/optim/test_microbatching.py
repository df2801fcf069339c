"""Microbatches: the results of whole batches, and Optax's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import tree
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.optim import microbatching
from volta_fn.optim.microbatching import AccumulationType

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
KINDS = {
    AccumulationType.SUM: np.ndarray.sum,
    AccumulationType.MEAN: np.ndarray.mean,
    AccumulationType.RUNNING_MEAN: np.ndarray.mean,
}


@pytest.mark.parametrize("size", [1, 2, 3, 6, None])
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_microbatches_are_combined(kind, size):
    function = microbatching.micro_vmap(lambda x: {"square": x**2}, microbatch_size=size, accumulator=kind)
    np.testing.assert_allclose(vf.jit(function)(X)["square"], KINDS[kind](X**2, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_in_half_precision_are_of_float32(kind, dtype):
    x = vf.numpy.full(4096, 0.1, dtype)
    reduce = vf.numpy.sum if kind is AccumulationType.SUM else vf.numpy.mean
    result = microbatching.microbatch(lambda x: {"result": reduce(x)}, 0, 4, kind)(x)["result"]
    assert result.dtype == x.dtype
    expected = KINDS[kind](np.asarray(x, np.float64))
    np.testing.assert_allclose(float(result), expected, rtol=2 * float(vf.numpy.finfo(dtype).eps))


@pytest.mark.parametrize("size", [1, 2, 6, None])
def test_results_in_a_row_keep_their_order(size):
    function = microbatching.micro_vmap(lambda x, y, z: x * y + z, (1, None, 0), microbatch_size=size)
    np.testing.assert_allclose(function(X.T, 2.0, X), 3 * X, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_batches_are_split_as_by_optax(axis):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    theirs = optax.microbatching.reshape_batch_axis(jax.numpy.asarray(X), 3, axis)
    np.testing.assert_array_equal(microbatching.reshape_batch_axis(X, 3, axis), theirs)


def test_a_tree_of_accumulators_and_named_batches():
    custom = microbatching.Accumulator(
        init=lambda value: vf.numpy.full(value.shape, -np.inf, value.dtype),
        update=lambda state, value, index: vf.numpy.maximum(state, value),
        finalize=lambda state: state,
        aggregate=lambda values: vf.numpy.max(values, 0),
    )
    function = microbatching.microbatch(
        lambda scale, *, x: (scale * vf.numpy.max(x), vf.numpy.sum(x), scale * x),
        (),
        2,
        (custom, AccumulationType.SUM, AccumulationType.CONCAT),
        argnames="x",
    )
    largest, total, scaled = function(2.0, x=X)
    np.testing.assert_allclose(largest, 2 * X.max(), rtol=1e-6)
    np.testing.assert_allclose(total, X.sum(), rtol=1e-5)
    np.testing.assert_allclose(scaled, 2 * X, rtol=1e-6)


def test_the_first_microbatches_only():
    function = microbatching.micro_vmap(lambda x: x, microbatch_size=2, accumulator=AccumulationType.RUNNING_MEAN, num_real_microbatches=2)
    np.testing.assert_allclose(function(X), X[[0, 3, 1, 4]].mean(0), rtol=1e-5)


@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("keep", [True, False])
def test_gradients_of_single_examples(has_aux, keep):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    y = X[:, 0]
    results = []
    for module, numpy in ((microbatching, vf.numpy), (optax.microbatching, jax.numpy)):

        def loss(w, x, y, numpy=numpy):
            value = numpy.sum(numpy.tanh(x @ w) * y)
            return (value, numpy.sum(x)) if has_aux else value

        clip = lambda g, numpy=numpy: numpy.clip(g, -0.1, 0.1)
        options = {"microbatch_size": 2, "transform_fn": clip, "metrics_fn": numpy.linalg.norm, "keep_batch_dim": keep}
        grad = module.micro_grad(loss, has_aux, batch_argnums=(1, 2), **options)
        w = numpy.asarray(X[0])
        results.append(grad(w, numpy.asarray(X), numpy.asarray(y)))
    ours, theirs = tree.leaves(results[0]), jax.tree.leaves(results[1])
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_refused():
    with pytest.raises(ShapeError):
        microbatching.microbatch(lambda x: x, 0, 4)(X)
    with pytest.raises(ShapeError):
        microbatching.microbatch(lambda x, y: x, (0, 1), 2)(X, X[:2])
    with pytest.raises(ArgumentError):
        microbatching.micro_vmap(lambda x: x, out_axes=1)
    with pytest.raises(ArgumentError):
        microbatching.microbatch(lambda x: x, 0, 2, "sum")(X)
    with pytest.raises(DTypeError):
        microbatching.microbatch(lambda x: vf.numpy.sum(x), 0, 2, AccumulationType.MEAN)(np.arange(4))
