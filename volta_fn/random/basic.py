"""Bits, uniform floats and integers, and coins, from which the others are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, canonical_shape
from volta_fn.core.memory import constrained
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise.arithmetic import fma
from volta_fn.primitives.random import random_bits, random_split
from volta_fn.random.keys import dtype_in, float_dtype, int_dtype, known_integers, shape_with, single_key

_UINT32 = np.dtype(np.uint32)


def bits(key: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample random bits as unsigned integers (default uint32).

    >>> vf.random.bits(vf.random.key(0), (2,))
    Array([4070199207, 4202968722], dtype=uint32)
    """
    data = single_key("bits", key)
    wanted = dtype_in("bits", dtype, _UINT32, dtypes.UNSIGNED, "an unsigned integer dtype")
    return constrained(random_bits(data, shape, 8 * wanted.itemsize), out_sharding)


def uniform(
    key: Any, shape: Sequence[int] = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, *, out_sharding: Any = None
) -> Array:
    """Sample floats (float32) uniformly in [minval, maxval); the bounds broadcast.

    >>> vf.random.uniform(vf.random.key(0), (2,))
    Array([0.947667 , 0.9785799], dtype=float32)
    """
    data = single_key("uniform", key)
    wanted = float_dtype("uniform", dtype)
    unit = unit_uniform(data, canonical_shape(shape), wanted)
    if type(minval) in (int, float) and type(maxval) in (int, float) and (minval, maxval) == (0, 1):
        return constrained(unit, out_sharding)
    low, high = to_dtype(minval, wanted), to_dtype(maxval, wanted)
    shape_with("uniform", shape, minval=low, maxval=high)
    span = high - low
    # Compilers fuse this in the wider dtypes; an explicit fma gives the same bits everywhere.
    scaled = fma(unit, span, low) if wanted.itemsize > 2 else unit * span + low
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
    wanted = int_dtype("randint", dtype)
    low, high = _bound("minval", minval), _bound("maxval", maxval)
    sizes = shape_with("randint", shape, minval=low, maxval=high)
    if wanted.itemsize >= 4:
        return constrained(_integers(data, sizes, low, high, wanted), out_sharding)
    # Draw 32 bits, since the bias of narrow integers would be noticeable; they also hold maxval = max + 1.
    info, wide = dtypes.iinfo(wanted), np.dtype(np.int32)
    low, high = _within(low, wide, info.min, info.max), _within(high, wide, info.min, info.max + 1)
    return constrained(lax.convert_element_type(_integers(data, sizes, low, high, wide), wanted), out_sharding)


def _bound(name: str, value: Any) -> Array | np.ndarray:
    """Return a bound of integers, on the host if known: it may need 64 bits."""
    known = known_integers(value)
    if known is not None:
        return known
    bound = as_value(value)
    if bound.dtype not in dtypes.INTEGERS:
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
    if mode not in ("low", "high"):
        raise ArgumentError(f"bernoulli: mode must be 'low' or 'high', got {mode!r}")
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
    wanted = dtype_in("rademacher", dtype, np.dtype(np.int32), dtypes.SIGNED | dtypes.INEXACT, "a dtype of signed numbers")
    coins = bernoulli(single_key("rademacher", key), 0.5, canonical_shape(shape))
    return constrained(lax.convert_element_type(2 * lax.convert_element_type(coins, np.int32) - 1, wanted), out_sharding)
