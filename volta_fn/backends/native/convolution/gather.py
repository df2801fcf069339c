"""Tiles of x: the elements that a block of places and taps meets, copied next to each other, zeros where windows leave x.

A tile keeps the order of x in memory (unless told otherwise), so that it is made of lines copied whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from volta_fn.backends.native.convolution.emit import Index, between, gathered, least, most, plus, repeat, step, times, transposed, value
from volta_fn.backends.native.convolution.geometry import Correlation
from volta_fn.backends.native.llvm.text import Function, Value, i64, vector_of
from volta_fn.backends.native.matmul.numbers import Working, first_lanes, is_itself, read, stored_as


class Side(NamedTuple):
    """An index of a tile: of x's group, image or channel (0, 1, 2), or of its spatial axes (3, 4, …)."""

    which: int
    extent: int
    #: Its stride in x and in the tile.
    source: int
    stride: int


@dataclass(frozen=True)
class Tile:
    """What a tile looks like."""

    sides: tuple[Side, ...]
    #: How many elements it takes, with room for a vector written beyond its end.
    elements: int

    def stride(self, index: int) -> int:
        """The tile's stride of an index of x."""
        return next((side.stride for side in self.sides if side.which == index), 0)


def tile_of(c: Correlation, work: Working, extents: dict[int, int], innermost: int | None = None) -> Tile:
    """The tile of so many values of each index of x, in x's own order or with one index innermost, whose lines are whole vectors."""
    order = sorted((i for i in extents if i > 2 or extents[i] > 1 or i == innermost), key=lambda i: (i != innermost, -c.x.strides[i]))
    if innermost is not None and innermost in order:
        order = [*order[1:], innermost]
    sides: list[Side] = []
    stride = 1
    for place, index in enumerate(reversed(order)):
        if place and stride * work.itemsize % 1024 == 0:
            stride += work.lanes  # lines a power of two apart would share few places of the caches
        sides.insert(0, Side(index, extents[index], c.x.strides[index], stride))
        stride *= extents[index]
        if index == innermost:
            stride = -(-stride // work.lanes) * work.lanes
    return Tile(tuple(sides), -(-stride // work.lanes) * work.lanes + work.lanes)


def gather(
    f: Function, work: Working, dtype: np.dtype, c: Correlation, tile: Tile, x: Value, starts: list[Index], sure: list[bool], to: Value
) -> None:
    """Fill a tile. `x` points to the element of the first group, image and channel; along the spatial axes the tile begins at `starts`, and
    is known to stay within x where `sure`."""
    outer, (length, per, source, axis) = _line(tile)
    stored = stored_as(dtype)
    across = tile.sides[-1]
    turned = source != 1 and bool(outer) and outer[-1].which > 2 and outer[-1].source == 1 and axis is None
    if turned:
        along = outer.pop()
        length, axis = along.extent, along.which - 3
        source = 1

    def lines(sides: list[Side], at: Value, to: Value, good: Value | None, height: int) -> None:
        if not sides and turned:
            _copy_turned(f, work, dtype, _Line(length, along.stride, across.source, *_limits(axis, good)), height, at, to)
            return
        if not sides:
            _copy(f, work, dtype, _Line(length, per, source, *_limits(axis, good)), at, to)
            return
        side, rest = sides[0], sides[1:]

        def one(index: Index) -> None:
            where, still = index, good
            if side.which > 2:
                where = plus(f, starts[side.which - 3], index)
                if not sure[side.which - 3]:
                    still = _both(f, good, _within(f, where, c.axes[side.which - 3].size))
            there = step(f, at, stored, times(f, where, side.source))
            lines(rest, there, step(f, to, work.type, times(f, index, side.stride)), still, height)

        repeat(f, side.extent, one)

    def _limits(axis: int | None, good: Value | None) -> tuple[Index, Index]:
        low: Index = 0
        high: Index = length
        if axis is not None and not sure[axis]:
            low = most(f, times(f, starts[axis], -per), 0)
            high = least(f, times(f, plus(f, c.axes[axis].size, times(f, starts[axis], -1)), per), length)
        if good is not None:
            high = f.select(good, value(high), i64(0))
        return low, high

    first = x if axis is None else step(f, x, stored, times(f, starts[axis], source * per))

    def band(start: Index, height: int) -> None:
        lines(outer, step(f, first, stored, times(f, start, across.source)), step(f, to, work.type, start), None, height)

    if turned:  # as many channels at a time as a vector has lanes: their lines are read from beginning to end
        _each_chunk(f, across.extent, work.lanes, band)
    else:
        lines(outer, first, to, None, 1)


class _Line(NamedTuple):
    """A line of a tile: how long it is, elements per step of its axis, its stride in x, and which of its elements are within x."""

    length: int
    per: int
    source: int
    low: Index
    high: Index


def _line(tile: Tile) -> tuple[list[Side], tuple[int, int, int, int | None]]:
    """The sides around the lines; and of the lines the length, the elements per step along the axis, the stride in x, and the axis."""
    *outer, last = tile.sides
    if last.which > 2:
        return outer, (last.extent, 1, last.source, last.which - 3)
    if outer and outer[-1].which > 2 and last.source == 1 and outer[-1].source == outer[-1].stride == last.extent:
        axis = outer.pop()
        return outer, (last.extent * axis.extent, last.extent, 1, axis.which - 3)
    return outer, (last.extent, 1, last.source, None)


def _within(f: Function, where: Index, size: int) -> Value:
    """Whether a coordinate is at least 0 and less than a size."""
    return f.compare("icmp ult", value(where), i64(size))


def _both(f: Function, x: Value | None, y: Value) -> Value:
    return y if x is None else f.binary("and", x, y)


def _copy(f: Function, work: Working, dtype: np.dtype, line: _Line, source: Value, to: Value) -> None:
    """Copy a line, vector by vector."""
    stored = stored_as(dtype)
    known = line.low == 0 and line.high == line.length

    def one(index: Index) -> None:
        at = step(f, source, stored, times(f, index, line.source))
        whole = known and isinstance(index, int) and index + work.lanes <= line.length
        mask = None if whole else between(f, work.lanes, index, line.low, line.high)
        there = step(f, to, work.type, index)
        f.store(strided(f, work, dtype, at, line.source, mask), there, work.itemsize)

    if not known:
        repeat(f, line.length, one, 0, work.lanes)
        return
    full = line.length // work.lanes * work.lanes

    def unmasked(index: Index) -> None:
        at = step(f, source, stored, times(f, index, line.source))
        f.store(strided(f, work, dtype, at, line.source, None), step(f, to, work.type, index), work.itemsize)

    repeat(f, full, unmasked, 0, work.lanes)
    if line.length > full:
        one(full)


def _copy_turned(f: Function, work: Working, dtype: np.dtype, line: _Line, height: int, source: Value, to: Value) -> None:
    """Copy `height` lines, each `line.source` after the one before, so that what was along them is `line.per` apart."""
    lanes = work.lanes
    known = line.low == 0 and line.high == line.length

    def square(at: Index, width: int) -> None:
        mask = first_lanes(width, lanes) if known else between(f, lanes, at, line.low, line.high)
        rows = []
        for k in range(height):
            there = step(f, source, stored_as(dtype), plus(f, at, k * line.source))
            rows.append(read(f, work, dtype, there, lanes, mask))
        columns = transposed(f, rows + [work.zero()] * (lanes - height))
        for k in range(width):
            f.store(columns[k], step(f, to, work.type, times(f, plus(f, at, k), line.per)), work.itemsize)

    _each_chunk(f, line.length, lanes, square)


def _each_chunk(f: Function, length: int, size: int, body: Callable[[Index, int], None]) -> None:
    """`body` of the start and the size of chunks, all of one size but the last."""
    whole = length // size * size
    repeat(f, whole, lambda start: body(start, size), 0, size)
    if length > whole:
        body(whole, length - whole)


def strided(f: Function, work: Working, dtype: np.dtype, at: Value, stride: int, mask: Value | None) -> Value:
    """A vector of elements `stride` apart; zero, and not touched, where a mask leaves them out."""
    if stride == 1:
        return read(f, work, dtype, at, work.lanes, mask)
    vector = vector_of(work.type, work.lanes)
    if is_itself(work, dtype):
        chosen = mask or Value(vector_of("i1", work.lanes), "splat (i1 true)")
        return gathered(f, at, work.type, work.itemsize, stride, work.lanes, chosen)
    found = Value(vector, "zeroinitializer")
    for lane in range(work.lanes):

        def element(lane: int = lane) -> list[Value]:
            return [read(f, work, dtype, step(f, at, stored_as(dtype), lane * stride), 1)]

        if mask is None:
            (number,) = element()
        else:
            (number,) = f.branch(f.let("i1", f"extractelement {mask}, i64 {lane}"), element, lambda: [Value(work.type, "0.0")])
        found = f.let(vector, f"insertelement {found}, {number}, i64 {lane}")
    return found
