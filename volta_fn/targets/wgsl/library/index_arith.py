"""Whole numbers in shaders, as texts of type u32: what shapes decide is folded, and sizes are literals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from volta_fn.targets.wgsl.text import Function


def times(x: str, number: int) -> str:
    """x * number."""
    if number == 0 or x == "0u":
        return "0u"
    return x if number == 1 else f"({x} * {number}u)"


def plus(*terms: str) -> str:
    """The sum."""
    kept = [x for x in terms if x != "0u"]
    return kept[0] if len(kept) == 1 else f"({' + '.join(kept)})" if kept else "0u"


def quotient(x: str, number: int) -> str:
    """x // number."""
    return x if number == 1 else f"({x} / {number}u)"


def remainder(x: str, number: int) -> str:
    """x % number."""
    return "0u" if number == 1 else f"({x} % {number}u)"


def dotted(indices: Sequence[str], strides: Sequence[int]) -> str:
    """The sum of indices times strides."""
    return plus(*[times(i, s) for i, s in zip(indices, strides, strict=True)])


def coordinates(f: Function, number: str, sizes: Sequence[int]) -> list[str]:
    """The coordinates of an element by its number in row-major order."""
    found = []
    for d, size in enumerate(sizes):
        whole = quotient(number, math.prod(sizes[d + 1 :]))
        found.append(f.named("u32", remainder(whole, size) if d else whole))
    return found
