"""Affine index arithmetic: the array element that an iteration of a loop touches.

A loop has *axes*, numbered, of known sizes. An `Affine` is an integer that depends on the iteration: ``offset + Σ coefficient · axis``. An
*index* is one `Affine` per dimension of an array. Views of arrays (transpose, slice, reverse, reshape, …) map indices to indices; a
reshape may need a loop axis to be split in two first, which it asks for by raising `SplitAxis`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from volta_fn.core.aval import Shape


class Affine(NamedTuple):
    """``offset + Σ coefficient · axis``.

    Terms are pairs (axis, coefficient), sorted by axis, without zeros.
    """

    terms: tuple[tuple[int, int], ...]
    offset: int

    @property
    def axes(self) -> frozenset[int]:
        """The axes that it depends on."""
        return frozenset(axis for axis, _ in self.terms)

    def plus(self, offset: int) -> Affine:
        """Add a number."""
        return Affine(self.terms, self.offset + offset) if offset else self

    def times(self, factor: int) -> Affine:
        """Multiply by a number."""
        return combine([(factor, self)]) if factor != 1 else self

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Return the least and greatest value over a loop of these sizes."""
        ends = [c * (sizes[axis] - 1) for axis, c in self.terms]
        return self.offset + sum(min(e, 0) for e in ends), self.offset + sum(max(e, 0) for e in ends)

    def replaced(self, axes: Mapping[int, Affine]) -> Affine:
        """Write some axes in terms of others."""
        return combine([(1, ZERO.plus(self.offset)), *[(c, axes.get(axis, along(axis))) for axis, c in self.terms]])


Index = tuple[Affine, ...]

ZERO = Affine((), 0)


def along(axis: int) -> Affine:
    """Return the iteration number along an axis."""
    return Affine(((axis, 1),), 0)


def combine(terms: Iterable[tuple[int, Affine]]) -> Affine:
    """Return ``Σ factor · affine``."""
    total: dict[int, int] = {}
    offset = 0
    for factor, affine in terms:
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
        """Return its truth if that is the same in every iteration of the loop, else None."""
        least, greatest = self.value.bounds(sizes)
        if self.low <= least and greatest < self.high:
            return True
        return False if greatest < self.low or least >= self.high else None

    def canonical(self) -> Range:
        """Return the condition on a value without offset, common factor or leading minus."""
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
    """Asks to split a loop axis, so that its fast axis has size `inner`."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(f"axis {axis} needs an inner axis of size {inner}")
        self.axis = axis
        self.inner = inner


class NotAffine(Exception):
    """An index that is not affine, however axes are split: the array must be stored."""


def split(sizes: Sequence[int], request: SplitAxis) -> tuple[tuple[int, ...], dict[int, Affine]]:
    """Return the sizes after splitting an axis, and the old axes in terms of the new."""
    axis, inner = request.axis, request.inner
    new = (*sizes[:axis], sizes[axis] // inner, inner, *sizes[axis + 1 :])
    moved = {k: along(k + 1) for k in range(axis + 1, len(sizes))}
    return new, {axis: combine([(inner, along(axis)), (1, along(axis + 1))]), **moved}


def loop_over(shape: tuple[int, ...]) -> tuple[tuple[int, ...], Index]:
    """Return the axes of a loop over an array, and the index in it.

    There is one axis per dimension of more than one element.
    """
    wide = [d for d, n in enumerate(shape) if n != 1]
    return tuple([shape[d] for d in wide]), tuple([along(wide.index(d)) if d in wide else ZERO for d in range(len(shape))])


def broadcast_index(index: Index, shape: Shape) -> Index:
    """Return the index of an operand of `shape` that broadcasts to the indexed array."""
    aligned = index[len(index) - len(shape) :]
    return tuple([ZERO if n == 1 else i for i, n in zip(aligned, shape, strict=True)])


def reshaped(index: Index, old: Shape, new: Shape, sizes: Sequence[int]) -> Index:
    """Return the index of the same element after a reshape from `old` to `new`.

    The array is not empty. Raises `SplitAxis` or `NotAffine`.
    """
    result: list[Affine] = []
    for old_block, new_block in _blocks(old, new):
        flat = combine((math.prod(old[d + 1 : old_block.stop]), index[d]) for d in old_block)
        result += _unflattened(flat, [new[d] for d in new_block], sizes)
    return tuple(result)


def _blocks(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Cut both shapes as finely as possible into ranges of equally many elements."""
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
    """Return the index in an array of `shape` of the element with a row-major number."""
    result = [ZERO] * len(shape)
    wide = [d for d, n in enumerate(shape) if n != 1]
    for d in reversed(wide[1:]):
        flat, result[d] = _divided(flat, shape[d], sizes)
    if wide:
        result[wide[0]] = flat
    return result


def _divided(value: Affine, divisor: int, sizes: Sequence[int]) -> tuple[Affine, Affine]:
    """Return quotient and remainder of a division."""
    quotient = Affine(tuple([(axis, c // divisor) for axis, c in value.terms if c % divisor == 0]), value.offset // divisor)
    rest = Affine(tuple([(axis, c) for axis, c in value.terms if c % divisor]), value.offset % divisor)
    if Range(rest, 0, divisor).holds(sizes):
        return quotient, rest
    for axis, c in rest.terms:
        inner = divisor // abs(c)
        if inner * abs(c) == divisor and sizes[axis] > inner and sizes[axis] % inner == 0:
            raise SplitAxis(axis, inner)
    raise NotAffine
