"""The Philox-4x32 bijection, which defines the random bits of keys of four words.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A key of two 32-bit words takes a counter of four
words to four words that look random, in ten rounds of two wide products each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from volta_fn.primitives.formulas.values import Values

V = TypeVar("V", bound=Values)

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
#: What the key's words grow by in each round.
WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


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


def evaluate_word(
    k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray, x3: np.ndarray, x4: np.ndarray, *, word: int
) -> np.ndarray:
    """Return one of the four words, by NumPy's integers of 64 bits."""
    shape = np.broadcast_shapes(*[x.shape for x in (k1, k2, x1, x2, x3, x4)])
    first, second, *counter = [np.asarray(x).astype(np.uint64) for x in (k1, k2, x1, x2, x3, x4)]
    words = _rounds(
        (first, second),
        tuple(counter),  # type: ignore[arg-type]  # four of them
        lambda x, multiplier: (x & np.uint64(_MASK)) * np.uint64(multiplier) >> np.uint64(32),
        lambda x, multiplier: (x & np.uint64(_MASK)) * np.uint64(multiplier) & np.uint64(_MASK),
    )
    return np.broadcast_to(words[word] & np.uint64(_MASK), shape).astype(np.uint32)


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
