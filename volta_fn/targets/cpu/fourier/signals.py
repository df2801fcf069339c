"""Signals in memory: elements of neighbouring signals as vectors.

A signal of real numbers counts as one of half as many complex ones, whose components are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.fourier.passes import Passes
from volta_fn.targets.cpu.loops.tiles import transposed
from volta_fn.targets.cpu.scalars import Number, load, store
from volta_fn.targets.cpu.scalars.values import Lanes


class Signals(NamedTuple):
    """An array of signals.

    Attributes:
        dtype: of its elements.
        size: the elements of a signal.
        inner: the signals between two elements of one.
    """

    dtype: np.dtype
    size: int
    inner: int

    @property
    def components(self) -> int:
        """The real numbers of an element."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def length(self) -> int:
        """The complex numbers of a signal."""
        return self.size * self.components // 2

    @property
    def distance(self) -> int:
        """How many elements lie from one signal to the next."""
        return self.size if self.inner == 1 else 1

    def tiled(self, lanes: int) -> bool:
        """Return True if signals are read by squares of numbers."""
        return self.inner == 1 and 2 * self.length >= lanes

    def start(self, f: Function, base: Value, block: Value, first: Value) -> Value:
        """Emit the address of a signal of a block."""
        offset = f.plus(f.times(block, self.inner * self.size), f.times(first, self.distance))
        return self._at(f, base, offset)

    def _at(self, f: Function, base: Value, element: Value) -> Value:
        return f.at(base, f"[{self.dtype.itemsize} x i8]", element)

    def _addresses(self, f: Function, start: Value, number: Value) -> list[Value]:
        """Emit where a complex number of the first signal is, or its two components are."""
        elements = [number] if self.components == 2 else [f.plus(f.times(number, 2), i64(k)) for k in range(2)]
        return [self._at(f, start, f.times(element, self.inner)) for element in elements]

    def read(self, f: Function, start: Value, number: Value, lanes: int, count: Value | None) -> Complex:
        """Emit the load of a complex number of each signal."""
        found = [load(f, self.dtype, at, lanes, count=count, stride=self.distance) for at in self._addresses(f, start, number)]
        return Complex(*[Lanes(f, component) for one in found for component in one.components])

    def write(self, f: Function, start: Value, number: Value, value: Complex, count: Value | None) -> None:
        """Emit the store of a complex number of each signal."""
        components = [component.value for component in value]
        addresses = self._addresses(f, start, number)
        groups = [tuple(components)] if len(addresses) == 1 else [(component,) for component in components]
        for group, address in zip(groups, addresses, strict=True):
            store(f, Number(self.dtype, group), address, count=count, stride=self.distance)

    # signals whose numbers lie side by side: squares of as many numbers as there are lanes are transposed

    def read_tiles(self, passes: Passes, start: Value, memory: Value) -> None:
        """Emit the load of as many signals as there are lanes, for passes."""
        f = passes.f

        def tile(column: Value) -> None:
            rows = [f.load(passes.vector, self._number(passes, start, k, column), passes.itemsize) for k in range(passes.lanes)]
            for j, vector in enumerate(transposed(f, rows)):
                f.store(vector, passes.row(memory, f.plus(column, i64(j))), passes.align)

        self._tiles(passes, tile)

    def write_tiles(self, passes: Passes, start: Value, memory: Value) -> None:
        """Emit the store of as many signals as there are lanes."""
        f = passes.f

        def tile(column: Value) -> None:
            rows = [f.load(passes.vector, passes.row(memory, f.plus(column, i64(j))), passes.align) for j in range(passes.lanes)]
            for k, vector in enumerate(transposed(f, rows)):
                f.store(vector, self._number(passes, start, k, column), passes.itemsize)

        self._tiles(passes, tile)

    def _tiles(self, passes: Passes, tile: Callable[[Value], None]) -> None:
        """Emit the tiles of a group; the last one may overlap the one before."""
        width, lanes = 2 * self.length, passes.lanes
        passes.f.loop(i64(0), i64(width // lanes * lanes), lanes, [], lambda column, _: tile(column), once=True)
        if width % lanes:
            tile(i64(width - lanes))

    def _number(self, passes: Passes, start: Value, signal: int, column: Value) -> Value:
        """Emit the address of a real number of a signal."""
        return passes.f.at(start, passes.element, passes.f.plus(i64(signal * 2 * self.length), column))
