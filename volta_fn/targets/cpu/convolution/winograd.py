"""Winograd's convolution: windows of stride 1, as products at points.

See `compiler/contractions/winograd_points`. The weights are transformed once. A block of positions goes through four steps, each in the
task's own room, so that all of it stays in the caches: x is copied with channels innermost; tiles of n by n are transformed, by vectors
along channels; at each of the n² points, tiles times channels are multiplied with channels times outputs; and the products are
transformed into m by m positions, by vectors along outputs.

Where taps are dilated, the positions of each residue have tiles of their own, next to each other. Windows of many taps are cut into
segments (see `Scheme`): then tiles are multiplied with a small window of tiles, and channels, times outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from volta_fn.compiler.contractions.winograd_points import of_input
from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.convolution.blocking import register_tile
from volta_fn.targets.cpu.convolution.emit_utils import Index, least, plus, repeat, split, step, times
from volta_fn.targets.cpu.convolution.input_tile import InputTile, gather, tile_of
from volta_fn.targets.cpu.convolution.loop_nest import LoopIndex, Operands, TileLoops, dense
from volta_fn.targets.cpu.convolution.stages import NANOSECONDS, Arguments, CorrelationBuilder
from volta_fn.targets.cpu.convolution.sum_tile import SumTile
from volta_fn.targets.cpu.convolution.winograd_plan import WinogradPlan
from volta_fn.targets.cpu.convolution.winograd_transforms import OutputTransform, VectorAlgebra, each_tile, transform_weights


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
        self.rooms = [self.x_tile.elements, n * n * shape.entered, n * n * shape.multiplied, transposed]
        self.taps_room = self.task_room = self.entered_room = self.multiplied_room = 0

    def write(self) -> None:
        """Add the stages to the builder."""
        shape, builder, size = self.shape, self.builder, self.work.itemsize
        count = self.c.groups * shape.panels * shape.segments * shape.channels
        self.taps_room = builder.reserve(shape.points**2 * self.c.groups * shape.tapped, size)
        tap_tasks = builder.tasks(count, 0)

        def prepare(f: Function, args: Arguments, task: Value) -> None:
            builder.shared(f, task, count, tap_tasks, lambda index: transform_weights(f, builder, shape, args, index, self.taps_room))

        builder.job("prepare", tap_tasks, count * shape.width * shape.points, prepare)
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
        x_room, entered, multiplied, transposed = self.rooms
        units = prod(shape.grid)
        tasks = builder.tasks(units, max(x_room, transposed))
        self.task_room = builder.reserve(tasks * max(x_room, transposed), size)
        self.entered_room, self.multiplied_room = builder.reserve(entered, size), builder.reserve(multiplied, size)

        def stage(step: Callable[[Function, Arguments, Value, Index], None]) -> Callable[[Function, Arguments, Value], None]:
            def body(f: Function, args: Arguments, task: Value) -> None:
                room = args.room(f, self.task_room, max(x_room, transposed) * size, task)
                builder.shared(f, task, units, tasks, lambda unit: step(f, args, room, unit))

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

        builder.job("enter", tasks, cost * 0.15, stage(self._enter_block))
        builder.job("sum", points, cost * 0.7, multiply)
        builder.job("finish", tasks, cost * 0.15, stage(self._leave_block))

    def _at(self, f: Function, unit: Index) -> tuple[Index, Index, list[Index]]:
        """Emit a block's group, first image and first tiles.

        The last block ends at the end, if need be by computing some tiles again.
        """
        shape, c = self.shape, self.c
        group, *coordinates = split(f, unit, shape.grid)
        sizes, lengths = [c.images, *shape.all_tiles], [shape.images, *shape.tiles]
        image, *tiles = [
            least(f, times(f, at, length), size - length) if size > length else 0
            for at, length, size in zip(coordinates, lengths, sizes, strict=True)
        ]
        return group, image, tiles

    def _block(self, f: Function, args: Arguments, room: list[Value], unit: Index) -> None:
        """Emit all steps of one block."""
        shape, type_ = self.shape, self.work.type
        group, image, tiles = self._at(f, unit)
        each = prod(shape.tiles)

        def enter(k: Index) -> None:
            to = step(f, room[1], type_, times(f, k, prod(shape.met) * shape.channels))
            self._enter_image(f, args, room[0], (group, plus(f, image, k), tiles), to)

        def leave(k: Index) -> None:
            products = step(f, room[2], type_, times(f, k, each * shape.outputs))
            self._leave_image(f, args, products, (group, plus(f, image, k), tiles), room[3])

        repeat(f, shape.images, enter)
        taps = args.room(f, self.taps_room, shape.points**2 * shape.tapped * self.work.itemsize, group)
        self._multiply(f, room[1], taps, room[2], shape.points**2)
        repeat(f, shape.images, leave)

    def _first_tile(self, f: Function, at: tuple[Index, Index, list[Index]]) -> Index:
        """Emit the number of a block's first tile."""
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
        """Emit the copy and the transform of a block's tiles of one image."""
        shape, c = self.shape, self.c
        group, image, tiles = at
        starts = [plus(f, times(f, t, shape.positions), -axis.low) for t, axis in zip(tiles, c.axes, strict=True)]
        sure = [axis.inside and axis.positions % (shape.positions * axis.dilation) == 0 for axis in c.axes]
        gather(f, self.work, self.builder.x_dtype, c, self.x_tile, self.builder.at(f, "x", args.x, group, image), starts, sure, room)
        self._enter(f, room, to)

    def _leave_image(self, f: Function, args: Arguments, products: Value, at: tuple[Index, Index, list[Index]], room: Value) -> None:
        """Emit the output transform of a block's products of one image."""
        group, image, tiles = at
        positions = [times(f, t, self.shape.positions) for t in tiles]
        self.output_transform.write(f, products, self.builder.at(f, "y", args.y, group, image, 0, *positions), positions, room)

    def _enter(self, f: Function, x: Value, to: Value) -> None:
        """Emit the input transform of the tiles of one image of a block."""
        shape, work = self.shape, self.work
        n, rows, columns = shape.points, self.x_tile.stride(3), self.x_tile.stride(4)
        point_stride = shape.entered
        a = VectorAlgebra(f, work)

        down, along = [axis.dilation * stride for axis, stride in zip(self.c.axes, (rows, columns), strict=True)]

        def tile(number: Index, first: tuple[Index, Index], channel: Index) -> None:
            at = step(f, x, work.type, plus(f, times(f, first[0], rows), times(f, first[1], columns), channel))
            here = step(f, to, work.type, plus(f, times(f, number, shape.channels), channel))
            first_pass = []
            for j in range(n):
                found = [f.load(work.vector, step(f, at, work.type, i * down + j * along), work.itemsize) for i in range(n)]
                first_pass.append(of_input(a, found))
            for i in range(n):
                for j, found_value in enumerate(of_input(a, [column_sums[i] for column_sums in first_pass])):
                    f.store(found_value, step(f, here, work.type, (i * n + j) * point_stride), work.itemsize)

        each_tile(f, shape, shape.met, shape.channels, tile)

    def _multiply(self, f: Function, x: Value, taps: Value, to: Value, points: int) -> None:
        """Emit at `points` points the products of tiles × channels and channels × outputs."""
        shape, work = self.shape, self.work
        tile = register_tile(shape.rows, shape.panels * shape.vectors, shape.scheme.segments**2 * self.c.channels, None)
        depth = self._depth()
        panel = shape.segments * shape.channels * shape.width
        dims = {
            "e": LoopIndex(points, shape.entered, shape.tapped, shape.multiplied),
            "panel": LoopIndex(shape.panels, 0, panel, shape.width),
            **self._rows(),
            "o": LoopIndex(shape.width, 0, 1, 1),
            **depth,
        }
        loops = ("e", "panel", *(name for name, _ in shape.rows if name not in dict(tile.rows)))
        nest = TileLoops(work, work.type, dims, loops, tile.rows, "o", shape.vectors, tuple(depth))
        sums = SumTile(nest, self.builder.y_dtype, None)
        nest.run(f, Operands(x, taps, to), lambda *args: sums.keep(f, *args))

    def _rows(self) -> dict[str, LoopIndex]:
        """Return the rows of the products, as indices of tiles in x and in y."""
        shape = self.shape
        names, sizes = zip(*shape.rows, strict=True)
        steps = dense(sizes, shape.outputs)
        met = [shape.channels] if shape.segments == 1 else dense([shape.images, *shape.met], shape.channels)
        return {name: LoopIndex(size, x, 0, y) for name, size, x, y in zip(names, sizes, met, steps, strict=True)}

    def _depth(self) -> dict[str, LoopIndex]:
        """Return the indices summed over at a point: segments of the taps, and channels."""
        shape, segments = self.shape, self.shape.scheme.segments
        channels = LoopIndex(self.c.channels, 1, shape.width, 0)
        if segments == 1:
            return {"c": channels}
        row, column = [axis.dilation * stride for axis, stride in zip(self.c.axes, dense(shape.met, shape.channels), strict=True)]
        each = shape.channels * shape.width
        return {"k0": LoopIndex(segments, row, segments * each, 0), "k1": LoopIndex(segments, column, each, 0), "c": channels}
