"""The implementations of random keys, by the names of `jax.extend.random`.

Each is the name of an algorithm together with its keys' shape: `key(seed, impl=implementation.name)` makes keys of it. Programs define
none of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NewType

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.primitives.random import PHILOX_WORDS, threefry2x32
from volta_fn.random.keys import RBG, THREEFRY, UNSAFE_RBG, PRNGKeyArray, key


class PRNGImpl(NamedTuple):
    """An algorithm's name, the shape of a key's words, and its name in dtypes."""

    name: str
    key_shape: tuple[int, ...]
    tag: str


#: The type of keys, for annotations.
Key = NewType("Key", PRNGKeyArray)

threefry_prng_impl = PRNGImpl(THREEFRY, (2,), "fry")
rbg_prng_impl = PRNGImpl(RBG, (PHILOX_WORDS,), "rbg")
unsafe_rbg_prng_impl = PRNGImpl(UNSAFE_RBG, (PHILOX_WORDS,), "urbg")


def seed_with_impl(impl: PRNGImpl, seed: Any) -> PRNGKeyArray:
    """Return the key of an implementation for a seed.

    >>> seed_with_impl(rbg_prng_impl, 0).dtype.name
    'key<rbg>'
    """
    return key(seed, impl=impl.name)


def random_seed(seeds: Any, impl: PRNGImpl) -> PRNGKeyArray:
    """Return an array of keys, one for each seed.

    Raises `ArgumentError` for an array without seeds.

    >>> random_seed(jnp.arange(3), threefry_prng_impl).shape
    (3,)
    """
    numbers = seeds if isinstance(seeds, int) else as_value(seeds)
    if isinstance(numbers, int) or not numbers.ndim:
        return key(numbers, impl=impl.name)
    if not numbers.size:
        raise ArgumentError(f"random_seed: there must be a seed for each key, got the shape {numbers.shape}")
    keys = [key(number, impl=impl.name) for number in numbers.ravel()]
    stacked = vnp.stack([k._data for k in keys]).reshape(*numbers.shape, *impl.key_shape)
    return PRNGKeyArray(stacked, impl.name)


def threefry_2x32(keypair: Any, count: Any) -> Array:
    """Encipher the numbers of a uint32 array by Threefry with a key of two words.

    The first half of the elements is enciphered with the second, after a zero where their number is odd. Raises `ArgumentTypeError` for
    other dtypes.

    >>> [hex(word) for word in threefry_2x32((jnp.uint32(0), jnp.uint32(0)), jnp.zeros(2, "uint32"))]
    ['0x6b200159', '0x99ba4efe']
    """
    first_key, second_key = (as_value(word) for word in keypair)
    counts = as_value(count)
    if {a.dtype for a in (first_key, second_key, counts)} != {np.dtype(np.uint32)}:
        raise ArgumentTypeError(f"threefry_2x32 enciphers uint32 numbers, got {first_key.dtype}, {second_key.dtype} and {counts.dtype}")
    is_odd = counts.size % 2
    numbers = vnp.concatenate([counts.ravel(), vnp.zeros(is_odd, "uint32")]).reshape(2, -1)
    words = vnp.concatenate(threefry2x32(first_key, second_key, numbers[0], numbers[1]))
    return words[: counts.size].reshape(counts.shape)
