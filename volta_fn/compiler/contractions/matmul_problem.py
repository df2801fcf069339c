"""A contraction as a stack of matrix products, and how its indices walk memory.

``C[m, n] = sum over k of A(m, k) B(k, n)``. The axes of an operand that become one index (m, k, n, or the number of the matrix in the
stack) are merged where they lie in memory as one axis would. What is left is an *index map*: sizes and strides, the outermost first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

Axes = tuple[int, ...]


class Walk(NamedTuple):
    """How an index moves through an array."""

    #: Sizes of the index's axes (the same in all arrays it moves through), and their strides in elements.
    sizes: Axes
    strides: Axes

    @property
    def size(self) -> int:
        """The number of values that the index has."""
        return prod(self.sizes)

    @property
    def stride(self) -> int | None:
        """The stride of the only axis (0 if there is none)."""
        return self.strides[0] if len(self.strides) == 1 else None if self.strides else 0


class Operand(NamedTuple):
    """A stack of matrices in memory.

    `outer` is the index of its rows or columns (m or n), `inner` the one that is summed over.
    """

    dtype: np.dtype
    stack: Walk
    outer: Walk
    inner: Walk
    #: Elements of the array before the first matrix.
    start: int = 0


class Problem(NamedTuple):
    """A stack of products; operands have stacks and inner indices of the same sizes."""

    lhs: Operand
    rhs: Operand
    dtype: np.dtype

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

    def swapped(self) -> Problem:
        """Return the product of the transposes: the transpose of this one's result."""
        return Problem(self.rhs, self.lhs, self.dtype)


def problem_of(
    lhs_shape: Axes, rhs_shape: Axes, dimension_numbers: tuple[tuple[Axes, Axes], tuple[Axes, Axes]], dtypes: Sequence[np.dtype]
) -> Problem:
    """Return the problem of `dot_general` for contiguous operands.

    `dtypes` are the operands' and the result's.
    """
    (lhs_inner, rhs_inner), (lhs_stack, rhs_stack) = dimension_numbers
    shapes = lhs_shape, rhs_shape
    strides = contiguous_strides(lhs_shape), contiguous_strides(rhs_shape)
    stacks = _walks(shapes, strides, lhs_stack, rhs_stack)
    inners = min((_walks(shapes, strides, *order) for order in _orders(lhs_inner, rhs_inner)), key=lambda walks: len(walks[0].sizes))
    operands = []
    for side, taken in enumerate(((lhs_inner, lhs_stack), (rhs_inner, rhs_stack))):
        free = [axis for axis in range(len(shapes[side])) if axis not in taken[0] and axis not in taken[1]]
        (outer,) = merged([shapes[side][axis] for axis in free], [[strides[side][axis] for axis in free]])
        operands.append(Operand(dtypes[side], stacks[side], outer, inners[side]))
    return Problem(operands[0], operands[1], dtypes[2])


def contiguous_strides(shape: Axes) -> Axes:
    """Return the strides of a contiguous array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _orders(lhs: Axes, rhs: Axes) -> list[tuple[Axes, Axes]]:
    """Return the orders in which pairs of axes may be summed over.

    They are those that the operands have in memory.
    """
    pairs = list(zip(lhs, rhs, strict=True))
    both = sorted(pairs), sorted(pairs, key=lambda pair: pair[1])
    return [(tuple(p[0] for p in order), tuple(p[1] for p in order)) for order in both]


def _walks(shapes: Sequence[Axes], strides: Sequence[Axes], lhs: Axes, rhs: Axes) -> list[Walk]:
    return merged([shapes[0][axis] for axis in lhs], [[strides[0][axis] for axis in lhs], [strides[1][axis] for axis in rhs]])


def merged(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[Walk]:
    """Return one walk for each of `strides` over axes of these sizes.

    Axes of size 1 are left out and neighbours are merged.
    """
    kept: list[tuple[int, tuple[int, ...]]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(outer == size * step for outer, step in zip(kept[-1][1], steps, strict=True)):
            kept[-1] = (kept[-1][0] * size, tuple(steps))
        else:
            kept.append((size, tuple(steps)))
    shape = tuple(size for size, _ in kept)
    return [Walk(shape, tuple(steps[side] for _, steps in kept)) for side in range(len(strides))]
