"""Arrays of random bits: element i is the cipher of the counter i.

Any slice of them can therefore be computed anywhere, in any order.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn.primitives.formulas.threefry import FEW, encipher, encipher_one

_UINT32 = np.dtype(np.uint32)

#: Counters of a block: three arrays of this size fit the second-level cache.
_BLOCK = 1 << 15


def random_bits(key_data: np.ndarray, *, shape: tuple[int, ...], bit_width: int) -> np.ndarray:
    """Return unsigned integers of `bit_width` bits, an array of `shape` for every key.

    `bit_width` is 8, 16, 32 or 64; `key_data` is uint32 [..., 2]. Element i of an array, in row-major order, comes from the counter i
    alone.
    """
    keys = key_data.reshape(-1, 2)
    size = math.prod(shape)
    out = np.empty((len(keys), size), f"u{bit_width // 8}")
    if out.size <= FEW:
        pairs = [encipher_one(key[0], key[1], 0, count) for key in keys.tolist() for count in range(size)]
        values = [first << 32 | second if bit_width == 64 else (first ^ second) & (1 << bit_width) - 1 for first, second in pairs]
        return np.array(values, out.dtype).reshape(key_data.shape[:-1] + shape)
    rows = max(1, _BLOCK // max(size, 1))
    for start in range(0, len(keys), rows):
        some = keys[start : start + rows]
        _fill(some[:, :1], some[:, 1:], out[start : start + rows])
    return out.reshape(key_data.shape[:-1] + shape)


def _fill(k1: np.ndarray, k2: np.ndarray, out: np.ndarray) -> None:
    """Fill the last axis of `out` with the counters' bits, a row per key."""
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
        encipher(k1, k2, first, second, scratch)
        _join(first, second, target)


def _join(first: np.ndarray, second: np.ndarray, out: np.ndarray) -> None:
    """Join both words to one of 64 bits, or to their exclusive or."""
    if out.dtype.itemsize == 8:
        np.left_shift(first, 32, out=out, dtype=np.uint64)
        out |= second
    else:
        first ^= second
        out[...] = first
