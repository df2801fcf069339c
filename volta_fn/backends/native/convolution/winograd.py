"""Winograd's convolution: windows that move by single steps, as products at points (see `compiler/contractions/points`).

The taps are transformed once. A block of places goes through four steps, each in the task's own room, so that all of it stays in the
caches: x is copied with channels innermost; tiles of n by n are transformed, by vectors along channels; at each of the n² points, tiles
times channels are multiplied with channels times outputs; and the products are transformed into m by m places, by vectors along outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from volta_fn.backends.native.convolution.algebra import Algebra
from volta_fn.backends.native.convolution.blocks import register_tile
from volta_fn.backends.native.convolution.emit import Index, between, least, plus, repeat, split, step, times, value
from volta_fn.backends.native.convolution.gather import Tile, gather, strided, tile_of
from volta_fn.backends.native.convolution.nest import Dim, Nest, Operands, dense
from volta_fn.backends.native.convolution.pieces import NANOSECONDS, Arguments, Piece
from volta_fn.backends.native.convolution.storing import SumTile, store_turned, store_vector
from volta_fn.backends.native.convolution.winograd_shape import Shape
from volta_fn.backends.native.llvm.text import Function, Value, i64
from volta_fn.backends.native.matmul.numbers import stored_as
from volta_fn.compiler.contractions.points import of_input, of_taps, to_places


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
        self.taps_room = self.task_room = self.entered_room = self.multiplied_room = 0

    def write(self) -> None:
        """Add the stages to the piece."""
        shape, piece, size = self.shape, self.piece, self.work.itemsize
        count = self.c.groups * shape.panels * shape.channels
        self.taps_room = piece.reserve(shape.points**2 * self.c.groups * shape.tapped, size)
        lines = piece.tasks(count, 0)

        def prepare(f: Function, args: Arguments, task: Value) -> None:
            piece.shared(f, task, count, lines, lambda line: self._taps(f, args, line))

        piece.job("prepare", lines, count * shape.width * shape.points, prepare)
        cost = self.c.products * NANOSECONDS * shape.points**2 / (shape.places**2 * self.c.taps) * 1.5
        (self._write_spread if shape.spread else self._write_blocks)(cost)

    def _write_blocks(self, cost: float) -> None:
        """Add the stage in which every block goes through all steps."""
        piece, units, size = self.piece, prod(self.shape.grid), self.work.itemsize
        tasks = piece.tasks(units, sum(self.rooms))
        self.task_room = piece.reserve(tasks * sum(self.rooms), size)
        starts = [sum(self.rooms[:k]) * size for k in range(4)]

        def blocks(f: Function, args: Arguments, task: Value) -> None:
            room = [args.room(f, self.task_room + start, sum(self.rooms) * size, task) for start in starts]
            piece.shared(f, task, units, tasks, lambda unit: self._block(f, args, room, unit))

        piece.job("sum", tasks, cost, blocks)

    def _write_spread(self, cost: float) -> None:
        """Add the stages in which all blocks enter, all are multiplied, point by point, and all leave."""
        piece, shape, size, points = self.piece, self.shape, self.work.itemsize, self.shape.points**2
        x_room, entered, multiplied, turned = self.rooms
        units = prod(shape.grid)
        tasks = piece.tasks(units, max(x_room, turned))
        self.task_room = piece.reserve(tasks * max(x_room, turned), size)
        self.entered_room, self.multiplied_room = piece.reserve(entered, size), piece.reserve(multiplied, size)

        def stage(step: Callable[[Function, Arguments, Value, Index], None]) -> Callable[[Function, Arguments, Value], None]:
            def body(f: Function, args: Arguments, task: Value) -> None:
                room = args.room(f, self.task_room, max(x_room, turned) * size, task)
                piece.shared(f, task, units, tasks, lambda unit: step(f, args, room, unit))

            return body

        def multiply(f: Function, args: Arguments, task: Value) -> None:
            x, taps, to = [
                args.room(f, room, elements * size, task)
                for room, elements in (
                    (self.entered_room, shape.entered),
                    (self.taps_room, shape.tapped),
                    (self.multiplied_room, shape.multiplied),
                )
            ]
            self._multiply(f, x, taps, to, 1)

        piece.job("enter", tasks, cost * 0.15, stage(self._enter_block))
        piece.job("sum", points, cost * 0.7, multiply)
        piece.job("finish", tasks, cost * 0.15, stage(self._leave_block))

    def _taps(self, f: Function, args: Arguments, unit: Index) -> None:
        """Transform the taps of one channel and one panel: by point, panel and channel."""
        shape, work, c = self.shape, self.work, self.c
        group, panel, channel = split(f, unit, [c.groups, shape.panels, shape.channels])
        first = times(f, panel, shape.width)
        known = f.compare("icmp slt", value(channel), i64(c.channels))
        left = f.select(known, value(plus(f, c.outputs, times(f, first, -1))), i64(0))
        w = self.piece.at(f, "w", args.w, group, first, channel)
        line = times(f, plus(f, times(f, panel, shape.channels), channel), shape.width)
        apart = shape.tapped
        room = args.room(f, self.taps_room, work.itemsize, plus(f, times(f, group, shape.points**2 * apart), line))
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
                    f.store(found, step(f, room, work.type, (i * shape.points + j) * apart + start), work.itemsize)

    def _at(self, f: Function, unit: Index) -> tuple[Index, Index, list[Index]]:
        """A block's group, first image and first tiles. The last block ends at the end, if need be by doing some tiles again."""
        shape, c = self.shape, self.c
        group, *coordinates = split(f, unit, shape.grid)
        sizes, lengths = [c.images, *shape.all_tiles], [shape.images, *shape.tiles]
        image, *tiles = [
            least(f, times(f, at, length), size - length) if size > length else 0
            for at, length, size in zip(coordinates, lengths, sizes, strict=True)
        ]
        return group, image, tiles

    def _block(self, f: Function, args: Arguments, room: list[Value], unit: Index) -> None:
        """All steps of one block."""
        shape, type_ = self.shape, self.work.type
        group, image, tiles = self._at(f, unit)
        each = prod(shape.tiles)

        def enter(k: Index) -> None:
            self._enter_image(
                f, args, room[0], (group, plus(f, image, k), tiles), step(f, room[1], type_, times(f, k, each * shape.channels))
            )

        def leave(k: Index) -> None:
            products = step(f, room[2], type_, times(f, k, each * shape.outputs))
            self._leave_image(f, args, products, (group, plus(f, image, k), tiles), room[3])

        repeat(f, shape.images, enter)
        taps = args.room(f, self.taps_room, shape.points**2 * shape.tapped * self.work.itemsize, group)
        self._multiply(f, room[1], taps, room[2], shape.points**2)
        repeat(f, shape.images, leave)

    def _first_tile(self, f: Function, at: tuple[Index, Index, list[Index]]) -> Index:
        """The number of a block's first tile among all."""
        rows, columns = self.shape.all_tiles
        return plus(f, times(f, at[1], rows * columns), times(f, at[2][0], columns), at[2][1])

    def _enter_block(self, f: Function, args: Arguments, room: Value, unit: Index) -> None:
        at = self._at(f, unit)
        entered = step(f, args.room(f, self.entered_room), self.work.type, times(f, self._first_tile(f, at), self.shape.channels))
        self._enter_image(f, args, room, at, entered)

    def _leave_block(self, f: Function, args: Arguments, room: Value, unit: Index) -> None:
        at = self._at(f, unit)
        products = step(f, args.room(f, self.multiplied_room), self.work.type, times(f, self._first_tile(f, at), self.shape.outputs))
        self._leave_image(f, args, products, at, room)

    def _enter_image(self, f: Function, args: Arguments, room: Value, at: tuple[Index, Index, list[Index]], to: Value) -> None:
        """Copy and transform a block's tiles of one image."""
        shape, c = self.shape, self.c
        group, image, tiles = at
        starts = [plus(f, times(f, t, shape.places), -axis.low) for t, axis in zip(tiles, c.axes, strict=True)]
        sure = [axis.inside and axis.places % shape.places == 0 for axis in c.axes]
        gather(f, self.work, self.piece.x_dtype, c, self.x_tile, self.piece.at(f, "x", args.x, group, image), starts, sure, room)
        self._enter(f, room, to)

    def _leave_image(self, f: Function, args: Arguments, products: Value, at: tuple[Index, Index, list[Index]], room: Value) -> None:
        """Transform a block's products of one image and store the places."""
        group, image, tiles = at
        places = [times(f, t, self.shape.places) for t in tiles]
        self._leave(f, products, self.piece.at(f, "y", args.y, group, image, 0, *places), places, room)

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

    def _multiply(self, f: Function, x: Value, taps: Value, to: Value, points: int) -> None:
        """At so many points, tiles times channels by channels times outputs."""
        shape, work, count = self.shape, self.work, self.shape.count
        tile = register_tile([("m", count)], shape.panels * shape.vectors, self.c.channels, None)
        panel = shape.channels * shape.width
        dims = {
            "e": Dim(points, shape.entered, shape.tapped, shape.multiplied),
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
