"""The Dirichlet distribution of shares that sum to 1, with concentrations `alpha`.

>>> vf.scipy.stats.dirichlet.pdf(vf.numpy.array([0.2, 0.3, 0.5]), vf.numpy.array([1.0, 2.0, 3.0])).round(3)
Array(4.5, dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.primitives.declare import promote_args
from volta_fn.scipy.special.gamma_family import gammaln
from volta_fn.scipy.stats.declarations import log_power


def logpdf(x: Any, alpha: Any) -> Array:
    """Return the log of the density Γ(Σ alpha) Π x^(alpha-1) / Γ(alpha).

    Args:
        x: shares, of shape (k, ...) or (k - 1, ...), to which the last share is added. Where they are negative or do not sum to 1 (within
            1e-6, or twice their dtype's precision), the density is 0.
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
    return lax.convert_element_type(_log_density(shares, concentration, tolerance), dtype)


def _log_density(x: Array, alpha: Array, tolerance: float) -> Array:
    if x.shape[0] < alpha.shape[0]:
        x = vnp.concatenate([x, 1.0 - vnp.sum(x, 0, keepdims=True)])
    inside = vnp.all(x >= 0, 0) & (vnp.abs(vnp.sum(x, 0) - 1.0) < tolerance)
    powers = alpha.reshape(-1, *(1,) * (x.ndim - 1)) - 1.0
    out = vnp.sum(log_power(vnp.where(inside, x, 0.5), powers), 0) + gammaln(vnp.sum(alpha)) - vnp.sum(gammaln(alpha))
    is_nan = vnp.any(vnp.isnan(x), 0) | ~vnp.all(alpha > 0)
    return vnp.where(is_nan, np.nan, vnp.where(inside, out, -np.inf))


def pdf(x: Any, alpha: Any) -> Array:
    """Return the density, of which `logpdf` is the log.

    >>> vf.scipy.stats.dirichlet.pdf(vf.numpy.array([0.5, 0.5]), vf.numpy.array([1.0, 1.0])).round(3)
    Array(1., dtype=float32)
    """
    return vnp.exp(logpdf(x, alpha))
