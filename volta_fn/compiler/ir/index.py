"""Affine index arithmetic: which element of an array a turn of a loop touches.

A loop has *axes*, numbered, of known sizes. An `Affine` is a whole number that depends on the turn: ``offset + Σ coefficient · axis``.
An *index* is one `Affine` per dimension of an array. Views of arrays (transpose, slice, reverse, reshape, …) turn indices into indices;
a reshape may need a loop axis to be split in two first, which it asks for by raising `SplitAxis`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from volta_fn.core.aval import Shape


class Affine(NamedTuple):
    """``offset + Σ coefficient · axis``; terms are (axis, coefficient), sorted by axis, without zeros."""

    terms: tuple[tuple[int, int], ...]
    offset: int

    @property
    def axes(self) -> frozenset[int]:
        """The axes that it depends on."""
        return frozenset(axis for axis, _ in self.terms)

    def plus(self, offset: int) -> Affine:
        """The sum with a number."""
        return Affine(self.terms, self.offset + offset) if offset else self

    def times(self, factor: int) -> Affine:
        """The product with a number."""
        return combine([(factor, self)]) if factor != 1 else self

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """The least and greatest value over a loop of the given sizes (of at least one turn)."""
        ends = [c * (sizes[axis] - 1) for axis, c in self.terms]
        return self.offset + sum(min(e, 0) for e in ends), self.offset + sum(max(e, 0) for e in ends)

    def replaced(self, axes: Mapping[int, Affine]) -> Affine:
        """The same number with some axes written in terms of others."""
        return combine([(1, ZERO.plus(self.offset)), *[(c, axes.get(axis, along(axis))) for axis, c in self.terms]])


Index = tuple[Affine, ...]

ZERO = Affine((), 0)


def along(axis: int) -> Affine:
    """The number of the turn along an axis."""
    return Affine(((axis, 1),), 0)


def combine(parts: Iterable[tuple[int, Affine]]) -> Affine:
    """``Σ factor · affine``."""
    total: dict[int, int] = {}
    offset = 0
    for factor, affine in parts:
        offset += factor * affine.offset
        for axis, c in affine.terms:
            total[axis] = total.get(axis, 0) + factor * c
    return Affine(tuple(sorted((axis, c) for axis, c in total.items() if c)), offset)


class Range(NamedTuple):
    """The condition ``low <= value < high``."""

    value: Affine
    low: int
    high: int

    def holds(self, sizes: Sequence[int]) -> bool | None:
        """True or False if it is so in every turn of the loop, else None."""
        least, greatest = self.value.bounds(sizes)
        if self.low <= least and greatest < self.high:
            return True
        return False if greatest < self.low or least >= self.high else None

    def canonical(self) -> Range:
        """The same condition with the value free of an offset, a common factor and a leading minus."""
        if not self.value.terms:
            return self
        factor = math.gcd(*[c for _, c in self.value.terms])
        low, high = -((self.value.offset - self.low) // factor), -((self.value.offset - self.high) // factor)
        terms = [(axis, c // factor) for axis, c in self.value.terms]
        if terms[0][1] < 0:
            low, high = 1 - high, 1 - low
            terms = [(axis, -c) for axis, c in terms]
        return Range(Affine(tuple(terms), 0), low, high)


class SplitAxis(Exception):
    """An index becomes affine if the loop axis is split into an outer part and an inner part of size `inner`."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(f"axis {axis} needs an inner part of size {inner}")
        self.axis = axis
        self.inner = inner


class NotAffine(Exception):
    """An index that is not affine, however the loop axes are split: the array must be materialised."""


def split(sizes: Sequence[int], request: SplitAxis) -> tuple[tuple[int, ...], dict[int, Affine]]:
    """The sizes after splitting an axis in place, and what every old axis from there on is in terms of the new ones."""
    axis, inner = request.axis, request.inner
    new = (*sizes[:axis], sizes[axis] // inner, inner, *sizes[axis + 1 :])
    moved = {k: along(k + 1) for k in range(axis + 1, len(sizes))}
    return new, {axis: combine([(inner, along(axis)), (1, along(axis + 1))]), **moved}


def loop_over(shape: tuple[int, ...]) -> tuple[tuple[int, ...], Index]:
    """The axes of a loop over an array, one per dimension that has not just one element, and the index in it."""
    wide = [d for d, n in enumerate(shape) if n != 1]
    return tuple([shape[d] for d in wide]), tuple([along(wide.index(d)) if d in wide else ZERO for d in range(len(shape))])


def broadcast_index(index: Index, shape: Shape) -> Index:
    """The index of an operand of `shape` that broadcasts, by NumPy's rule, to the array that `index` is of."""
    aligned = index[len(index) - len(shape) :]
    return tuple([ZERO if n == 1 else i for i, n in zip(aligned, shape, strict=True)])


def reshaped(index: Index, old: Shape, new: Shape, sizes: Sequence[int]) -> Index:
    """The index of the same element after a reshape of the array (which is not empty) from shape `old` to `new`.

    Raises `SplitAxis` or `NotAffine`.
    """
    result: list[Affine] = []
    for old_block, new_block in _blocks(old, new):
        flat = combine((math.prod(old[d + 1 : old_block.stop]), index[d]) for d in old_block)
        result += _unflattened(flat, [new[d] for d in new_block], sizes)
    return tuple(result)


def _blocks(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """The finest cuts of both shapes into ranges of dimensions with the same number of elements."""
    blocks: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        left, right = 1, 1
        i, left = (i + 1, old[i]) if i < len(old) else (i, 1)
        j, right = (j + 1, new[j]) if j < len(new) else (j, 1)
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        blocks.append((range(first_i, i), range(first_j, j)))
    return blocks


def _unflattened(flat: Affine, shape: Sequence[int], sizes: Sequence[int]) -> list[Affine]:
    """The index in an array of `shape` of the element with the row-major number `flat`."""
    result = [ZERO] * len(shape)
    wide = [d for d, n in enumerate(shape) if n != 1]
    for d in reversed(wide[1:]):
        flat, result[d] = _divided(flat, shape[d], sizes)
    if wide:
        result[wide[0]] = flat
    return result


def _divided(value: Affine, divisor: int, sizes: Sequence[int]) -> tuple[Affine, Affine]:
    """Quotient and remainder of a division."""
    quotient = Affine(tuple([(axis, c // divisor) for axis, c in value.terms if c % divisor == 0]), value.offset // divisor)
    rest = Affine(tuple([(axis, c) for axis, c in value.terms if c % divisor]), value.offset % divisor)
    if Range(rest, 0, divisor).holds(sizes):
        return quotient, rest
    for axis, c in rest.terms:
        inner = divisor // abs(c)
        if inner * abs(c) == divisor and sizes[axis] > inner and sizes[axis] % inner == 0:
            raise SplitAxis(axis, inner)
    raise NotAffine
