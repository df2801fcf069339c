"""Tiles of x: the elements that a block meets, copied next to each other.

Elements outside x are zeros. A tile keeps the order of x in memory (unless told otherwise), so that complete rows are copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.convolution.emit_utils import Index, between, gathered, least, most, plus, repeat, step, times, transposed, value
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, first_lanes, is_itself, read, stored_as


class TileSide(NamedTuple):
    """An index of a tile: x's group, image or channel (0, 1, 2), or axis (3, 4, …)."""

    which: int
    extent: int
    #: Its stride in x and in the tile.
    source: int
    stride: int


@dataclass(frozen=True)
class InputTile:
    """The layout of a tile."""

    sides: tuple[TileSide, ...]
    #: How many elements it takes, with room for a vector written beyond its end.
    elements: int

    def stride(self, index: int) -> int:
        """Return the tile's stride of an index of x."""
        return next((side.stride for side in self.sides if side.which == index), 0)


def tile_of(c: Correlation, work: ComputeType, extents: dict[int, int], innermost: int | None = None) -> InputTile:
    """Return the tile of these extents, in x's order or with one index innermost.

    Its rows are full vectors then.
    """
    order = sorted((i for i in extents if i > 2 or extents[i] > 1 or i == innermost), key=lambda i: (i != innermost, -c.x.strides[i]))
    if innermost is not None and innermost in order:
        order = [*order[1:], innermost]
    sides: list[TileSide] = []
    stride = 1
    for index, index in enumerate(reversed(order)):
        if index and stride * work.itemsize % 1024 == 0:
            stride += work.lanes  # rows with a stride of a power of two would share few sets of the caches
        sides.insert(0, TileSide(index, extents[index], c.x.strides[index], stride))
        stride *= extents[index]
        if index == innermost:
            stride = -(-stride // work.lanes) * work.lanes
    return InputTile(tuple(sides), -(-stride // work.lanes) * work.lanes + work.lanes)


def gather(
    f: Function,
    work: ComputeType,
    dtype: np.dtype,
    c: Correlation,
    tile: InputTile,
    x: Value,
    starts: list[Index],
    sure: list[bool],
    to: Value,
    left: Index | None = None,
) -> None:
    """Fill a tile.

    `x` points to the element of the first group, image and channel; along the spatial axes the tile begins at `starts`, and is known to
    stay within x where `sure`. Of the innermost side, if it is not an axis, there are `left` elements (None: all).
    """
    rows = _RowCopier(f, work, dtype, c, tile, starts, sure, left)
    rows.fill(x, to)


class _RowCopier:
    """A tile being filled line by line."""

    def __init__(
        self,
        f: Function,
        work: ComputeType,
        dtype: np.dtype,
        c: Correlation,
        tile: InputTile,
        starts: list[Index],
        sure: list[bool],
        left: Index | None,
    ) -> None:
        self.f, self.work, self.dtype, self.stored = f, work, dtype, stored_as(dtype)
        self.c, self.starts, self.sure, self.left = c, starts, sure, left
        *self.outer, self.last = tile.sides
        #: The side along which x is contiguous, if it is the last but one and rows are transposed.
        self.adjacent: TileSide | None = None
        #: An axis that is merged with the last side to longer rows.
        self.merged: TileSide | None = None
        before = self.outer[-1] if self.outer else None
        if before and before.source == 1 and self.last.source != 1:
            self.adjacent = self.outer.pop()
        elif before and before.which > 2 and self.last.which <= 2 and self._follow(before):
            self.merged = self.outer.pop()

    def _follow(self, axis: TileSide) -> bool:
        """Return True if the rows of an axis follow one another, in x and in the tile."""
        return self.last.source == 1 and axis.source == axis.stride == self.last.extent and self.left is None

    def fill(self, x: Value, to: Value) -> None:
        """Write the code."""
        f = self.f
        for side in (self.last, self.adjacent, self.merged):
            if side and side.which > 2:
                x = step(f, x, self.stored, times(f, self.starts[side.which - 3], side.source))
        if self.adjacent is None:
            self._loops(self.outer, x, to, None, self._copy_row)
            return

        def band(start: Index, height: int) -> None:
            assert self.adjacent is not None
            there = step(f, x, self.stored, times(f, start, self.last.source)), step(f, to, self.work.type, start)
            self._loops(self.outer, *there, None, lambda x, to, good: self._transposed(x, to, good, start, height))

        _each_chunk(f, self.last.extent, self.work.lanes, band)

    def _loops(
        self, sides: list[TileSide], x: Value, to: Value, good: Value | None, body: Callable[[Value, Value, Value | None], None]
    ) -> None:
        """Emit `body` for every combination of the sides, which says if it is within x."""
        f = self.f
        if not sides:
            body(x, to, good)
            return
        side, rest = sides[0], sides[1:]

        def one(index: Index) -> None:
            where, still = index, good
            if side.which > 2:
                where = plus(f, self.starts[side.which - 3], index)
                if not self.sure[side.which - 3]:
                    within = f.compare("icmp ult", value(where), i64(self.c.axes[side.which - 3].size))
                    still = within if good is None else f.binary("and", good, within)
            there = step(f, x, self.stored, times(f, where, side.source))
            self._loops(rest, there, step(f, to, self.work.type, times(f, index, side.stride)), still, body)

        repeat(f, side.extent, one)

    def _limits(self, side: TileSide, good: Value | None, per: int = 1) -> tuple[Index, Index]:
        """Emit the range of a side's elements (`per` to a step) that are in x."""
        f, low, high = self.f, 0, side.extent * per
        first: Index = low
        last: Index = high
        if side.which > 2 and not self.sure[side.which - 3]:
            start = self.starts[side.which - 3]
            first = most(f, times(f, start, -per), 0)
            last = least(f, times(f, plus(f, self.c.axes[side.which - 3].size, times(f, start, -1)), per), high)
        elif side.which <= 2 and side is self.last and self.left is not None:
            last = least(f, self.left, high)
        if good is not None:
            last = f.select(good, value(last), i64(0))
        return (first, last) if (first, last) == (0, high) else (first, most(f, first, last))

    def _copy_row(self, x: Value, to: Value, good: Value | None) -> None:
        """Copy a line, vector by vector."""
        if self.merged:
            low, high = self._limits(self.merged, good, self.last.extent)
            length, source = self.merged.extent * self.last.extent, 1
        else:
            low, high = self._limits(self.last, good)
            length, source = self.last.extent, self.last.source
        f, work = self.f, self.work

        def some(index: Index, count: int | Index) -> None:
            mask = first_lanes(count, work.lanes) if isinstance(count, int) else between(f, work.lanes, 0, 0, count)
            at = step(f, x, self.stored, times(f, index, source))
            f.store(strided(f, work, self.dtype, at, source, mask), step(f, to, work.type, index), work.itemsize)

        if (low, high) == (0, length):
            _each_chunk(f, length, work.lanes, some)
            return
        # Vectors may be written beyond the end of a row: the next row is written after them.
        zero = functools.partial(f.store, work.zero(), align=work.itemsize)
        full_vectors = times(f, f.binary("sdiv", value(plus(f, high, times(f, low, -1))), i64(work.lanes)), work.lanes)
        rest = plus(f, low, full_vectors)
        repeat(f, low, lambda k: zero(pointer=step(f, to, work.type, k)), 0, work.lanes)
        repeat(f, rest, lambda k: some(k, work.lanes), low, work.lanes)
        some(rest, plus(f, high, times(f, rest, -1)))
        repeat(f, length, lambda k: zero(pointer=step(f, to, work.type, k)), plus(f, rest, work.lanes), work.lanes)

    def _transposed(self, x: Value, to: Value, good: Value | None, start: Index, height: int) -> None:
        """Emit the copy of rows that x has along another side than the tile's last.

        `height` neighbours of the last side are copied, from `start` on.
        """
        assert self.adjacent is not None
        f, work, lanes, side = self.f, self.work, self.work.lanes, self.adjacent
        low, high = self._limits(side, good)
        known = (low, high) == (0, side.extent)
        first, last = self._limits(self.last, None)
        all_there = (first, last) == (0, self.last.extent)

        def square(at: Index, width: int) -> None:
            mask = first_lanes(width, lanes) if known else between(f, lanes, at, low, high)
            rows = []
            for k in range(height):
                some = mask
                if not all_there:
                    index = value(plus(f, start, k))
                    within = f.binary("and", f.compare("icmp sge", index, value(first)), f.compare("icmp slt", index, value(last)))
                    some = f.splat(within, lanes) if mask is None else f.binary("and", f.splat(within, lanes), mask)
                there = step(f, x, self.stored, plus(f, at, k * self.last.source))
                rows.append(read(f, work, self.dtype, there, lanes, some))
            columns = transposed(f, rows + [work.zero()] * (lanes - height))
            for k in range(width):
                there = step(f, to, work.type, times(f, plus(f, at, k), side.stride))
                f.store(columns[k], there, work.itemsize)  # rows of a transposed tile are full vectors

        _each_chunk(f, side.extent, lanes, square)


def _each_chunk(f: Function, length: int, size: int, body: Callable[[Index, int], None]) -> None:
    """Emit `body` for the start and the size of chunks, all of one size but the last."""
    full_vectors = length // size * size
    repeat(f, full_vectors, lambda start: body(start, size), 0, size)
    if length > full_vectors:
        body(full_vectors, length - full_vectors)


def strided(f: Function, work: ComputeType, dtype: np.dtype, at: Value, stride: int, mask: Value | None) -> Value:
    """Emit a strided load; lanes that are masked out are zero, and not touched."""
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
