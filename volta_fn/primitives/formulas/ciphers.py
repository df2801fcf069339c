"""Block ciphers that define random bits: Threefry-2x32 and Philox-4x32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from volta_fn.primitives.formulas.values import Values

# The Threefry-2x32 block cipher, which defines random bits.
#
# Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A key of two 32-bit words encrypts a counter of
# two words to two words that look random.

V = TypeVar("V", bound=Values)

_UINT32 = np.dtype(np.uint32)
#: By how many bits each of four rounds rotates, for even and odd groups of rounds.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
GROUPS = 5
PARITY = 0x1BD11BDA
_THREEFRY_MASK = 0xFFFFFFFF

#: The most counters for which Python's integers are faster than a hundred calls of NumPy.
FEW = 12


def threefry2x32(k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encipher the counters (x1, x2) under the keys (k1, k2).

    They are uint32 arrays that broadcast; the result is two arrays of the common shape.
    """
    shape = np.broadcast_shapes(k1.shape, k2.shape, x1.shape, x2.shape)
    if math.prod(shape) <= FEW:
        columns = [np.broadcast_to(word, shape).ravel().tolist() for word in (k1, k2, x1, x2)]
        pairs = [encipher_one(*words) for words in zip(*columns, strict=True)]
        words_of_all = np.array(pairs, _UINT32).reshape(*shape, 2)
        return words_of_all[..., 0], words_of_all[..., 1]
    first, second = np.empty(shape, _UINT32), np.empty(shape, _UINT32)
    first[...] = x1
    second[...] = x2
    encipher(k1, k2, first, second, np.empty(shape, _UINT32))
    return first, second


def encipher_one(k1: int, k2: int, first: int, second: int) -> tuple[int, int]:
    """Encipher one counter, in Python's integers."""
    words = (k1, k2, k1 ^ k2 ^ PARITY)
    first, second = (first + k1) & _THREEFRY_MASK, (second + k2) & _THREEFRY_MASK
    for group in range(GROUPS):
        for bits in ROTATIONS[group % 2]:
            first = (first + second) & _THREEFRY_MASK
            second = ((second << bits) & _THREEFRY_MASK | second >> (32 - bits)) ^ first
        first = (first + words[(group + 1) % 3]) & _THREEFRY_MASK
        second = (second + words[(group + 2) % 3] + group + 1) & _THREEFRY_MASK
    return first, second


def encipher(k1: np.ndarray, k2: np.ndarray, first: np.ndarray, second: np.ndarray, scratch: np.ndarray) -> None:
    """Encipher in place."""
    # After every fourth round the next two of the key's three words are added, with the number of the group.
    words = (k1, k2, k1 ^ k2 ^ np.uint32(PARITY))
    first += words[0]
    second += words[1]
    for group in range(GROUPS):
        for bits in ROTATIONS[group % 2]:
            first += second
            np.right_shift(second, 32 - bits, out=scratch)
            np.left_shift(second, bits, out=second)
            second |= scratch
            second ^= first
        first += words[(group + 1) % 3]
        second += words[(group + 2) % 3] + np.uint32(group + 1)


def evaluate_threefry_word(k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray, *, word: str) -> np.ndarray:
    """Return the first or second word of the cipher, or their exclusive or."""
    first, second = threefry2x32(k1, k2, x1, x2)
    return {"first": first, "second": second, "mixed": first ^ second}[word]


def threefry2x32_word(k1: V, k2: V, x1: V, x2: V, *, word: str) -> V:
    """Return a word of the cipher, over `Values`."""
    # It has twenty rounds of an addition, a rotation and an exclusive or; after every fourth, two of the key's three words are added.
    words = (k1, k2, k1 ^ k2 ^ PARITY)
    first, second = x1 + k1, x2 + k2
    for group in range(GROUPS):
        for bits in ROTATIONS[group % 2]:
            first = first + second
            second = ((second << bits) | second.shift_right(32 - bits)) ^ first
        first = first + words[(group + 1) % 3]
        second = second + (words[(group + 2) % 3] + (group + 1))  # which is the same for all counters
    return {"first": first, "second": second}[word] if word != "mixed" else first ^ second


# The Philox-4x32 bijection, which defines the random bits of keys of four words.
#
# Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A key of two 32-bit words takes a counter of four
# words to four words that look random, in ten rounds of two wide products each.

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
#: The increments of the key's words in each round.
WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_MASK = 0xFFFFFFFF


def _rounds(
    key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any], high: Callable[[Any, int], Any], low: Callable[[Any, int], Any]
) -> Any:
    """Apply the rounds; `high` and `low` give the halves of a product."""
    (first, second), (a, b, c, d) = key, counter
    for _ in range(ROUNDS):
        a, b, c, d = (
            high(c, MULTIPLIERS[1]) ^ b ^ first,
            low(c, MULTIPLIERS[1]),
            high(a, MULTIPLIERS[0]) ^ d ^ second,
            low(a, MULTIPLIERS[0]),
        )
        first, second = first + WEYL[0], second + WEYL[1]
    return a, b, c, d


def evaluate_philox_word(
    k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray, x3: np.ndarray, x4: np.ndarray, *, word: int
) -> np.ndarray:
    """Return one of the four words, by NumPy's integers of 64 bits."""
    shape = np.broadcast_shapes(*[x.shape for x in (k1, k2, x1, x2, x3, x4)])
    first, second, *counter = [np.asarray(x).astype(np.uint64) for x in (k1, k2, x1, x2, x3, x4)]
    words = _rounds(
        (first, second),
        tuple(counter),  # type: ignore[arg-type]  # four of them
        lambda x, multiplier: (x & np.uint64(_PHILOX_MASK)) * np.uint64(multiplier) >> np.uint64(32),
        lambda x, multiplier: (x & np.uint64(_PHILOX_MASK)) * np.uint64(multiplier) & np.uint64(_PHILOX_MASK),
    )
    return np.broadcast_to(words[word] & np.uint64(_PHILOX_MASK), shape).astype(np.uint32)


def philox4x32_word(k1: V, k2: V, x1: V, x2: V, x3: V, x4: V, *, word: int) -> V:
    """Return one of the four words, over `Values` of 32 bits."""
    return _rounds((k1, k2), (x1, x2, x3, x4), _high, lambda x, multiplier: x * multiplier)[word]


def _high(x: V, multiplier: int) -> V:
    """Return the upper half of a product, from products of 16-bit halves."""
    upper, lower = multiplier >> 16, multiplier & 0xFFFF
    x_upper, x_lower = x.shift_right(16), x & 0xFFFF
    middle = (x_lower * lower).shift_right(16) + x_upper * lower
    other = (middle & 0xFFFF) + x_lower * upper
    return x_upper * upper + middle.shift_right(16) + other.shift_right(16)
