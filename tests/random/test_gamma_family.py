"""Gamma numbers and their family: JAX's numbers, moments, derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import random
from volta_fn.errors import DTypeError, ShapeError

N = (400,)
SHAPES = np.array([[0.1], [0.7], [1.0], [3.0], [100.0]], np.float32)
ALPHA = np.array([0.5, 1.0, 3.0], np.float32)

CALLS = {
    "gamma": lambda r, k: r.gamma(k, SHAPES, (5, 100)),
    "loggamma": lambda r, k: r.loggamma(k, SHAPES, (5, 100)),
    "beta": lambda r, k: r.beta(k, 0.5, 2.0, N),
    "dirichlet": lambda r, k: r.dirichlet(k, ALPHA, (50,)),
    "chisquare": lambda r, k: r.chisquare(k, 3.0, N),
    "f": lambda r, k: r.f(k, 3.0, 5.0, N),
    "t": lambda r, k: r.t(k, 4.0, N),
    "generalized_normal": lambda r, k: r.generalized_normal(k, 1.5, N),
    "ball": lambda r, k: r.ball(k, 3, 2, (50,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_matches_jax(name):
    jax = pytest.importorskip("jax")
    theirs = np.asarray(CALLS[name](jax.random, jax.random.key(5)))
    ours = CALLS[name](random, random.key(5))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    # Powers with large exponents (of small shape parameters) magnify the last bit; logarithms cancel around 1.
    np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=1e-6 if name == "loggamma" else 1e-30)


def test_moments():
    numbers = np.asarray(random.gamma(random.key(0), np.float32(3), (20_000,)))
    assert abs(numbers.mean() - 3) < 0.05 and abs(numbers.var() - 3) < 0.15
    assert abs(np.asarray(random.beta(random.key(0), 2.0, 3.0, (20_000,))).mean() - 0.4) < 0.005
    np.testing.assert_allclose(np.asarray(random.dirichlet(random.key(0), ALPHA, (5000,))).mean(0), ALPHA / 4.5, atol=0.01)
    points = np.asarray(random.ball(random.key(0), 2, shape=(20_000,)))
    assert abs((np.hypot(*points.T) < 0.5).mean() - 0.25) < 0.01


@pytest.mark.wide
@pytest.mark.parametrize("function", [random.gamma, random.loggamma])
def test_the_slope_by_the_shape_holds_the_quantile(function):
    special = pytest.importorskip("scipy.special")
    a = np.array([0.3, 0.9, 2.5, 20.0, 3e4])
    draw = vf.vmap(vf.value_and_grad(lambda a: function(random.key(3), a, dtype="float64")))
    samples, slopes = (np.asarray(v) for v in draw(a))
    plain = np.exp(samples) if function is random.loggamma else samples
    quantile, step = special.gammainc(a, plain), 1e-5 * a
    moved = (special.gammaincinv(a + step, quantile) - special.gammaincinv(a - step, quantile)) / (2 * step)
    np.testing.assert_allclose(slopes, moved / plain if function is random.loggamma else moved, rtol=1e-5)


def test_batches_and_programs_give_the_same_numbers():
    keys = random.split(random.key(1), 3)
    looped = np.stack([random.gamma(k, 0.7, (2,)) for k in keys])
    np.testing.assert_array_equal(vf.vmap(lambda k: random.gamma(k, 0.7, (2,)))(keys), looped)
    np.testing.assert_array_equal(vf.jit(vf.vmap(lambda k: random.gamma(k, 0.7, (2,))))(keys), looped)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_and_empty_shapes(dtype):
    assert random.gamma(random.key(0), 2.0, (3,), dtype).dtype == vf.dtypes.as_dtype(dtype)
    assert random.gamma(random.key(0), 2.0, (0, 3), dtype).shape == (0, 3)
    assert random.gamma(random.key(0), np.ones((2, 2), np.float32)).shape == (2, 2)


def test_wrong_arguments_are_named():
    with pytest.raises(ShapeError, match="gamma: a of shape"):
        random.gamma(random.key(0), ALPHA, (2,))
    with pytest.raises(DTypeError, match="gamma"):
        random.gamma(random.key(0), 1.0, (2,), "int32")
