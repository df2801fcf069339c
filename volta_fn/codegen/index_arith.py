"""Index arithmetic with constant folding, written once for all targets.

What shapes decide costs nothing when the generated code runs. `IndexArithmetic` is the printer with which shared code emits indices: a
target says how it prints a constant and an operation on two indices; what folds to a constant or to an operand is decided here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class IndexArithmetic(ABC, Generic[V]):
    """Arithmetic of non-negative integers: a target's values `V` with Python integers."""

    @abstractmethod
    def index(self, number: int) -> V:
        """Return a constant."""

    @abstractmethod
    def known(self, x: V) -> int | None:
        """Return the number that a value is, if it is a constant."""

    @abstractmethod
    def print_index(self, operator: str, x: V, y: V) -> V:
        """Emit an operation on two indices: ``+``, ``-``, ``*``, ``/`` or ``%``."""

    def named_index(self, x: V) -> V:
        """Return a value that is cheap to use several times."""
        return x

    def sum(self, terms: Iterable[V]) -> V:
        """Emit a sum of terms, each of which is emitted when it is asked for."""
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
        found = []
        for d, size in enumerate(sizes):
            quotient = self.quotient(number, math.prod(sizes[d + 1 :]))
            found.append(self.named_index(self.remainder(quotient, size) if d else quotient))
        return found
