"""Index arithmetic with constant folding, written once for all targets.

Values that shapes determine are folded at compile time. `IndexArithmetic` is the printer with which shared code emits indices: a target
says how it prints a constant and an operation on two indices; what folds to a constant or to an operand is decided here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of

V = TypeVar("V")


class IndexArithmetic(ABC, Generic[V]):
    """Arithmetic of non-negative integers: a target's values `V` with Python integers."""

    @abstractmethod
    def index(self, number: int) -> V:
        """Return a constant."""

    @abstractmethod
    def known(self, x: V) -> int | None:
        """Return the number of a constant value, else None."""

    @abstractmethod
    def print_index(self, operator: str, x: V, y: V) -> V:
        """Emit an operation on two indices: ``+``, ``-``, ``*``, ``/`` or ``%``."""

    def named_index(self, x: V) -> V:
        """Give an index a name, so that it is evaluated once."""
        return x

    def sum(self, terms: Iterable[V]) -> V:
        """Emit a sum of terms, each of which is emitted lazily."""
        total = self.index(0)
        for term in terms:
            a, b = self.known(total), self.known(term)
            if a is not None and b is not None:
                total = self.index(a + b)
            elif b != 0:
                total = term if a == 0 else self.print_index("+", total, term)
        return total

    def plus(self, *terms: V) -> V:
        """Emit the sum of values."""
        return self.sum(terms)

    def minus(self, x: V, y: V) -> V:
        """Emit x - y."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(a - b)
        return x if b == 0 else self.print_index("-", x, y)

    def times(self, x: V, number: int) -> V:
        """Emit x * number."""
        a = self.known(x)
        if a is not None or number == 0:
            return self.index((a or 0) * number)
        return x if number == 1 else self.print_index("*", x, self.index(number))

    def quotient(self, x: V, number: int) -> V:
        """Emit x // number."""
        a = self.known(x)
        if a is not None:
            return self.index(a // number)
        return x if number == 1 else self.print_index("/", x, self.index(number))

    def remainder(self, x: V, number: int) -> V:
        """Emit x % number."""
        a = self.known(x)
        if a is not None or number == 1:
            return self.index((a or 0) % number)
        return self.print_index("%", x, self.index(number))

    def divided(self, x: V, number: int) -> tuple[V, V]:
        """Emit x // number and x % number by one division."""
        quotient = self.quotient(x, number)
        return quotient, self.minus(x, self.times(quotient, number)) if number != 1 else self.index(0)

    def dotted(self, indices: Iterable[V], strides: Iterable[int]) -> V:
        """Emit the sum of indices times strides."""
        return self.sum(self.times(index, stride) for index, stride in zip(indices, strides, strict=True))

    def coordinates(self, number: V, sizes: Sequence[int]) -> list[V]:
        """Emit the coordinates of an element by its number in row-major order."""
        coordinates = []
        for d, size in enumerate(sizes):
            quotient = self.quotient(number, math.prod(sizes[d + 1 :]))
            coordinates.append(self.named_index(self.remainder(quotient, size) if d else quotient))
        return coordinates


# Rows along an axis, and cumulative operations on them.


def row_offset(f: IndexArithmetic[V], row: V, i: V, size: int, columns: int) -> V:
    """Emit the offset of element `i` of a row along an axis.

    The axis has `size` elements; the axes after it have `columns` together.
    """

    def terms() -> Iterator[V]:
        yield f.times(f.quotient(row, columns), size * columns)
        yield f.remainder(row, columns)
        yield f.times(i, columns)

    return f.sum(terms())


class CumulativeOp(NamedTuple):
    """A cumulative operation on an array.

    Attributes:
        name: the name of the primitive.
        reduction: how it combines elements.
        stored: the dtype in memory.
        dtype: the dtype that is accumulated in.
        rows, size, columns: the sizes of the axes before, of, and after the accumulation.
        reverse: whether it begins at the end.
    """

    name: str
    reduction: Reduction
    stored: np.dtype
    dtype: np.dtype
    rows: int
    size: int
    columns: int
    reverse: bool

    @property
    def is_sequential(self) -> bool:
        """True if elements are combined one by one.

        Products of parts of a row might overflow where the result does not.
        """
        return self.reduction.step == "mul" and self.dtype.kind in "fc"

    def position(self, f: IndexArithmetic[V], i: V, width: int = 1) -> V:
        """Emit the position of the i-th element in order, or of the first of `width`."""
        return f.minus(f.index(self.size - width), i) if self.reverse else i


def cumulative_op(name: str, operand: ShapedArray, dtype: np.dtype, axis: int, reverse: bool) -> CumulativeOp:
    """Return the operation of a primitive along an axis, accumulated in a dtype."""
    rows, columns = math.prod(operand.shape[:axis]), math.prod(operand.shape[axis + 1 :])
    return CumulativeOp(name, reduction_of(name), operand.dtype, dtype, rows, operand.shape[axis], columns, reverse)
