"""Transforms whose length is a product of small ones.

They have a pass for each factor, and give results in natural order (Stockham's algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.fourier.butterflies import Complex, butterfly
from volta_fn.targets.cpu.scalars.values import Lanes, literal

#: Factors of lengths, the most profitable first.
_FACTORS = (8, 4, 2, 5, 3, 7)


def factors_of(length: int) -> tuple[int, ...] | None:
    """Return factors whose product is a length; None if it has others."""
    found = []
    for factor in _FACTORS:
        while length % factor == 0:
            found.append(factor)
            length //= factor
    return tuple(found) if length == 1 else None


class Passes:
    """Writes the passes over signals side by side.

    In memory are, of each element, the real components of all signals, then the imaginary ones.
    """

    def __init__(self, f: Function, element: str, lanes: int, factors: Sequence[int], inverse: bool = False) -> None:
        self.f = f
        self.element = element
        self.lanes = lanes
        self.factors = factors
        #: An inverse transform is a forward one of numbers whose components are swapped, and divides by the length.
        self.inverse = inverse
        self.vector = vector_of(element, lanes)
        self.itemsize = 4 if element == "float" else 8
        #: The alignment of vectors.
        self.align = lanes * self.itemsize

    def emit(self, given: Value, other: Value) -> Value:
        """Emit a transform of the elements at an address.

        Return the address of the results: this one, or the other.
        """
        length, stride = int(np.prod(self.factors)), 1
        for factor in self.factors:
            self._one(given, other, factor, length // factor, stride)
            given, other = other, given
            length, stride = length // factor, stride * factor
        return given

    def load(self, base: Value, index: Value) -> Complex:
        """Emit the load of an element of all signals."""
        return Complex(*[Lanes(self.f, self.f.load(self.vector, p, self.align)) for p in self._components(base, index)])

    def store(self, base: Value, index: Value, value: Complex) -> None:
        """Emit the store of an element of all signals."""
        for component, pointer in zip(value, self._components(base, index), strict=True):
            self.f.store(component.value, pointer, self.align)

    def row(self, base: Value, number: Value) -> Value:
        """Emit the address of a real number of all signals, of which each element has two."""
        return self.f.at(base, self.element, self.f.times(number, self.lanes))

    def _components(self, base: Value, index: Value) -> list[Value]:
        return [self.row(base, self.f.plus(self.f.times(index, 2), i64(k))) for k in ((1, 0) if self.inverse else (0, 1))]

    def _one(self, source: Value, target: Value, factor: int, rest: int, stride: int) -> None:
        """Emit the pass of one factor: `rest` blocks of `stride` butterflies."""
        f = self.f
        angles = np.outer(np.arange(rest), np.arange(1, factor))
        table = self.table(f"{factor}.{rest}", angles, factor * rest) if rest > 1 else None

        def block(p: Value, _: list[Value]) -> None:
            twiddles = [] if table is None else [self.twiddle(table, f.plus(f.times(p, factor - 1), i64(k))) for k in range(factor - 1)]

            def one(q: Value, _: list[Value]) -> None:
                read = [self.load(source, f.plus(q, f.times(f.plus(p, i64(rest * j)), stride))) for j in range(factor)]
                made = butterfly(read)
                made[1:] = [z.times(w) for z, w in zip(made[1:], twiddles, strict=True)] if twiddles else made[1:]
                made = [z.scaled(1 / np.prod(self.factors)) for z in made] if self.inverse and rest == 1 else made
                for k, value in enumerate(made):
                    self.store(target, f.plus(q, f.times(f.plus(f.times(p, factor), i64(k)), stride)), value)

            f.loop(i64(0), i64(stride), 1, [], one, once=True)

        f.loop(i64(0), i64(rest), 1, [], block, once=True)

    def twiddle(self, table: Value, number: Value) -> Complex:
        """Emit the load of a number of a table, for all signals."""
        f = self.f
        components = [f.load(self.element, f.at(table, self.element, f.plus(f.times(number, 2), i64(k))), self.itemsize) for k in range(2)]
        return Complex(*[Lanes(f, f.splat(component, self.lanes)) for component in components])

    def table(self, name: str, steps: np.ndarray, n: int) -> Value:
        """Return the table of exp(-2πi s / n) for some steps s, of exact angles."""
        steps, symbol = steps % n, f"vf.twiddles.{name}"
        values = np.exp(-2j * np.pi / n * steps)
        quarters, beyond = np.divmod(4 * steps, n)
        exact = beyond == 0
        values[exact] = np.array([1, -1j, -1, 1j])[quarters[exact]]
        text = ", ".join(f"{self.element} {literal(self.element, component)}" for z in values.ravel() for component in (z.real, z.imag))
        self.f.module.declare(symbol, f"@{symbol} = internal constant [{2 * values.size} x {self.element}] [{text}], align 64")
        return Value("ptr", f"@{symbol}")
