"""Transforms whose length is a product of small ones.

They have a pass for each factor, and give results in natural order (Stockham's algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex, butterfly
from volta_fn.targets.cpu.fourier.primes import long_butterfly

#: Factors up to this are butterflies in registers.
_LONGEST_UNROLLED = 8
#: The longest prime factor; a butterfly takes as many operations for a number as it has numbers.
_LONGEST_PRIME = 127
#: Factors of lengths, the most profitable first.
_FACTORS = (8, 4, 2, 5, 3, 7, *[n for n in range(11, _LONGEST_PRIME + 1, 2) if all(n % k for k in range(3, n, 2))])


def factors_of(length: int) -> tuple[int, ...] | None:
    """Return factors whose product is a length; None if it has others."""
    found = []
    for factor in _FACTORS:
        while length % factor == 0:
            found.append(factor)
            length //= factor
    return tuple(found) if length == 1 else None


class Passes(Buffers):
    """Writes the passes over signals side by side."""

    def __init__(self, f: Function, element: str, lanes: int, factors: Sequence[int], inverse: bool = False) -> None:
        super().__init__(f, element, lanes, inverse)
        self.factors = factors

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

    def _one(self, source: Value, target: Value, factor: int, rest: int, stride: int) -> None:
        """Emit the pass of one factor: `rest` blocks of `stride` butterflies."""
        f = self.f
        angles = np.outer(np.arange(rest), np.arange(1, factor))
        table = self.table(f"{factor}.{rest}", angles, factor * rest) if rest > 1 else None
        unrolled = factor <= _LONGEST_UNROLLED

        def block(p: Value, _: list[Value]) -> None:
            def root(k: Value) -> Complex | None:
                return None if table is None else self.twiddle(table, f.plus(f.times(p, factor - 1), f.minus(k, i64(1))))

            roots = [root(i64(k)) for k in range(1, factor)] if unrolled else []

            def one(q: Value, _: list[Value]) -> None:
                def read(j: Value) -> Complex:
                    return self.load(source, f.plus(q, f.times(f.plus(p, f.times(j, rest)), stride)))

                def write(k: Value, z: Complex) -> None:
                    number = f.known(k)
                    twiddle = None if number == 0 else roots[number - 1] if unrolled and number else root(k)
                    z = z if twiddle is None else z.times(twiddle)
                    z = z.scaled(1 / np.prod(self.factors)) if self.inverse and rest == 1 else z
                    self.store(target, f.plus(q, f.times(f.plus(f.times(p, factor), k), stride)), z)

                if unrolled:
                    for k, z in enumerate(butterfly([read(i64(j)) for j in range(factor)])):
                        write(i64(k), z)
                else:
                    long_butterfly(self, factor, read, write)

            f.loop(i64(0), i64(stride), 1, [], one, once=True)

        f.loop(i64(0), i64(rest), 1, [], block, once=True)
