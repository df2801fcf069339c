"""Threefry-2x32 against the published test vectors, and random bits against JAX's."""

from __future__ import annotations

import numpy as np
import pytest

from volta_fn.primitives.formulas.ciphers import threefry2x32
from volta_fn.targets.numpy import indexing as module
from volta_fn.targets.numpy.indexing import random_bits

#: (key, counter, cipher) of Threefry-2x32 with 20 rounds, from the authors' Random123 distribution.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]
KEY = np.array([0x13198A2E, 0x03707344], np.uint32)


@pytest.mark.parametrize("key, counter, cipher", KNOWN)
def test_published_vectors(key, counter, cipher):
    words = [np.array(word, np.uint32) for word in (*key, *counter)]
    copies = [word.copy() for word in words]
    first, second = threefry2x32(*words)
    assert (int(first), int(second)) == cipher
    assert words == copies


def test_operands_broadcast():
    k1, k2 = np.arange(6, dtype=np.uint32).reshape(2, 3, 1)
    x = np.arange(4, dtype=np.uint32)
    first, second = threefry2x32(k1, k2, x, x + np.uint32(1))
    assert first.shape == second.shape == (3, 4)
    one = threefry2x32(k1[2], k2[2], x[1], x[1] + np.uint32(1))
    assert (first[2, 1], second[2, 1]) == (one[0][0], one[1][0])


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (70_000,), (0,), (4, 0, 2)])
def test_matches_jax(width, shape):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True), jax.threefry_partitionable(True):
        expected = np.asarray(jax.random.bits(KEY, shape, f"uint{width}"))
    result = random_bits(KEY, shape=shape, bit_width=width)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_known_bits():
    assert random_bits(KEY, shape=(3,), bit_width=32).tolist() == [2416971891, 3421809153, 1892174999]


@pytest.mark.parametrize("width", [8, 32, 64])
@pytest.mark.parametrize("shape", [(), (2, 3), (20_000,), (40_000,), (0,)])
def test_an_array_of_keys_gives_what_each_key_gives(width, shape):
    keys = np.random.default_rng(0).integers(0, 2**32, (2, 2, 2), dtype=np.uint32)
    result = random_bits(keys, shape=shape, bit_width=width)
    assert result.shape == (2, 2, *shape)
    for i in np.ndindex(2, 2):
        np.testing.assert_array_equal(result[i], random_bits(keys[i], shape=shape, bit_width=width))
    assert random_bits(keys[:0], shape=shape, bit_width=width).shape == (0, 2, *shape)


def test_blocks_do_not_show(monkeypatch):
    whole = random_bits(KEY, shape=(1000,), bit_width=32)
    monkeypatch.setattr(module, "_BLOCK", 64)
    np.testing.assert_array_equal(random_bits(KEY, shape=(1000,), bit_width=32), whole)


def test_keys_in_any_memory_layout():
    keys = np.random.default_rng(1).integers(0, 2**32, (2, 5), dtype=np.uint32).T[::-1]
    np.testing.assert_array_equal(random_bits(keys, shape=(3,), bit_width=32), random_bits(keys.copy(), shape=(3,), bit_width=32))
