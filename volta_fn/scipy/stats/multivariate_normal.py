"""The normal distribution of vectors, with a mean and a covariance matrix.

>>> vf.scipy.stats.multivariate_normal.pdf(vf.numpy.zeros(2), vf.numpy.zeros(2), vf.numpy.eye(2)).round(4)
Array(0.1592, dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.scipy.special.gamma_family import composite


def logpdf(x: Any, mean: Any, cov: Any, allow_singular: bool | None = None) -> Array:
    """Return the log of the density.

    The density is exp(-yᵀ cov⁻¹ y / 2) / sqrt((2π)ⁿ |cov|) for y = x - mean.

    Args:
        x: points, of shape (..., n); of any shape if `mean` is a scalar.
        mean: of shape (..., n), or a scalar for the distribution of numbers.
        cov: of shape (..., n, n), symmetric and positive definite (NaN for others), or a scalar, the variance of every component.
        allow_singular: not supported; the covariance must be regular.

    Returns an array of shape (...), to which the batch shapes broadcast. Raises `ShapeError` if the shapes do not fit, `ArgumentError` for
    `allow_singular`.

    >>> vf.scipy.stats.multivariate_normal.logpdf(vf.numpy.ones((3, 2)), vf.numpy.zeros(2), 2.0).round(4)
    Array([-3.031, -3.031, -3.031], dtype=float32)
    """
    if allow_singular:
        raise ArgumentError("multivariate_normal.logpdf: singular covariances are not supported; add a small multiple of the identity")
    return _log_density(x, mean, cov)


@composite
def _log_density(x: Any, mean: Any, cov: Any) -> Array:
    if mean.ndim == 0:
        return -0.5 * ((x - mean) ** 2 / cov + vnp.log(2.0 * math.pi * cov))
    size = mean.shape[-1]
    if x.ndim == 0 or x.shape[-1] not in (1, size) or (cov.ndim and cov.shape[-2:] != (size, size)):
        shapes = f"{x.shape}, {mean.shape} and {cov.shape}"
        raise ShapeError(f"multivariate_normal.logpdf: x, mean and cov must have shapes (..., n), (..., n) and (..., n, n), got {shapes}")
    y = x - mean
    if cov.ndim == 0:
        return -0.5 * (vnp.sum(y * y, -1) / cov + size * vnp.log(2.0 * math.pi * cov))
    factor = lax.linalg.cholesky(cov)
    log_root = vnp.sum(vnp.log(vnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
    white = whiten(factor, y)
    return -0.5 * vnp.sum(white * white, -1) - log_root - 0.5 * size * math.log(2.0 * math.pi)


def whiten(factor: Array, y: Array) -> Array:
    """Return L⁻¹ y for lower triangular factors (..., n, n) and vectors (..., n)."""
    if factor.ndim == 2:
        columns = lax.linalg.triangular_solve(factor, y.reshape(-1, y.shape[-1]).T, left_side=True, lower=True)
        return columns.T.reshape(y.shape)
    batch = lax.broadcast_shapes(factor.shape[:-2], y.shape[:-1])
    factors, vectors = vnp.broadcast_to(factor, batch + factor.shape[-2:]), vnp.broadcast_to(y, batch + y.shape[-1:])
    return lax.linalg.triangular_solve(factors, vectors[..., None], left_side=True, lower=True)[..., 0]


def pdf(x: Any, mean: Any, cov: Any) -> Array:
    """Return the density, of which `logpdf` is the log.

    >>> vf.scipy.stats.multivariate_normal.pdf(vf.numpy.zeros(2), vf.numpy.zeros(2), 2.0).round(4)
    Array(0.0796, dtype=float32)
    """
    return vnp.exp(logpdf(x, mean, cov))
