"""Emission of convolutions: elements, indices, loop nests, and tiles of x."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Correlation, View
from volta_fn.runtime.llvm.text import Function, Value, counting, i64, transposed, vector_of
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, first_lanes, is_itself, load, read, stored_as, with_bias
from volta_fn.targets.cpu.matmul.packing import joined
from volta_fn.targets.cpu.scalars.number import everywhere, gathered

# Elements of operands.
#
# A lane of a register is an element in the compute type, or a *group* of the narrow numbers of adjacent channels which one instruction
# multiplies and sums (`volta_fn/targets/cpu/matmul/micro_kernel.py`). A correlation of groups is a correlation in every other respect: its
# channels are groups, so algorithms need not know of them, only what reads elements does.


class Elements(NamedTuple):
    """How an operand's elements are read.

    A lane's numbers are adjacent in memory, and their group is an element of `dtype`, unless they are `apart`.
    """

    work: ComputeType
    dtype: np.dtype
    #: The stride between the numbers of a group in memory; 0 if they are adjacent, or if there are no groups.
    apart: int = 0
    #: How many channels there are, if the last group lacks some.
    channels: int | None = None
    #: The number of the group of channels that is read.
    channel: int | Value = 0

    @property
    def stored(self) -> str:
        """The LLVM type of elements in memory."""
        return stored_as(self.dtype)

    @property
    def unchanged(self) -> bool:
        """Whether memory holds what registers do."""
        return not self.apart and is_itself(self.work, self.dtype) and not self.work.biased

    def zero(self, f: Function) -> Value:
        """Emit what registers hold for zeros."""
        return with_bias(f, self.work, self.work.zero())

    def read(self, f: Function, at: Value, lanes: int, mask: Value | None = None) -> Value:
        """Load `lanes` adjacent elements; zeros where masked out."""
        if not self.apart:
            return read(f, self.work, self.dtype, at, lanes, mask)
        return self._joined(f, at, lanes, lambda pointer: load(f, self.stored, self.dtype.itemsize, pointer, lanes, mask))

    def _joined(self, f: Function, at: Value, lanes: int, numbers: Callable[[Value], Value]) -> Value:
        """Emit groups whose numbers are apart: `numbers` loads the n-th of each."""
        type_, group = vector_of(self.stored, lanes), []
        zeros = Value(type_, "zeroinitializer" if lanes > 1 else "0")
        for number in range(self.work.group):
            pointer = _moved(f, at, self.stored, number * self.apart)
            exists = self._exists(f, number)
            if isinstance(exists, Value):

                def existing(pointer: Value = pointer) -> list[Value]:
                    return [numbers(pointer)]

                group += f.branch(exists, existing, lambda: [zeros])
            else:
                group.append(numbers(pointer) if exists else zeros)
        return joined(f, self.work, group)

    def _exists(self, f: Function, number: int) -> bool | Value:
        """Emit whether the group has a number, which the last one may lack."""
        if self.channels is None or number == 0:
            return True
        last, remainder = divmod(self.channels, self.work.group)
        if number < remainder:
            return True
        return self.channel < last if isinstance(self.channel, int) else f.compare("icmp slt", self.channel, i64(last))

    def strided(self, f: Function, at: Value, stride: int, mask: Value | None) -> Value:
        """Emit a strided load of a register.

        Lanes that are masked out are zero, and not touched.
        """
        work = self.work
        if stride == 1:
            return self.read(f, at, work.lanes, mask)
        if is_itself(work, self.dtype) and not self.apart:
            return with_bias(f, work, gathered(f, work.vector, at, work.itemsize, stride, mask or everywhere(work.lanes)))
        if self.apart and 0 < stride <= _NEAR:
            return self._joined(f, at, work.lanes, lambda pointer: self._picked(f, pointer, stride, mask))
        result = Value(vector_of(work.type, work.lanes), "zeroinitializer")
        zero = with_bias(f, work, Value(work.type, "0" if work.type.startswith("i") else "0.0"))
        for lane in range(work.lanes):

            def element(lane: int = lane) -> list[Value]:
                return [self.read(f, _moved(f, at, self.stored, lane * stride), 1)]

            if mask is None:
                (number,) = element()
            else:
                (number,) = f.branch(f.let("i1", f"extractelement {mask}, i64 {lane}"), element, lambda: [zero])
            result = f.let(result.type, f"insertelement {result}, {number}, i64 {lane}")
        return result

    def _picked(self, f: Function, at: Value, stride: int, mask: Value | None) -> Value:
        """Emit a load of numbers with a small stride, by one of all numbers between them."""
        lanes = self.work.lanes
        wide = Value(
            vector_of("i1", lanes * stride), "<" + ", ".join("i1 false" if k % stride else "i1 true" for k in range(lanes * stride)) + ">"
        )
        if mask is not None:
            wide = f.binary("and", wide, f.shuffle(mask, [k // stride for k in range(lanes * stride)]))
        return f.shuffle(load(f, self.stored, self.dtype.itemsize, at, lanes * stride, wide), range(0, lanes * stride, stride))


#: The largest stride of numbers that are picked out of all numbers between them.
_NEAR = 4


def _moved(f: Function, pointer: Value, type_: str, offset: int) -> Value:
    return pointer if offset == 0 else f.let("ptr", f"getelementptr {type_}, {pointer}, {i64(offset)}")


# Correlations of groups.


class GroupedView(NamedTuple):
    """An operand by groups of channels, and how they are read."""

    view: View
    elements: Elements


def grouped_view(view: View, elements: Elements, channels: int) -> GroupedView:
    """Return the view of an operand by groups of channels.

    Groups that are adjacent in memory are elements of 32 bits.
    """
    group, along = elements.work.group, view.strides[2]
    others = (view.offset, *view.strides[:2], *view.strides[3:])
    if channels % group == 0 and along == 1 and all(offset % group == 0 for offset in others):
        offset, *rest = [offset // group for offset in others]
        return GroupedView(View(offset, (*rest[:2], 1, *rest[2:])), elements._replace(dtype=np.dtype(f"i{elements.work.itemsize}")))
    strides = (*view.strides[:2], along * group, *view.strides[3:])
    return GroupedView(View(view.offset, strides), elements._replace(apart=along, channels=channels if channels % group else None))


def grouped_correlation(c: Correlation, work: ComputeType, x: Elements, w: Elements) -> tuple[Correlation, Elements, Elements] | None:
    """Return a correlation by groups of channels, and how its operands are read.

    None if that does not pay.
    """
    x_along = c.x.strides[2]
    x_view, w_view = (
        grouped_view(c.x, x._replace(work=work.packed(0)), c.channels),
        grouped_view(c.w, w._replace(work=work.packed(1)), c.channels),
    )
    if c.channels == 1:
        return None
    if x_view.elements.apart and c.channels > work.group and x_along < min([s for s in c.x.strides[3:] if s], default=x_along):
        return None  # x would be read along channels that are apart
    grouped = replace(c, channels=-(-c.channels // work.group), x=x_view.view, w=w_view.view)
    return grouped, x_view.elements, w_view.elements


# Indices, loops and transposes in generated code.
#
# Constant indices are Python integers, so that arithmetic on them is folded.

#: A constant, or an i64 in generated code.
Index = int | Value


def value(index: Index) -> Value:
    """Return an index as an operand."""
    return i64(index) if isinstance(index, int) else index


def plus(f: Function, *terms: Index) -> Index:
    """Emit the sum of indices."""
    constant = sum(term for term in terms if isinstance(term, int))
    total: Index = constant
    for term in terms:
        if isinstance(term, Value):
            total = term if total == 0 else f.binary("add nsw", term, value(total))
    return total


def times(f: Function, x: Index, factor: int) -> Index:
    """Emit an index times a known number."""
    if isinstance(x, int):
        return x * factor
    if factor in (0, 1):
        return x if factor else 0
    return f.binary("mul nsw", x, i64(factor))


def rounded_down(f: Function, x: Index, unit: int) -> Index:
    """Emit an index rounded down to a multiple of a power of two."""
    return x // unit * unit if isinstance(x, int) else f.binary("and", x, i64(-unit))


def least(f: Function, x: Index, y: Index) -> Index:
    """Emit the smaller of two indices."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return f.intrinsic("llvm.smin.i64", "i64", value(x), value(y))


