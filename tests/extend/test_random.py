"""Implementations of random keys by the names of `jax.extend.random`, against JAX."""

from __future__ import annotations

import jax.extend.random as theirs
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.extend import random


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_words_are_those_of_jax(count: int) -> None:
    pair, counts = np.array([3, 2**31 + 5], np.uint32), np.arange(count, dtype=np.uint32)
    np.testing.assert_array_equal(random.threefry_2x32(pair, jnp.asarray(counts)), theirs.threefry_2x32(pair, counts))


def test_words_of_other_dtypes_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="uint32"):
        random.threefry_2x32(np.zeros(2, np.uint32), jnp.zeros(2))


def test_keys_of_an_implementation() -> None:
    for impl in (random.threefry_prng_impl, random.rbg_prng_impl, random.unsafe_rbg_prng_impl):
        key = random.seed_with_impl(impl, 7)
        np.testing.assert_array_equal(vf.random.key_data(key), vf.random.key_data(vf.random.key(7, impl=impl.name)))
        assert vf.random.key_data(key).shape == impl.key_shape and key.dtype.name == f"key<{impl.tag}>"
    keys = random.random_seed(jnp.arange(6).reshape(2, 3), random.threefry_prng_impl)
    assert keys.shape == (2, 3)
    np.testing.assert_array_equal(vf.random.key_data(keys[1, 0]), vf.random.key_data(vf.random.key(3)))
    np.testing.assert_array_equal(
        vf.random.key_data(random.random_seed(3, random.threefry_prng_impl)), vf.random.key_data(vf.random.key(3))
    )
    with pytest.raises(ArgumentError, match="a seed"):
        random.random_seed(jnp.zeros((0,), int), random.threefry_prng_impl)
