"""Normal vectors and orthogonal matrices: JAX's numbers, covariances, errors."""

from __future__ import annotations

import numpy as np
import pytest

from volta_fn import random
from volta_fn.errors import ArgumentError, ShapeError

MEAN = np.array([1.0, -2.0, 0.5], np.float32)
COV = np.array([[2, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 1]], np.float32)


def test_multivariate_normal_matches_jax():
    jax = pytest.importorskip("jax")
    theirs = jax.random.multivariate_normal(jax.random.key(5), MEAN, COV, (100,))
    np.testing.assert_allclose(random.multivariate_normal(random.key(5), MEAN, COV, (100,)), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
def test_covariance(method):
    vectors = np.asarray(random.multivariate_normal(random.key(0), MEAN, COV, (50_000,), method=method))
    np.testing.assert_allclose(vectors.mean(0), MEAN, atol=0.02)
    np.testing.assert_allclose(np.cov(vectors.T), COV, atol=0.04)


def test_batches_of_means_and_covariances():
    means, covariances = np.zeros((4, 1, 3), np.float32), np.broadcast_to(COV, (5, 3, 3))
    assert random.multivariate_normal(random.key(0), means, covariances).shape == (4, 5, 3)


@pytest.mark.parametrize("n, m", [(4, None), (3, 5), (5, 3)])
def test_orthogonal_matches_jax(n, m):
    jax = pytest.importorskip("jax")
    theirs = jax.random.orthogonal(jax.random.key(5), n, (2,), m=m)
    ours = np.asarray(random.orthogonal(random.key(5), n, (2,), m=m))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    small = ours @ ours.swapaxes(1, 2) if n <= (m or n) else ours.swapaxes(1, 2) @ ours
    np.testing.assert_allclose(small, np.broadcast_to(np.eye(small.shape[-1]), small.shape), atol=1e-6)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda k: random.multivariate_normal(k, MEAN, COV[:2]), ShapeError, r"\(2, 3\)"),
        (lambda k: random.multivariate_normal(k, MEAN, COV, method="lu"), ArgumentError, "'cholesky', 'eigh' or 'svd'"),
        (lambda k: random.multivariate_normal(k, np.zeros((4, 3), np.float32), COV, (5,)), ShapeError, "broadcast"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(random.key(0))
