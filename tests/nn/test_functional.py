"""softmax, log_softmax, logsumexp, logmeanexp, standardize and one_hot against JAX's, with derivatives and with masks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
MASK = np.random.default_rng(1).random((3, 4, 5)) < 0.7
MASK[0, 0] = True
NAMES = ["softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
OPTIONS = [{}, {"axis": 0}, {"axis": (0, 2)}, {"axis": -1, "where": MASK}]


def oracle(name: str, x: np.ndarray, axis: object = None, where: np.ndarray | None = None) -> np.ndarray:
    """Compute the result by its definition, in NumPy."""
    terms = np.exp(x) if where is None else np.where(where, np.exp(x), 0)
    total = terms.sum(axis, keepdims=True)
    count = np.ones_like(x).sum(axis, keepdims=True, where=True if where is None else where)
    flat = np.squeeze(total, axis) if axis is not None else total.reshape(())
    if name == "logsumexp":
        return np.log(flat)
    if name == "logmeanexp":
        return np.log(flat / count.reshape(flat.shape))
    if name == "standardize":
        mean = x.mean(axis, keepdims=True, where=True if where is None else where)
        return (x - mean) / np.sqrt(x.var(axis, keepdims=True, where=True if where is None else where) + 1e-5)
    with np.errstate(divide="ignore"):
        return terms / total if name == "softmax" else np.log(terms / total)


@pytest.mark.wide
@pytest.mark.parametrize("options", OPTIONS, ids=["", "axis", "axes", "where"])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(name, options):
    chosen = options if options or (name.startswith("log") and name != "log_softmax") else {"axis": -1}
    x = X.astype(float)
    value = oracle(name, x, **chosen)
    np.testing.assert_allclose(getattr(nn, name)(x, **options), value, rtol=1e-12)
    weights = np.where(np.isfinite(value), np.random.default_rng(2).normal(size=value.shape), 0)

    def loss(x: np.ndarray) -> np.ndarray:
        out = getattr(nn, name)(x, **options)
        return (vf.numpy.where(np.isfinite(value), out, 0) * weights).sum()

    direction = np.random.default_rng(3).normal(size=x.shape)
    difference = (loss(x + 1e-6 * direction) - loss(x - 1e-6 * direction)) / 2e-6
    gradient = np.asarray(vf.grad(loss)(x))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_match_jax(name):
    jax = pytest.importorskip("jax")
    x = X[0]
    theirs = jax.jit(jax.value_and_grad(lambda x: (getattr(jax.nn, name)(x) ** 2).sum()))(x)
    ours = vf.value_and_grad(lambda x: (getattr(nn, name)(x) ** 2).sum())(x)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_softmax_of_nothing_is_zero():
    x, where = np.array([[1.0, 2.0], [3.0, 3.0]], np.float32), np.array([[False, False], [True, True]])
    np.testing.assert_array_equal(nn.softmax(x, where=where), [[0, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(vf.jacrev(lambda x: nn.softmax(x, where=where))(x)[0], np.zeros((2, 2, 2)))


@pytest.mark.wide
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_second_derivatives_match_differences(name):
    slope = vf.grad(lambda v: (getattr(nn, name)(v) ** 2).sum())
    x, step = X[0, 0].astype(float), 1e-6
    columns = [(slope(x + step * unit) - slope(x - step * unit)) / (2 * step) for unit in np.eye(5)]
    np.testing.assert_allclose(vf.jacfwd(slope)(x), np.stack(columns, 1), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_dtypes_are_kept(name, dtype):
    assert getattr(nn, name)(X.astype(dtype), axis=-1).dtype == dtype


@pytest.mark.parametrize("name", NAMES[:4])
def test_integers_become_floats(name):
    result = getattr(nn, name)(np.array([1, 2, 3], np.int32), axis=-1)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, getattr(nn, name)(np.array([1.0, 2.0, 3.0], np.float32), axis=-1))


def test_large_arguments():
    x = np.array([1e4, 1e4, -1e4], np.float32)
    np.testing.assert_allclose(nn.softmax(x), [0.5, 0.5, 0])
    np.testing.assert_allclose(nn.log_softmax(x), [-np.log(2), -np.log(2), -2e4 - np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(nn.logsumexp(x), 1e4 + np.log(2), rtol=1e-6)
    assert np.isfinite(vf.jacrev(nn.softmax)(x)).all() and np.isfinite(vf.jacrev(nn.log_softmax)(x)).all()


@pytest.mark.wide
def test_infinities():
    inf = np.inf
    some = np.array([-inf, 1.0, -inf], np.float32)
    np.testing.assert_allclose(nn.softmax(some), [0, 1, 0])
    np.testing.assert_allclose(vf.grad(nn.logsumexp)(some), [0, 1, 0])
    assert np.isfinite(vf.jacrev(nn.softmax)(some)).all()
    nothing = np.array([-inf, -inf], np.float32)
    assert float(nn.logsumexp(nothing)) == -inf
    np.testing.assert_array_equal(vf.grad(nn.logsumexp)(nothing), [0, 0])
    assert float(nn.logsumexp(np.array([inf, 1.0]))) == inf
    assert float(nn.logsumexp(np.zeros(0, np.float32))) == -inf


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
@pytest.mark.parametrize("return_sign", [False, True])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp_with_weights(axis, return_sign, keepdims):
    special = pytest.importorskip("scipy.special")
    weights = np.array([1.0, 0.0, 2.0, 3.0, 0.5] if not return_sign else [1.0, 0.0, -2.0, -3.0, 0.5], np.float32)
    x = X.copy()
    x[0, 0, 1] = np.inf  # of weight zero
    expected = special.logsumexp(np.where(weights == 0, 0, x).astype(float), axis, weights, keepdims, return_sign)
    ours = nn.logsumexp(x, axis, weights, keepdims, return_sign)
    for mine, other in zip(ours, expected, strict=True) if return_sign else [(ours, expected)]:
        np.testing.assert_allclose(mine, other, rtol=2e-6, atol=1e-6)
        assert mine.shape == other.shape


def test_complex_logsumexp():
    special = pytest.importorskip("scipy.special")
    z = X[0] + 1j * X[1]
    np.testing.assert_allclose(nn.logsumexp(z, 0), special.logsumexp(z.astype(complex), 0), rtol=1e-5)


@pytest.mark.wide
def test_standardize_options():
    mean, variance = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    for options, expected in (
        ({"mean": np.float32(0.5)}, (X - 0.5) / np.sqrt(((X - 0.5) ** 2).mean(-1, keepdims=True) + 1e-5)),
        ({"variance": np.float32(2)}, (X - mean) / np.sqrt(2 + 1e-5)),
        ({"epsilon": 0.1}, (X - mean) / np.sqrt(variance + 0.1)),
        ({"algorithm": "fast"}, (X - mean) / np.sqrt(variance + 1e-5)),
    ):
        np.testing.assert_allclose(nn.standardize(X, **options), expected, rtol=1e-4, atol=1e-5)
    shifted = X[0, 0] + np.float32(1e4)
    np.testing.assert_allclose(nn.standardize(shifted), nn.standardize(shifted.astype(float) - 1e4), atol=2e-3)
    with pytest.raises(ArgumentError, match="fast"):
        nn.standardize(X, algorithm="slow")


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_one_hot(axis):
    jax = pytest.importorskip("jax")
    x = np.int32([[0, 2, 5], [-1, 1, 3]])
    np.testing.assert_array_equal(nn.one_hot(x, 4, axis=axis), jax.nn.one_hot(x, 4, axis=axis))
    assert nn.one_hot(x, 4).dtype == np.float32
    assert nn.one_hot(x.astype(np.uint8), 4, dtype=np.int8).dtype == np.int8
    assert nn.one_hot(np.int32(2), 4).tolist() == [0, 0, 1, 0]
    assert nn.one_hot(x, 0).shape == (2, 3, 0)
    for narrow in (np.int8([100, -1]), np.uint8([255, 3]), np.array([True, False])):
        np.testing.assert_array_equal(nn.one_hot(narrow, 300, axis=0), nn.one_hot(narrow.astype(np.int32), 300, axis=0))


def test_one_hot_along_a_named_axis():
    rows = vf.vmap(lambda i: nn.one_hot(np.int32(2), 4, axis="c"), axis_name="c")(np.arange(4, dtype=np.int32))
    assert rows.tolist() == [0, 0, 1, 0]
    with pytest.raises(ArgumentError, match="num_classes=3"):
        vf.vmap(lambda i: nn.one_hot(np.int32(2), 3, axis="c"), axis_name="c")(np.arange(4, dtype=np.int32))


def test_one_hot_refuses_an_axis_out_of_range():
    with pytest.raises(ShapeError, match="axis=3"):
        nn.one_hot(np.zeros((2, 2), np.int32), 3, axis=3)