def most(f: Function, x: Index, y: Index) -> Index:
    """Emit the larger of two indices."""
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    return f.intrinsic("llvm.smax.i64", "i64", value(x), value(y))


def split(f: Function, x: Index, sizes: Sequence[int]) -> list[Index]:
    """Emit the indices of a flat index into an array of the given sizes."""
    indices: list[Index] = []
    for size in reversed(sizes[1:]):
        if size == 1:
            indices.append(0)
        elif isinstance(x, int):
            x, rest = divmod(x, size)
            indices.append(rest)
        else:
            quotient = f.binary("udiv", x, i64(size))
            indices.append(f.binary("sub nsw", x, f.binary("mul nsw", quotient, i64(size))))
            x = quotient
    return [x, *reversed(indices)]


def step(f: Function, pointer: Value, type_: str, offset: Index) -> Value:
    """Emit the address `offset` elements after `pointer`, which may be out of bounds."""
    if offset == 0:
        return pointer
    return f.let("ptr", f"getelementptr {type_}, {pointer}, {value(offset)}")


def repeat(f: Function, size: Index, body: Callable[[Index], None], start: Index = 0, by: int = 1) -> None:
    """Emit `body` for every `by`-th number from `start` below `size`."""
    if isinstance(size, int) and isinstance(start, int) and size - start <= by:
        if size > start:
            body(start)
        return
    f.loop(value(start), value(size), by, [], lambda index, _: body(index), nonempty=isinstance(size, int) and isinstance(start, int))


