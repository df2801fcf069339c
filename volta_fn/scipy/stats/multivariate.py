"""Distributions of vectors: `multivariate_normal`, `multinomial`, `dirichlet`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.declare import promote_args
from volta_fn.scipy.special.gamma_family import composite, gammaln
from volta_fn.scipy.stats.declarations import distribution, log_power


@composite
def _multivariate_normal_log_density(x: Any, mean: Any, cov: Any) -> Array:
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
    half_log_det = vnp.sum(vnp.log(vnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
    whitened = whiten(factor, y)
    return -0.5 * vnp.sum(whitened * whitened, -1) - half_log_det - 0.5 * size * math.log(2.0 * math.pi)


def whiten(factor: Array, y: Array) -> Array:
    """Return L⁻¹ y for lower triangular factors (..., n, n) and vectors (..., n)."""
    if factor.ndim == 2:
        columns = lax.linalg.triangular_solve(factor, y.reshape(-1, y.shape[-1]).T, left_side=True, lower=True)
        return columns.T.reshape(y.shape)
    batch = lax.broadcast_shapes(factor.shape[:-2], y.shape[:-1])
    factors, vectors = vnp.broadcast_to(factor, batch + factor.shape[-2:]), vnp.broadcast_to(y, batch + y.shape[-1:])
    return lax.linalg.triangular_solve(factors, vectors[..., None], left_side=True, lower=True)[..., 0]


@distribution
class multivariate_normal:
    """The normal distribution of vectors, with a mean and a covariance matrix.

    >>> vf.scipy.stats.multivariate_normal.pdf(vf.numpy.zeros(2), vf.numpy.zeros(2), vf.numpy.eye(2)).round(4)
    Array(0.1592, dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, mean: Any, cov: Any, allow_singular: bool | None = None) -> Array:
        """Return the log of the density.

        The density is exp(-yᵀ cov⁻¹ y / 2) / sqrt((2π)ⁿ |cov|) for y = x - mean.

        Args:
            x: points, of shape (..., n); of any shape if `mean` is a scalar.
            mean: of shape (..., n), or a scalar for the distribution of numbers.
            cov: of shape (..., n, n), symmetric and positive definite (NaN for others), or a scalar, the variance of every component.
            allow_singular: not supported; the covariance must be regular.

        Returns an array of shape (...), to which the batch shapes broadcast. Raises `ShapeError` if the shapes do not fit, `ArgumentError`
        for `allow_singular`.

        >>> vf.scipy.stats.multivariate_normal.logpdf(vf.numpy.ones((3, 2)), vf.numpy.zeros(2), 2.0).round(4)
        Array([-3.031, -3.031, -3.031], dtype=float32)
        """
        if allow_singular:
            raise ArgumentError("multivariate_normal.logpdf: singular covariances are not supported; add a small multiple of the identity")
        return _multivariate_normal_log_density(x, mean, cov)

    @staticmethod
    def pdf(x: Any, mean: Any, cov: Any) -> Array:
        """Return the density, of which `logpdf` is the log.

        >>> vf.scipy.stats.multivariate_normal.pdf(vf.numpy.zeros(2), vf.numpy.zeros(2), 2.0).round(4)
        Array(0.0796, dtype=float32)
        """
        return vnp.exp(multivariate_normal.logpdf(x, mean, cov))


def _is_no_probability(p: Array) -> Array:
    return ~((p >= 0) & (p <= 1))


@composite
def _multinomial_log_mass(x: Any, p: Any) -> Array:
    out = gammaln(vnp.sum(x, -1) + 1.0) + vnp.sum(log_power(p, x) - gammaln(x + 1.0), -1)
    return vnp.where(vnp.any(_is_no_probability(p), -1), np.nan, out)


