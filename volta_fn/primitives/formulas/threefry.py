"""The Threefry-2x32 block cipher, which defines random bits.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A key of two 32-bit words encrypts a counter of
two words to two words that look random.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from volta_fn.primitives.formulas.values import Values

V = TypeVar("V", bound=Values)

_UINT32 = np.dtype(np.uint32)
#: By how many bits each of four rounds rotates, for even and odd groups of rounds.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
GROUPS = 5
PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF

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
    first, second = (first + k1) & _MASK, (second + k2) & _MASK
    for group in range(GROUPS):
        for bits in ROTATIONS[group % 2]:
            first = (first + second) & _MASK
            second = ((second << bits) & _MASK | second >> (32 - bits)) ^ first
        first = (first + words[(group + 1) % 3]) & _MASK
        second = (second + words[(group + 2) % 3] + group + 1) & _MASK
    return first, second


def encipher(k1: np.ndarray, k2: np.ndarray, first: np.ndarray, second: np.ndarray, scratch: np.ndarray) -> None:
    """Encipher in place.

    After every fourth round the next two of the key's three words are added, with the number of the group.
    """
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


def evaluate_word(k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray, *, word: str) -> np.ndarray:
    """Return the first or second word of the cipher, or their exclusive or."""
    first, second = threefry2x32(k1, k2, x1, x2)
    return {"first": first, "second": second, "mixed": first ^ second}[word]


def threefry2x32_word(k1: V, k2: V, x1: V, x2: V, *, word: str) -> V:
    """Return a word of the cipher, over `Values`.

    It has twenty rounds of an addition, a rotation and an exclusive or; after every fourth, two of the key's three words are added.
    """
    words = (k1, k2, k1 ^ k2 ^ PARITY)
    first, second = x1 + k1, x2 + k2
    for group in range(GROUPS):
        for bits in ROTATIONS[group % 2]:
            first = first + second
            second = ((second << bits) | second.shift_right(32 - bits)) ^ first
        first = first + words[(group + 1) % 3]
        second = second + (words[(group + 2) % 3] + (group + 1))  # which is the same for all counters
    return {"first": first, "second": second}[word] if word != "mixed" else first ^ second
