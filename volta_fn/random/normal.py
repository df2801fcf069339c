"""The normal distribution and its relatives, through the inverse of the error function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.aval import Shape, canonical_shape
from volta_fn.primitives.random import random_split
from volta_fn.random.arguments import FLOAT, dtype_in, float_dtype, parameter, shape_with
from volta_fn.random.keys import single_key
from volta_fn.random.uniform import rademacher, uniform, unit_uniform

_SQRT_2 = math.sqrt(2.0)


def normal(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Array:
    """Standard normal numbers, of dtype float32 by default; complex ones have variance 1/2 in each part.

    >>> import volta_fn as vf
    >>> vf.random.normal(vf.random.key(0), (2,)).round(4)
    Array([1.6226, 2.0253], dtype=float32)
    """
    data = single_key("normal", key)
    wanted = dtype_in("normal", dtype, FLOAT, dtypes.INEXACT, "a floating or complex dtype")
    sizes = canonical_shape(shape)
    if wanted in dtypes.FLOATS:
        return _normal(data, sizes, wanted)
    part = dtypes.real_dtype(wanted)
    keys = random_split(data, (2,))
    return lax.complex(_normal(keys[0], sizes, part), _normal(keys[1], sizes, part)) / wanted.type(_SQRT_2)


def _normal(data: Array, shape: Shape, dtype: np.dtype) -> Array:
    above_minus_one = np.nextafter(np.asarray(-1.0, dtype), np.asarray(0.0, dtype))
    # Uniform in the open interval (-1, 1), whose length rounds to 2: no other rounding happens.
    return lax.erf_inv(2.0 * unit_uniform(data, shape, dtype) + above_minus_one) * dtype.type(_SQRT_2)


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Array:
    """Standard normal numbers that lie strictly between `lower` and `upper`, which broadcast to `shape`.

    >>> import volta_fn as vf
    >>> vf.random.truncated_normal(vf.random.key(0), -2.0, 2.0, (2,)).round(3)
    Array([1.456, 1.715], dtype=float32)
    """
    data = single_key("truncated_normal", key)
    wanted = float_dtype("truncated_normal", dtype)
    low, high = parameter(lower, wanted), parameter(upper, wanted)
    sizes = shape_with("truncated_normal", shape, lower=low, upper=high)
    root = wanted.type(_SQRT_2)
    quantiles = uniform(data, sizes, wanted, lax.erf(low / root), lax.erf(high / root))
    infinity = wanted.type(np.inf)
    # Rounding may reach the bounds.
    return lax.clamp(lax.nextafter(low, infinity), root * lax.erf_inv(quantiles), lax.nextafter(high, -infinity))


def lognormal(key: Any, sigma: Any = 1.0, shape: Sequence[int] | None = None, dtype: Any = None) -> Array:
    """exp of normal numbers with standard deviation `sigma`.

    >>> import volta_fn as vf
    >>> bool((vf.random.lognormal(vf.random.key(0), shape=(5,)) > 0).all())
    True
    """
    wanted = float_dtype("lognormal", dtype)
    spread = parameter(sigma, wanted)
    return lax.exp(normal(key, shape_with("lognormal", shape, sigma=spread), wanted) * spread)


def maxwell(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Array:
    """The lengths of vectors of three standard normal numbers (Maxwell's distribution of speeds).

    >>> import volta_fn as vf
    >>> bool((vf.random.maxwell(vf.random.key(0), (5,)) >= 0).all())
    True
    """
    vectors = normal(key, (*canonical_shape(shape), 3), float_dtype("maxwell", dtype))
    return lax.sqrt(lax.reduce_sum(vectors * vectors, (-1,)))


def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Sequence[int] = (), dtype: Any = None) -> Array:
    """``loc + scale * x`` with x of Maxwell's distribution and either sign.

    As in JAX, the result has shape ``(*shape, *parameters' shape)``.

    >>> import volta_fn as vf
    >>> vf.random.double_sided_maxwell(vf.random.key(0), 0.0, 1.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype("double_sided_maxwell", dtype)
    centre, width = parameter(loc, wanted), parameter(scale, wanted)
    common = shape_with("double_sided_maxwell", None, loc=centre, scale=width)
    sizes = (*(canonical_shape(shape) or common), *common)
    keys = random_split(single_key("double_sided_maxwell", key), (2,))
    return rademacher(keys[1], sizes, wanted) * maxwell(keys[0], sizes, wanted) * width + centre
