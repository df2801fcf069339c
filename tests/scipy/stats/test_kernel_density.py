"""Density estimates against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import volta_fn as vf
from volta_fn.errors import ArgumentError, ImmutableError, ShapeError
from volta_fn.scipy.stats import gaussian_kde

RNG = np.random.default_rng(0)
DATA = {1: RNG.normal(size=20), 2: RNG.normal(size=(2, 25)), 3: RNG.normal(size=(3, 30))}
METHODS = [None, "scott", "silverman", 0.3, lambda kde: kde.n ** (-1 / (kde.d + 1))]


@pytest.mark.wide
@pytest.mark.parametrize("method", METHODS, ids=["default", "scott", "silverman", "number", "function"])
@pytest.mark.parametrize("dimensions", DATA)
@pytest.mark.parametrize("weighted", [False, True])
def test_estimates_are_scipys(dimensions, method, weighted):
    data = DATA[dimensions]
    weights = np.random.default_rng(1).uniform(0.5, 2, data.shape[-1]) if weighted else None
    mine, theirs = gaussian_kde(data, method, weights), scipy.stats.gaussian_kde(data, method, weights)
    assert (mine.n, mine.d) == (theirs.n, theirs.d)
    for name in ("neff", "weights", "covariance", "inv_cov", "dataset"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-11)
    points = np.random.default_rng(2).normal(size=(dimensions, 7)) * 2
    for name in ("evaluate", "pdf", "logpdf", "__call__"):
        np.testing.assert_allclose(getattr(mine, name)(points), getattr(theirs, name)(points), rtol=1e-11)
    np.testing.assert_allclose(mine(points[:, 0]), theirs(points[:, 0]), rtol=1e-11)
    mean, cov = np.full(dimensions, 0.2), np.eye(dimensions) * 0.7
    np.testing.assert_allclose(mine.integrate_gaussian(mean, cov), theirs.integrate_gaussian(mean, cov), rtol=1e-11)
    other = DATA[dimensions][..., :10] + 0.5
    expected = theirs.integrate_kde(scipy.stats.gaussian_kde(other))
    np.testing.assert_allclose(mine.integrate_kde(gaussian_kde(other)), expected, rtol=1e-11)
    if dimensions == 1:
        np.testing.assert_allclose(mine.integrate_box_1d(-0.5, 1.0), theirs.integrate_box_1d(-0.5, 1.0), rtol=1e-11)


def test_far_points_have_a_log_density():
    data = DATA[1].astype(np.float32)
    far = np.array([100.0, -200.0], np.float32)
    np.testing.assert_allclose(gaussian_kde(data).logpdf(far), scipy.stats.gaussian_kde(data.astype(float)).logpdf(far), rtol=1e-5)


def test_estimates_are_pytrees():
    data = DATA[2].astype(np.float32)
    kde = gaussian_kde(data)
    points = data[:, :4]
    np.testing.assert_allclose(vf.jit(lambda k, x: k(x))(kde, points), kde(points), rtol=1e-6)
    np.testing.assert_allclose(vf.jit(lambda d: gaussian_kde(d)(points))(data), kde(points), rtol=1e-5)
    np.testing.assert_allclose(vf.vmap(kde.evaluate)(points[None])[0], kde(points), rtol=1e-6)


@pytest.mark.wide
def test_slopes_by_the_data():
    data, points = DATA[2][:, :5], DATA[2][:, 5:8]
    slopes = vf.grad(lambda d: gaussian_kde(d).logpdf(points).sum())(data)
    steps = 1e-6 * np.eye(data.size).reshape(-1, *data.shape)
    ends = [[scipy.stats.gaussian_kde(data + s * step).logpdf(points).sum() for step in steps] for s in (1, -1)]
    np.testing.assert_allclose(slopes.ravel(), (np.array(ends[0]) - np.array(ends[1])) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(), (4000,), (40, 100)])
def test_samples_have_the_estimates_moments(shape):
    kde = gaussian_kde(DATA[2].astype(np.float32))
    sample = np.asarray(kde.resample(vf.random.key(0), shape))
    assert sample.shape == (2, *shape)
    if shape:
        expected = np.cov(DATA[2], bias=True) + np.asarray(kde.covariance)
        np.testing.assert_allclose(np.cov(sample.reshape(2, -1)), expected, atol=0.15)  # of 4000 points, 5 standard errors of 0.03
        np.testing.assert_allclose(sample.reshape(2, -1).mean(1), DATA[2].mean(1), atol=0.1)


def test_wrong_arguments_are_named():
    kde = gaussian_kde(DATA[2])
    for call, error, words in [
        (lambda: gaussian_kde(np.ones(1)), ShapeError, "several elements"),
        (lambda: gaussian_kde(np.ones((2, 2, 2))), ShapeError, "dataset"),
        (lambda: gaussian_kde(DATA[1], "wide"), ArgumentError, "'wide'"),
        (lambda: gaussian_kde(DATA[1], weights=np.ones(3)), ShapeError, "weights"),
        (lambda: kde(np.ones((3, 4))), ShapeError, "3 dimensions, the data 2"),
        (lambda: kde.integrate_box_1d(0.0, 1.0), ShapeError, "2 dimensions"),
        (lambda: kde.integrate_gaussian(np.ones(3), np.eye(3)), ShapeError, "mean and cov"),
        (lambda: kde.integrate_kde(gaussian_kde(DATA[1])), ShapeError, "2 and 1"),
        (lambda: gaussian_kde(DATA[1]).integrate_box_1d(np.ones(2), 1.0), ShapeError, "scalars"),
        (lambda: kde.set_bandwidth(0.5), ImmutableError, "another bandwidth"),
        (lambda: setattr(kde, "neff", 1.0), AttributeError, "neff"),
    ]:
        with pytest.raises(error, match=words):
            call()
