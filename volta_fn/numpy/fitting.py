"""Polynomials through points and the zeros of polynomials, by linear algebra: polyfit, roots."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy import reductions
from volta_fn.numpy.common import concrete, full_like_scalar, promote_inexact
from volta_fn.numpy.creation import array
from volta_fn.numpy.diagonals import diag
from volta_fn.numpy.linalg.decompositions import eigvals
from volta_fn.numpy.linalg.pseudo_inverse import lstsq
from volta_fn.numpy.linalg.solving import inv
from volta_fn.numpy.polynomials import vander
from volta_fn.numpy.products import matmul, outer


def polyfit(x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    """The coefficients, highest power first, of the polynomial of degree `deg` that fits the points (x, y) best.

    Args:
        x: a vector of M places.
        y: the values there, (M,), or (M, K) for K polynomials.
        deg: the degree.
        rcond: singular values below this share of the largest count as zero (default: M times the dtype's precision).
        full: also return residuals, rank, singular values and rcond.
        w: weights of the (unsquared) errors, (M,).
        cov: also return the covariance matrix of the coefficients, scaled by the residuals' variance ("unscaled": not).

    >>> import volta_fn.numpy as jnp
    >>> jnp.polyfit(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]), 1).round(3)
    Array([2., 1.], dtype=float32)
    """
    places, values = promote_inexact("polyfit", x, y)
    if deg < 0 or places.ndim != 1 or not places.size:
        raise ArgumentError(f"polyfit: deg must not be negative and x a vector of points, got deg={deg} and x of shape {places.shape}")
    if values.ndim not in (1, 2) or values.shape[0] != places.shape[0]:
        raise ShapeError(f"polyfit: y must have shape (M,) or (M, K) for x of shape {places.shape}, got {values.shape}")
    powers, right = vander(places, deg + 1), values
    if w is not None:
        weights, _ = promote_inexact("polyfit", w, places)
        if weights.shape != places.shape:
            raise ShapeError(f"polyfit: w must have the shape of x, {places.shape}, got {weights.shape}")
        powers = lax.mul(powers, lax.expand_dims(weights, (1,)))
        right = lax.mul(right, lax.expand_dims(weights, (1,)) if right.ndim == 2 else weights)
    limit = places.size * float(dtypes.finfo(places.dtype).eps) if rcond is None else rcond
    # Columns of length one make the problem better conditioned.
    scale = lax.sqrt(reductions.sum(lax.integer_pow(lax.abs(powers), 2), 0))
    solution, residuals, rank, singular = lstsq(lax.div(powers, scale), right, limit)
    coefficients = lax.div(solution, lax.expand_dims(scale, (1,)) if solution.ndim == 2 else scale)
    if full:
        return coefficients, residuals, rank, singular, array(limit)
    return (coefficients, _covariance(powers, scale, residuals, values, cov)) if cov else coefficients


def _covariance(powers: Array, scale: Array, residuals: Array, values: Array, cov: Any) -> Array:
    count, order = powers.shape
    scaled = lax.div(powers, scale)
    base = lax.div(inv(matmul(lax.transpose(scaled, (1, 0)), scaled)), outer(scale, scale))
    base = lax.expand_dims(base, (2,)) if values.ndim == 2 else base
    if cov == "unscaled":
        return base
    if count <= order:
        raise ArgumentError(f"polyfit: {count} points are too few to scale the covariance of {order} coefficients; use cov='unscaled'")
    variance = lax.div(residuals, full_like_scalar(residuals, count - order))
    return lax.mul(base, variance if values.ndim == 2 else variance[0])


def roots(p: Any, *, strip_zeros: bool = True) -> Array:
    """The complex zeros of the polynomial with coefficients `p`, highest power first: eigenvalues of its companion matrix.

    Zeros at either end of `p` are taken off first, so its values must be known while tracing; `strip_zeros=False` leaves them.

    >>> import volta_fn.numpy as jnp
    >>> jnp.sort(jnp.roots(jnp.array([1.0, 0.0, -4.0])).real).round(3)
    Array([-2.,  2.], dtype=float32)
    """
    (value,) = promote_inexact("roots", array(p))
    value = lax.reshape(value, (value.size,))
    trailing = 0
    if strip_zeros:
        nonzero = np.flatnonzero(concrete("roots", "p", value, "Give strip_zeros=False inside traced functions."))
        stop = int(nonzero[-1]) + 1 if nonzero.size else 0
        trailing = value.size - stop if nonzero.size else 0
        value = lax.slice_in_dim(value, int(nonzero[0]) if nonzero.size else 0, stop)
    zeros = lax.full((trailing,), 0, dtypes.complex_dtype(value.dtype))
    return lax.concatenate([_companion_eigenvalues(value), zeros], 0)


def _companion_eigenvalues(value: Array) -> Array:
    degree = max(value.size - 1, 0)
    if not degree:
        return lax.full((0,), 0, dtypes.complex_dtype(value.dtype))
    row = lax.neg(lax.div(lax.slice_in_dim(value, 1, None), lax.slice_in_dim(value, 0, 1)))
    below = diag(lax.full((degree - 1,), 1, value.dtype), -1) if degree > 1 else lax.full((1, 1), 0, value.dtype)
    return eigvals(lax.concatenate([lax.expand_dims(row, (0,)), lax.slice_in_dim(below, 1, None)], 0))
