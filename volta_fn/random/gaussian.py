"""The normal distribution and those derived from it, by inverse error functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, as_integer, canonical_shape
from volta_fn.core.memory.transfer import constrained
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy import linalg, matmul
from volta_fn.primitives.declare import promote_args, to_dtype
from volta_fn.primitives.random import random_split
from volta_fn.random.arguments import FLOAT, dtype_in, float_dtype, parameters, shape_with
from volta_fn.random.basic import rademacher, uniform, unit_uniform
from volta_fn.random.keys import single_key

_SQRT_2 = math.sqrt(2.0)


def normal(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample standard normal numbers (float32); complex ones have variance 1 in all.

    >>> vf.random.normal(vf.random.key(0), (2,)).round(4)
    Array([1.6226, 2.0253], dtype=float32)
    """
    data = single_key("normal", key)
    wanted = dtype_in("normal", dtype, FLOAT, dtypes.INEXACT, "a floating or complex dtype")
    sizes = canonical_shape(shape)
    if wanted in dtypes.FLOATS:
        return constrained(_normal(data, sizes, wanted), out_sharding)
    real = dtypes.real_dtype(wanted)
    keys = random_split(data, (2,))
    return constrained(lax.complex(_normal(keys[0], sizes, real), _normal(keys[1], sizes, real)) / wanted.type(_SQRT_2), out_sharding)


def _normal(data: Array, shape: Shape, dtype: np.dtype) -> Array:
    above_minus_one = np.nextafter(np.asarray(-1.0, dtype), np.asarray(0.0, dtype))
    # Uniform in the open interval (-1, 1), whose length rounds to 2, the only rounding.
    return lax.erf_inv_of_uniform(2.0 * unit_uniform(data, shape, dtype) + above_minus_one) * dtype.type(_SQRT_2)


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Sample standard normal numbers strictly between two bounds, which broadcast.

    >>> vf.random.truncated_normal(vf.random.key(0), -2.0, 2.0, (2,)).round(3)
    Array([1.456, 1.715], dtype=float32)
    """
    data = single_key("truncated_normal", key)
    wanted, sizes, low, high = parameters("truncated_normal", dtype, shape, lower=lower, upper=upper)
    root = wanted.type(_SQRT_2)
    quantiles = uniform(data, sizes, wanted, lax.erf(low / root), lax.erf(high / root))
    infinity = wanted.type(np.inf)
    # Rounding may reach the bounds, which are excluded.
    return constrained(lax.clamp(lax.nextafter(low, infinity), root * lax.erf_inv_of_uniform(quantiles), lax.nextafter(high, -infinity)), out_sharding)


def lognormal(key: Any, sigma: Any = 1.0, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample exp of normal numbers with standard deviation `sigma`.

    >>> bool((vf.random.lognormal(vf.random.key(0), shape=(5,)) > 0).all())
    True
    """
    wanted, sizes, spread = parameters("lognormal", dtype, shape, sigma=sigma)
    return constrained(lax.exp(normal(key, sizes, wanted) * spread), out_sharding)


def maxwell(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample Maxwell's distribution: the length of three standard normal numbers.

    >>> bool((vf.random.maxwell(vf.random.key(0), (5,)) >= 0).all())
    True
    """
    vectors = normal(key, (*canonical_shape(shape), 3), float_dtype("maxwell", dtype))
    return constrained(lax.sqrt(lax.reduce_sum(vectors * vectors, (-1,))), out_sharding)


def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Sequence[int] = (), dtype: Any = None) -> Array:
    """Sample ``loc + scale * x`` with x of Maxwell's distribution and random sign.

    As in JAX, the result has shape ``(*shape, *parameters' shape)``.

    >>> vf.random.double_sided_maxwell(vf.random.key(0), 0.0, 1.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype("double_sided_maxwell", dtype)
    centre, width = to_dtype(loc, wanted), to_dtype(scale, wanted)
    common = shape_with("double_sided_maxwell", None, loc=centre, scale=width)
    sizes = (*(canonical_shape(shape) or common), *common)
    keys = random_split(single_key("double_sided_maxwell", key), (2,))
    return rademacher(keys[1], sizes, wanted) * maxwell(keys[0], sizes, wanted) * width + centre


def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    method: str = "cholesky",
    *,
    out_sharding: Any = None,
) -> Array:
    """Sample normal vectors with mean (..., n) and covariance (..., n, n).

    Args:
        key: a key.
        mean: the mean.
        cov: the covariance; symmetric and positive definite, or semidefinite if `method` is not "cholesky".
        shape: the batch shape, to which those of the parameters broadcast; the result has shape ``(*shape, n)``.
        dtype: a floating dtype; by default the common one of mean and covariance.
        method: for the square root of the covariance: "cholesky", "eigh" or "svd".

    Raises:
        ShapeError: the shapes do not fit. ArgumentError: another method.

    >>> vf.random.multivariate_normal(vf.random.key(0), vf.numpy.zeros(2), vf.numpy.eye(2), (5,)).shape
    (5, 2)
    """
    data = single_key("multivariate_normal", key)
    centre, covariance = promote_args("multivariate_normal", (mean, cov), dtypes.FLOATS)
    wanted = dtype_in("multivariate_normal", dtype, centre.dtype, dtypes.FLOATS, "a real floating dtype")
    if centre.ndim < 1 or covariance.ndim < 2 or covariance.shape[-2:] != centre.shape[-1:] * 2:
        raise ShapeError(
            f"multivariate_normal: mean and cov must have shapes (..., n) and (..., n, n), got {centre.shape} and {covariance.shape}"
        )
    factor = _square_root(covariance, method)
    sizes = shape_with("multivariate_normal", shape, mean=centre[..., 0], cov=covariance[..., 0, 0])
    steps = normal(data, (*sizes, centre.shape[-1]), wanted)
    return constrained(centre + matmul(factor, steps[..., None])[..., 0], out_sharding)


def _square_root(covariance: Array, method: str) -> Array:
    if method == "cholesky":
        return linalg.cholesky(covariance)
    if method == "eigh":
        values, vectors = linalg.eigh(covariance)
        return vectors * lax.sqrt(values[..., None, :])
    if method == "svd":
        left, values, _ = linalg.svd(covariance)
        return left * lax.sqrt(values[..., None, :])
    raise ArgumentError(f"multivariate_normal: method must be 'cholesky', 'eigh' or 'svd', got {method!r}")


def orthogonal(key: Any, n: int, shape: Sequence[int] = (), dtype: Any = None, m: int | None = None, *, out_sharding: Any = None) -> Array:
    """Sample uniform orthogonal n×n (or orthonormal n×m) matrices.

    >>> q = vf.random.orthogonal(vf.random.key(0), 3)
    >>> vf.numpy.allclose(q @ q.T, vf.numpy.eye(3), atol=1e-5)
    Array(True, dtype=bool)
    """
    rows = as_integer(n, "orthogonal: n")
    columns = rows if m is None else as_integer(m, "orthogonal: m")
    sizes = (*canonical_shape(shape), max(rows, columns), min(rows, columns))
    q, r = linalg.qr(normal(key, sizes, dtype))
    diagonal = as_value(r)[..., np.arange(sizes[-1]), np.arange(sizes[-1])]
    q = q * lax.expand_dims(lax.sign(diagonal), (-2,))
    return constrained(q.mT if rows < columns else q, out_sharding)