@distribution
class multinomial:
    """The multinomial distribution of counts of outcomes with probabilities `p`.

    >>> vf.scipy.stats.multinomial.pmf(vf.numpy.array([1, 1]), 2, vf.numpy.array([0.5, 0.5])).round(4)
    Array(0.5, dtype=float32)
    """

    @staticmethod
    def logpmf(x: Any, n: Any, p: Any) -> Array:
        """Return the log of the probability n! Π p^x / x!.

        Args:
            x: counts of the k outcomes, integers of shape (..., k). Where they are negative or do not sum to n, the probability is 0.
            n: the number of trials, an integer or integers of shape (...).
            p: the outcomes' probabilities, of shape (..., k); NaN if one is not between 0 and 1.

        Returns an array of shape (...), of p's dtype. Raises `DTypeError` for counts that are not integers.

        >>> vf.scipy.stats.multinomial.logpmf(vf.numpy.array([1, 1]), 2, vf.numpy.array([0.5, 0.5])).round(4)
        Array(-0.6931, dtype=float32)
        """
        counts, trials = promote_args("multinomial.logpmf", (x, n), dtypes.ALL)
        if counts.dtype not in dtypes.INTEGERS:
            raise DTypeError(f"multinomial.logpmf: x and n must be integers, got {counts.dtype.name}; convert them with astype")
        (probabilities,) = promote_args("multinomial.logpmf", (p,), dtypes.FLOATS)
        possible = vnp.all(counts >= 0, -1) & (vnp.sum(counts, -1) == trials)
        safe = vnp.where(possible[..., None], counts, 0).astype(dtypes.accumulator(probabilities.dtype))
        return vnp.where(possible | vnp.any(_is_no_probability(probabilities), -1), _multinomial_log_mass(safe, probabilities), -np.inf)

    @staticmethod
    def pmf(x: Any, n: Any, p: Any) -> Array:
        """Return the probability, of which `logpmf` is the log.

        >>> vf.scipy.stats.multinomial.pmf(vf.numpy.array([2, 0]), 2, vf.numpy.array([0.5, 0.5])).round(4)
        Array(0.25, dtype=float32)
        """
        return vnp.exp(multinomial.logpmf(x, n, p))


def _dirichlet_log_density(x: Array, alpha: Array, tolerance: float) -> Array:
    if x.shape[0] < alpha.shape[0]:
        x = vnp.concatenate([x, 1.0 - vnp.sum(x, 0, keepdims=True)])
    inside = vnp.all(x >= 0, 0) & (vnp.abs(vnp.sum(x, 0) - 1.0) < tolerance)
    powers = alpha.reshape(-1, *(1,) * (x.ndim - 1)) - 1.0
    out = vnp.sum(log_power(vnp.where(inside, x, 0.5), powers), 0) + gammaln(vnp.sum(alpha)) - vnp.sum(gammaln(alpha))
    is_nan = vnp.any(vnp.isnan(x), 0) | ~vnp.all(alpha > 0)
    return vnp.where(is_nan, np.nan, vnp.where(inside, out, -np.inf))


@distribution
class dirichlet:
    """The Dirichlet distribution of shares that sum to 1, with concentrations `alpha`.

    >>> vf.scipy.stats.dirichlet.pdf(vf.numpy.array([0.2, 0.3, 0.5]), vf.numpy.array([1.0, 2.0, 3.0])).round(3)
    Array(4.5, dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, alpha: Any) -> Array:
        """Return the log of the density Γ(Σ alpha) Π x^(alpha-1) / Γ(alpha).

        Args:
            x: shares, of shape (k, ...) or (k - 1, ...), to which the last share is added. Where they are negative or do not sum to 1
                (within 1e-6, or twice their dtype's precision), the density is 0.
            alpha: positive numbers, of shape (k,); NaN for others.

        Returns an array of shape (...). Raises `ShapeError` if the shapes do not fit.

        >>> vf.scipy.stats.dirichlet.logpdf(vf.numpy.array([0.2, 0.3]), vf.numpy.array([1.0, 2.0, 3.0])).round(3)
        Array(1.504, dtype=float32)
        """
        shares, concentration = promote_args("dirichlet.logpdf", (x, alpha), dtypes.FLOATS)
        dtype = shares.dtype
        if concentration.ndim != 1:
            raise ShapeError(f"dirichlet.logpdf: alpha must have one dimension, got shape {concentration.shape}")
        size = concentration.shape[0]
        if shares.ndim == 0 or shares.shape[0] not in (size, size - 1):
            raise ShapeError(f"dirichlet.logpdf: x must have shape ({size}, ...) or ({size - 1}, ...), got {shares.shape}")
        wide = dtypes.accumulator(dtype)
        shares, concentration = (lax.convert_element_type(v, wide) for v in (shares, concentration))
        tolerance = max(1e-6, 2 * float(dtypes.finfo(dtype).eps))
        return lax.convert_element_type(_dirichlet_log_density(shares, concentration, tolerance), dtype)

    @staticmethod
    def pdf(x: Any, alpha: Any) -> Array:
        """Return the density, of which `logpdf` is the log.

        >>> vf.scipy.stats.dirichlet.pdf(vf.numpy.array([0.5, 0.5]), vf.numpy.array([1.0, 1.0])).round(3)
        Array(1., dtype=float32)
        """
        return vnp.exp(dirichlet.logpdf(x, alpha))
