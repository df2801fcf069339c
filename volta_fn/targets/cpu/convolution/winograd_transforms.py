"""Winograd's transforms of weights and outputs, as generated code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.compiler.contractions.winograd_points import of_taps, to_outputs
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.convolution.emit_utils import Index, between, least, plus, repeat, rounded_down, split, step, times, value
from volta_fn.targets.cpu.convolution.input_tile import strided
from volta_fn.targets.cpu.convolution.loop_nest import dense
from volta_fn.targets.cpu.convolution.stages import Arguments, CorrelationBuilder
from volta_fn.targets.cpu.convolution.sum_tile import store_transposed, store_vector
from volta_fn.targets.cpu.convolution.winograd_plan import WinogradPlan
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, stored_as


class VectorAlgebra:
    """Arithmetic of vectors with known factors."""

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
        """Return a known number in all lanes."""
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
    point_stride = shape.tapped
    to = args.room(f, room, work.itemsize, plus(f, times(f, group, shape.points**2 * point_stride), times(f, index, shape.width)))
    first = times(f, panel, shape.width)
    known = f.compare("icmp slt", value(channel), i64(c.channels))
    left = f.select(known, value(plus(f, c.outputs, times(f, first, -1))), i64(0))
    start = [times(f, segment, shape.positions) for segment in (row, column)]
    w = builder.at(f, "w", args.w, group, first, channel, *start)
    a, stored, taps = VectorAlgebra(f, work), stored_as(builder.w_dtype), min(shape.scheme.taps, c.axes[0].taps)
    there = [[_there(f, shape, segment, k) for k in range(taps)] for segment in (row, column)]

    def vector(v: Index) -> None:
        output = times(f, v, work.lanes)
        mask = between(f, work.lanes, output, 0, left)
        here = step(f, w, stored, times(f, output, c.w.strides[1]))

        def tap(i: int, j: int) -> Value:
            some = mask
            for inside in (there[0][i], there[1][j]):
                some = some if inside is None else f.binary("and", some, f.splat(inside, work.lanes))
            at = step(f, here, stored, i * c.w.strides[3] + j * c.w.strides[4])
            return strided(f, work, builder.w_dtype, at, c.w.strides[1], some)

        columns = [of_taps(a, [tap(i, j) for i in range(taps)], shape.points) for j in range(taps)]
        for i in range(shape.points):
            for j, found in enumerate(of_taps(a, [one[i] for one in columns], shape.points)):
                f.store(found, step(f, to, work.type, plus(f, output, (i * shape.points + j) * point_stride)), work.itemsize)

    repeat(f, shape.vectors, vector)


def _there(f: Function, shape: WinogradPlan, segment: Index, tap: int) -> Value | None:
    """Emit whether a segment has a tap; None if it surely has.

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
        point_stride = shape.multiplied
        a = VectorAlgebra(f, work)
        strides = dense([size * m for size in shape.tiles], shape.outputs)

        def tile(number: Index, first: tuple[Index, Index], output: Index) -> None:
            at = step(f, products, work.type, plus(f, times(f, number, shape.outputs), output))
            first_pass = []
            for j in range(n):
                found = [f.load(work.vector, step(f, at, work.type, (i * n + j) * point_stride), work.itemsize) for i in range(n)]
                first_pass.append(to_outputs(a, found, m))
            for i in range(m):
                for j, found_value in enumerate(to_outputs(a, [column_sums[i] for column_sums in first_pass], m)):
                    spot = [plus(f, start, k * axis.dilation) for start, k, axis in zip(first, (i, j), self.c.axes, strict=True)]
                    if self.transposed:
                        inside = plus(f, output, *[times(f, s, stride) for s, stride in zip(spot, strides, strict=True)])
                        f.store(found_value, step(f, room, work.type, inside), work.itemsize)
                    else:
                        self._store(f, y, positions, spot, output, found_value)

        each_tile(f, shape, shape.tiles, shape.outputs, tile)
        if self.transposed:
            self._transpose_output(f, room, strides, y, positions)

    def _room(self, f: Function, positions: list[Index], axis: int) -> Index:
        """Emit how many of a block's positions exist along an axis."""
        length = self.shape.tiles[axis] * self.shape.positions
        return least(f, plus(f, self.c.axes[axis].positions, times(f, positions[axis], -1)), length)

    def _store(self, f: Function, y: Value, positions: list[Index], spot: list[Index], output: Index, found: Value) -> None:
        """Emit the store of outputs at a position, if it exists."""
        c, lanes = self.c, self.work.lanes
        to = step(
            f, y, stored_as(self.builder.y_dtype), plus(f, output, *[times(f, s, t) for s, t in zip(spot, c.y.strides[3:], strict=True)])
        )
        left = None if c.outputs % lanes == 0 and self.shape.outputs == c.outputs else plus(f, c.outputs, times(f, output, -1))
        good: Value | None = None
        for axis in (0, 1):
            if c.axes[axis].positions % (self.shape.positions * c.axes[axis].dilation):
                there = f.compare("icmp slt", value(spot[axis]), value(self._room(f, positions, axis)))
                good = there if good is None else f.binary("and", good, there)

        def yes() -> list[Value]:
            store_vector(f, self.work, self.builder.y_dtype, found, to, 1, left)
            return []

        if good is None:
            yes()
        else:
            f.branch(good, yes)

    def _transpose_output(self, f: Function, room: Value, strides: list[int], y: Value, positions: list[Index]) -> None:
        """Emit the copy of one image's positions, outputs innermost, to the result."""
        c, work, dtype = self.c, self.work, self.builder.y_dtype
        lanes, stored = work.lanes, stored_as(dtype)
        sizes, steps = [self._room(f, positions, 0), self._room(f, positions, 1)], list(c.y.strides[3:])
        if sizes[1] == c.axes[1].positions == steps[0] // steps[1] == strides[0] // strides[1]:  # rows follow one another
            sizes, steps, strides = [1, times(f, sizes[0], c.axes[1].positions)], [0, steps[1]], [0, strides[1]]

        def outputs(output: Index) -> None:
            left = None if c.outputs % lanes == 0 else plus(f, c.outputs, times(f, output, -1))

            def one_row(row: Index) -> None:
                def some(column: Index, remain: Index | None = None) -> None:
                    at = step(f, room, work.type, plus(f, times(f, row, strides[0]), times(f, column, strides[1]), output))
                    offsets = [times(f, i, s) for i, s in zip((output, row, column), (c.y.strides[2], *steps), strict=True)]
                    self._square(f, at, strides[1], step(f, y, stored, plus(f, *offsets)), remain, left)

                if steps[1] != 1:
                    repeat(f, sizes[1], some)
                    return
                full_vectors = rounded_down(f, sizes[1], lanes)
                repeat(f, full_vectors, some, 0, lanes)
                rest = plus(f, sizes[1], times(f, full_vectors, -1))
                repeat(f, sizes[1], lambda column: some(column, rest), full_vectors, lanes)

            repeat(f, sizes[0], one_row)

        repeat(f, c.outputs, outputs, 0, lanes)

    def _square(self, f: Function, at: Value, stride: int, to: Value, remain: Index | None, left: Index | None) -> None:
        """Emit the store of adjacent positions of adjacent outputs, `remain` by `left`."""
        work, c = self.work, self.c
        if c.y.strides[4] != 1:
            store_vector(f, work, self.builder.y_dtype, f.load(work.vector, at, work.itemsize), to, c.y.strides[2], left)
            return
        rows = [f.load(work.vector, step(f, at, work.type, k * stride), work.itemsize) for k in range(work.lanes)]
        store_transposed(f, work, self.builder.y_dtype, rows, to, c.y.strides[2], left, remain)
