"""Continuous distributions sampled by inversion: functions of uniform numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.aval import canonical_shape
from volta_fn.core.memory.transfer import constrained
from volta_fn.errors import ArgumentError
from volta_fn.primitives.random import random_split
from volta_fn.random.arguments import float_dtype, parameters
from volta_fn.random.basic import uniform
from volta_fn.random.gaussian import normal
from volta_fn.random.keys import single_key


def exponential(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the exponential distribution with mean 1.

    >>> vf.random.exponential(vf.random.key(0), (2,)).round(3)
    Array([2.95 , 3.843], dtype=float32)
    """
    return constrained(-lax.log1p(-uniform(key, shape, float_dtype("exponential", dtype))), out_sharding)


def gumbel(key: Any, shape: Sequence[int] = (), dtype: Any = None, mode: str | None = None, *, out_sharding: Any = None) -> Array:
    """Sample the standard Gumbel distribution: -log(-log(u)).

    With mode "high" the uniform numbers have twice the bits, for rare large values; the default is "low". Raises `ArgumentError` for
    another mode.

    >>> vf.random.gumbel(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    data = single_key("gumbel", key)
    wanted = float_dtype("gumbel", dtype)
    info, sizes = dtypes.finfo(wanted), canonical_shape(shape)
    if mode in (None, "low"):
        return constrained(-lax.log(-lax.log(uniform(data, sizes, wanted, info.tiny, 1.0))), out_sharding)
    if mode != "high":
        raise ArgumentError(f"gumbel: mode must be 'low' or 'high', got {mode!r}")
    both = uniform(data, (2, *sizes), wanted)
    coarse, fine = both[0], both[1]
    finer = coarse + 2.0**-info.nmant * fine + wanted.type(info.tiny)
    return constrained(-lax.log(-lax.log1p(-lax.select(lax.ge(coarse, 0.5), coarse, finer))), out_sharding)


def laplace(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Laplace distribution: exponential with a random sign.

    >>> vf.random.laplace(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    wanted = float_dtype("laplace", dtype)
    u = uniform(key, shape, wanted, wanted.type(-1.0 + dtypes.finfo(wanted).epsneg), 1.0)
    return constrained(lax.sign(u) * lax.log1p(-lax.abs(u)), out_sharding)


def logistic(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the standard logistic distribution: the logit of uniform numbers.

    >>> vf.random.logistic(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    wanted = float_dtype("logistic", dtype)
    u = uniform(key, shape, wanted, dtypes.finfo(wanted).tiny, 1.0)
    return constrained(lax.log(u) - lax.log1p(-u), out_sharding)


def cauchy(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the standard Cauchy distribution.

    >>> vf.random.cauchy(vf.random.key(0), (2, 3)).shape
    (2, 3)
    """
    wanted = float_dtype("cauchy", dtype)
    u = uniform(key, shape, wanted, dtypes.finfo(wanted).eps, 1.0)
    return constrained(lax.tan(math.pi * (u - 0.5)), out_sharding)


def pareto(key: Any, b: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Pareto distribution on [1, ∞), of density proportional to x^(-b - 1).

    >>> bool((vf.random.pareto(vf.random.key(0), 2.0, (5,)) >= 1).all())
    True
    """
    wanted, sizes, tail = parameters("pareto", dtype, shape, b=b)
    return constrained(lax.exp(exponential(key, sizes, wanted) / tail), out_sharding)


def rayleigh(key: Any, scale: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Rayleigh distribution.

    It is that of the length of a vector of two normal numbers with standard deviation `scale`.

    >>> bool((vf.random.rayleigh(vf.random.key(0), 2.0, (5,)) >= 0).all())
    True
    """
    wanted, sizes, width = parameters("rayleigh", dtype, shape, scale=scale)
    u = lax.max(uniform(key, sizes, wanted), dtypes.finfo(wanted).tiny)  # avoids log(0)
    return constrained(width * lax.sqrt(lax.log(u) * -2.0), out_sharding)


def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Sample the triangular distribution on [left, right] with its peak at `mode`.

    >>> sample = vf.random.triangular(vf.random.key(0), 1.0, 2.0, 4.0, (5,))
    >>> bool(((sample >= 1) & (sample <= 4)).all())
    True
    """
    wanted, sizes, low, peak, high = parameters("triangular", dtype, shape, left=left, mode=mode, right=right)
    u = uniform(key, sizes, wanted)
    rising = low + lax.sqrt(u * (high - low) * (peak - low))
    falling = high - lax.sqrt((1.0 - u) * (high - low) * (high - peak))
    return constrained(lax.select(lax.lt(u, (peak - low) / (high - low)), rising, falling), out_sharding)


def wald(key: Any, mean: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the inverse Gaussian distribution with the given mean and scale 1.

    Michael, Schucany and Haas, "Generating random variates using transformations with multiple roots", 1976.

    >>> bool((vf.random.wald(vf.random.key(0), 1.0, (5,)) > 0).all())
    True
    """
    wanted, sizes, mu = parameters("wald", dtype, shape, mean=mean)
    keys = random_split(single_key("wald", key), (2,))
    y = lax.square(normal(keys[0], sizes, wanted))
    root = lax.sqrt(4.0 * mu * y + lax.square(mu) * lax.square(y))
    larger = mu + lax.square(mu) * y / 2.0 + mu / 2.0 * root
    smaller = lax.square(mu) / larger  # a difference would cancel for large means
    return constrained(lax.select(lax.le(uniform(keys[1], sizes, wanted), mu / (mu + smaller)), smaller, larger), out_sharding)


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Sequence[int] = (), dtype: Any = None) -> Array:
    """Sample the Weibull distribution: scale * exponential ** (1 / concentration).

    >>> bool((vf.random.weibull_min(vf.random.key(0), 1.0, 2.0, (5,)) >= 0).all())
    True
    """
    wanted, sizes, width, power = parameters("weibull_min", dtype, shape, scale=scale, concentration=concentration)
    return lax.pow(exponential(key, sizes, wanted), 1.0 / power) * width
