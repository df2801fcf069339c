"""Winograd's convolution of few positions and many taps: gradients by the weights.

Every tile of r by r taps gives m by m positions from n by n elements of x, n = m + r - 1, which at n² points is one product each. All tiles
have the same positions, so that the products are summed up at the points, over tiles and channels, before they are transformed. x and w are
transformed first, by vectors along images and outputs; then, at each point, images times tiles are multiplied with tiles times outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from volta_fn.codegen.windows import inverse_transform, transform_input, transform_taps
from volta_fn.compiler.contractions import Correlation
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.convolution.blocking import (
    NANOSECONDS,
    TILE,
    Arguments,
    CorrelationBuilder,
    RegisterTile,
    SumTile,
    divisor,
    fitting,
    register_tile,
    store_transposed,
    store_vector,
)
from volta_fn.targets.cpu.convolution.emission import (
    Index,
    LoopIndex,
    Operands,
    TileLoops,
    between,
    fill_zeros,
    gather,
    least,
    plus,
    repeat,
    split,
    step,
    tile_of,
    times,
    value,
)
from volta_fn.targets.cpu.convolution.winograd import SPREAD, VectorAlgebra, odd_vectors
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, stored_as

#: Positions along an axis.
_POSITIONS = 3

#: The most terms of a block of the blocked summation, which bounds the rounding error.
_TERMS = 256


@dataclass(frozen=True)
class WinogradSumsPlan:
    """How a correlation is cut up."""

    c: Correlation
    work: ComputeType
    #: Points along an axis.
    points: int

    @property
    def taps(self) -> int:
        """Taps of a tile along an axis."""
        return self.points - _POSITIONS + 1

    @property
    def tiles(self) -> list[int]:
        """Tiles along both axes."""
        return [-(-axis.taps // self.taps) for axis in self.c.axes]

    @property
    def depth(self) -> int:
        """Tiles of all channels: what is summed over at each point."""
        return self.c.channels * prod(self.tiles)

    @property
    def terms(self) -> int:
        """How many of these are summed up before they are added to the others."""
        return divisor(self.depth, _TERMS)

    @property
    def columns(self) -> int:
        """Tiles of a row that are transformed together."""
        return fitting(self.tiles[1], min(self.tiles[1], max(1, 2 * TILE // (self.points * self.taps * self.images))))

    @property
    def images(self) -> int:
        """Images, in an odd number of vectors, so that tiles are spread over the caches."""
        return odd_vectors(self.c.images, self.work.lanes)

    @property
    def register(self) -> RegisterTile:
        """Images and vectors of outputs whose sums are in registers."""
        return register_tile([("m", self.c.images)], -(-self.c.outputs // self.work.lanes), self.terms, None)

    @property
    def width(self) -> int:
        """Outputs of a panel."""
        return self.register.vectors * self.work.lanes

    @property
    def panels(self) -> int:
        """How many panels there are."""
        return -(-self.c.outputs // self.width)

    @property
    def sizes(self) -> list[int]:
        """Elements at one point: of x, of w, and of the products."""
        counts = (self.depth * self.images, self.depth * self.panels * self.width, self.c.images * self.panels * self.width)
        return [odd_vectors(elements, self.work.lanes) for elements in counts]

    @property
    def bytes(self) -> int:
        """The memory that all of these take."""
        return self.points**2 * sum(self.sizes) * self.work.itemsize

    @property
    def nanoseconds(self) -> float:
        """About how long it takes."""
        images, outputs = max(self.c.images, 16), max(self.c.outputs, 16)
        return self.points**2 * (self.depth * 0.7 * (images + outputs) + images * outputs * (0.2 + self.depth * NANOSECONDS * 1.1))


def tilings_of(c: Correlation, work: ComputeType) -> list[WinogradSumsPlan]:
    """Return the tilings of a correlation; none if this does not apply."""
    if c.groups > 1 or len(c.axes) != 2 or any((axis.positions, axis.stride, axis.dilation) != (_POSITIONS, 1, 1) for axis in c.axes):
        return []
    return [tiling for points in (6, 4) if (tiling := WinogradSumsPlan(c, work, points)).bytes <= SPREAD]


class WinogradSums:
    """The writer of one correlation's code."""

    def __init__(self, builder: CorrelationBuilder, tiling: WinogradSumsPlan) -> None:
        self.builder, self.tiling, self.c, self.work = builder, tiling, builder.c, builder.work
        #: Where x, w and the products are at the points.
        self.x_room, self.w_room, self.y_room = (builder.reserve(tiling.points**2 * size, self.work.itemsize) for size in tiling.sizes)
        self.x_tile = tile_of(
            self.c, self.work, {1: self.c.images, 3: tiling.points, 4: tiling.columns * tiling.taps + _POSITIONS - 1}, innermost=1
        )
        self.task_room = 0

    def write(self) -> None:
        """Add the stages to the builder."""
        builder, tiling, size = self.builder, self.tiling, self.work.itemsize
        grid = [self.c.channels, tiling.tiles[0], -(-tiling.tiles[1] // tiling.columns)]
        strips, rows = prod(grid), self.c.channels * tiling.tiles[0]
        enterers = builder.tasks(strips, self.x_tile.elements)
        self.task_room = builder.reserve(enterers * self.x_tile.elements, size)
        cost = tiling.nanoseconds

        def input_to_points(f: Function, args: Arguments, task: Value) -> None:
            room = args.room(f, self.task_room, self.x_tile.elements * size, task)
            builder.shared(f, task, strips, enterers, lambda strip: self._transform_input(f, args, room, split(f, strip, grid)))

        builder.shared_job("prepare", builder.tasks(rows, 0), cost * 0.15, rows, self._taps)
        builder.job("enter", enterers, cost * 0.15, input_to_points)
        builder.job("sum", tiling.points**2, cost * 0.6, self._multiply)
        builder.shared_job("finish", builder.tasks(self.c.images, 0), cost * 0.1, self.c.images, self._transform_output)

    def _taps(self, f: Function, args: Arguments, task: Value, row: Index) -> None:
        """Emit the transform of a row of tiles of a channel's taps: by point, panel, tile."""
        tiling, work, c = self.tiling, self.work, self.c
        channel, tile_row = split(f, row, [c.channels, tiling.tiles[0]])
        first = times(f, row, tiling.tiles[1])

        def tile(panel: Index, column: Index) -> None:
            starts = [times(f, tile_row, tiling.taps), times(f, column, tiling.taps)]
            w = self.builder.at(f, "w", args.w, 0, times(f, panel, tiling.width), channel, *starts)
            position = times(f, plus(f, times(f, panel, tiling.depth), first, column), tiling.width)
            to = step(f, args.room(f, self.w_room), work.type, position)
            for v in range(tiling.register.vectors):
                start = v * work.lanes
                remaining = plus(f, c.outputs, times(f, panel, -tiling.width), -start)
                self._tile_of_taps(
                    f, step(f, w, self.builder.w.stored, start * c.w.strides[1]), starts, remaining, step(f, to, work.type, start)
                )

        repeat(f, tiling.panels, lambda panel: repeat(f, tiling.tiles[1], lambda column: tile(panel, column)))

    def _tile_of_taps(self, f: Function, w: Value, starts: list[Index], outputs: Index, to: Value) -> None:
        """Emit the transform of a tile of taps of the first `outputs` of a vector."""
        work, c, a = self.work, self.c, VectorAlgebra(f, self.work)

        def tap(offsets: tuple[int, int]) -> Value:
            remaining = outputs
            for axis, start, offset in zip(c.axes, starts, offsets, strict=True):
                if axis.taps % self.tiling.taps:
                    is_tap = f.compare("icmp slt", value(plus(f, start, offset)), i64(axis.taps))
                    remaining = f.select(is_tap, value(remaining), i64(0))
            mask = between(f, work.lanes, 0, 0, remaining)
            position = sum(offset * stride for offset, stride in zip(offsets, c.w.strides[3:], strict=True))
            return self.builder.w.strided(f, step(f, w, self.builder.w.stored, position), c.w.strides[1], mask)

        taps, points = range(self.tiling.taps), self.tiling.points
        columns = [transform_taps(a, [tap((i, j)) for i in taps], points) for j in taps]
        self._store_points(f, [transform_taps(a, list(column), points) for column in zip(*columns, strict=True)], to, self.tiling.sizes[1])

    def _store_points(self, f: Function, points_by_row: list[list[Value]], to: Value, point_stride: int) -> None:
        for point, vector in enumerate([vector for column in points_by_row for vector in column]):
            f.store(vector, step(f, to, self.work.type, point * point_stride), self.work.itemsize)

    def _transform_input(self, f: Function, args: Arguments, room: Value, at: list[Index]) -> None:
        """Emit the copy and the transform of some tiles of a row, by point and tile.

        They are of one channel and all images. The last tiles end at the end, if need be by computing some again.
        """
        tiling, work, c = self.tiling, self.work, self.c
        channel, row, strip = at
        column = least(f, times(f, strip, tiling.columns), tiling.tiles[1] - tiling.columns)
        starts = [plus(f, times(f, tile, tiling.taps), -axis.low) for tile, axis in zip((row, column), c.axes, strict=True)]
        sure = [axis.inside and axis.taps % tiling.taps == 0 for axis in c.axes]
        gather(f, self.builder.x, c, self.x_tile, self.builder.at(f, "x", args.x, 0, 0, channel), starts, sure, room)
        first = plus(f, times(f, plus(f, times(f, channel, tiling.tiles[0]), row), tiling.tiles[1]), column)
        to = step(f, args.room(f, self.x_room), work.type, times(f, first, tiling.images))
        a = VectorAlgebra(f, work)

        def tile(k: Index, image: Index) -> None:
            corner = step(f, room, work.type, plus(f, times(f, k, tiling.taps * self.x_tile.stride(4)), image))

            def element(i: int, j: int) -> Value:
                return f.load(work.vector, step(f, corner, work.type, i * self.x_tile.stride(3) + j * self.x_tile.stride(4)), work.itemsize)

            points = range(tiling.points)
            columns = [transform_input(a, [element(i, j) for i in points]) for j in points]
            points_by_row = [transform_input(a, list(column)) for column in zip(*columns, strict=True)]
            self._store_points(f, points_by_row, step(f, to, work.type, plus(f, times(f, k, tiling.images), image)), tiling.sizes[0])

        repeat(f, tiling.columns, lambda k: repeat(f, c.images, lambda image: tile(k, image), 0, work.lanes))

    def _multiply(self, f: Function, args: Arguments, point: Value) -> None:
        """Emit at one point images × tiles by tiles × outputs."""
        tiling, work = self.tiling, self.work
        outputs, terms = tiling.panels * tiling.width, tiling.terms
        dims = {
            "part": LoopIndex(tiling.depth // terms, terms * tiling.images, terms * tiling.width, 0),
            "panel": LoopIndex(tiling.panels, 0, tiling.depth * tiling.width, tiling.width),
            "m": LoopIndex(self.c.images, 1, 0, outputs),
            "o": LoopIndex(tiling.width, 0, 1, 1),
            "k": LoopIndex(terms, tiling.images, tiling.width, 0),
        }
        nest = TileLoops(work, work.type, dims, ("part", "panel"), tiling.register.rows, "o", tiling.register.vectors, ("k",))
        tile = SumTile(nest, self.builder.y_dtype, None)
        rooms = zip((self.x_room, self.w_room, self.y_room), tiling.sizes, strict=True)
        at = Operands(*[args.room(f, room, size * work.itemsize, point) for room, size in rooms])

        def add(at: Operands, counts: Mapping[str, int], sums: list[Value]) -> None:
            before = tile.load_sums(f, at.y, counts)
            tile.store_sums(f, at, counts, [work.add(f, x, y) for x, y in zip(before, sums, strict=True)])

        if terms == tiling.depth:
            nest.emit(f, at, lambda *args: tile.store_sums(f, *args))
            return
        fill_zeros(f, work, at.y, self.c.images * outputs)
        nest.emit(f, at, add)

    def _transform_output(self, f: Function, args: Arguments, task: Value, image: Index) -> None:
        """Emit the output transform of the products of one image."""
        tiling, work, c, dtype = self.tiling, self.work, self.c, self.builder.y_dtype
        a, points, positions = VectorAlgebra(f, work), range(tiling.points), range(_POSITIONS)
        outputs, point_stride = tiling.panels * tiling.width, tiling.sizes[2]
        *_, along, rows, columns = c.y.strides
        products = step(f, args.room(f, self.y_room), work.type, times(f, image, outputs))

        def transform_outputs(output: Index) -> None:
            at = step(f, products, work.type, output)
            points_by_row = []
            for j in points:
                values = [
                    f.load(work.vector, step(f, at, work.type, (i * tiling.points + j) * point_stride), work.itemsize) for i in points
                ]
                points_by_row.append(inverse_transform(a, values, _POSITIONS))
            results = [values for column in zip(*points_by_row, strict=True) for values in inverse_transform(a, list(column), _POSITIONS)]
            to = self.builder.at(f, "y", args.y, 0, image, output)
            valid_lanes = None if c.outputs % work.lanes == 0 else plus(f, c.outputs, times(f, output, -1))
            if (rows, columns) == (_POSITIONS, 1) and along != 1:
                store_transposed(f, work, dtype, results, to, along, valid_lanes)
                return
            for i in positions:
                for j in positions:
                    position = step(f, to, stored_as(dtype), i * rows + j * columns)
                    store_vector(f, work, dtype, results[i * _POSITIONS + j], position, along, valid_lanes)

        repeat(f, c.outputs, transform_outputs, 0, work.lanes)
