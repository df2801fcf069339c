"""Continuous distributions, and the uniform numbers that they are made of.

Some are sampled by inversion; others belong to the families of the normal and the gamma distribution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, settings
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, as_integer, canonical_shape, check_option
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.jit.fused import compiled
from volta_fn.numpy import linalg, matmul
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import promote_args, to_dtype
from volta_fn.primitives.elementwise.arithmetic import fma
from volta_fn.primitives.random import random_bits, random_split
from volta_fn.random.keys import FLOAT, dtype_in, float_dtype, int_dtype, known_integers, parameters, shape_with, single_key
from volta_fn.scipy.special.exponential import softmax
from volta_fn.scipy.special.gamma_family import random_gamma_grad
from volta_fn.transforms.custom_derivatives import custom_jvp
from volta_fn.transforms.vmap import vmap

# Bits, uniform floats and integers, and coins, from which the others are made.

_UINT32 = np.dtype(np.uint32)


def bits(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample random bits as unsigned integers (default uint32).

    >>> vf.random.bits(vf.random.key(0), (2,))
    Array([4070199207, 4202968722], dtype=uint32)
    """
    data = single_key("bits", key)
    result_dtype = dtype_in("bits", dtype, _UINT32, dtypes.UNSIGNED, "an unsigned integer dtype")
    return constrained(random_bits(data, shape, 8 * result_dtype.itemsize), out_sharding)


def uniform(
    key: Any, shape: Sequence[int] = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, *, out_sharding: Any = None
) -> Array:
    """Sample floats (float32) uniformly in [minval, maxval); the bounds broadcast.

    >>> vf.random.uniform(vf.random.key(0), (2,))
    Array([0.947667 , 0.9785799], dtype=float32)
    """
    data = single_key("uniform", key)
    result_dtype = float_dtype("uniform", dtype)
    unit = unit_uniform(data, canonical_shape(shape), result_dtype)
    if type(minval) in (int, float) and type(maxval) in (int, float) and (minval, maxval) == (0, 1):
        return constrained(unit, out_sharding)
    low, high = to_dtype(minval, result_dtype), to_dtype(maxval, result_dtype)
    shape_with("uniform", shape, minval=low, maxval=high)
    span = high - low
    # Compilers fuse this in the wider dtypes; an explicit fma gives the same bits everywhere.
    scaled = fma(unit, span, low) if result_dtype.itemsize > 2 else unit * span + low
    return constrained(lax.max(low, scaled), out_sharding)


