"""Winograd's convolution: windows that move by single steps, as products at points (see `points`).

The taps are transformed once. A block of places goes through four steps, each in the task's own room, so that all of it stays in the
caches: x is copied with channels innermost; tiles of n by n are transformed, by vectors along channels; at each of the n² points, tiles
times channels are multiplied with channels times outputs; and the products are transformed into m by m places, by vectors along outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from volta_fn.backends.native.convolution.blocks import fitting, register_tile
from volta_fn.backends.native.convolution.emit import Index, between, least, plus, repeat, split, step, times, value
from volta_fn.backends.native.convolution.gather import Tile, gather, strided, tile_of
from volta_fn.backends.native.convolution.geometry import Correlation
from volta_fn.backends.native.convolution.nest import Dim, Nest, Operands, dense
from volta_fn.backends.native.convolution.pieces import NANOSECONDS, Arguments, Piece
from volta_fn.backends.native.convolution.points import Algebra, of_input, of_taps, to_places
from volta_fn.backends.native.convolution.storing import SumTile, store_turned, store_vector
from volta_fn.backends.native.llvm.text import Function, Value, i64
from volta_fn.backends.native.matmul.numbers import Working, stored_as

#: Elements that a block has at all points, of x and of the products together, at most.
_BLOCK = 128 * 1024

#: Tiles for which the transformed taps are worth reading.
_TILES = 24

#: Elements of the transformed taps, at most.
_TAPS = 3 << 20


def points_for(c: Correlation, places: int | None = None) -> int | None:
    """How many points along an axis serve a correlation (with so many places in a tile); None if Winograd's convolution does not."""
    if c.groups * max(c.channels, 16) * max(c.outputs, 16) * 36 > _TAPS:
        return None
    if len(c.axes) != 2 or any((axis.stride, axis.dilation) != (1, 1) for axis in c.axes):
        return None
    taps = {axis.taps for axis in c.axes}
    if taps == {3}:
        return {None: 6, 4: 6, 2: 4}.get(places)
    return 6 if taps == {5} and places in (None, 2) else None


