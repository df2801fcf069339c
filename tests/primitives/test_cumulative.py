"""Derivatives of cumulative operations at zeros, ties and infinities, at sizes around powers of two, and what they refuse."""

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors, lax


def jacobian(function, x):
    return np.array([np.asarray(vf.jvp(function, (x,), (row,))[1]) for row in np.eye(len(x))]).reshape(len(x), len(x)).T


@pytest.mark.wide
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("reverse", [False, True])
def test_products_differentiate_through_zeros(size, reverse):
    x = np.array([2.0, 0.0, 3.0, 0.5, 0.0, 1.5, 4.0, 2.0, 3.0])[:size]
    expected = np.zeros((size, size))
    for t in range(size):
        seen = range(t, size) if reverse else range(t + 1)
        for i in seen:
            expected[t, i] = np.prod([x[j] for j in seen if j != i])
    np.testing.assert_allclose(jacobian(lambda v: lax.cumprod(v, reverse=reverse), x), expected, rtol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_the_extreme_that_prevails_has_the_derivative(name):
    x = np.array([1.0, 3.0, 2.0, 3.0]) * (1 if name == "cummax" else -1)
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0.5]]
    np.testing.assert_array_equal(jacobian(getattr(lax, name), x), expected)
    infinite = np.array([-np.inf, -np.inf, 1.0]) * (1 if name == "cummax" else -1)
    np.testing.assert_array_equal(jacobian(getattr(lax, name), infinite), [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]])


@pytest.mark.wide
def test_log_sum_exp_differentiates_among_infinities_and_large_numbers():
    x = np.array([-np.inf, 1000.0, 1000.0, -np.inf, 990.0])
    small = np.exp(-10)
    total = 2 + small
    expected = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 1 / total, 1 / total, 0, small / total]]
    np.testing.assert_allclose(jacobian(lax.cumlogsumexp, x), expected, rtol=1e-12)
    np.testing.assert_array_equal(jacobian(lax.cumlogsumexp, np.array([np.inf, 1.0, np.inf])), [[1, 0, 0], [1, 0, 0], [0.5, 0, 0.5]])


@pytest.mark.wide
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("x", [[-np.inf, -np.inf, 0.0], [-np.inf] * 3, [-np.inf, 1.0, -np.inf], [np.inf, np.inf, -np.inf]])
def test_weights_of_each_log_sum_exp_add_up_to_one(x, reverse):
    """As those of `logaddexp` do, of equal infinities too."""
    weights = jacobian(lambda v: lax.cumlogsumexp(v, reverse=reverse), np.array(x))
    np.testing.assert_array_equal(np.sum(weights, 1), np.ones(3))


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_derivatives_of_half_precision_accumulate_in_float32(dtype):
    zeros, large = vf.numpy.zeros(70_000, dtype), vf.numpy.asarray([1000.0, 1000.0, 1e-3, 1e-3], dtype)
    for function, x in ((lax.cumlogsumexp, zeros), (lax.cumprod, large)):
        actual, wanted = (np.asarray(vf.grad(lambda v: function(v)[-1])(v), np.float64) for v in (x, x.astype("float64")))
        np.testing.assert_allclose(actual, wanted, rtol=1e-2)


@pytest.mark.parametrize("name", ["cumprod", "cumlogsumexp"])
def test_gradients_agree_with_jax(name):
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    got = vf.grad(lambda v: lax.reduce_sum(getattr(lax, name)(v, 1, True) * weights, (0, 1)))(x)
    expected = jax.grad(lambda v: (getattr(jax.lax, name)(v, 1, True) * weights).sum())(x)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.wide
def test_mistakes_raise():
    with pytest.raises(errors.DTypeError, match="cumsum is not defined for bool"):
        lax.cumsum(np.array([True]))
    with pytest.raises(errors.DTypeError, match="cumlogsumexp is not defined for int32"):
        lax.cumlogsumexp(np.array([1], np.int32))
    with pytest.raises(errors.ShapeError, match="axis=1 is out of range"):
        lax.cumsum(np.ones(3), 1)
