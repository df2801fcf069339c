"""Categories by their logits, permutations, samples with and without replacement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, canonical_shape
from volta_fn.core.memory.transfer import constrained
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.numpy import cumsum, moveaxis, searchsorted, take
from volta_fn.primitives.data_movement.movement import broadcast_to, canonical_axis
from volta_fn.primitives.random import random_bits, random_split
from volta_fn.random.arguments import INT
from volta_fn.random.basic import randint, uniform
from volta_fn.random.continuous import gumbel
from volta_fn.random.keys import single_key


def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Sequence[int] | None = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Sample indices along `axis` with probabilities proportional to exp(logits).

    Args:
        key: a key.
        logits: unnormalised log probabilities, of floating dtype.
        axis: the dimension of the categories.
        shape: the result's shape, to whose end that of `logits` without `axis` broadcasts; that alone by default.
        replace: whether the draws in the leading dimensions of `shape` may repeat a category.
        mode: of the Gumbel numbers of the Gumbel-max trick: "low" (default) or "high", see `gumbel`.

    Raises:
        ShapeError: the shape does not fit. ArgumentError: more draws without replacement than categories.

    >>> vf.random.categorical(vf.random.key(0), vf.numpy.log(vf.numpy.array([0.1, 0.2, 0.7])), shape=(5,))
    Array([1, 2, 2, 1, 2], dtype=int32)
    """
    data = single_key("categorical", key)
    weights = as_value(logits)
    if weights.dtype not in dtypes.FLOATS:
        raise DTypeError(f"categorical: logits must be floats, got {weights.aval}")
    dim = canonical_axis(axis, weights.ndim)
    batch = weights.shape[:dim] + weights.shape[dim + 1 :]
    sizes = batch if shape is None else canonical_shape(shape)
    prefix = sizes[: len(sizes) - len(batch)]
    if (wanted := sizes[len(prefix) :]) != batch:
        if len(wanted) != len(batch) or any(m not in (1, n) for m, n in zip(batch, wanted, strict=True)):
            raise ShapeError(f"categorical: shape {sizes} must end with what {batch} broadcasts to, that of the logits without axis {axis}")
        weights = broadcast_to(weights, (*wanted[:dim], weights.shape[dim], *wanted[dim:]))
    if not replace:
        return constrained(_without_replacement(data, weights, dim, prefix, mode), out_sharding)
    noise = gumbel(data, (*prefix, *weights.shape), weights.dtype, mode)
    return constrained(lax.argmax(noise + weights, len(prefix) + dim, dtypes.default(INT)), out_sharding)


def _without_replacement(data: Array, weights: Array, dim: int, prefix: Shape, mode: str | None) -> Array:
    count = math.prod(prefix)
    if count > weights.shape[dim]:
        raise ArgumentError(f"categorical: cannot draw {count} of {weights.shape[dim]} categories without replacement")
    noisy = weights + gumbel(data, weights.shape, weights.dtype, mode)
    _, indices = lax.top_k(moveaxis(noisy, dim, -1), count)
    return lax.reshape(moveaxis(indices, -1, 0), (*prefix, *indices.shape[:-1]))


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, *, out_sharding: Any = None) -> Array:
    """Shuffle `x` along an axis; an integer stands for arange(x).

    With `independent`, each vector along the axis is shuffled separately. Raises `DTypeError` for a scalar that is no integer.

    >>> vf.random.permutation(vf.random.key(0), 5)
    Array([0, 1, 4, 3, 2], dtype=int32)
    """
    data = single_key("permutation", key)
    value = _population("permutation", x)
    dim = canonical_axis(axis, value.ndim)
    if independent or value.ndim == 1:
        return constrained(_shuffle(data, value, dim), out_sharding)
    return constrained(
        take(value, _shuffle(data, lax.iota(dtypes.index_dtype(value.shape[dim], INT), value.shape[dim]), 0), dim), out_sharding
    )


def _population(function: str, x: Any) -> Array:
    value = as_value(x)
    if value.ndim:
        return value
    if value.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"{function}: give an array with at least one dimension, or an integer, got {value.aval}")
    count = int(concrete_or_raise(value, f"the population of {function}"))
    return lax.iota(dtypes.index_dtype(count, dtypes.default(INT)), count)


def _shuffle(data: Array, x: Array, axis: int) -> Array:
    """Sort by random keys, repeatedly, until ties of 32-bit keys are improbable."""
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        keys = random_split(data, (2,))
        data = keys[0]
        _, x = lax.sort_key_val(random_bits(keys[1], x.shape, 32), x, axis)
    return x


def choice(
    key: Any, a: Any, shape: Sequence[int] = (), replace: bool = True, p: Any = None, axis: int = 0, mode: str | None = None
) -> Array:
    """Sample elements (slices along `axis`) of an array, or of arange(a).

    Args:
        key: a key.
        a: an array, or an integer.
        shape: the shape of the draws, which replaces `axis`.
        replace: whether an element may be drawn more than once.
        p: the probabilities, one per element; uniform by default.
        axis: the dimension to choose along.
        mode: of the Gumbel numbers, with `p` and without replacement; see `gumbel`.

    Raises:
        ArgumentError: nothing to choose from, or more draws without replacement than elements. ShapeError: `p` does not fit.

    >>> vf.random.choice(vf.random.key(0), 5, (3,), replace=False)
    Array([0, 1, 4], dtype=int32)
    """
    data = single_key("choice", key)
    if isinstance(shape, (int, np.integer)):
        raise ArgumentTypeError(f"choice: shape must be a sequence of integers, got {shape}; write ({shape},)")
    sizes, value = canonical_shape(shape), _population("choice", a)
    dim = canonical_axis(axis, value.ndim)
    population, draws = value.shape[dim], math.prod(sizes)
    full_shape = (*value.shape[:dim], *sizes, *value.shape[dim + 1 :])
    if not draws:
        return lax.full(full_shape, 0, value.dtype)
    if not population:
        raise ArgumentError(f"choice: there is nothing to choose from: a has no elements along axis {axis}")
    if not replace and draws > population:
        raise ArgumentError(f"choice: cannot draw {draws} of {population} elements without replacement")
    if p is None and not replace:
        return lax.reshape(lax.slice_in_dim(permutation(data, value, dim), 0, draws, 1, dim), full_shape)
    indices = (
        randint(data, (draws,), 0, population, dtypes.index_dtype(population, dtypes.default(INT)))
        if p is None
        else _weighted(data, p, population, draws, replace, mode)
    )
    return lax.reshape(take(value, indices, dim), full_shape)


def _weighted(data: Array, p: Any, population: int, draws: int, replace: bool, mode: str | None) -> Array:
    """Sample indices with the given probabilities.

    With replacement they are found in the cumulative probabilities, else as the largest of log p plus Gumbel noise.
    """
    chances = as_value(p)
    if chances.shape != (population,):
        raise ShapeError(f"choice: p must have one probability for each of {population} elements, got shape {chances.shape}")
    if chances.dtype not in dtypes.FLOATS:
        chances = lax.convert_element_type(chances, dtypes.to_inexact(chances.dtype))
    if not replace:
        _, indices = lax.top_k(gumbel(data, (population,), chances.dtype, mode) + lax.log(chances), draws)
        return indices
    cumulative = cumsum(chances)
    return searchsorted(cumulative, cumulative[-1] * (1 - uniform(data, (draws,), chances.dtype)))