def time_of(c: Correlation, points: int) -> float:
    """About how many nanoseconds it takes."""
    places = points - c.axes[0].taps + 1
    tiles = c.groups * c.images * prod(-(-axis.places // places) for axis in c.axes)
    channels, outputs = max(c.channels, 16), max(c.outputs, 16)
    return tiles * points**2 * (0.7 * (channels + outputs) + channels * outputs * NANOSECONDS * 1.1)


@dataclass(frozen=True)
class Shape:
    """How a correlation is cut up."""

    c: Correlation
    work: Working
    points: int
    #: Images, and tiles along both axes, of a block.
    images: int
    tiles: tuple[int, int]
    #: Vectors and panels of outputs, and channels in whole vectors.
    vectors: int
    panels: int

    @property
    def places(self) -> int:
        """Places of a tile along an axis."""
        return self.points - self.c.axes[0].taps + 1

    @property
    def channels(self) -> int:
        """Channels, in whole vectors."""
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
        return [-(-axis.places // self.places) for axis in self.c.axes]

    @property
    def count(self) -> int:
        """Tiles in a block."""
        return self.images * prod(self.tiles)

    @property
    def entered(self) -> int:
        """Elements of x at one point: an odd number of vectors, so that the points are spread over the caches."""
        return self._odd(self.count * self.channels)

    @property
    def multiplied(self) -> int:
        """Elements of the products at one point."""
        return self._odd(self.count * self.outputs)

    def _odd(self, elements: int) -> int:
        vectors = elements // self.work.lanes
        return (vectors + 1 - vectors % 2) * self.work.lanes

    @property
    def grid(self) -> list[int]:
        """How many blocks there are of groups, images and tiles along both axes."""
        tiles = [-(-n // size) for n, size in zip(self.all_tiles, self.tiles, strict=True)]
        return [self.c.groups, -(-self.c.images // self.images), *tiles]


def shape_of(c: Correlation, work: Working, points: int) -> Shape:
    """Blocks that fit the caches, but are worth reading the taps for."""
    places = points - c.axes[0].taps + 1
    tiles = [-(-axis.places // places) for axis in c.axes]
    vectors = -(-c.outputs // work.lanes)
    channels = -(-c.channels // work.lanes) * work.lanes
    target = max(_TILES, _BLOCK // (points**2 * (channels + vectors * work.lanes)))
    columns = fitting(tiles[1], min(tiles[1], target))
    rows = fitting(tiles[0], max(1, min(tiles[0], target // columns)))
    images = max(1, min(c.images, target // (rows * columns)))
    register = register_tile([("m", images * rows * columns)], vectors, c.channels, None)
    panels = -(-vectors // register.vectors)
    return Shape(c, work, points, images, (rows, columns), register.vectors, panels)


class Winograd:
    """The writer of one correlation's code."""

    def __init__(self, piece: Piece, shape: Shape) -> None:
        self.piece, self.shape, self.c, self.work = piece, shape, piece.c, piece.work
        m, n = shape.places, shape.points
        spans = {3: shape.tiles[0] * m + n - m, 4: shape.tiles[1] * m + n - m}
        self.x_tile: Tile = tile_of(self.c, self.work, {2: self.c.channels, **spans}, innermost=2)
        #: Elements of a task's rooms: x, x at the points, the products there, and places before they are turned.
        self.turned = self.c.y.strides[2] != 1
        turned = (prod(shape.tiles) * m * m + self.work.lanes) * shape.outputs if self.turned else 0
        self.rooms = [self.x_tile.elements, n * n * shape.entered, n * n * shape.multiplied, turned]
        self.taps_room = self.task_room = 0

    def write(self) -> None:
        """Add the stages to the piece."""
        shape, piece, size = self.shape, self.piece, self.work.itemsize
        count = self.c.groups * shape.panels * shape.channels
        self.taps_room = piece.reserve(shape.points**2 * count * shape.width, size)
        lines = piece.tasks(count, 0)

        def prepare(f: Function, args: Arguments, task: Value) -> None:
            piece.shared(f, task, count, lines, lambda line: self._taps(f, args, line))

        piece.job("prepare", lines, count * shape.width * shape.points, prepare)
        units = prod(shape.grid)
        tasks = piece.tasks(units, sum(self.rooms))
        self.task_room = piece.reserve(tasks * sum(self.rooms), size)
        cost = self.c.products * NANOSECONDS * shape.points**2 / (shape.places**2 * self.c.taps) * 1.5
        piece.job("sum", tasks, cost, lambda f, args, task: self._sum(f, args, task, units, tasks))

    def _taps(self, f: Function, args: Arguments, unit: Index) -> None:
        """Transform the taps of one channel and one panel: by point, panel and channel."""
        shape, work, c = self.shape, self.work, self.c
        group, panel, channel = split(f, unit, [c.groups, shape.panels, shape.channels])
        first = times(f, panel, shape.width)
        known = f.compare("icmp slt", value(channel), i64(c.channels))
        left = f.select(known, value(plus(f, c.outputs, times(f, first, -1))), i64(0))
        w = self.piece.at(f, "w", args.w, group, first, channel)
        line = plus(f, times(f, group, shape.points**2 * shape.panels), panel)
        to = args.room(f, self.taps_room, shape.width * work.itemsize, plus(f, times(f, line, shape.channels), channel))
        apart = shape.panels * shape.channels * shape.width
        a, taps, stored = Algebra(f, work), c.axes[0].taps, stored_as(self.piece.w_dtype)
        for v in range(shape.vectors):
            start = v * work.lanes
            mask = between(f, work.lanes, start, 0, left)

            def tap(i: int, j: int, start: int = start, mask: Value = mask) -> Value:
                offset = start * c.w.strides[1] + i * c.w.strides[3] + j * c.w.strides[4]
                return strided(f, work, self.piece.w_dtype, step(f, w, stored, offset), c.w.strides[1], mask)

            columns = [of_taps(a, [tap(i, j) for i in range(taps)], shape.points) for j in range(taps)]
            for i in range(shape.points):
                for j, found in enumerate(of_taps(a, [column[i] for column in columns], shape.points)):
                    f.store(found, step(f, to, work.type, (i * shape.points + j) * apart + start), work.itemsize)

    def _sum(self, f: Function, args: Arguments, task: Value, units: int, tasks: int) -> None:
        size = self.work.itemsize
        starts = [sum(self.rooms[:k]) * size for k in range(4)]
        room = [args.room(f, self.task_room + start, sum(self.rooms) * size, task) for start in starts]
        self.piece.shared(f, task, units, tasks, lambda unit: self._block(f, args, room, unit))

    def _block(self, f: Function, args: Arguments, room: list[Value], unit: Index) -> None:
        """All steps of one block. The last block ends at the end, if need be by doing some tiles again."""
        shape, c = self.shape, self.c
        group, *coordinates = split(f, unit, shape.grid)
        sizes, lengths = [c.images, *shape.all_tiles], [shape.images, *shape.tiles]
        image, *tile = [
            least(f, times(f, at, length), size - length) if size > length else 0
            for at, length, size in zip(coordinates, lengths, sizes, strict=True)
        ]
        each = prod(shape.tiles)
        places = [times(f, t, shape.places) for t in tile]

        def enter(k: Index) -> None:
            x = self.piece.at(f, "x", args.x, group, plus(f, image, k))
            starts = [plus(f, place, -axis.low) for place, axis in zip(places, c.axes, strict=True)]
            sure = [axis.inside and axis.places % shape.places == 0 for axis in c.axes]
            gather(f, self.work, self.piece.x_dtype, c, self.x_tile, x, starts, sure, room[0])
            self._enter(f, room[0], step(f, room[1], self.work.type, times(f, k, each * shape.channels)))

        def leave(k: Index) -> None:
            y = self.piece.at(f, "y", args.y, group, plus(f, image, k), 0, *places)
            self._leave(f, step(f, room[2], self.work.type, times(f, k, each * shape.outputs)), y, places, room[3])

        repeat(f, shape.images, enter)
        taps = args.room(f, self.taps_room, shape.points**2 * shape.panels * shape.channels * shape.width * self.work.itemsize, group)
        self._multiply(f, room[1], taps, room[2])
        repeat(f, shape.images, leave)

    def _enter(self, f: Function, x: Value, to: Value) -> None:
        """Transform the tiles of one image of a block."""
        shape, work = self.shape, self.work
        n, m, rows, columns = shape.points, shape.places, self.x_tile.stride(3), self.x_tile.stride(4)
        apart = shape.entered
        a = Algebra(f, work)

        def tile(row: Index, column: Index, channel: Index) -> None:
            at = step(f, x, work.type, plus(f, times(f, row, m * rows), times(f, column, m * columns), channel))
            there = plus(f, times(f, plus(f, times(f, row, shape.tiles[1]), column), shape.channels), channel)
            here = step(f, to, work.type, there)
            lines = []
            for j in range(n):
                found = [f.load(work.vector, step(f, at, work.type, i * rows + j * columns), work.itemsize) for i in range(n)]
                lines.append(of_input(a, found))
            for i in range(n):
                for j, found_value in enumerate(of_input(a, [line[i] for line in lines])):
                    f.store(found_value, step(f, here, work.type, (i * n + j) * apart), work.itemsize)

        self._each_tile(f, shape.channels, tile)

    def _each_tile(self, f: Function, length: int, body: Callable[[Index, Index, Index], None]) -> None:
        rows, columns = self.shape.tiles

        def row(i: Index) -> None:
            repeat(f, columns, lambda j: repeat(f, length, lambda k: body(i, j, k), 0, self.work.lanes))

        repeat(f, rows, row)

    def _multiply(self, f: Function, x: Value, taps: Value, to: Value) -> None:
        """At every point, tiles times channels by channels times outputs."""
        shape, work, count = self.shape, self.work, self.shape.count
        tile = register_tile([("m", count)], shape.panels * shape.vectors, self.c.channels, None)
        panel = shape.channels * shape.width
        dims = {
            "e": Dim(shape.points**2, shape.entered, shape.panels * panel, shape.multiplied),
            "panel": Dim(shape.panels, 0, panel, shape.width),
            "m": Dim(count, shape.channels, 0, shape.outputs),
            "o": Dim(shape.width, 0, 1, 1),
            "c": Dim(self.c.channels, 1, shape.width, 0),
        }
        nest = Nest(work, work.type, dims, ("e", "panel"), tile.rows, "o", shape.vectors, ("c",))
        sums = SumTile(nest, self.piece.y_dtype, None)
        nest.run(f, Operands(x, taps, to), lambda *args: sums.keep(f, *args))

    def _leave(self, f: Function, products: Value, y: Value, places: list[Index], room: Value) -> None:
        """Transform the products of one image of a block into its places."""
        shape, work = self.shape, self.work
        n, m = shape.points, shape.places
        apart = shape.multiplied
        a = Algebra(f, work)
        strides = dense([shape.tiles[0] * m, shape.tiles[1] * m], shape.outputs)

        def tile(row: Index, column: Index, output: Index) -> None:
            there = plus(f, times(f, plus(f, times(f, row, shape.tiles[1]), column), shape.outputs), output)
            at = step(f, products, work.type, there)
            lines = []
            for j in range(n):
                found = [f.load(work.vector, step(f, at, work.type, (i * n + j) * apart), work.itemsize) for i in range(n)]
                lines.append(to_places(a, found, m))
            first = [times(f, row, m), times(f, column, m)]
            for i in range(m):
                for j, found_value in enumerate(to_places(a, [line[i] for line in lines], m)):
                    spot = [plus(f, first[0], i), plus(f, first[1], j)]
                    if self.turned:
                        inside = plus(f, output, *[times(f, s, stride) for s, stride in zip(spot, strides, strict=True)])
                        f.store(found_value, step(f, room, work.type, inside), work.itemsize)
                    else:
                        self._store(f, y, places, spot, output, found_value)

        self._each_tile(f, shape.outputs, tile)
        if self.turned:
            self._turn(f, room, strides, y, places)

    def _room(self, f: Function, places: list[Index], axis: int) -> Index:
        """How many of a block's places there are along an axis."""
        length = self.shape.tiles[axis] * self.shape.places
        return least(f, plus(f, self.c.axes[axis].places, times(f, places[axis], -1)), length)

    def _store(self, f: Function, y: Value, places: list[Index], spot: list[Index], output: Index, found: Value) -> None:
        """Store outputs at a place, if there are such."""
        c, lanes = self.c, self.work.lanes
        to = step(
            f, y, stored_as(self.piece.y_dtype), plus(f, output, *[times(f, s, t) for s, t in zip(spot, c.y.strides[3:], strict=True)])
        )
        left = None if c.outputs % lanes == 0 and self.shape.outputs == c.outputs else plus(f, c.outputs, times(f, output, -1))
        good: Value | None = None
        for axis in (0, 1):
            if c.axes[axis].places % self.shape.places:
                there = f.compare("icmp slt", value(spot[axis]), value(self._room(f, places, axis)))
                good = there if good is None else f.binary("and", good, there)

        def yes() -> list[Value]:
            store_vector(f, self.work, self.piece.y_dtype, found, to, 1, left)
            return []

        if good is None:
            yes()
        else:
            f.branch(good, yes)

    def _turn(self, f: Function, room: Value, strides: list[int], y: Value, places: list[Index]) -> None:
        """Bring the places of one image of a block, which have outputs innermost, into the result, some outputs at a time."""
        c, work, dtype = self.c, self.work, self.piece.y_dtype
        lanes, stored = work.lanes, stored_as(dtype)
        sizes, steps = [self._room(f, places, 0), self._room(f, places, 1)], list(c.y.strides[3:])
        if sizes[1] == c.axes[1].places == steps[0] // steps[1] == strides[0] // strides[1]:  # rows follow one another
            sizes, steps, strides = [1, times(f, sizes[0], c.axes[1].places)], [0, steps[1]], [0, strides[1]]

        def outputs(output: Index) -> None:
            left = None if c.outputs % lanes == 0 else plus(f, c.outputs, times(f, output, -1))

            def line(row: Index) -> None:
                def some(column: Index) -> None:
                    at = step(f, room, work.type, plus(f, times(f, row, strides[0]), times(f, column, strides[1]), output))
                    offsets = [times(f, i, s) for i, s in zip((output, row, column), (c.y.strides[2], *steps), strict=True)]
                    to = step(f, y, stored, plus(f, *offsets))
                    self._square(f, at, strides[1], to, plus(f, sizes[1], times(f, column, -1)), left)

                repeat(f, sizes[1], some, 0, lanes if steps[1] == 1 else 1)

            repeat(f, sizes[0], line)

        repeat(f, c.outputs, outputs, 0, lanes)

    def _square(self, f: Function, at: Value, stride: int, to: Value, remain: Index, left: Index | None) -> None:
        """Store adjacent places of adjacent outputs; `remain` of the places are wanted."""
        work, c = self.work, self.c
        if c.y.strides[4] != 1:
            store_vector(f, work, self.piece.y_dtype, f.load(work.vector, at, work.itemsize), to, c.y.strides[2], left)
            return
        rows = [f.load(work.vector, step(f, at, work.type, k * stride), work.itemsize) for k in range(work.lanes)]
        store_turned(f, work, self.piece.y_dtype, rows, to, c.y.strides[2], left, remain)
