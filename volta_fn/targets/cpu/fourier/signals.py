"""Signals in memory: elements of neighbouring signals as vectors.

A signal of an even number of real numbers counts as one of half as many complex ones, whose components are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.loops.tiles import transposed
from volta_fn.targets.cpu.scalars import Number, load, store
from volta_fn.targets.cpu.scalars.values import Lanes

#: Makes another number of the one of an index.
Change = Callable[[Value, Complex], Complex]


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
    def is_paired(self) -> bool:
        """Whether real numbers are components."""
        return self.dtype.kind != "c" and self.size % 2 == 0

    @property
    def length(self) -> int:
        """The complex numbers of a signal."""
        return self.size // 2 if self.is_paired else self.size

    @property
    def distance(self) -> int:
        """How many elements lie from one signal to the next."""
        return self.size if self.inner == 1 else 1

    def start(self, f: Function, base: Value, block: Value, first: Value) -> Value:
        """Emit the address of a signal of a block."""
        offset = f.plus(f.times(block, self.inner * self.size), f.times(first, self.distance))
        return self._at(f, base, offset)

    def _at(self, f: Function, base: Value, element: Value) -> Value:
        return f.at(base, f"[{self.dtype.itemsize} x i8]", element)

    def _addresses(self, f: Function, start: Value, number: Value) -> list[Value]:
        """Emit where a complex number of the first signal is, or its two components are."""
        elements = [f.plus(f.times(number, 2), i64(k)) for k in range(2)] if self.is_paired else [number]
        return [self._at(f, start, f.times(element, self.inner)) for element in elements]

    def read_all(self, buffers: Buffers, start: Value, memory: Value) -> None:
        """Emit the load of as many signals as there are lanes."""
        f = buffers.f

        def one(number: Value, _: list[Value]) -> None:
            found = [load(f, self.dtype, at, buffers.lanes, stride=self.distance) for at in self._addresses(f, start, number)]
            components = [Lanes(f, component) for number in found for component in number.components]
            buffers.store(memory, number, Complex(components[0], components[1] if components[1:] else components[0].like(0.0)))

        if self._is_tiled(buffers.lanes):
            self._read_tiles(buffers, start, memory)
        else:
            f.loop(i64(0), i64(self.length), 1, [], one, once=True)

    def write_all(self, buffers: Buffers, start: Value, memory: Value, change: Change | None = None) -> None:
        """Emit the store of as many signals as there are lanes.

        `change` makes the numbers that are stored.
        """
        f = buffers.f

        def one(number: Value, _: list[Value]) -> None:
            z = buffers.load(memory, number)
            components = tuple(component.value for component in (change(number, z) if change else z))
            numbers = [components] if self.dtype.kind == "c" else [(component,) for component in components]
            for number_of_one, address in zip(numbers, self._addresses(f, start, number), strict=False):
                store(f, Number(self.dtype, number_of_one), address, stride=self.distance)

        if change is None and self._is_tiled(buffers.lanes):
            self._write_tiles(buffers, start, memory)
        else:
            f.loop(i64(0), i64(self.length), 1, [], one, once=True)

    # signals whose numbers lie side by side: squares of as many numbers as there are lanes are transposed

    def _is_tiled(self, lanes: int) -> bool:
        return self.inner == 1 and 2 * self.length >= lanes and (self.dtype.kind == "c" or self.is_paired)

    def _read_tiles(self, buffers: Buffers, start: Value, memory: Value) -> None:
        """Emit the load of as many signals as there are lanes."""
        f = buffers.f

        def tile(column: Value) -> None:
            rows = [f.load(buffers.vector, self._number(buffers, start, k, column), buffers.itemsize) for k in range(buffers.lanes)]
            for j, vector in enumerate(transposed(f, rows)):
                f.store(vector, buffers.row(memory, f.plus(column, i64(j))), buffers.align)

        self._tiles(buffers, tile)

    def _write_tiles(self, buffers: Buffers, start: Value, memory: Value) -> None:
        """Emit the store of as many signals as there are lanes."""
        f = buffers.f

        def tile(column: Value) -> None:
            rows = [f.load(buffers.vector, buffers.row(memory, f.plus(column, i64(j))), buffers.align) for j in range(buffers.lanes)]
            for k, vector in enumerate(transposed(f, rows)):
                f.store(vector, self._number(buffers, start, k, column), buffers.itemsize)

        self._tiles(buffers, tile)

    def _tiles(self, buffers: Buffers, tile: Callable[[Value], None]) -> None:
        """Emit the tiles of a group; the last one may overlap the one before."""
        width, lanes = 2 * self.length, buffers.lanes
        buffers.f.loop(i64(0), i64(width // lanes * lanes), lanes, [], lambda column, _: tile(column), once=True)
        if width % lanes:
            tile(i64(width - lanes))

    def _number(self, buffers: Buffers, start: Value, signal: int, column: Value) -> Value:
        """Emit the address of a real number of a signal."""
        return buffers.f.at(start, buffers.element, buffers.f.plus(i64(signal * 2 * self.length), column))