def block_starts(f: Function, blocks: Sequence[Index], lengths: Sequence[int], sizes: Sequence[int]) -> list[Index]:
    """Emit where blocks of these lengths start along axes of these sizes.

    The last block ends at the end, if need be by computing some elements again.
    """
    return [
        least(f, times(f, block, length), size - length) if size > length else 0
        for block, length, size in zip(blocks, lengths, sizes, strict=True)
    ]


def fill_zeros(f: Function, work: ComputeType, pointer: Value, count: int) -> None:
    """Emit the stores of zeros to `count` elements."""
    repeat(f, count, lambda k: f.store(work.zero(), step(f, pointer, work.type, k), work.itemsize), 0, work.lanes)


def even_chunks(total: int, at_most: int) -> list[tuple[int, int]]:
    """Return the (size, count) of near-equal chunks of at most `at_most`."""
    count = -(-total // at_most)
    quotient, longer = divmod(total, count)
    return [(size, number) for size, number in ((quotient + 1, longer), (quotient, count - longer)) if number and size]


def each_even_chunk(f: Function, total: int, at_most: int, body: Callable[[Index, int], None]) -> None:
    """Emit `body` for the start and the size of each near-equal chunk of `total`."""
    start = 0
    for size, number in even_chunks(total, at_most):
        stop = start + size * number

        def chunk(index: Index, size: int = size) -> None:
            body(index, size)

        repeat(f, stop, chunk, start, size)
        start = stop


def between(f: Function, lanes: int, start: Index, low: Index, high: Index) -> Value:
    """Emit the mask of lanes whose number plus `start` is in [`low`, `high`)."""

    def bound(limit: Index) -> Value:
        distance = plus(f, limit, times(f, start, -1))
        capped = least(f, most(f, distance, -1), lanes + 1)
        return f.splat(f.cast("trunc", value(capped), "i32") if isinstance(capped, Value) else Value("i32", str(capped)), lanes)

    below = f.compare("icmp slt", counting(lanes, "i32"), bound(high))
    return below if low == 0 and start == 0 else f.binary("and", below, f.compare("icmp sge", counting(lanes, "i32"), bound(low)))


# Loop nests around a register tile: the sums of products of every algorithm here.
#
# The operands are *prepared*: every index steps through x, w and y by a known stride. *Rows* are unrolled indices, and one index is the
# *vector* whose neighbours share a register: rows times vectors are the sums that a tile keeps in registers. *Depth* is what is summed
# over, from outermost to innermost, the innermost unrolled. The other indices are plain loops.
#
# If w has *panels*, its elements are ordered by panel (a tile of one index), then depth, then the index in the panel.

#: About how many steps of the summation are unrolled.
_UNROLLED = 8


class LoopIndex(NamedTuple):
    """An index: how many values it takes, and its stride in each operand."""

    size: Index
    x: int = 0
    w: int = 0
    y: int = 0


class Operands(NamedTuple):
    """Addresses in the three operands."""

    x: Value
    w: Value
    y: Value

    def moved(self, f: Function, work: ComputeType, y_type: str, dim: LoopIndex, by: Index) -> Operands:
        """Emit the addresses after an index has grown by `by`."""
        types = (work.type, work.type, y_type)
        return Operands(*[step(f, p, t, times(f, by, stride)) for p, t, stride in zip(self, types, dim[1:], strict=True)])


#: A function of a tile's addresses, its counts of each unrolled index, and its sums by row and vector.
Store = Callable[[Operands, Mapping[str, int], list[Value]], None]

#: A function of a tile's addresses and counts that returns its initial sums.
Load = Callable[[Operands, Mapping[str, int]], list[Value]]


@dataclass(frozen=True)
class TileLoops:
    """A loop nest."""

    work: ComputeType
    #: The type of y's elements in memory; x and w are prepared, and of the compute type.
    y_type: str
    dims: Mapping[str, LoopIndex]
    #: Plain loops, outermost first.
    loops: tuple[str, ...]
    #: Unrolled indices with the most of each that a tile takes. The first vary slowest.
    rows: tuple[tuple[str, int], ...]
    #: The index along vectors, and how many vectors a tile has.
    vector: str
    vectors: int
    #: Indices that are summed over, outermost first.
    depth: tuple[str, ...]

    def emit(self, f: Function, operands: Operands, store: Store, load: Load | None = None) -> None:
        """Emit the loops. Sums start from what `load` gives, or else from zero."""

        def loops(names: Sequence[str], at: Operands) -> None:
            if not names:
                rows(self.rows, at, {})
                return
            dim = self.dims[names[0]]
            repeat(f, dim.size, lambda index: loops(names[1:], at.moved(f, self.work, self.y_type, dim, index)))

        def rows(names: Sequence[tuple[str, int]], at: Operands, counts: dict[str, int]) -> None:
            if not names:
                first = load(at, counts) if load else [self.work.zero()] * self.sums(counts)
                store(at, counts, _Sum(f, self, counts).total(at.x, at.w, first))
                return
            (name, at_most), *rest = names
            dim = self.dims[name]
            assert isinstance(dim.size, int)
            each_even_chunk(
                f,
                dim.size,
                at_most,
                lambda start, size: rows(rest, at.moved(f, self.work, self.y_type, dim, start), {**counts, name: size}),
            )

        loops(self.loops, operands)

    def sums(self, counts: Mapping[str, int]) -> int:
        """Return how many registers of sums a tile has."""
        total = self.vectors
        for name, _ in self.rows:
            total *= counts[name]
        return total

    def positions(self, counts: Mapping[str, int]) -> list[LoopIndex]:
        """Return the offsets of each row of a tile from the first, in the operands."""
        offsets = [LoopIndex(1)]
        for name, _ in self.rows:
            dim = self.dims[name]
            offsets = [LoopIndex(1, at.x + k * dim.x, at.w + k * dim.w, at.y + k * dim.y) for at in offsets for k in range(counts[name])]
        return offsets


class _Sum:
    """One tile's sums."""

    def __init__(self, f: Function, nest: TileLoops, counts: Mapping[str, int]) -> None:
        self.f, self.nest = f, nest
        self.rows = nest.positions(counts)
        self.along = nest.dims[nest.vector]

    def total(self, x: Value, w: Value, first: list[Value]) -> list[Value]:
        """Emit the sums over the depth, added to `first`."""
        dims = [self.nest.dims[name] for name in self.nest.depth]
        if not dims:
            return first
        unrolled: list[tuple[int, int]] = [(0, 0)]
        while dims and isinstance(size := dims[-1].size, int) and size * len(unrolled) <= _UNROLLED + 1:
            more = self._repeated(dims[-1], size, unrolled)
            if self._shared(more):
                break
            dims.pop()
            unrolled = more
        unroll = max(1, _UNROLLED // 2 // len(unrolled))
        if dims and self._shared(self._repeated(dims[-1], unroll, unrolled)):
            unroll = 1
        return self._loops(dims, unroll, unrolled, x, w, first)

    def _repeated(self, dim: LoopIndex, count: int, steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(k * dim.x + a, k * dim.w + b) for k in range(count) for a, b in steps]

    def _shared(self, steps: Sequence[tuple[int, int]]) -> bool:
        """Return True if several steps read the same elements of x.

        Keeping these for later steps would take more registers than there are.
        """
        met = [a + row.x for a, _ in steps for row in self.rows]
        return self.along.x == 0 and len(set(met)) < len(met)

    def _loops(
        self, dims: list[LoopIndex], unroll: int, unrolled: list[tuple[int, int]], x: Value, w: Value, sums: list[Value]
    ) -> list[Value]:
        if not dims:
            return self._steps(unrolled, x, w, sums)
        f, dim, inner = self.f, dims[0], dims[1:]
        type_ = self.nest.work.type

        def iteration(count: int) -> Callable[[Value, list[Value]], list[Value]]:
            steps = self._repeated(dim, count, unrolled) if not inner else unrolled

            def body(index: Value, carried: list[Value]) -> list[Value]:
                pointers = step(f, x, type_, times(f, index, dim.x)), step(f, w, type_, times(f, index, dim.w))
                return self._loops(inner, unroll, steps, *pointers, carried)

            return body

        if inner or unroll == 1:
            return f.loop(i64(0), value(dim.size), 1, sums, iteration(1), nonempty=isinstance(dim.size, int))
        if isinstance(dim.size, int):
            unrolled_end = dim.size // unroll * unroll
            if unrolled_end:
                sums = f.loop(i64(0), i64(unrolled_end), unroll, sums, iteration(unroll), nonempty=True)
            return iteration(dim.size - unrolled_end)(i64(unrolled_end), sums) if dim.size > unrolled_end else sums
        last_unrolled = f.binary("mul nsw", f.binary("udiv", dim.size, i64(unroll)), i64(unroll))
        sums = f.loop(i64(0), last_unrolled, unroll, sums, iteration(unroll))
        return f.loop(last_unrolled, dim.size, 1, sums, iteration(1))

    def _steps(self, steps: Sequence[tuple[int, int]], x: Value, w: Value, sums: list[Value]) -> list[Value]:
        """Emit straight code for some steps of the summation, every element loaded once."""
        work, along, vectors = self.nest.work, self.along, self.nest.vectors
        seen: dict[tuple[str, int], Value] = {}

        def operand(which: str, base: Value, offset: int, stride: int) -> Value:
            if (which, offset) not in seen:
                at = step(self.f, base, work.type, offset)
                if stride:
                    seen[which, offset] = self.f.load(work.vector, at, work.itemsize)
                else:
                    seen[which, offset] = self.f.splat(self.f.load(work.type, at, work.itemsize), work.lanes)
            return seen[which, offset]

        sums = list(sums)
        for a, b in steps:
            for r, row in enumerate(self.rows):
                for v in range(vectors):
                    far = v * work.lanes
                    left = operand("x", x, a + row.x + far * along.x, along.x)
                    right = operand("w", w, b + row.w + far * along.w, along.w)
                    k = r * vectors + v
                    sums[k] = work.multiply_add(self.f, left, right, sums[k])
        return sums


def dense(sizes: Sequence[int], innermost: int = 1) -> list[int]:
    """Return the strides of a dense array, whose last index has stride `innermost`."""
    strides: list[int] = []
    for size in reversed(sizes):
        strides.insert(0, innermost)
        innermost *= size
    return strides


# Tiles of x: contiguous copies of the elements that a block reads.
#
# Elements outside x are zeros. A tile keeps the order of x in memory (unless told otherwise), so that complete rows are copied.


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
    for index in reversed(order):
        if stride * work.itemsize % 1024 == 0:
            stride += work.lanes  # rows with a stride of a power of two would share few sets of the caches
        sides.insert(0, TileSide(index, extents[index], c.x.strides[index], stride))
        stride *= extents[index]
        if index == innermost:
            stride = -(-stride // work.lanes) * work.lanes
    return InputTile(tuple(sides), -(-stride // work.lanes) * work.lanes + work.lanes)


def gather(
    f: Function,
    elements: Elements,
    c: Correlation,
    tile: InputTile,
    x: Value,
    starts: list[Index],
    sure: list[bool],
    to: Value,
    valid_lanes: Index | None = None,
) -> None:
    """Fill a tile.

    `x` points to the element of the first group, image and channel; along the spatial axes the tile begins at `starts`, and is known to
    stay within x where `sure`. Of the innermost side, if it is not an axis, there are `valid_lanes` elements (None: all).
    """
    rows = _RowCopier(f, elements, c, tile, starts, sure, valid_lanes)
    rows.fill(x, to)


class _RowCopier:
    """A tile being filled row by row."""

    def __init__(
        self,
        f: Function,
        elements: Elements,
        c: Correlation,
        tile: InputTile,
        starts: list[Index],
        sure: list[bool],
        valid_lanes: Index | None,
    ) -> None:
        self.f, self.work, self.elements, self.stored = f, elements.work, elements, elements.stored
        self.c, self.starts, self.sure, self.valid_lanes = c, starts, sure, valid_lanes
        *self.outer, self.last = tile.sides
        self.first_channel = elements.channel
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
        return self.last.source == 1 and axis.source == axis.stride == self.last.extent and self.valid_lanes is None

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
            pointers = step(f, x, self.stored, times(f, start, self.last.source)), step(f, to, self.work.type, start)
            self._loops(self.outer, *pointers, None, lambda x, to, inside: self._transposed(x, to, inside, start, height))

        _each_chunk(f, self.last.extent, self.work.lanes, band)

    def _loops(
        self, sides: list[TileSide], x: Value, to: Value, inside: Value | None, body: Callable[[Value, Value, Value | None], None]
    ) -> None:
        """Emit `body` for every combination of the sides, with whether it is within x."""
        f = self.f
        if not sides:
            body(x, to, inside)
            return
        side, rest = sides[0], sides[1:]

        def iteration(index: Index) -> None:
            where, still_inside = index, inside
            if side.which == 2 and self.elements.apart:
                self.elements = self.elements._replace(channel=plus(f, self.first_channel, index))
            if side.which > 2:
                where = plus(f, self.starts[side.which - 3], index)
                if not self.sure[side.which - 3]:
                    within = f.compare("icmp ult", value(where), i64(self.c.axes[side.which - 3].size))
                    still_inside = within if inside is None else f.binary("and", inside, within)
            source = step(f, x, self.stored, times(f, where, side.source))
            self._loops(rest, source, step(f, to, self.work.type, times(f, index, side.stride)), still_inside, body)

        repeat(f, side.extent, iteration)

    def _limits(self, side: TileSide, inside: Value | None, per: int = 1) -> tuple[Index, Index]:
        """Emit the range of a side's elements (`per` to a step) that are in x."""
        f, low, high = self.f, 0, side.extent * per
        first: Index = low
        last: Index = high
        if side.which > 2 and not self.sure[side.which - 3]:
            start = self.starts[side.which - 3]
            first = least(f, most(f, times(f, start, -per), 0), high)  # a tile may lie in the padding as a whole
            last = least(f, times(f, plus(f, self.c.axes[side.which - 3].size, times(f, start, -1)), per), high)
        elif side.which <= 2 and side is self.last and self.valid_lanes is not None:
            last = least(f, self.valid_lanes, high)
        if inside is not None:
            last = f.select(inside, value(last), i64(0))
        return (first, last) if (first, last) == (0, high) else (first, most(f, first, last))

    def _copy_row(self, x: Value, to: Value, inside: Value | None) -> None:
        """Copy a row, vector by vector."""
        if self.merged:
            low, high = self._limits(self.merged, inside, self.last.extent)
            length, source = self.merged.extent * self.last.extent, 1
        else:
            low, high = self._limits(self.last, inside)
            length, source = self.last.extent, self.last.source
        f, work = self.f, self.work

        def copy_vector(index: Index, count: int | Index) -> None:
            mask = first_lanes(count, work.lanes) if isinstance(count, int) else between(f, work.lanes, 0, 0, count)
            at = step(f, x, self.stored, times(f, index, source))
            f.store(self.elements.strided(f, at, source, mask), step(f, to, work.type, index), work.itemsize)

        if (low, high) == (0, length):
            _each_chunk(f, length, work.lanes, copy_vector)
            return
        # Vectors may be written beyond the end of a row: the next row is written after them.
        zero = functools.partial(f.store, self.elements.zero(f), align=work.itemsize)
        full_vectors = times(f, f.binary("sdiv", value(plus(f, high, times(f, low, -1))), i64(work.lanes)), work.lanes)
        rest = plus(f, low, full_vectors)
        repeat(f, low, lambda k: zero(pointer=step(f, to, work.type, k)), 0, work.lanes)
        repeat(f, rest, lambda k: copy_vector(k, work.lanes), low, work.lanes)
        copy_vector(rest, plus(f, high, times(f, rest, -1)))
        repeat(f, length, lambda k: zero(pointer=step(f, to, work.type, k)), plus(f, rest, work.lanes), work.lanes)

    def _transposed(self, x: Value, to: Value, inside: Value | None, start: Index, height: int) -> None:
        """Emit the copy of rows that x has along another side than the tile's last.

        `height` neighbours of the last side are copied, from `start` on.
        """
        assert self.adjacent is not None
        f, work, lanes, side = self.f, self.work, self.work.lanes, self.adjacent
        low, high = self._limits(side, inside)
        full_side = (low, high) == (0, side.extent)
        first, last = self._limits(self.last, None)
        full_last = (first, last) == (0, self.last.extent)

        def square(at: Index, width: int) -> None:
            mask = first_lanes(width, lanes) if full_side else between(f, lanes, at, low, high)
            rows = []
            for k in range(height):
                some = mask
                if not full_last:
                    index = value(plus(f, start, k))
                    within = f.binary("and", f.compare("icmp sge", index, value(first)), f.compare("icmp slt", index, value(last)))
                    some = f.splat(within, lanes) if mask is None else f.binary("and", f.splat(within, lanes), mask)
                address = step(f, x, self.stored, plus(f, at, k * self.last.source))
                rows.append(self.elements.read(f, address, lanes, some))
            columns = transposed(f, rows + [work.zero()] * (lanes - height))
            for k in range(width):
                address = step(f, to, work.type, times(f, plus(f, at, k), side.stride))
                f.store(columns[k], address, work.itemsize)  # rows of a transposed tile are full vectors

        _each_chunk(f, side.extent, lanes, square)


def _each_chunk(f: Function, length: int, size: int, body: Callable[[Index, int], None]) -> None:
    """Emit `body` for the start and the size of chunks, all of one size but the last."""
    full_vectors = length // size * size
    repeat(f, full_vectors, lambda start: body(start, size), 0, size)
    if length > full_vectors:
        body(full_vectors, length - full_vectors)
