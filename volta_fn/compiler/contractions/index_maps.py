"""Contractions over index maps: any sums of products over one index.

``y[s, m, n] = sum over k of a(s, m, k) b(s, k, n)``, with arrays of any layout. Stacks of matrix products and correlations are both of
this form. The operand's element that indices lead to is at the sum of how far each index walks. Where windows of a correlation leave its
input, elements are zero: each *bound* is the coordinate along an axis, also a sum of walks, and has a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.compiler.contractions.matmul_problem import Axes, Problem, Walk, merged


class Bound(NamedTuple):
    """A coordinate that must be in ``range(size)``.

    It is `start` plus the walks along the operand's outer and inner index.
    """

    start: int
    outer: Axes
    inner: Axes
    size: int


@dataclass(frozen=True)
class OperandMap:
    """The index map of an operand: `start` plus the walks of its indices.

    `outer` is m or n, `inner` the index summed over.
    """

    dtype: np.dtype
    #: Elements of the array.
    elements: int
    start: int
    stack: Walk
    outer: Walk
    inner: Walk
    bounds: tuple[Bound, ...] = ()

    def fours(self, *, along_inner: bool) -> bool:
        """Return True if four neighbours along an index are aligned together in memory.

        The first number of the four is a multiple of 4.
        """
        along, across = (self.inner, self.outer) if along_inner else (self.outer, self.inner)
        steps = [bound.inner if along_inner else bound.outer for bound in self.bounds]
        still = all(not step or step[-1] == 0 for step in steps)
        return still and self.elements % 4 == 0 and _in_fours(self.start, along, (self.stack, across))


@dataclass(frozen=True)
class ResultMap:
    """The index map of the results: `start` plus the walks of their indices."""

    dtype: np.dtype
    elements: int
    start: int
    stack: Walk
    rows: Walk
    columns: Walk

    @property
    def fours(self) -> bool:
        """Whether four neighbours in a row are aligned together in memory.

        The first number of the four is a multiple of 4.
        """
        return self.elements % 4 == 0 and _in_fours(self.start, self.columns, (self.stack, self.rows))


def _in_fours(start: int, along: Walk, others: Sequence[Walk]) -> bool:
    if not along.sizes or along.strides[-1] != 1 or along.sizes[-1] % 4 or start % 4:
        return False
    strides = [*along.strides[:-1], *[stride for walk in others for stride in walk.strides]]
    return all(stride % 4 == 0 for stride in strides)


@dataclass(frozen=True)
class IndexedContraction:
    """A contraction; operands have stacks and inner indices of the same sizes."""

    lhs: OperandMap
    rhs: OperandMap
    target: ResultMap

    @property
    def batch(self) -> int:
        """The number of products."""
        return self.lhs.stack.size

    @property
    def m(self) -> int:
        """The rows of each."""
        return self.lhs.outer.size

    @property
    def n(self) -> int:
        """The columns of each."""
        return self.rhs.outer.size

    @property
    def k(self) -> int:
        """The terms of each sum."""
        return self.lhs.inner.size

    @property
    def products(self) -> int:
        """The number of multiplications."""
        return self.batch * self.m * self.n * self.k

    def swapped(self) -> IndexedContraction:
        """Return the contraction with rows and columns, and operands, swapped."""
        target = replace(self.target, rows=self.target.columns, columns=self.target.rows)
        return IndexedContraction(self.rhs, self.lhs, target)


def of_problem(problem: Problem) -> IndexedContraction:
    """Return a stack of matrix products of complete arrays as a contraction."""
    batch, m, n = problem.batch, problem.m, problem.n
    maps = []
    for side in (problem.lhs, problem.rhs):
        size = side.stack.size * side.outer.size * side.inner.size
        maps.append(OperandMap(side.dtype, size, 0, side.stack, side.outer, side.inner))
    target = ResultMap(problem.dtype, batch * m * n, 0, _walk(batch, m * n), _walk(m, n), _walk(n, 1))
    return IndexedContraction(maps[0], maps[1], target)


def _walk(size: int, stride: int) -> Walk:
    return Walk((size,), (stride,)) if size != 1 else Walk((), ())


def of_correlation(c: Correlation, dtypes: Sequence[np.dtype], elements: Sequence[int], *, deep: int = 16) -> IndexedContraction:
    """Return a correlation as a contraction.

    Rows are images and output positions, columns are outputs, and what is summed over is taps and channels. `dtypes` and `elements` are
    those of x, w and y. Neighbours in x are neighbours in the indices, too, as a rule; but channels come after taps where there are more
    output positions than taps, if slices of `deep` channels do not meet different taps.
    """
    axes, (xs, ws, ys) = c.axes, (c.x.strides, c.w.strides, c.y.strides)
    bounded = [i for i, axis in enumerate(axes) if not axis.inside]
    positions, terms = [c.images, *[axis.positions for axis in axes]], [c.channels, *[axis.taps for axis in axes]]
    by_position, by_tap = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    rows = [[xs[1], *_times(by_position, xs[3:])], *_coordinates(by_position, bounded), [ys[1], *ys[3:]]]
    sums = [[xs[2], *_times(by_tap, xs[3:])], *_coordinates(by_tap, bounded), [ws[2], *ws[3:]]]
    if xs[1] < xs[-1]:
        positions, rows = _first_last(positions), [_first_last(walk) for walk in rows]
    if xs[2] < xs[-1] or (c.channels % deep == 0 and axes[-1].taps <= axes[-1].positions):
        terms, sums = _first_last(terms), [_first_last(walk) for walk in sums]
    (rows_y,) = merged(positions, rows[-1:])
    rows_x, *outer = merged(positions, rows[:-1])
    inner_x, *inner, inner_w = merged(terms, sums)
    bounds = [Bound(-axes[i].low, x.strides, y.strides, axes[i].size) for i, x, y in zip(bounded, outer, inner, strict=True)]
    stack_x, stack_w, stack_y = [_walk(c.groups, strides[0]) for strides in (xs, ws, ys)]
    start = c.x.offset - sum(axis.low * stride for axis, stride in zip(axes, xs[3:], strict=True))
    x = OperandMap(dtypes[0], elements[0], start, stack_x, rows_x, inner_x, tuple(bounds))
    w = OperandMap(dtypes[1], elements[1], c.w.offset, stack_w, _walk(c.outputs, ws[1]), inner_w)
    return IndexedContraction(x, w, ResultMap(dtypes[2], elements[2], c.y.offset, stack_y, rows_y, _walk(c.outputs, ys[2])))


def _coordinates(steps: Sequence[int], bounded: Sequence[int]) -> list[list[int]]:
    """Return how the coordinates of the bounded axes walk: with that axis alone."""
    return [[0, *[step if i == j else 0 for j, step in enumerate(steps)]] for i in bounded]


def _times(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [x * y for x, y in zip(left, right, strict=True)]


def _first_last(values: list[int]) -> list[int]:
    return [*values[1:], values[0]]
