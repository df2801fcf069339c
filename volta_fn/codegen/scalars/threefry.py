"""The Threefry-2x32 cipher over values with operators (see `volta_fn.primitives.scalar_functions.threefry`)."""

from __future__ import annotations

from typing import TypeVar

from volta_fn.codegen.scalars.values import Values
from volta_fn.primitives.scalar_functions.threefry import GROUPS, PARITY, ROTATIONS

V = TypeVar("V", bound=Values)


def threefry2x32_word(k1: V, k2: V, x1: V, x2: V, *, word: str) -> V:
    """Twenty rounds of an addition, a rotation and an exclusive or; after every fourth, two of the key's three words are added."""
    words = (k1, k2, k1 ^ k2 ^ PARITY)
    first, second = x1 + k1, x2 + k2
    for group in range(GROUPS):
        for bits in ROTATIONS[group % 2]:
            first = first + second
            second = ((second << bits) | second.shift_right(32 - bits)) ^ first
        first = first + words[(group + 1) % 3]
        second = second + words[(group + 2) % 3] + (group + 1)
    return {"first": first, "second": second}[word] if word != "mixed" else first ^ second
