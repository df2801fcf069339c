"""Winograd's convolution: windows of stride 1, as products at points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from volta_fn.codegen.windows import inverse_transform, transform_input, transform_taps
from volta_fn.compiler.contractions import Axis, Correlation
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.convolution.blocking import (
    NANOSECONDS,
    TILE,
    Arguments,
    CorrelationBuilder,
    SumTile,
    fitting,
    register_tile,
    store_transposed,
    store_vector,
)
from volta_fn.targets.cpu.convolution.emission import (
    Index,
    InputTile,
    LoopIndex,
    Operands,
    TileLoops,
    between,
    block_starts,
    dense,
    gather,
    least,
    plus,
    repeat,
    rounded_down,
    split,
    step,
    tile_of,
    times,
    value,
)
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, stored_as

# The tiling of a correlation, when Winograd's convolution applies, and its time.

#: Elements that a block has at all points, of x and of the products together, at most.
_BLOCK = 128 * 1024

#: Elements of transformed taps that are read again for every block, at most.
_RELOADED = 256 * 1024

#: Bytes of transformed taps, and of these with x and the products at all points, if all are kept, at most.
_TAPS, SPREAD = 18 << 20, 26 << 20

#: Tiles for which the transformed taps are worth reading.
_TILES = 24

#: The most channels for six points, which round too much with more.
MANY = 128


class Scheme(NamedTuple):
    """How windows become products along an axis: tiles of positions by points.

    Windows of more taps than points - positions + 1 are cut into `segments`, each as many taps from the next one as a tile has positions,
    so that what a segment meets in a tile is what the segment before it meets in the next one.
    """

    points: int
    positions: int
    segments: int

    @property
    def taps(self) -> int:
        """Taps of a segment."""
        return self.points - self.positions + 1

    @property
    def terms(self) -> int:
        """Products of one channel, of a tile with the taps."""
        return (self.points * self.segments) ** 2


def schemes_for(c: Correlation, work: ComputeType) -> list[Scheme]:
    """Return the schemes that apply."""
    if len(c.axes) != 2 or any(axis.stride != 1 for axis in c.axes) or c.axes[0].taps != c.axes[1].taps:
        return []
    bytes_of_term = c.groups * max(c.channels, 16) * max(c.outputs, 16) * work.itemsize
    return [scheme for scheme in _schemes(c.axes[0].taps) if scheme.terms * bytes_of_term <= _TAPS]


def _schemes(taps: int) -> list[Scheme]:
    if taps == 2:  # six points would give five positions, which round twenty times as much and are no faster
        return [Scheme(4, 3, 1)]
    undivided = [Scheme(points, points - taps + 1, 1) for points in (6, 4) if 2 < taps < points]
    return undivided or ([Scheme(6, 3, -(-(taps - 1) // 3))] if 5 < taps <= 10 else [])


def time_of(c: Correlation, scheme: Scheme) -> float:
    """Estimate the nanoseconds; infinite if it rounds too much to be chosen.

    More points multiply less, but round more, the more so the more channels there are, and transform more weights.
    """
    tiles = c.groups * c.images * prod(tiles_of(axis, scheme) for axis in c.axes)
    channels, outputs = max(c.channels, 16), max(c.outputs, 16)
    if scheme.points == 6 and c.channels > MANY:
        return float("inf")
    moved = scheme.points**2 * (0.7 if scheme.points == 6 else 0.5) * (channels + outputs)
    return tiles * (moved + scheme.terms * channels * outputs * NANOSECONDS * 1.1)


def tiles_of(axis: Axis, scheme: Scheme) -> int:
    """Return the tiles along an axis, equally many for each residue by the dilation."""
    return -(-axis.positions // (scheme.positions * axis.dilation)) * axis.dilation


def odd_vectors(elements: int, lanes: int) -> int:
    """Round elements up to an odd number of vectors, which spread over cache sets."""
    vectors = -(-elements // lanes)
    return (vectors + 1 - vectors % 2) * lanes


@dataclass(frozen=True)
class WinogradPlan:
    """How a correlation is cut up."""

    c: Correlation
    work: ComputeType
    scheme: Scheme
    #: Images, and tiles along both axes, of a block.
    images: int
    tiles: tuple[int, int]
    #: Vectors of a panel of outputs, and panels.
    vectors: int
    panels: int
    #: Whether all blocks are transformed before they are multiplied, as taps are too large to be read for every block.
    spread: bool

    @property
    def points(self) -> int:
        """Points along an axis."""
        return self.scheme.points

    @property
    def positions(self) -> int:
        """Positions of a tile along an axis."""
        return self.scheme.positions

    @property
    def segments(self) -> int:
        """Segments of the taps, along both axes."""
        return self.scheme.segments**2

    @property
    def channels(self) -> int:
        """Channels, in full vectors."""
        return -(-self.c.channels // self.work.lanes) * self.work.lanes

    @property
    def width(self) -> int:
        """Outputs of a panel."""
        return self.vectors * self.work.lanes

    @property
    def outputs(self) -> int:
        """Outputs of all panels."""
        return self.panels * self.width

    @property
    def all_tiles(self) -> list[int]:
        """Tiles along both axes."""
        return [tiles_of(axis, self.scheme) for axis in self.c.axes]

    @property
    def input_tiles(self) -> list[int]:
        """Tiles along both axes that a block's tiles meet in x, with any part of the taps."""
        return [size + (self.scheme.segments - 1) * axis.dilation for size, axis in zip(self.tiles, self.c.axes, strict=True)]

    @property
    def spans(self) -> list[int]:
        """Elements along both axes that a block meets."""
        more = self.points - self.positions
        return [size * self.positions + more * axis.dilation for size, axis in zip(self.input_tiles, self.c.axes, strict=True)]

    @property
    def count(self) -> int:
        """Tiles that are multiplied together: a block's, or all."""
        return self.c.images * prod(self.all_tiles) if self.spread else self.images * prod(self.tiles)

    @property
    def rows(self) -> list[tuple[str, int]]:
        """The rows of the products at each point: all tiles, or image and both axes."""
        if self.segments == 1:
            return [("m", self.count)]
        return [("n", self.images), ("t0", self.tiles[0]), ("t1", self.tiles[1])]

    @property
    def tap_elements(self) -> int:
        """Elements of one group's taps at one point."""
        return odd_vectors(self.panels * self.segments * self.channels * self.width, self.work.lanes)

    @property
    def input_elements(self) -> int:
        """Elements of x at one point."""
        tiles = self.count if self.spread else self.images * prod(self.input_tiles)
        return odd_vectors(tiles * self.channels, self.work.lanes)

    @property
    def product_elements(self) -> int:
        """Elements of the products at one point."""
        return odd_vectors(self.count * self.outputs, self.work.lanes)

    @property
    def grid(self) -> list[int]:
        """How many blocks there are of groups, images and tiles along both axes."""
        tiles = [-(-n // size) for n, size in zip(self.all_tiles, self.tiles, strict=True)]
        return [self.c.groups, -(-self.c.images // self.images), *tiles]


def winograd_plan(c: Correlation, work: ComputeType, scheme: Scheme) -> WinogradPlan:
    """Choose blocks that fit the caches, but are worth reading the weights for."""
    tiles = [tiles_of(axis, scheme) for axis in c.axes]
    vectors = -(-c.outputs // work.lanes)
    channels = -(-c.channels // work.lanes) * work.lanes
    both = scheme.points**2 * (channels + vectors * work.lanes)
    taps, all_tiles = scheme.terms * channels * vectors * work.lanes, c.images * prod(tiles)
    spread = c.groups == scheme.segments == 1 and taps > _RELOADED and (all_tiles * both + taps) * work.itemsize < SPREAD
    target = TILE // (2 * scheme.positions**2 * channels) if spread else max(_TILES, _BLOCK // both)
    columns = tiles[1] if spread else _fitting(tiles[1], target, c.axes[1].dilation)
    rows = _fitting(tiles[0], target // columns, c.axes[0].dilation)
    images = 1 if spread else max(1, min(c.images, target // (rows * columns)))
    shape = WinogradPlan(c, work, scheme, images, (rows, columns), 1, vectors, spread)
    register = register_tile(shape.rows, vectors, scheme.segments**2 * c.channels, None)
    return replace(shape, vectors=register.vectors, panels=-(-vectors // register.vectors))


def _fitting(tiles: int, at_most: int, dilation: int) -> int:
    """Return a number of tiles along an axis that has all residues."""
    each = tiles // dilation
    return dilation * fitting(each, max(1, min(each, round(at_most / dilation))))


# Winograd's transforms of weights and outputs, as generated code.


class VectorAlgebra:
    """Arithmetic of vectors with constant factors."""

    def __init__(self, f: Function, work: ComputeType) -> None:
        self.f, self.work = f, work

    def plus(self, x: Value, y: Value) -> Value:
        """Emit x + y."""
        return self.f.binary("fadd", x, y)

    def minus(self, x: Value, y: Value) -> Value:
        """Emit x - y."""
        return self.f.binary("fsub", x, y)

    def more(self, x: Value, factor: float, y: Value) -> Value:
        """Emit x + factor y."""
        if factor in (1, -1):
            return self.plus(x, y) if factor == 1 else self.minus(x, y)
        return self.work.multiply_add(self.f, y, self.number(factor), x)

    def number(self, factor: float) -> Value:
        """Return a constant in all lanes."""
        bits = np.float64(np.float32(factor) if self.work.type == "float" else factor).view(np.uint64)
        return self.f.splat(Value(self.work.type, f"0x{int(bits):016X}"), self.work.lanes)

    def times(self, factor: float, x: Value) -> Value:
        """Emit factor x."""
        return x if factor == 1 else self.f.binary("fmul", x, self.number(factor))


def transform_weights(f: Function, builder: CorrelationBuilder, shape: WinogradPlan, args: Arguments, unit: Index, room: int) -> None:
    """Emit the transform of one segment of the taps of one channel and one panel.

    They are stored by point, panel, segment and channel.
    """
    work, c, segments = shape.work, shape.c, shape.scheme.segments
    group, panel, row, column, channel = split(f, unit, [c.groups, shape.panels, segments, segments, shape.channels])
    index = unit if c.groups == 1 else plus(f, unit, times(f, group, -shape.panels * shape.segments * shape.channels))
    point_stride = shape.tap_elements
    to = args.room(f, room, work.itemsize, plus(f, times(f, group, shape.points**2 * point_stride), times(f, index, shape.width)))
    first = times(f, panel, shape.width)
    is_channel = f.compare("icmp slt", value(channel), i64(c.channels))
    remaining = f.select(is_channel, value(plus(f, c.outputs, times(f, first, -1))), i64(0))
    start = [times(f, segment, shape.positions) for segment in (row, column)]
    w = builder.at(f, "w", args.w, group, first, channel, *start)
    a, stored, taps = VectorAlgebra(f, work), builder.w.stored, min(shape.scheme.taps, c.axes[0].taps)
    tap_flags = [[_has_tap(f, shape, segment, k) for k in range(taps)] for segment in (row, column)]

    def vector(v: Index) -> None:
        output = times(f, v, work.lanes)
        mask = between(f, work.lanes, output, 0, remaining)
        vector_start = step(f, w, stored, times(f, output, c.w.strides[1]))

        def tap(i: int, j: int) -> Value:
            some = mask
            for inside in (tap_flags[0][i], tap_flags[1][j]):
                some = some if inside is None else f.binary("and", some, f.splat(inside, work.lanes))
            at = step(f, vector_start, stored, i * c.w.strides[3] + j * c.w.strides[4])
            return builder.w.strided(f, at, c.w.strides[1], some)

        columns = [transform_taps(a, [tap(i, j) for i in range(taps)], shape.points) for j in range(taps)]
        for i in range(shape.points):
            for j, point_value in enumerate(transform_taps(a, [one[i] for one in columns], shape.points)):
                f.store(point_value, step(f, to, work.type, plus(f, output, (i * shape.points + j) * point_stride)), work.itemsize)

    repeat(f, shape.vectors, vector)


def _has_tap(f: Function, shape: WinogradPlan, segment: Index, tap: int) -> Value | None:
    """Emit whether a segment has a tap; None if it always has.

    All segments but the last have as many taps as tiles have positions, and the last has the rest.
    """
    scheme, taps = shape.scheme, shape.c.axes[0].taps
    if scheme.segments == 1:
        return None
    last = taps - (scheme.segments - 1) * scheme.positions
    if tap < min(last, scheme.positions):
        return None
    is_last = f.compare("icmp eq", value(segment), i64(scheme.segments - 1))
    if tap < last:
        return is_last
    return f.binary("xor", is_last, Value("i1", "true")) if tap < scheme.positions else Value("i1", "false")


def each_tile(
    f: Function, shape: WinogradPlan, sizes: Sequence[int], length: int, body: Callable[[Index, tuple[Index, Index], Index], None]
) -> None:
    """Emit `body` for every tile and vector of a block.

    It gets the tile's number, its first position, and the vector's first element.
    """
    lanes, m = shape.work.lanes, shape.positions
    (rows, columns), (down, along) = sizes, [axis.dilation for axis in shape.c.axes]

    def each(size: int, dilation: int, body: Callable[[Index, Index], None]) -> None:
        """Emit the tiles along an axis: of every residue one, then the next ones."""

        def group(start: Index) -> None:
            repeat(f, dilation, lambda residue: body(plus(f, start, residue), plus(f, times(f, start, m), residue)))

        repeat(f, size, group, 0, dilation)

    def row(i: Index, top: Index) -> None:
        def tile(j: Index, left: Index) -> None:
            number = plus(f, times(f, i, columns), j)
            repeat(f, length, lambda k: body(number, (top, left), k), 0, lanes)

        each(columns, along, tile)

    each(rows, down, row)


class OutputTransform:
    """The last step of a block: products at points become positions, and are stored."""

    def __init__(self, builder: CorrelationBuilder, shape: WinogradPlan) -> None:
        self.builder, self.shape, self.c, self.work = builder, shape, builder.c, builder.work
        #: Whether positions are kept in the task's room, outputs innermost, before they are transposed to the order of y.
        self.transposed = self.c.y.strides[2] != 1

    def write(self, f: Function, products: Value, y: Value, positions: list[Index], room: Value) -> None:
        """Emit the transform of the products of one image of a block."""
        shape, work = self.shape, self.work
        n, m = shape.points, shape.positions
        point_stride = shape.product_elements
        a = VectorAlgebra(f, work)
        strides = dense([size * m for size in shape.tiles], shape.outputs)

        def tile(number: Index, first: tuple[Index, Index], output: Index) -> None:
            at = step(f, products, work.type, plus(f, times(f, number, shape.outputs), output))
            first_pass = []
            for j in range(n):
                column = [f.load(work.vector, step(f, at, work.type, (i * n + j) * point_stride), work.itemsize) for i in range(n)]
                first_pass.append(inverse_transform(a, column, m))
            for i in range(m):
                for j, result in enumerate(inverse_transform(a, [column_sums[i] for column_sums in first_pass], m)):
                    spot = [plus(f, start, k * axis.dilation) for start, k, axis in zip(first, (i, j), self.c.axes, strict=True)]
                    if self.transposed:
                        inside = plus(f, output, *[times(f, s, stride) for s, stride in zip(spot, strides, strict=True)])
                        f.store(result, step(f, room, work.type, inside), work.itemsize)
                    else:
                        self._store(f, y, positions, spot, output, result)

        each_tile(f, shape, shape.tiles, shape.outputs, tile)
        if self.transposed:
            self._transpose_output(f, room, strides, y, positions)

    def _room(self, f: Function, positions: list[Index], axis: int) -> Index:
        """Emit how many of a block's positions exist along an axis."""
        length = self.shape.tiles[axis] * self.shape.positions
        return least(f, plus(f, self.c.axes[axis].positions, times(f, positions[axis], -1)), length)

    def _store(self, f: Function, y: Value, positions: list[Index], spot: list[Index], output: Index, vector: Value) -> None:
        """Emit the store of outputs at a position, if it exists."""
        c, lanes = self.c, self.work.lanes
        to = step(
            f, y, stored_as(self.builder.y_dtype), plus(f, output, *[times(f, s, t) for s, t in zip(spot, c.y.strides[3:], strict=True)])
        )
        valid_lanes = None if c.outputs % lanes == 0 and self.shape.outputs == c.outputs else plus(f, c.outputs, times(f, output, -1))
        exists: Value | None = None
        for axis in (0, 1):
            if c.axes[axis].positions % (self.shape.positions * c.axes[axis].dilation):
                inside = f.compare("icmp slt", value(spot[axis]), value(self._room(f, positions, axis)))
                exists = inside if exists is None else f.binary("and", exists, inside)

        def store_outputs() -> list[Value]:
            store_vector(f, self.work, self.builder.y_dtype, vector, to, 1, valid_lanes)
            return []

        if exists is None:
            store_outputs()
        else:
            f.branch(exists, store_outputs)

    def _transpose_output(self, f: Function, room: Value, strides: list[int], y: Value, positions: list[Index]) -> None:
        """Emit the copy of one image's positions, outputs innermost, to the result."""
        c, work, dtype = self.c, self.work, self.builder.y_dtype
        lanes, stored = work.lanes, stored_as(dtype)
        sizes, steps = [self._room(f, positions, 0), self._room(f, positions, 1)], list(c.y.strides[3:])
        if sizes[1] == c.axes[1].positions == steps[0] // steps[1] == strides[0] // strides[1]:  # rows follow one another
            sizes, steps, strides = [1, times(f, sizes[0], c.axes[1].positions)], [0, steps[1]], [0, strides[1]]

        def outputs(output: Index) -> None:
            valid_lanes = None if c.outputs % lanes == 0 else plus(f, c.outputs, times(f, output, -1))

            def copy_row(row: Index) -> None:
                def copy_square(column: Index, remain: Index | None = None) -> None:
                    at = step(f, room, work.type, plus(f, times(f, row, strides[0]), times(f, column, strides[1]), output))
                    offsets = [times(f, i, s) for i, s in zip((output, row, column), (c.y.strides[2], *steps), strict=True)]
                    self._square(f, at, strides[1], step(f, y, stored, plus(f, *offsets)), remain, valid_lanes)

                if steps[1] != 1:
                    repeat(f, sizes[1], copy_square)
                    return
                full_vectors = rounded_down(f, sizes[1], lanes)
                repeat(f, full_vectors, copy_square, 0, lanes)
                rest = plus(f, sizes[1], times(f, full_vectors, -1))
                repeat(f, sizes[1], lambda column: copy_square(column, rest), full_vectors, lanes)

            repeat(f, sizes[0], copy_row)

        repeat(f, c.outputs, outputs, 0, lanes)

    def _square(self, f: Function, at: Value, stride: int, to: Value, remain: Index | None, valid_lanes: Index | None) -> None:
        """Emit the store of a square of positions by outputs, those that are in bounds."""
        work, c = self.work, self.c
        if c.y.strides[4] != 1:
            store_vector(f, work, self.builder.y_dtype, f.load(work.vector, at, work.itemsize), to, c.y.strides[2], valid_lanes)
            return
        rows = [f.load(work.vector, step(f, at, work.type, k * stride), work.itemsize) for k in range(work.lanes)]
        store_transposed(f, work, self.builder.y_dtype, rows, to, c.y.strides[2], valid_lanes, remain)


# Winograd's convolution: windows of stride 1, as products at points.
#
# See `codegen.windows` for the transforms. The weights are transformed once. A block of positions goes through four steps, each in
# the task's own room, so that all of it stays in the caches: x is copied with channels innermost; tiles of n by n are transformed, by
# vectors along channels; at each of the n² points, tiles times channels are multiplied with channels times outputs; and the products are
# transformed into m by m positions, by vectors along outputs.
#
# Where taps are dilated, the positions of each residue have tiles of their own, next to each other. Windows of many taps are cut into
# segments (see `Scheme`): then tiles are multiplied with a small window of tiles, and channels, times outputs.


class Winograd:
    """The writer of one correlation's code."""

    def __init__(self, builder: CorrelationBuilder, shape: WinogradPlan) -> None:
        self.builder, self.shape, self.c, self.work = builder, shape, builder.c, builder.work
        m, n = shape.positions, shape.points
        rows, columns = shape.spans
        self.x_tile: InputTile = tile_of(self.c, self.work, {2: self.c.channels, 3: rows, 4: columns}, innermost=2)
        #: Elements of a task's rooms: x, x at the points, the products there, and positions before they are transposed.
        self.output_transform = OutputTransform(builder, shape)
        transposed = (prod(shape.tiles) * m * m + self.work.lanes) * shape.outputs if self.output_transform.transposed else 0
        self.rooms = [self.x_tile.elements, n * n * shape.input_elements, n * n * shape.product_elements, transposed]
        self.taps_room = self.task_room = self.input_room = self.product_room = 0

    def write(self) -> None:
        """Add the stages to the builder."""
        shape, builder, size = self.shape, self.builder, self.work.itemsize
        count = self.c.groups * shape.panels * shape.segments * shape.channels
        self.taps_room = builder.reserve(shape.points**2 * self.c.groups * shape.tap_elements, size)

        def prepare(f: Function, args: Arguments, task: Value, index: Index) -> None:
            transform_weights(f, builder, shape, args, index, self.taps_room)

        builder.shared_job("prepare", builder.tasks(count, 0), count * shape.width * shape.points, count, prepare)
        cost = self.c.products * NANOSECONDS * shape.scheme.terms / (shape.positions**2 * self.c.taps) * 1.5
        (self._write_spread if shape.spread else self._write_blocks)(cost)

    def _write_blocks(self, cost: float) -> None:
        """Add the stage in which every block goes through all steps."""
        builder, units, size = self.builder, prod(self.shape.grid), self.work.itemsize
        tasks = builder.tasks(units, sum(self.rooms))
        self.task_room = builder.reserve(tasks * sum(self.rooms), size)
        starts = [sum(self.rooms[:k]) * size for k in range(4)]

        def blocks(f: Function, args: Arguments, task: Value) -> None:
            room = [args.room(f, self.task_room + start, sum(self.rooms) * size, task) for start in starts]
            builder.shared(f, task, units, tasks, lambda unit: self._block(f, args, room, unit))

        builder.job("sum", tasks, cost, blocks)

    def _write_spread(self, cost: float) -> None:
        """Add stages in which all blocks are transformed, multiplied by point, and stored."""
        builder, shape, size, points = self.builder, self.shape, self.work.itemsize, self.shape.points**2
        x_room, input_elements, product_elements, transposed = self.rooms
        units = prod(shape.grid)
        tasks = builder.tasks(units, max(x_room, transposed))
        self.task_room = builder.reserve(tasks * max(x_room, transposed), size)
        self.input_room, self.product_room = builder.reserve(input_elements, size), builder.reserve(product_elements, size)

        def stage(step: Callable[[Function, Arguments, Value, Index], None]) -> Callable[[Function, Arguments, Value], None]:
            def body(f: Function, args: Arguments, task: Value) -> None:
                room = args.room(f, self.task_room, max(x_room, transposed) * size, task)
                builder.shared(f, task, units, tasks, lambda unit: step(f, args, room, unit))

            return body

        def multiply(f: Function, args: Arguments, task: Value) -> None:
            x, taps, to = [
                args.room(f, room, elements * size, task)
                for room, elements in (
                    (self.input_room, shape.input_elements),
                    (self.taps_room, shape.tap_elements),
                    (self.product_room, shape.product_elements),
                )
            ]
            self._multiply(f, x, taps, to, 1)

        builder.job("enter", tasks, cost * 0.15, stage(self._transform_input_block))
        builder.job("sum", points, cost * 0.7, multiply)
        builder.job("finish", tasks, cost * 0.15, stage(self._transform_output_block))

    def _at(self, f: Function, unit: Index) -> tuple[Index, Index, list[Index]]:
        """Emit a block's group, first image and first tiles."""
        shape = self.shape
        group, *coordinates = split(f, unit, shape.grid)
        image, *tiles = block_starts(f, coordinates, [shape.images, *shape.tiles], [self.c.images, *shape.all_tiles])
        return group, image, tiles

    def _block(self, f: Function, args: Arguments, room: list[Value], unit: Index) -> None:
        """Emit all steps of one block."""
        shape, type_ = self.shape, self.work.type
        group, image, tiles = self._at(f, unit)
        each = prod(shape.tiles)

        def image_to_points(k: Index) -> None:
            to = step(f, room[1], type_, times(f, k, prod(shape.input_tiles) * shape.channels))
            self._transform_input_image(f, args, room[0], (group, plus(f, image, k), tiles), to)

        def points_to_image(k: Index) -> None:
            products = step(f, room[2], type_, times(f, k, each * shape.outputs))
            self._transform_output_image(f, args, products, (group, plus(f, image, k), tiles), room[3])

        repeat(f, shape.images, image_to_points)
        taps = args.room(f, self.taps_room, shape.points**2 * shape.tap_elements * self.work.itemsize, group)
        self._multiply(f, room[1], taps, room[2], shape.points**2)
        repeat(f, shape.images, points_to_image)

    def _first_tile(self, f: Function, at: tuple[Index, Index, list[Index]]) -> Index:
        """Emit the number of a block's first tile."""
        rows, columns = self.shape.all_tiles
        return plus(f, times(f, at[1], rows * columns), times(f, at[2][0], columns), at[2][1])

    def _transform_input_block(self, f: Function, args: Arguments, room: Value, unit: Index) -> None:
        at = self._at(f, unit)
        to = step(f, args.room(f, self.input_room), self.work.type, times(f, self._first_tile(f, at), self.shape.channels))
        self._transform_input_image(f, args, room, at, to)

    def _transform_output_block(self, f: Function, args: Arguments, room: Value, unit: Index) -> None:
        at = self._at(f, unit)
        products = step(f, args.room(f, self.product_room), self.work.type, times(f, self._first_tile(f, at), self.shape.outputs))
        self._transform_output_image(f, args, products, at, room)

    def _transform_input_image(self, f: Function, args: Arguments, room: Value, at: tuple[Index, Index, list[Index]], to: Value) -> None:
        """Emit the copy and the transform of a block's tiles of one image."""
        shape, c = self.shape, self.c
        group, image, tiles = at
        starts = [plus(f, times(f, t, shape.positions), -axis.low) for t, axis in zip(tiles, c.axes, strict=True)]
        sure = [axis.inside and axis.positions % (shape.positions * axis.dilation) == 0 for axis in c.axes]
        gather(f, self.builder.x, c, self.x_tile, self.builder.at(f, "x", args.x, group, image), starts, sure, room)
        self._transform_input(f, room, to)

    def _transform_output_image(
        self, f: Function, args: Arguments, products: Value, at: tuple[Index, Index, list[Index]], room: Value
    ) -> None:
        """Emit the output transform of a block's products of one image."""
        group, image, tiles = at
        positions = [times(f, t, self.shape.positions) for t in tiles]
        self.output_transform.write(f, products, self.builder.at(f, "y", args.y, group, image, 0, *positions), positions, room)

    def _transform_input(self, f: Function, x: Value, to: Value) -> None:
        """Emit the input transform of the tiles of one image of a block."""
        shape, work = self.shape, self.work
        n, rows, columns = shape.points, self.x_tile.stride(3), self.x_tile.stride(4)
        point_stride = shape.input_elements
        a = VectorAlgebra(f, work)

        down, along = [axis.dilation * stride for axis, stride in zip(self.c.axes, (rows, columns), strict=True)]

        def tile(number: Index, first: tuple[Index, Index], channel: Index) -> None:
            at = step(f, x, work.type, plus(f, times(f, first[0], rows), times(f, first[1], columns), channel))
            target = step(f, to, work.type, plus(f, times(f, number, shape.channels), channel))
            first_pass = []
            for j in range(n):
                column = [f.load(work.vector, step(f, at, work.type, i * down + j * along), work.itemsize) for i in range(n)]
                first_pass.append(transform_input(a, column))
            for i in range(n):
                for j, point_value in enumerate(transform_input(a, [column_sums[i] for column_sums in first_pass])):
                    f.store(point_value, step(f, target, work.type, (i * n + j) * point_stride), work.itemsize)

        each_tile(f, shape, shape.input_tiles, shape.channels, tile)

    def _multiply(self, f: Function, x: Value, taps: Value, to: Value, points: int) -> None:
        """Emit at `points` points the products of tiles × channels and channels × outputs."""
        shape, work = self.shape, self.work
        tile = register_tile(shape.rows, shape.panels * shape.vectors, shape.scheme.segments**2 * self.c.channels, None)
        depth = self._depth()
        panel = shape.segments * shape.channels * shape.width
        dims = {
            "e": LoopIndex(points, shape.input_elements, shape.tap_elements, shape.product_elements),
            "panel": LoopIndex(shape.panels, 0, panel, shape.width),
            **self._rows(),
            "o": LoopIndex(shape.width, 0, 1, 1),
            **depth,
        }
        loops = ("e", "panel", *(name for name, _ in shape.rows if name not in dict(tile.rows)))
        nest = TileLoops(work, work.type, dims, loops, tile.rows, "o", shape.vectors, tuple(depth))
        sums = SumTile(nest, self.builder.y_dtype, None)
        nest.emit(f, Operands(x, taps, to), lambda *args: sums.store_sums(f, *args))

    def _rows(self) -> dict[str, LoopIndex]:
        """Return the rows of the products, as indices of tiles in x and in y."""
        shape = self.shape
        names, sizes = zip(*shape.rows, strict=True)
        steps = dense(sizes, shape.outputs)
        met = [shape.channels] if shape.segments == 1 else dense([shape.images, *shape.input_tiles], shape.channels)
        return {name: LoopIndex(size, x, 0, y) for name, size, x, y in zip(names, sizes, met, steps, strict=True)}

    def _depth(self) -> dict[str, LoopIndex]:
        """Return the indices summed over at a point: segments of the taps, and channels."""
        shape, segments = self.shape, self.shape.scheme.segments
        channels = LoopIndex(self.c.channels, 1, shape.width, 0)
        if segments == 1:
            return {"c": channels}
        row, column = [axis.dilation * stride for axis, stride in zip(self.c.axes, dense(shape.input_tiles, shape.channels), strict=True)]
        each = shape.channels * shape.width
        return {"k0": LoopIndex(segments, row, segments * each, 0), "k1": LoopIndex(segments, column, each, 0), "c": channels}
