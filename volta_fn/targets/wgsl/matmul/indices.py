"""Emit arithmetic of indices: digits and offsets, as u32 modulo 2**32."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.targets.wgsl.text import Function

ZERO = "0u"


def digits(f: Function, index: str, sizes: Sequence[int]) -> list[str]:
    """Split an index into its digits for an array of these sizes.

    The first digit is not reduced.
    """
    found: list[str] = []
    for size in reversed(sizes[1:]):
        found.append(remainder(f, index, size))
        index = quotient(f, index, size)
    return [*([index] if sizes else []), *reversed(found)]


def remainder(f: Function, index: str, size: int) -> str:
    """Return index % size."""
    return ZERO if index == ZERO or size == 1 else f.let("u32", f"{index} % {size}u")


def quotient(f: Function, index: str, size: int) -> str:
    """Return index / size."""
    return index if index == ZERO or size == 1 else f.let("u32", f"{index} / {size}u")


def total(f: Function, *terms: str | int) -> str:
    """Return the sum of terms, without zeros."""
    texts = [f"{term % 2**32}u" if isinstance(term, int) else term for term in terms]
    kept = [text for text in texts if text != ZERO]
    return f.named("u32", " + ".join(kept)) if kept else ZERO


def times(index: str, stride: int) -> str:
    """Return an index times a stride, as an expression."""
    if stride == 0 or index == ZERO:
        return ZERO
    return index if stride == 1 else f"{index} * {stride % 2**32}u"


def walked(f: Function, positions: Sequence[str], strides: Sequence[int], start: int = 0) -> str:
    """Return the offset of an element, given its digits and strides."""
    return total(f, start, *[times(position, stride) for position, stride in zip(positions, strides, strict=True)])
