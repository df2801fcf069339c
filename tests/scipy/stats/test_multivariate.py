"""Distributions of vectors against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import volta_fn as vf
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.scipy.stats import dirichlet, multinomial, multivariate_normal

RNG = np.random.default_rng(0)
#: float32: a few roundings of logs up to 10, in densities relative.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def spread(*batch: int) -> np.ndarray:
    """Return covariance matrices of three dimensions."""
    a = RNG.normal(size=(*batch, 3, 3))
    return a @ np.swapaxes(a, -1, -2) + np.eye(3)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", ["logpdf", "pdf"])
def test_normal_vectors(function, dtype):
    mean, cov = RNG.normal(size=3), spread()
    mine, theirs = getattr(multivariate_normal, function), getattr(scipy.stats.multivariate_normal, function)
    for x in (RNG.normal(size=3), RNG.normal(size=(5, 3)), RNG.normal(size=(2, 5, 3))):
        for covariance in (cov, np.array(1.7)):
            result = mine(x.astype(dtype), mean.astype(dtype), covariance.astype(dtype))
            assert result.dtype == dtype
            np.testing.assert_allclose(result, theirs(x, mean, covariance), rtol=TOLERANCE[dtype])
    x = RNG.normal(size=(4, 2))
    np.testing.assert_allclose(mine(x.astype(dtype), 0.5, 2.0), getattr(scipy.stats.norm, function)(x, 0.5, 2**0.5), rtol=TOLERANCE[dtype])


@pytest.mark.wide
def test_batches_of_normal_distributions():
    x, mean, cov = RNG.normal(size=(4, 1, 3)), RNG.normal(size=(2, 3)), spread(4, 2)
    result = multivariate_normal.logpdf(x, mean, cov)
    expected = [[scipy.stats.multivariate_normal.logpdf(x[i, 0], mean[j], cov[i, j]) for j in range(2)] for i in range(4)]
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    np.testing.assert_allclose(vf.vmap(multivariate_normal.logpdf, (0, None, 0))(x[:, 0], mean[0], cov[:, 0]), result[:, 0], rtol=1e-12)
    np.testing.assert_allclose(vf.jit(multivariate_normal.logpdf)(x, mean, cov), result, rtol=1e-12)


@pytest.mark.wide
def test_slopes_of_normal_densities():
    args = [RNG.normal(size=(2, 3)), RNG.normal(size=3), spread()]

    def theirs(x: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> float:
        return scipy.stats.multivariate_normal.logpdf(x, mean, (cov + cov.T) / 2).sum()

    slopes = vf.grad(lambda *a: multivariate_normal.logpdf(*a).sum(), (0, 1, 2))(*args)
    for i, slope in enumerate(slopes):
        steps = 1e-6 * np.eye(slope.size).reshape(-1, *slope.shape)
        ends = [[theirs(*args[:i], args[i] + s * step, *args[i + 1 :]) for step in steps] for s in (1, -1)]
        np.testing.assert_allclose(slope.ravel(), (np.array(ends[0]) - np.array(ends[1])) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", ["logpdf", "pdf"])
def test_shares(function, dtype):
    alpha = np.array([1.0, 2.5, 0.5, 4.0], np.float32).astype(dtype)
    x = RNG.dirichlet(alpha, size=6).T.astype(dtype)
    x /= x.sum(0)
    mine = getattr(dirichlet, function)
    theirs = getattr(scipy.stats.dirichlet, function)(x.astype(float) / x.astype(float).sum(0), alpha.astype(float))
    np.testing.assert_allclose(mine(x, alpha), theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    np.testing.assert_allclose(mine(x[:-1], alpha), theirs, rtol=10 * TOLERANCE[dtype], atol=TOLERANCE[dtype])  # 1 - sum cancels
    np.testing.assert_allclose(vf.vmap(mine, (1, None))(x, alpha), mine(x, alpha), rtol=1e-6)
    assert mine(x.astype(np.float16), alpha.astype(np.float16)).dtype == np.float16


def test_shares_at_and_beyond_the_border():
    alpha = np.array([1.0, 2.0], np.float32)
    x = np.array([[0.0, 1.0], [1.0, 0.0], [-0.5, 1.5], [0.5, 0.6], [np.nan, 1.0]], np.float32).T
    np.testing.assert_allclose(dirichlet.pdf(x, alpha), [2, 0, 0, 0, np.nan], rtol=1e-6)
    slopes = vf.vmap(vf.grad(dirichlet.pdf), (1, None))(x[:, :4], alpha)
    assert np.isfinite(slopes).all()
    assert np.isnan(dirichlet.logpdf(x[:, 0], -alpha))
    for wrong in ((x[0, 0], alpha), (x[:, 0], np.ones((2, 2), np.float32)), (np.ones(4, np.float32), alpha)):
        with pytest.raises(ShapeError, match=r"dirichlet\.logpdf"):
            dirichlet.logpdf(*wrong)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", ["logpmf", "pmf"])
def test_counts_of_outcomes(function, dtype):
    p = np.array([0.25, 0.5, 0.25], dtype)
    x = RNG.multinomial(9, p.astype(float), size=(4, 2)).astype(np.int32)
    mine, theirs = getattr(multinomial, function), getattr(scipy.stats.multinomial, function)
    np.testing.assert_allclose(mine(x, 9, p), theirs(x, 9, p.astype(float)), rtol=TOLERANCE[dtype])
    x[0, 0, 0] += 1
    x[0, 1] = -1, 5, 5
    np.testing.assert_array_equal(mine(x, 9, p)[0], [-np.inf] * 2 if function == "logpmf" else [0, 0])
    np.testing.assert_allclose(vf.jit(mine)(x, 9, p), mine(x, 9, p), rtol=1e-6)
    np.testing.assert_allclose(mine(np.array([0, 9]), 9, np.array([0.0, 1.0], dtype)), float(function == "pmf"), atol=1e-5)
    assert np.isnan(mine(np.array([0, 9]), 9, np.array([-0.5, 1.5], dtype)))


def test_slopes_of_counts():
    x, p = np.array([1, 3, 0], np.int32), np.array([0.2, 0.5, 0.3], np.float32)
    np.testing.assert_allclose(vf.grad(lambda p: multinomial.logpmf(x, 4, p))(p), x / p, rtol=1e-6)


def test_wrong_arguments_are_named():
    with pytest.raises(DTypeError, match="float32"):
        multinomial.logpmf(np.ones(2, np.float32), 2, np.ones(2, np.float32) / 2)
    with pytest.raises(ArgumentError, match="singular"):
        multivariate_normal.logpdf(np.ones(2), np.ones(2), np.eye(2), allow_singular=True)
    for shapes in (((3,), (2,), (2, 2)), ((2,), (2,), (3, 3)), ((2,), (2,), (2,)), ((), (2,), ())):
        with pytest.raises(ShapeError, match="multivariate_normal"):
            multivariate_normal.logpdf(*[np.ones(s, np.float32) for s in shapes])
