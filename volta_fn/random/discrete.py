"""Discrete distributions, categories, permutations, and choices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, canonical_shape
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.jit.fused import compiled
from volta_fn.numpy import cumsum, moveaxis, searchsorted, take
from volta_fn.primitives.data_movement.movement import broadcast_to, canonical_axis
from volta_fn.primitives.declare import promote_args
from volta_fn.primitives.random import random_bits, random_split
from volta_fn.random.continuous import gumbel, randint, uniform
from volta_fn.random.keys import FLOAT, INT, float_dtype, int_dtype, shape_with, single_key, split

# Discrete distributions: geometric, Poisson, binomial, multinomial.


def geometric(key: Any, p: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the number of trials of success probability `p` up to the first success.

    >>> int(vf.random.geometric(vf.random.key(0), 1.0))
    1
    """
    result_dtype = int_dtype("geometric", dtype)
    (chance,) = promote_args("geometric", (p,), dtypes.FLOATS)
    u = uniform(key, shape_with("geometric", shape, p=chance), chance.dtype)
    trials = lax.floor(lax.log(vnp.where(u == 0, 1, u)) / lax.log1p(-chance)) + 1
    return constrained(lax.convert_element_type(trials, result_dtype), out_sharding)


def poisson(key: Any, lam: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the Poisson distribution of mean `lam`, in an integer dtype (int32).

    It uses Knuth's method (the product of uniform numbers) where lam < 10, else the transformed rejection of Hörmann, "The transformed
    rejection method for generating Poisson random variables", 1993.

    >>> vf.random.poisson(vf.random.key(0), 3.0, (2, 3)).dtype
    dtype('int32')
    """
    data = single_key("poisson", key)
    result_dtype = int_dtype("poisson", dtype)
    rate = lax.convert_element_type(as_value(lam), FLOAT)
    sizes = shape_with("poisson", shape, lam=rate)
    return constrained(_poisson(data, broadcast_to(rate, sizes), result_dtype), out_sharding)


@functools.partial(compiled, static_argnums=(2,))
def _poisson(data: Array, rate: Array, dtype: np.dtype) -> Array:
    few = vnp.isnan(rate) | (rate < 10)
    rounds = dtypes.iinfo(dtype).max
    small = _poisson_by_products(data, vnp.where(few, rate, 0.0), rate.shape, dtype, rounds)
    large = _poisson_by_rejection(data, vnp.where(few, 1e5, rate), rate.shape, dtype, rounds)
    return vnp.where(rate == 0, 0, vnp.where(few, small, large))


def _poisson_by_products(data: Array, rate: Array, shape: Shape, dtype: np.dtype, rounds: int) -> Array:
    def continues(state: Any) -> Array:
        return vnp.any(state[3] > -rate) & (state[0] < rounds)

    def step(state: Any) -> Any:
        i, count, key, log_product = state
        keys = random_split(key, (2,))
        count = vnp.where(log_product > -rate, count + 1, count)
        return i + 1, count, keys[0], log_product + lax.log(uniform(keys[1], shape, FLOAT))

    start = (0, vnp.zeros(shape, dtype), data, vnp.zeros(shape, FLOAT))
    return lax.while_loop(continues, step, start)[1] - 1


def _poisson_by_rejection(data: Array, rate: Array, shape: Shape, dtype: np.dtype, rounds: int) -> Array:
    log_rate = lax.log(rate)
    b = 0.931 + 2.53 * lax.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2.0)

    def propose(u: Array, v: Array) -> tuple[Array, Array]:
        distance = 0.5 - lax.abs(u)
        k = lax.floor((2.0 * a / distance + b) * u + rate + 0.43)
        log_ratio = lax.log(v * inverse_alpha / (a / (distance * distance) + b))
        right = -rate + k * log_rate - lax.lgamma(k + 1.0)
        at_once = (distance >= 0.07) & (v <= v_r)
        never = (k < 0) | ((distance < 0.013) & (v > distance))
        return k, at_once | (~never & (log_ratio <= right))

    return lax.convert_element_type(_first_accepted(data, shape, FLOAT, rounds, propose), dtype)


def _first_accepted(
    data: Array, shape: Shape, dtype: np.dtype, rounds: Any, propose: Callable[[Array, Array], tuple[Array, Array]]
) -> Array:
    """Propose from uniforms in [-1/2, 1/2) and [0, 1) until each is accepted."""

    def step(state: Any) -> Any:
        i, count, accepted, key = state
        keys = random_split(key, (3,))
        k, accept = propose(uniform(keys[1], shape, dtype) - 0.5, uniform(keys[2], shape, dtype))
        return i + 1, vnp.where(accept, k, count), accepted | accept, keys[0]

    start = (0, vnp.full(shape, -1.0, dtype), vnp.zeros(shape, bool), data)
    return lax.while_loop(lambda s: vnp.any(~s[2]) & (s[0] < rounds), step, start)[1]


def binomial(key: Any, n: Any, p: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Array:
    """Sample the number of successes in `n` trials with probability `p`, as floats.

    They are float32 by default; NaN for n < 0 or p < 0. They come from the gaps between successes where few are expected (Devroye,
    "Non-uniform random variate generation", 1986, X.4.3), else from the transformed rejection of Hörmann, "The generation of binomial
    random variates", 1993.

    >>> vf.random.binomial(vf.random.key(0), 10, 0.5, (2, 3)).shape
    (2, 3)
    """
    data = single_key("binomial", key)
    result_dtype = float_dtype("binomial", dtype)
    (chance,) = promote_args("binomial", (p,), dtypes.FLOATS)
    trials = lax.convert_element_type(as_value(n), chance.dtype)
    sizes = shape_with("binomial", shape, n=trials, p=chance)
    return _binomial(data, broadcast_to(trials, sizes), broadcast_to(chance, sizes), result_dtype)


@functools.partial(compiled, static_argnums=(3,))
def _binomial(data: Array, trials: Array, chance: Array, dtype: np.dtype) -> Array:
    rarer = chance < 0.5
    q = vnp.where(rarer, chance, 1.0 - chance)
    no_trials, no_chance = vnp.isnan(trials) | (trials < 0), vnp.isnan(q) | (q < 0)
    infinite = vnp.isinf(trials)
    q = vnp.where(no_chance, 0.01, lax.abs(q))  # gaps by -0.0 would lead backward
    few = no_trials | infinite | (trials * q <= 10.0)
    trials = lax.floor(trials)
    rounds = dtypes.finfo(dtype).max
    gaps = _binomial_by_gaps(data, vnp.where(few & ~infinite, trials, 0.0), q, trials.shape, dtype, rounds)
    rejection = _binomial_by_rejection(data, vnp.where(few, 1e4, trials), vnp.where(few, 0.5, q), trials.shape, dtype, rounds)
    invalid = no_trials | no_chance
    out = vnp.where(few, gaps, rejection)
    out = vnp.where(invalid, np.nan, vnp.where(infinite, np.inf, out))
    mirrored = ~(rarer | invalid | infinite)
    return vnp.where(mirrored, lax.convert_element_type(trials, dtype) - out, out)


def _binomial_by_gaps(data: Array, trials: Array, chance: Array, shape: Shape, dtype: np.dtype, rounds: Any) -> Array:
    log_failure = lax.log1p(-chance)

    def step(state: Any) -> Any:
        i, count, trial, key = state
        keys = random_split(key, (2,))
        count = vnp.where(trial <= trials, count + 1, count)
        gap = lax.ceil(lax.log(uniform(keys[0], shape, chance.dtype)) / log_failure)
        return i + 1, count, trial + gap, keys[1]

    start = (0, vnp.zeros(shape, chance.dtype), vnp.zeros(shape, chance.dtype), data)
    count = lax.while_loop(lambda s: vnp.any(s[2] <= trials) & (s[0] < rounds), step, start)[1]
    return lax.convert_element_type(count - 1, dtype)


#: log k! - ((k + 1/2) log(k + 1) - (k + 1) + log(2 pi)/2) for k = 0, …, 9, Stirling's error.
_STIRLING_ERROR = np.array(
    [
        0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211, 0.0138761288230707,
        0.0118967099458917, 0.010411265261972, 0.00925546218271273, 0.00833056343336287,
    ]
)  # fmt: skip


def _stirling_error(k: Array) -> Array:
    inside = lax.clamp(k.dtype.type(0), k, k.dtype.type(9))
    square = (inside + 1.0) * (inside + 1.0)
    series = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / (inside + 1.0)
    table = vnp.asarray(_STIRLING_ERROR.astype(k.dtype))
    return vnp.where(k <= 9, table[lax.convert_element_type(lax.floor(inside), np.int32)], series)


def _binomial_by_rejection(data: Array, trials: Array, chance: Array, shape: Shape, dtype: np.dtype, rounds: Any) -> Array:
    deviation = lax.sqrt(trials * chance * (1.0 - chance))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * chance
    c = trials * chance + 0.5
    v_r = 0.92 - 4.2 / b
    odds = chance / (1.0 - chance)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = lax.floor((trials + 1.0) * chance)

    def propose(u: Array, v: Array) -> tuple[Array, Array]:
        distance = 0.5 - lax.abs(u)
        at_once = (distance >= 0.07) & (v <= v_r)
        k = lax.floor((2.0 * a / distance + b) * u + c)
        log_ratio = lax.log(v * alpha / (a / (distance * distance) + b))
        right = (
            (mode + 0.5) * lax.log((mode + 1.0) / (odds * (trials - mode + 1.0)))
            + (trials + 1.0) * lax.log((trials - mode + 1.0) / (trials - k + 1.0))
            + (k + 0.5) * lax.log(odds * (trials - k + 1.0) / (k + 1.0))
            + _stirling_error(mode)
            + _stirling_error(trials - mode)
            - _stirling_error(k)
            - _stirling_error(trials - k)
        )
        never = (k < 0) | (k > trials)
        return k, at_once | (~never & (log_ratio <= right))

    return lax.convert_element_type(_first_accepted(data, shape, chance.dtype, rounds, propose), dtype)


def multinomial(key: Any, n: Any, p: Any, *, shape: Sequence[int] | None = None, dtype: Any = None, unroll: int | bool = 1) -> Array:
    """Sample how often each of several outcomes happens in `n` trials, as floats.

    Args:
        key: a key.
        n: the number of trials; broadcasts to the shape without its last dimension.
        p: the probabilities of the outcomes, along the last dimension.
        shape: the result's shape, to which `p` broadcasts; by default that of `p`.
        dtype: a floating dtype (float32).
        unroll: how many iterations of the loop over outcomes to unroll, see `lax.scan`.

    >>> vf.random.multinomial(vf.random.key(0), 10.0, vf.numpy.array([0.2, 0.8])).sum()
    Array(10., dtype=float32)
    """
    trials, chances = promote_args("multinomial", (n, p), dtypes.FLOATS)
    result_dtype = float_dtype("multinomial", dtype)
    sizes = chances.shape if shape is None else canonical_shape(shape)
    trials, chances = broadcast_to(trials, sizes[:-1]), vnp.moveaxis(broadcast_to(chances, sizes), -1, 0)
    rest = lax.cumsum(chances, 0, reverse=True)
    ratios = chances / vnp.where(rest == 0, 1.0, rest)

    def step(remaining: Array, inputs: Any) -> tuple[Array, Array]:
        ratio, key = inputs
        count = binomial(key, remaining, vnp.clip(ratio, 0.0, 1.0), dtype=remaining.dtype)
        return remaining - count, count

    _, counts = lax.scan(step, trials, (ratios, split(key, ratios.shape[0])), unroll=unroll)
    return lax.convert_element_type(vnp.moveaxis(counts, 0, -1), result_dtype)


# Categories by their logits, permutations, samples with and without replacement.


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
    if (trailing := sizes[len(prefix) :]) != batch:
        if len(trailing) != len(batch) or any(m not in (1, n) for m, n in zip(batch, trailing, strict=True)):
            raise ShapeError(f"categorical: shape {sizes} must end with what {batch} broadcasts to, that of the logits without axis {axis}")
        weights = broadcast_to(weights, (*trailing[:dim], weights.shape[dim], *trailing[dim:]))
    if not replace:
        count = math.prod(prefix)
        if count > weights.shape[dim]:
            raise ArgumentError(f"categorical: cannot draw {count} of {weights.shape[dim]} categories without replacement")
        noisy = weights + gumbel(data, weights.shape, weights.dtype, mode)
        _, indices = lax.top_k(moveaxis(noisy, dim, -1), count)
        return constrained(lax.reshape(moveaxis(indices, -1, 0), (*prefix, *indices.shape[:-1])), out_sharding)
    noise = gumbel(data, (*prefix, *weights.shape), weights.dtype, mode)
    return constrained(lax.argmax(noise + weights, len(prefix) + dim, dtypes.default(INT)), out_sharding)


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
    """Sample indices with the given probabilities."""
    # With replacement they are found in the cumulative probabilities, else as the largest of log p plus Gumbel noise.
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
