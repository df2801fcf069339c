"""Random bits from counters: the Threefry-2x32 block cipher, vectorised.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A key of two 32-bit words turns a counter of
two words into two words that look random; since element i of an array is the cipher of the counter i, any part of it can be made
anywhere, in any order.
"""

from __future__ import annotations

import math

import numpy as np

_UINT32 = np.dtype(np.uint32)
#: By how many bits each of four rounds rotates, for even and odd groups of rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF

#: Counters of a block: three arrays of this size fit the second-level cache.
_BLOCK = 1 << 15
#: Up to so many counters Python's integers are faster than a hundred calls of NumPy.
_FEW = 12


def threefry2x32(k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cipher of the counters (x1, x2) under the keys (k1, k2); uint32 arrays that broadcast, two of the common shape out."""
    shape = np.broadcast_shapes(k1.shape, k2.shape, x1.shape, x2.shape)
    if math.prod(shape) <= _FEW:
        columns = [np.broadcast_to(word, shape).ravel().tolist() for word in (k1, k2, x1, x2)]
        pairs = [_encipher_one(*words) for words in zip(*columns, strict=True)]
        whole = np.array(pairs, _UINT32).reshape(*shape, 2)
        return whole[..., 0], whole[..., 1]
    first, second = np.empty(shape, _UINT32), np.empty(shape, _UINT32)
    first[...] = x1
    second[...] = x2
    _encipher(k1, k2, first, second, np.empty(shape, _UINT32))
    return first, second


def _encipher_one(k1: int, k2: int, first: int, second: int) -> tuple[int, int]:
    """The cipher of one counter, in Python's integers."""
    words = (k1, k2, k1 ^ k2 ^ _PARITY)
    first, second = (first + k1) & _MASK, (second + k2) & _MASK
    for group in range(_GROUPS):
        for bits in _ROTATIONS[group % 2]:
            first = (first + second) & _MASK
            second = ((second << bits) & _MASK | second >> (32 - bits)) ^ first
        first = (first + words[(group + 1) % 3]) & _MASK
        second = (second + words[(group + 2) % 3] + group + 1) & _MASK
    return first, second


def _encipher(k1: np.ndarray, k2: np.ndarray, first: np.ndarray, second: np.ndarray, scratch: np.ndarray) -> None:
    """The cipher in place. After every fourth round the next two of the key's three words are added, with the number of the group."""
    words = (k1, k2, k1 ^ k2 ^ np.uint32(_PARITY))
    first += words[0]
    second += words[1]
    for group in range(_GROUPS):
        for bits in _ROTATIONS[group % 2]:
            first += second
            np.right_shift(second, 32 - bits, out=scratch)
            np.left_shift(second, bits, out=second)
            second |= scratch
            second ^= first
        first += words[(group + 1) % 3]
        second += words[(group + 2) % 3] + np.uint32(group + 1)


def random_bits(key_data: np.ndarray, *, shape: tuple[int, ...], bit_width: int) -> np.ndarray:
    """Unsigned integers of `bit_width` bits (8, 16, 32 or 64), an array of `shape` for every key in `key_data` (uint32, [..., 2]).

    Element i of an array, in row-major order, comes from the counter i alone.
    """
    keys = key_data.reshape(-1, 2)
    size = math.prod(shape)
    out = np.empty((len(keys), size), f"u{bit_width // 8}")
    if out.size <= _FEW:
        pairs = [_encipher_one(key[0], key[1], 0, count) for key in keys.tolist() for count in range(size)]
        values = [first << 32 | second if bit_width == 64 else (first ^ second) & (1 << bit_width) - 1 for first, second in pairs]
        return np.array(values, out.dtype).reshape(key_data.shape[:-1] + shape)
    rows = max(1, _BLOCK // max(size, 1))
    for start in range(0, len(keys), rows):
        part = keys[start : start + rows]
        _fill(part[:, :1], part[:, 1:], out[start : start + rows])
    return out.reshape(key_data.shape[:-1] + shape)


def _fill(k1: np.ndarray, k2: np.ndarray, out: np.ndarray) -> None:
    """Fill the last axis of `out` with the bits of the counters 0, 1, …, in blocks; a row per key."""
    length = min(out.shape[-1], _BLOCK)
    counts = np.arange(length, dtype=_UINT32)
    blocks = [np.empty((*out.shape[:-1], length), _UINT32) for _ in range(3)]
    for start in range(0, out.shape[-1], _BLOCK):
        target = out[..., start : start + _BLOCK]
        first, second, scratch = (block[..., : target.shape[-1]] for block in blocks)
        # A block starts at a multiple of a power of two, so the upper word does not change within it.
        high, low = divmod(start, 1 << 32)
        first[...] = high
        np.add(counts[: target.shape[-1]], np.uint32(low), out=second)
        _encipher(k1, k2, first, second, scratch)
        _join(first, second, target)


def _join(first: np.ndarray, second: np.ndarray, out: np.ndarray) -> None:
    """Both words as one of 64 bits, or their exclusive or as one of fewer bits."""
    if out.dtype.itemsize == 8:
        np.left_shift(first, 32, out=out, dtype=np.uint64)
        out |= second
    else:
        first ^= second
        out[...] = first
