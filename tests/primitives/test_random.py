"""`rng_bit_generator`: a counter that goes on, and bits that depend on all of the key."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, DTypeError, ShapeError


def key(*words: int) -> np.ndarray:
    """Return a key of four words."""
    return np.array(words, np.uint32)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits_differ_from_call_to_call(dtype) -> None:
    state, seen = key(1, 2, 0, 0), set()
    for _ in range(3):
        state, bits = vf.jit(lambda k: lax.rng_bit_generator(k, (40,), dtype))(state)
        assert bits.dtype == dtype and len(set(bits.tolist())) > 20
        seen.add(tuple(bits.tolist()))
    blocks = -(-40 * max(np.dtype(dtype).itemsize, 4) // 16)  # of four words, of which small numbers take one each
    assert len(seen) == 3 and state.tolist() == [1, 2, 3 * blocks, 0]


def test_every_word_matters() -> None:
    results = {tuple(lax.rng_bit_generator(key(*words), (4,))[1].tolist()) for words in np.eye(4, dtype=int)}
    assert len(results) == 4


def test_the_counter_carries() -> None:
    assert lax.rng_bit_generator(key(1, 2, 2**32 - 1, 7), (1,))[0].tolist() == [1, 2, 0, 8]


def test_bad_arguments() -> None:
    with pytest.raises(ShapeError, match=r"uint32\[4\]"):
        lax.rng_bit_generator(key(1, 2), (1,))
    with pytest.raises(DTypeError, match=r"uint32\[4\]"):
        lax.rng_bit_generator(np.zeros(4, np.int32), (1,))
    with pytest.raises(DTypeError, match="unsigned"):
        lax.rng_bit_generator(key(0, 0, 0, 0), (1,), "int32")
    with pytest.raises(ArgumentError, match="algorithm=9"):
        lax.rng_bit_generator(key(0, 0, 0, 0), (1,), algorithm=9)
