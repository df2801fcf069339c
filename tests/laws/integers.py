"""Elementwise operations on integers and bools in Python's unbounded integers.

An oracle free of NumPy: results are wrapped to the dtype at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def _divide(x: int, y: int, bits: int) -> int:
    """Divide, rounding toward zero; -1 for a zero divisor."""
    quotient = abs(x) // abs(y) if y else -1
    return quotient if y == 0 or (x < 0) == (y < 0) else -quotient


def _remainder(x: int, y: int, bits: int) -> int:
    return x - y * _divide(x, y, bits) if y else x


def _unsigned(x: int, bits: int) -> int:
    return x % 2**bits


def _signed(x: int, bits: int) -> int:
    """Return the number whose highest bit counts as its sign."""
    return (x + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _power(x: int, y: int, bits: int) -> int:
    """Raise to a power; a negative one rounds the reciprocal toward zero (0 of 0)."""
    if y >= 0:
        return pow(x, y, 2**bits)
    return x ** (-y % 2) if abs(x) == 1 else 0


def _shifts_out(y: int, bits: int) -> bool:
    """Return True if a shift by `y` (read as unsigned) leaves none of the bits."""
    return _unsigned(y, bits) >= bits


def cipher(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Encipher by Threefry-2x32 with 20 rounds, as its authors state it."""
    mask = 2**32 - 1
    words = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + key[0]) & mask, (counter[1] + key[1]) & mask
    for number in range(20):
        bits = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x = (x + y) & mask
        y = ((y << bits) & mask | y >> (32 - bits)) ^ x
        if number % 4 == 3:
            group = number // 4 + 1
            x, y = (x + words[group % 3]) & mask, (y + words[(group + 1) % 3] + group) & mask
    return x, y


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Encipher by Philox-4x32 with 10 rounds, as its authors state it."""
    mask = 2**32 - 1
    (k0, k1), (a, b, c, d) = key, counter
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (right >> 32) ^ b ^ k0, right & mask, (left >> 32) ^ d ^ k1, left & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return a, b, c, d


def _word(first: int, second: int, word: str) -> int:
    return {"first": first, "second": second, "mixed": first ^ second}[word]


#: name -> function of Python integers and the number of bits
BY_PYTHON: dict[str, Callable[..., int]] = {
    "neg": lambda x, bits: -x,
    "add": lambda x, y, bits: x + y,
    "sub": lambda x, y, bits: x - y,
    "mul": lambda x, y, bits: x * y,
    "div": _divide,
    "rem": _remainder,
    "sign": lambda x, bits: (x > 0) - (x < 0),
    "abs": lambda x, bits: abs(x),
    "max": lambda x, y, bits: max(x, y),
    "min": lambda x, y, bits: min(x, y),
    "pow": _power,
    "philox4x32_word": lambda k1, k2, x1, x2, x3, x4, bits, word: philox((k1, k2), (x1, x2, x3, x4))[word],
    "threefry2x32_word": lambda k1, k2, x1, x2, bits, word: _word(*cipher((k1, k2), (x1, x2)), word),
    "integer_pow": lambda x, bits, y: _power(x, y, bits),
    "clamp": lambda low, x, high, bits: min(max(x, low), high),
    "eq": lambda x, y, bits: x == y,
    "ne": lambda x, y, bits: x != y,
    "lt": lambda x, y, bits: x < y,
    "le": lambda x, y, bits: x <= y,
    "gt": lambda x, y, bits: x > y,
    "ge": lambda x, y, bits: x >= y,
    "and": lambda x, y, bits: x & y,
    "or": lambda x, y, bits: x | y,
    "xor": lambda x, y, bits: x ^ y,
    "not": lambda x, bits: ~x,
    "shift_left": lambda x, y, bits: 0 if _shifts_out(y, bits) else x << _unsigned(y, bits),
    "shift_right_logical": lambda x, y, bits: 0 if _shifts_out(y, bits) else _unsigned(x, bits) >> _unsigned(y, bits),
    "shift_right_arithmetic": lambda x, y, bits: _signed(x, bits) >> min(_unsigned(y, bits), bits),
    "population_count": lambda x, bits: _unsigned(x, bits).bit_count(),
    "clz": lambda x, bits: bits - _unsigned(x, bits).bit_length(),
}


def wrapped(value: int, dtype: np.dtype) -> int | bool:
    """Wrap a Python integer as two's complement keeps it in a dtype."""
    if dtype.kind == "b":
        return bool(value & 1) if value < 0 else bool(value)
    low = value % 2 ** (8 * dtype.itemsize)
    return low - 2 ** (8 * dtype.itemsize) if dtype.kind == "i" and low >= 2 ** (8 * dtype.itemsize - 1) else low


def by_python(name: str, **params: int) -> Callable[..., np.ndarray]:
    """Return the named operation on arrays of integers or bools, in Python."""
    function = BY_PYTHON[name]

    def reference(*arrays: np.ndarray) -> np.ndarray:
        dtype = arrays[0].dtype
        bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize
        stretched = np.broadcast_arrays(*arrays)
        rows = zip(*[a.ravel().tolist() for a in stretched], strict=True)
        results = [wrapped(int(function(*map(int, row), bits=bits, **params)), dtype) for row in rows]
        return np.array(results, dtype).reshape(stretched[0].shape)

    return reference


def extremes(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Draw small integers, the dtype's bounds, and anything between."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    small = rng.integers(max(info.min, -4), 5, shape).astype(dtype)
    bounds = rng.choice(np.array([info.min, info.min + 1, info.max, info.max - 1], dtype), shape)
    anything = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    kind = rng.integers(0, 3, shape) if math.prod(shape) else np.zeros(shape, int)
    return np.select([kind == 0, kind == 1], [small, bounds], anything).astype(dtype)
