"""Random vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import canonical_shape, whole_number
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy import linalg, matmul
from volta_fn.primitives.declare import promote_args
from volta_fn.random.arguments import dtype_in, shape_with
from volta_fn.random.keys import single_key
from volta_fn.random.normal import normal


def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Sequence[int] | None = None, dtype: Any = None, method: str = "cholesky"
) -> Array:
    """Normal vectors with a mean of shape (..., n) and a covariance of shape (..., n, n), whose batch shapes broadcast to `shape`.

    Args:
        key: a key.
        mean: the mean.
        cov: the covariance; symmetric and positive definite, or semidefinite if `method` is not "cholesky".
        shape: the batch shape of the result, which has shape ``(*shape, n)``.
        dtype: a floating dtype; by default that in which mean and covariance combine.
        method: how a square root of the covariance is found: "cholesky", "eigh" or "svd".

    Raises:
        ShapeError: the shapes do not fit. ArgumentError: another method.

    >>> import volta_fn as vf
    >>> vf.random.multivariate_normal(vf.random.key(0), vf.numpy.zeros(2), vf.numpy.eye(2), (5,)).shape
    (5, 2)
    """
    data = single_key("multivariate_normal", key)
    centre, covariance = promote_args("multivariate_normal", (mean, cov), dtypes.FLOATS)
    wanted = dtype_in("multivariate_normal", dtype, centre.dtype, dtypes.FLOATS, "a real floating dtype")
    if centre.ndim < 1 or covariance.ndim < 2 or covariance.shape[-2:] != centre.shape[-1:] * 2:
        raise ShapeError(
            f"multivariate_normal: the mean has shape (..., n) and the covariance (..., n, n), got {centre.shape} and {covariance.shape}"
        )
    factor = _square_root(covariance, method)
    sizes = shape_with("multivariate_normal", shape, mean=centre[..., 0], cov=covariance[..., 0, 0])
    steps = normal(data, (*sizes, centre.shape[-1]), wanted)
    return centre + matmul(factor, steps[..., None])[..., 0]


def _square_root(covariance: Array, method: str) -> Array:
    if method == "cholesky":
        return linalg.cholesky(covariance)
    if method == "eigh":
        values, vectors = linalg.eigh(covariance)
        return vectors * lax.sqrt(values[..., None, :])
    if method == "svd":
        left, values, _ = linalg.svd(covariance)
        return left * lax.sqrt(values[..., None, :])
    raise ArgumentError(f"multivariate_normal: method is 'cholesky', 'eigh' or 'svd', got {method!r}")


def orthogonal(key: Any, n: int, shape: Sequence[int] = (), dtype: Any = None, m: int | None = None) -> Array:
    """Orthogonal n×n matrices, uniformly distributed; n×m ones with orthonormal columns (rows, if n < m).

    >>> import volta_fn as vf
    >>> q = vf.random.orthogonal(vf.random.key(0), 3)
    >>> vf.numpy.allclose(q @ q.T, vf.numpy.eye(3), atol=1e-5)
    Array(True, dtype=bool)
    """
    rows = whole_number(n, "orthogonal: n")
    columns = rows if m is None else whole_number(m, "orthogonal: m")
    sizes = (*canonical_shape(shape), max(rows, columns), min(rows, columns))
    q, r = linalg.qr(normal(key, sizes, dtype))
    diagonal = as_value(r)[..., np.arange(sizes[-1]), np.arange(sizes[-1])]
    q = q * lax.expand_dims(lax.sign(diagonal), (-2,))
    return q.mT if rows < columns else q