def unit_uniform(data: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Sample floats in [0, 1): random bits as the mantissa of a number in [1, 2)."""
    info = dtypes.finfo(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    width = 8 if info.nmant < 8 else info.bits
    words = lax.convert_element_type(random_bits(data, shape, width), unsigned)
    significand = lax.shift_right_logical(words, unsigned.type(width - info.nmant))
    one = np.ones((), dtype)
    return lax.bitcast_convert_type(lax.bitwise_or(significand, one.view(unsigned)), dtype) - one


def randint(key: Any, shape: Sequence[int], minval: Any, maxval: Any, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample integers uniformly in [minval, maxval), in int32 by default.

    The bounds are integers that broadcast to `shape`. Where ``maxval <= minval`` the result is `minval`. A bound outside the dtype's range
    counts as the nearest one inside (a `maxval` beyond the greatest integer includes it). Taking the remainder of random bits has a bias
    below span / 2^32 (2^64). Raises `DTypeError` for a dtype or bounds that are not integers.

    >>> vf.random.randint(vf.random.key(0), (3,), 0, 10)
    Array([9, 0, 2], dtype=int32)
    """
    data = single_key("randint", key)
    result_dtype = int_dtype("randint", dtype)
    low, high = _bound("minval", minval), _bound("maxval", maxval)
    sizes = shape_with("randint", shape, minval=low, maxval=high)
    if result_dtype.itemsize >= 4:
        return constrained(_integers(data, sizes, low, high, result_dtype), out_sharding)
    # Draw 32 bits, since the bias of narrow integers would be noticeable; they also hold maxval = max + 1.
    info, wide = dtypes.iinfo(result_dtype), np.dtype(np.int32)
    low, high = _within(low, wide, info.min, info.max), _within(high, wide, info.min, info.max + 1)
    return constrained(lax.convert_element_type(_integers(data, sizes, low, high, wide), result_dtype), out_sharding)


def _bound(name: str, value: Any) -> Array | np.ndarray:
    """Return a bound of integers, on the host if known: it may need 64 bits."""
    host_value = known_integers(value)
    if host_value is not None:
        return host_value
    bound = as_value(value)
    if bound.dtype not in dtypes.INTEGERS:
        if settings.current.permissive:  # JAX drops the fraction
            return lax.convert_element_type(bound, dtypes.canonical(np.dtype(np.int64)))
        raise DTypeError(f"randint: {name} must be an integer, got {bound.aval}; convert it with astype")
    return bound


def _within(value: Array | np.ndarray, dtype: np.dtype, low: int, high: int) -> Array:
    info = dtypes.iinfo(value.dtype)
    least, greatest = (value.dtype.type(min(max(b, info.min), info.max)) for b in (low, high))
    clamped = np.clip(value, least, greatest) if isinstance(value, np.ndarray) else lax.clamp(least, value, greatest)
    return lax.convert_element_type(clamped, dtype)


def _integers(data: Array, shape: Shape, minval: Array | np.ndarray, maxval: Array | np.ndarray, dtype: np.dtype) -> Array:
    info, width = dtypes.iinfo(dtype), 8 * dtype.itemsize
    unsigned = np.dtype(f"u{dtype.itemsize}")
    beyond = maxval > maxval.dtype.type(min(info.max, dtypes.iinfo(maxval.dtype).max))
    low, high = _within(minval, dtype, info.min, info.max), _within(maxval, dtype, info.min, info.max)
    one = unsigned.type(1)
    span = lax.select(lax.le(high, low), as_value(one), lax.convert_element_type(high - low, unsigned))
    span = lax.select(lax.bitwise_and(beyond, lax.gt(high, low)), span + one, span)
    keys = random_split(data, (2,))
    upper, lower = (random_bits(keys[i], shape, width) for i in (0, 1))
    # Compute (upper 2^width + lower) mod span without integers of twice the width.
    half = lax.rem(unsigned.type(1 << width // 2), span)
    power = lax.rem(half * half, span)
    offset = lax.rem(lax.rem(upper, span) * power + lax.rem(lower, span), span)
    return low + lax.convert_element_type(offset, dtype)


def bernoulli(key: Any, p: Any = 0.5, shape: Sequence[int] | None = None, mode: str = "low", *, out_sharding: Any = None) -> Array:
    """Sample True with probability `p`, floats that broadcast to `shape`.

    A uniform number is compared with `p` in `p`'s dtype; with mode "high" that number has twice the bits, for tiny `p`. Raises `DTypeError`
    if `p` is not of floating dtype and `ArgumentError` for another mode.

    >>> vf.random.bernoulli(vf.random.key(1), 0.3, (4,))
    Array([False, False, False, False], dtype=bool)
    """
    data = single_key("bernoulli", key)
    check_option(mode, "bernoulli: mode", ("low", "high"))
    chance = as_value(p)
    if chance.dtype not in dtypes.FLOATS:
        raise DTypeError(f"bernoulli: the probability p must be a float, got {chance.aval}")
    sizes = shape_with("bernoulli", shape, p=chance)
    if mode == "low":
        return constrained(lax.lt(unit_uniform(data, sizes, chance.dtype), chance), out_sharding)
    both = unit_uniform(data, (2, *sizes), chance.dtype)
    coarse, fine = (lax.index_in_dim(both, i, 0, keepdims=False) for i in (0, 1))
    return constrained(lax.lt(fine * 2.0 ** -dtypes.finfo(chance.dtype).nmant, chance - coarse), out_sharding)


def rademacher(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample -1 or 1, each with probability 1/2, in any signed dtype (default int32).

    >>> vf.random.rademacher(vf.random.key(0), (3,))
    Array([-1, -1,  1], dtype=int32)
    """
    result_dtype = dtype_in("rademacher", dtype, np.dtype(np.int32), dtypes.SIGNED | dtypes.INEXACT, "a dtype of signed numbers")
    coins = bernoulli(single_key("rademacher", key), 0.5, canonical_shape(shape))
    return constrained(lax.convert_element_type(2 * lax.convert_element_type(coins, np.int32) - 1, result_dtype), out_sharding)


# Continuous distributions sampled by inversion: functions of uniform numbers.


def exponential(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the exponential distribution with mean 1.

    >>> vf.random.exponential(vf.random.key(0), (2,)).round(3)
    Array([2.95 , 3.843], dtype=float32)
    """
    return constrained(-lax.log1p(-uniform(key, shape, float_dtype("exponential", dtype))), out_sharding)


def gumbel(key: Any, shape: Sequence[int] = (), dtype: Any = None, mode: str | None = None, *, out_sharding: Any = None) -> Array:
    """Sample the standard Gumbel distribution: -log(-log(u)).

    With mode "high" the uniform numbers have twice the bits, for rare large values; the default is "low" unless the setting
    `jax_high_dynamic_range_gumbel` is on. Raises `ArgumentError` for
    another mode.

    >>> vf.random.gumbel(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    data = single_key("gumbel", key)
    result_dtype = float_dtype("gumbel", dtype)
    info, sizes = dtypes.finfo(result_dtype), canonical_shape(shape)
    mode = mode or ("high" if settings.current.high_dynamic_range_gumbel else "low")
    if mode == "low":
        return constrained(-lax.log(-lax.log(uniform(data, sizes, result_dtype, info.tiny, 1.0))), out_sharding)
    if mode != "high":
        raise ArgumentError(f"gumbel: mode must be 'low' or 'high', got {mode!r}")
    both = uniform(data, (2, *sizes), result_dtype)
    coarse, fine = both[0], both[1]
    finer = coarse + 2.0**-info.nmant * fine + result_dtype.type(info.tiny)
    return constrained(-lax.log(-lax.log1p(-lax.select(lax.ge(coarse, 0.5), coarse, finer))), out_sharding)


def laplace(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Laplace distribution: exponential with a random sign.

    >>> vf.random.laplace(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    result_dtype = float_dtype("laplace", dtype)
    u = uniform(key, shape, result_dtype, result_dtype.type(-1.0 + dtypes.finfo(result_dtype).epsneg), 1.0)
    return constrained(lax.sign(u) * lax.log1p(-lax.abs(u)), out_sharding)


def logistic(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the standard logistic distribution: the logit of uniform numbers.

    >>> vf.random.logistic(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    result_dtype = float_dtype("logistic", dtype)
    u = uniform(key, shape, result_dtype, dtypes.finfo(result_dtype).tiny, 1.0)
    return constrained(lax.log(u) - lax.log1p(-u), out_sharding)


def cauchy(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the standard Cauchy distribution.

    >>> vf.random.cauchy(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    result_dtype = float_dtype("cauchy", dtype)
    u = uniform(key, shape, result_dtype, dtypes.finfo(result_dtype).eps, 1.0)
    return constrained(lax.tan(math.pi * (u - 0.5)), out_sharding)


def pareto(key: Any, b: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Pareto distribution on [1, ∞), of density proportional to x^(-b - 1).

    >>> bool((vf.random.pareto(vf.random.key(0), 2.0, (5,)) >= 1).all())
    True
    """
    result_dtype, sizes, tail = parameters("pareto", dtype, shape, b=b)
    return constrained(lax.exp(exponential(key, sizes, result_dtype) / tail), out_sharding)


def rayleigh(key: Any, scale: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Rayleigh distribution.

    The length of a vector of two normal numbers with standard deviation `scale` has this distribution.

    >>> bool((vf.random.rayleigh(vf.random.key(0), 2.0, (5,)) >= 0).all())
    True
    """
    result_dtype, sizes, width = parameters("rayleigh", dtype, shape, scale=scale)
    u = lax.max(uniform(key, sizes, result_dtype), dtypes.finfo(result_dtype).tiny)  # avoids log(0)
    return constrained(width * lax.sqrt(lax.log(u) * -2.0), out_sharding)


def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Sample the triangular distribution on [left, right] with its peak at `mode`.

    >>> sample = vf.random.triangular(vf.random.key(0), 1.0, 2.0, 4.0, (5,))
    >>> bool(((sample >= 1) & (sample <= 4)).all())
    True
    """
    result_dtype, sizes, low, peak, high = parameters("triangular", dtype, shape, left=left, mode=mode, right=right)
    u = uniform(key, sizes, result_dtype)
    rising = low + lax.sqrt(u * (high - low) * (peak - low))
    falling = high - lax.sqrt((1.0 - u) * (high - low) * (high - peak))
    return constrained(lax.select(lax.lt(u, (peak - low) / (high - low)), rising, falling), out_sharding)


def wald(key: Any, mean: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the inverse Gaussian distribution with the given mean and scale 1.

    Michael, Schucany and Haas, "Generating random variates using transformations with multiple roots", 1976.

    >>> bool((vf.random.wald(vf.random.key(0), 1.0, (5,)) > 0).all())
    True
    """
    result_dtype, sizes, mu = parameters("wald", dtype, shape, mean=mean)
    keys = random_split(single_key("wald", key), (2,))
    y = lax.square(normal(keys[0], sizes, result_dtype))
    root = lax.sqrt(4.0 * mu * y + lax.square(mu) * lax.square(y))
    larger = mu + lax.square(mu) * y / 2.0 + mu / 2.0 * root
    smaller = lax.square(mu) / larger  # a difference would cancel for large means
    return constrained(lax.select(lax.le(uniform(keys[1], sizes, result_dtype), mu / (mu + smaller)), smaller, larger), out_sharding)


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Sequence[int] = (), dtype: Any = None) -> Array:
    """Sample the Weibull distribution: scale * exponential ** (1 / concentration).

    >>> bool((vf.random.weibull_min(vf.random.key(0), 1.0, 2.0, (5,)) >= 0).all())
    True
    """
    result_dtype, sizes, width, power = parameters("weibull_min", dtype, shape, scale=scale, concentration=concentration)
    return lax.pow(exponential(key, sizes, result_dtype), 1.0 / power) * width


# The normal distribution and those derived from it, by inverse error functions.

_SQRT_2 = math.sqrt(2.0)


def normal(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample standard normal numbers (float32); complex ones have variance 1 in all.

    >>> vf.random.normal(vf.random.key(0), (2,)).round(4)
    Array([1.6226, 2.0253], dtype=float32)
    """
    data = single_key("normal", key)
    result_dtype = dtype_in("normal", dtype, FLOAT, dtypes.INEXACT, "a floating or complex dtype")
    sizes = canonical_shape(shape)
    if result_dtype in dtypes.FLOATS:
        return constrained(_normal(data, sizes, result_dtype), out_sharding)
    real = dtypes.real_dtype(result_dtype)
    keys = random_split(data, (2,))
    return constrained(lax.complex(_normal(keys[0], sizes, real), _normal(keys[1], sizes, real)) / result_dtype.type(_SQRT_2), out_sharding)


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
    result_dtype, sizes, low, high = parameters("truncated_normal", dtype, shape, lower=lower, upper=upper)
    root = result_dtype.type(_SQRT_2)
    quantiles = uniform(data, sizes, result_dtype, lax.erf(low / root), lax.erf(high / root))
    infinity = result_dtype.type(np.inf)
    # Rounding may reach the bounds, which are excluded.
    return constrained(
        lax.clamp(lax.nextafter(low, infinity), root * lax.erf_inv_of_uniform(quantiles), lax.nextafter(high, -infinity)), out_sharding
    )


def lognormal(key: Any, sigma: Any = 1.0, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample exp of normal numbers with standard deviation `sigma`.

    >>> bool((vf.random.lognormal(vf.random.key(0), shape=(5,)) > 0).all())
    True
    """
    result_dtype, sizes, spread = parameters("lognormal", dtype, shape, sigma=sigma)
    return constrained(lax.exp(normal(key, sizes, result_dtype) * spread), out_sharding)


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
    result_dtype = float_dtype("double_sided_maxwell", dtype)
    centre, width = to_dtype(loc, result_dtype), to_dtype(scale, result_dtype)
    common = shape_with("double_sided_maxwell", None, loc=centre, scale=width)
    sizes = (*(canonical_shape(shape) or common), *common)
    keys = random_split(single_key("double_sided_maxwell", key), (2,))
    return rademacher(keys[1], sizes, result_dtype) * maxwell(keys[0], sizes, result_dtype) * width + centre


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
    result_dtype = dtype_in("multivariate_normal", dtype, centre.dtype, dtypes.FLOATS, "a real floating dtype")
    if centre.ndim < 1 or covariance.ndim < 2 or covariance.shape[-2:] != centre.shape[-1:] * 2:
        raise ShapeError(
            f"multivariate_normal: mean and cov must have shapes (..., n) and (..., n, n), got {centre.shape} and {covariance.shape}"
        )
    factor = _square_root(covariance, method)
    sizes = shape_with("multivariate_normal", shape, mean=centre[..., 0], cov=covariance[..., 0, 0])
    steps = normal(data, (*sizes, centre.shape[-1]), result_dtype)
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


# The gamma distribution and those derived from it: beta, Dirichlet, t, F, ….


def gamma(key: Any, a: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the gamma distribution, of density proportional to x^(a - 1) exp(-x).

    Differentiable by `a` at a fixed quantile (Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients", 2018).

    >>> vf.random.gamma(vf.random.key(0), vf.numpy.array([0.5, 10.0])).shape
    (2,)
    """
    return constrained(_gamma("gamma", key, a, shape, dtype, log=False), out_sharding)


def loggamma(key: Any, a: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the log of gamma numbers, to full precision for small `a`.

    >>> vf.random.loggamma(vf.random.key(0), 0.5, (4,)).shape
    (4,)
    """
    return constrained(_gamma("loggamma", key, a, shape, dtype, log=True), out_sharding)


def _gamma(function: str, key: Any, a: Any, shape: Sequence[int] | None, dtype: Any, log: bool) -> Array:
    data = single_key(function, key)
    _, sizes, shapes = parameters(function, dtype, shape, a=a)
    return _sampled(broadcast_to(shapes, sizes), data, log)


@functools.partial(custom_jvp, nondiff_argnums=(2,))
def _samples(a: Array, data: Array, log: bool) -> Array:
    keys = random_split(data, (a.size,))
    return lax.reshape(vmap(lambda k, x: _draw_one(k, x, log))(keys, lax.reshape(a, (a.size,))), a.shape)


@_samples.defjvp
def _(log: bool, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (a, data), (tangent, _) = primals, tangents
    out = _samples(a, data, log)
    if not log:
        return out, tangent * random_gamma_grad(a, out)
    sample = lax.max(lax.exp(out), a.dtype.type(dtypes.finfo(a.dtype).tiny))
    return out, tangent * random_gamma_grad(a, sample) / sample


_sampled = compiled(_samples, static_argnums=(2,))


def _draw_one(data: Array, a: Array, log: bool) -> Array:
    """Reject from a cubed normal number."""
    # Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Below 1, a number for a + 1 is multiplied by a power of a
    # uniform one.
    dtype = a.dtype
    zero, one = dtype.type(0), dtype.type(1)
    boosted = lax.lt(a, one)
    d = lax.select(boosted, a + one, a) - dtype.type(1 / 3)
    c = dtype.type(1 / 3) / lax.sqrt(d)

    def cube_root(state: Any) -> Any:
        keys = random_split(state[0], (2,))
        x = normal(keys[1], (), dtype)
        return keys[0], x, one + x * c

    def rejected(state: Any) -> Array:
        _, square, cube, u = state
        slowly = lax.log(u) >= square * 0.5 + d * ((one - cube) + lax.log(cube))
        return lax.bitwise_and(u >= one - dtype.type(0.0331) * (square * square), slowly)

    def propose(state: Any) -> Any:
        keys = random_split(state[0], (3,))
        _, x, v = lax.while_loop(lambda s: s[2] <= zero, cube_root, (keys[1], zero, -one))
        return keys[0], x * x, (v * v) * v, uniform(keys[2], (), dtype)

    keys = random_split(data, (2,))
    _, _, cube, _ = lax.while_loop(rejected, propose, (keys[0], zero, one, dtype.type(2)))
    if log:
        log_power = -exponential(keys[1], (), dtype)
        boost = lax.select(lax.bitwise_and(boosted, lax.ne(log_power, zero)), log_power * (one / a), lax.full_like(a, 0))
        return (lax.log(d) + lax.log(cube)) + boost
    power = lax.pow(one - uniform(keys[1], (), dtype), one / a)
    return d * cube * lax.select(boosted, power, lax.full_like(a, 1))


# Distributions of several gamma numbers.


def beta(key: Any, a: Any, b: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the beta distribution, of density proportional to x^(a-1) (1-x)^(b-1).

    >>> x = vf.random.beta(vf.random.key(0), 2.0, 3.0, (1000,))
    >>> bool((x >= 0).all() and (x <= 1).all())
    True
    """
    result_dtype, sizes, first, second = parameters("beta", dtype, shape, a=a, b=b)
    keys = random_split(single_key("beta", key), (2,))
    logs = [loggamma(k, x, sizes, result_dtype) for k, x in zip((keys[0], keys[1]), (first, second), strict=True)]
    largest = lax.max(*logs)
    x, y = (lax.exp(log - largest) for log in logs)
    return constrained(x / (x + y), out_sharding)


def dirichlet(key: Any, alpha: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample Dirichlet vectors, which are positive and sum to 1.

    The last dimension of `alpha` holds a vector's parameters. The result has shape ``(*shape, n)``; the other dimensions of `alpha`
    broadcast to `shape`.

    >>> vf.random.dirichlet(vf.random.key(0), vf.numpy.ones(3)).sum().round(4)
    Array(1., dtype=float32)
    """
    result_dtype = float_dtype("dirichlet", dtype)
    concentration = to_dtype(alpha, result_dtype)
    sizes = shape_with("dirichlet", shape, alpha=concentration[..., 0])
    return constrained(softmax(loggamma(key, concentration, (*sizes, concentration.shape[-1]), result_dtype)), out_sharding)


def chisquare(key: Any, df: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the chi-square distribution with `df` degrees of freedom.

    >>> bool((vf.random.chisquare(vf.random.key(0), 2.0, (5,)) >= 0).all())
    True
    """
    result_dtype, sizes, freedom = parameters("chisquare", dtype, shape, df=df)
    return constrained(lax.exp(loggamma(key, freedom / 2.0, sizes, result_dtype)) * 2.0, out_sharding)


def f(key: Any, dfnum: Any, dfden: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the F distribution: two chi-square numbers over their degrees, divided.

    >>> vf.random.f(vf.random.key(0), 2.0, 3.0, (4,)).shape
    (4,)
    """
    result_dtype, sizes, above, below = parameters("f", dtype, shape, dfnum=dfnum, dfden=dfden)
    keys = random_split(single_key("f", key), (2,))
    return constrained(
        (chisquare(keys[1], above, sizes, result_dtype) / above) / (chisquare(keys[0], below, sizes, result_dtype) / below), out_sharding
    )


def t(key: Any, df: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample Student's t distribution with `df` degrees of freedom.

    >>> vf.random.t(vf.random.key(0), 3.0, (4,)).shape
    (4,)
    """
    result_dtype, sizes, freedom = parameters("t", dtype, shape, df=df)
    keys = random_split(single_key("t", key), (2,))
    half = freedom / 2.0
    return constrained(normal(keys[0], sizes, result_dtype) * lax.sqrt(half / gamma(keys[1], half, sizes, result_dtype)), out_sharding)


def generalized_normal(key: Any, p: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the distribution with density proportional to exp(-|x|^p).

    >>> vf.random.generalized_normal(vf.random.key(0), 1.5, (4,)).shape
    (4,)
    """
    result_dtype = float_dtype("generalized_normal", dtype)
    sizes: Shape = canonical_shape(shape)
    power = to_dtype(p, result_dtype)
    keys = random_split(single_key("generalized_normal", key), (2,))
    size = gamma(keys[0], 1.0 / power, sizes, result_dtype) ** (1.0 / power)
    return constrained(rademacher(keys[1], sizes, result_dtype) * size, out_sharding)


def ball(key: Any, d: int, p: Any = 2, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample points (*shape, d) uniformly in the unit ball in the p-norm.

    >>> bool(vf.numpy.linalg.norm(vf.random.ball(vf.random.key(0), 3)) <= 1)
    True
    """
    result_dtype = float_dtype("ball", dtype)
    sizes = canonical_shape(shape)
    keys = random_split(single_key("ball", key), (2,))
    points = generalized_normal(keys[0], p, (*sizes, as_integer(d, "ball: d")), result_dtype)
    power = to_dtype(p, result_dtype)
    total = lax.reduce_sum(lax.abs(points) ** power, (-1,)) + exponential(keys[1], sizes, result_dtype)
    return constrained(points / (total ** (1.0 / power))[..., None], out_sharding)
