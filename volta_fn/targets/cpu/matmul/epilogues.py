"""Epilogues: from a tile's sums to results, also by kernels fused into a product."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple, Protocol

import numpy as np

from volta_fn.compiler.contractions import Contraction, Walk, accumulators
from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.ir.index import along, row_major
from volta_fn.compiler.ir.kernel import Kernel, PendingStores
from volta_fn.runtime.llvm.text import Function, Module, Value, greatest, i64, least
from volta_fn.targets.cpu.loops.emit_values import LoopNest, VectorScope
from volta_fn.targets.cpu.loops.routine import rows_in
from volta_fn.targets.cpu.loops.rows import RowCode, Segment, Vectors
from volta_fn.targets.cpu.loops.schedule import row_passes, vector_lanes_of
from volta_fn.targets.cpu.matmul.blocking import Blocking, Packing, each, offset_of, parameters_of
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, MicroKernel, ResultTile, TileAddress, is_itself, load, micro_kernel, write
from volta_fn.targets.cpu.routine import Launch, buffer_pointer, entry_point

# Epilogues: from a tile's sums to results, and the partial sums of split-K.


class Epilogue(Protocol):
    """The end of a product."""

    #: The number of a buffer ``[stack, m, n]`` of the compute type that can hold incomplete sums; None if there is none.
    sums_buffer: int | None

    def write(self, f: Function, tile: ResultTile) -> None:
        """Emit the epilogue of a tile's sums."""


class StoreSums:
    """Stores sums, rounded to a dtype, to ``[stack, m, n]``."""

    def __init__(self, work: ComputeType, dtype: np.dtype, sizes: tuple[int, int], buffer: int) -> None:
        self.dtype, self.sizes, self.buffer = dtype, sizes, buffer
        #: Whether the sums need no conversion.
        self.direct = is_itself(work, dtype)
        self.sums_buffer = buffer if self.direct else None

    def address(self, f: Function, tile: ResultTile) -> TileAddress:
        """Emit where a tile's sums belong, if they are direct."""
        return TileAddress(self._start(f, tile), i64(self.sizes[1] * self.dtype.itemsize))

    def _start(self, f: Function, tile: ResultTile) -> Value:
        m, n = self.sizes
        matrix = self._move(f, buffer_pointer(f, self.buffer, tile.buffers), _times(f, tile.batch, m * n))
        return self._move(f, self._move(f, matrix, _times(f, tile.row, n)), tile.column)

    def write(self, f: Function, tile: ResultTile) -> None:
        """See `Epilogue`."""
        n, start, lanes = self.sizes[1], self._start(f, tile), tile.work.lanes
        for i, row in enumerate(tile.sums):
            for v, sums in enumerate(row):
                write(f, tile.work, self.dtype, sums, lanes, self._move(f, start, i64(i * n + v * lanes)), tile.mask(v))

    def _move(self, f: Function, pointer: Value, offset: Value) -> Value:
        return pointer if offset.name == "0" else f.at(pointer, f"[{self.dtype.itemsize} x i8]", offset)


class StoreStrided:
    """Stores sums, rounded to a dtype, to rows that are contiguous along columns.

    Index maps give the offsets of rows and matrices.
    """

    def __init__(self, work: ComputeType, dtype: np.dtype, stack: Walk, rows: Walk, columns: int, buffer: int) -> None:
        self.dtype, self.stack, self.rows, self.buffer = dtype, stack, rows, buffer
        in_order = rows.stride == columns and stack.stride in (0, columns * rows.size)
        self.sums_buffer = buffer if is_itself(work, dtype) and in_order else None
        #: Whether the sums need no conversion, and rows have one stride.
        self.direct = is_itself(work, dtype) and rows.stride is not None

    def address(self, f: Function, tile: ResultTile) -> TileAddress:
        """Emit where a tile's sums belong, if they are direct."""
        start = f.at(self._columns(f, tile), f"[{self.dtype.itemsize} x i8]", offset_of(f, self.rows, tile.row))
        return TileAddress(start, i64((self.rows.stride or 0) * self.dtype.itemsize))

    def _columns(self, f: Function, tile: ResultTile) -> Value:
        """Emit where the tile's columns begin in the first of all rows."""
        element = f"[{self.dtype.itemsize} x i8]"
        array = buffer_pointer(f, self.buffer, tile.buffers)
        return f.at(f.at(array, element, offset_of(f, self.stack, tile.batch)), element, tile.column)

    def write(self, f: Function, tile: ResultTile) -> None:
        """See `Epilogue`."""
        element, lanes, start = f"[{self.dtype.itemsize} x i8]", tile.work.lanes, self._columns(f, tile)
        first = f.at(start, element, offset_of(f, self.rows, tile.row)) if self.rows.stride is not None else None
        for i, row in enumerate(tile.sums):
            if first is not None:
                row_address = f.at(first, element, i64(i * (self.rows.stride or 0)))
            else:
                row_address = f.at(start, element, offset_of(f, self.rows, f.binary("add", tile.row, i64(i))))
            for v, sums in enumerate(row):
                write(f, tile.work, self.dtype, sums, lanes, f.at(row_address, element, i64(v * lanes)), tile.mask(v))


def _times(f: Function, index: Value, step: int) -> Value:
    return index if step == 1 or index.name == "0" else f.binary("mul", index, i64(step))


_WORKING_DTYPES = {"float": "float32", "double": "float64", "i32": "int32", "i64": "int64"}
_ROW_COST = 0.3  # nanoseconds for a vector of a split


class PartialSums(NamedTuple):
    """An array ``[split, stack, m, n]`` of the compute type, in a buffer at `offset`."""

    buffer: int
    offset: int
    blocking: Blocking

    def address(self, f: Function, tile: ResultTile, split: Value) -> TileAddress:
        """Emit where a tile's sums belong."""
        return TileAddress(self._start(f, tile, split), i64(self.blocking.n * tile.work.itemsize))

    def _start(self, f: Function, tile: ResultTile, split: Value) -> Value:
        blocking, type_ = self.blocking, tile.work.type
        start = f.at(buffer_pointer(f, self.buffer, tile.buffers), "i8", i64(self.offset))
        if blocking.splits > 1:
            start = f.at(start, f"[{blocking.batch * blocking.m * blocking.n} x {type_}]", split)
        matrix = f.at(start, f"[{blocking.m * blocking.n} x {type_}]", tile.batch)
        return f.at(f.at(matrix, f"[{blocking.n} x {type_}]", tile.row), type_, tile.column)

    def add(self, f: Function, tile: ResultTile, split: Value) -> list[Value]:
        """Emit a tile's sums plus what the array holds."""
        work, start = tile.work, self._start(f, tile, split)
        return [
            work.add(f, load(f, work.type, work.itemsize, self._vector(f, tile, start, i, v), work.lanes, tile.mask(v)), sums)
            for i, row in enumerate(tile.sums)
            for v, sums in enumerate(row)
        ]

    def store(self, f: Function, tile: ResultTile, split: Value) -> None:
        """Store a tile's sums to the array."""
        work, start = tile.work, self._start(f, tile, split)
        dtype = np.dtype(_WORKING_DTYPES[work.type])
        for i, row in enumerate(tile.sums):
            for v, sums in enumerate(row):
                write(f, work, dtype, sums, work.lanes, self._vector(f, tile, start, i, v), tile.mask(v))

    def _vector(self, f: Function, tile: ResultTile, start: Value, i: int, v: int) -> Value:
        return f.at(start, tile.work.type, i64(i * self.blocking.n + v * tile.work.lanes))


def combine(module: Module, name: str, work: ComputeType, blocking: Blocking, partial: PartialSums, epilogue: Epilogue) -> Launch:
    """Write the launch that adds the splits in order; a row of the result is a task."""
    f = entry_point(module, name)
    buffers, begin, end = f.parameters
    width = blocking.width
    vectors = width // work.lanes

    def row_of_panel(batch: Value, row: Value, column: Value, count: int) -> None:
        across = -(-count // work.lanes)
        empty = ResultTile(work, buffers, batch, row, column, [[work.zero()] * across], count)

        def add_split(split: Value, sums: list[Value]) -> list[Value]:
            return partial.add(f, empty._replace(sums=[sums]), split)

        sums = f.loop(i64(0), i64(blocking.splits), 1, [work.zero()] * across, add_split, nonempty=True)
        epilogue.write(f, empty._replace(sums=[sums]))

    def task(number: Value) -> None:
        batch, row = f.binary("udiv", number, i64(blocking.m)), f.binary("urem", number, i64(blocking.m))

        def panel(index: Value) -> None:
            row_of_panel(batch, row, f.binary("mul", index, i64(width)), width)

        full_panels = blocking.n // width
        each(f, i64(0), i64(full_panels), panel)
        if blocking.n % width:
            row_of_panel(batch, row, i64(full_panels * width), blocking.n % width)

    each(f, begin, end, task)
    f.finish()
    return Launch(
        name, blocking.batch * blocking.m, blocking.batch * blocking.m * -(-blocking.n // width) * vectors * blocking.splits * _ROW_COST
    )


# Epilogues that are kernels, fused into a product.
#
# The sums of a few rows by some columns, a *strip*, are put on the stack, and the kernel's loops go over them there.

_UNROLL = 2  # vectors of a strip that are interleaved


class Strip(NamedTuple):
    """Some rows and columns of sums at an address, in lines of `width` elements."""

    buffers: Value
    batch: Value
    row: Value
    rows: Value
    column: Value
    columns: Value
    sums: Value
    width: int


class FusedEpilogue:
    """An epilogue that is a kernel, whose buffers are the kernel's inputs and outputs."""

    def __init__(self, work: ComputeType, contraction: Contraction) -> None:
        self.work, self.contraction = work, contraction
        self.dtype = contraction.kernel.nodes[contraction.total].dtype
        self.sums_buffer = self._holder()

    def _holder(self) -> int | None:
        """Return an output that has the sums' type and order.

        It may not lie in the memory of an operand that the epilogue reads.
        """
        c, kernel = self.contraction, self.contraction.kernel
        order = (*c.batch, *c.rows, *c.columns)
        wanted = row_major(tuple(map(along, order)), tuple([kernel.sizes[a] for a in order]))
        for number, (store, output) in enumerate(zip(kernel.stores, kernel.outputs, strict=True)):
            in_order = row_major(store.index, store.shape) == wanted and is_itself(self.work, output.dtype)
            if in_order and not accumulators(kernel, number):
                return len(kernel.inputs) + number
        return None

    def write(self, f: Function, tile: ResultTile) -> None:
        """See `Epilogue`."""
        width = len(tile.sums[0]) * self.work.lanes
        sums = f.alloca(f"[{self.dtype.itemsize} x i8]", len(tile.sums) * width)
        self.store_tile(f, tile, sums, width)
        strip = Strip(tile.buffers, tile.batch, tile.row, i64(len(tile.sums)), tile.column, i64(tile.columns), sums, width)
        self.finish(f, strip)

    def store_tile(self, f: Function, tile: ResultTile, sums: Value, width: int) -> None:
        """Store a tile to a strip."""
        for i, row in enumerate(tile.sums):
            for v, vector in enumerate(row):
                column = f.at(sums, f"[{self.dtype.itemsize} x i8]", i64(i * width + v * self.work.lanes))
                write(f, self.work, self.dtype, vector, self.work.lanes, column)

    def finish(self, f: Function, strip: Strip) -> None:
        """Call the kernel's loops over a strip."""
        name = f"epilogue{strip.width}"
        f.module.define(name, lambda: self._write(f.module, name, strip.width))
        f.run(name, *strip[:-1])

    def _write(self, module: Module, name: str, width: int) -> None:
        """Write the function that goes over strips of a width."""
        kernel, inputs = self.contraction.epilogue(width)
        parameters = [Value("ptr" if p in ("buffers", "sums") else "i64", f"%{p}") for p in Strip._fields[:-1]]
        f = Function(module, name, parameters, "internal void")
        buffers, batch, first_row, rows, first_column, columns, sums = f.parameters
        strip = Strip(buffers, batch, first_row, rows, first_column, columns, sums, width)
        analysis = KernelAnalysis(kernel)
        first = len(self.contraction.kernel.inputs)
        loads = [self._base(f, strip), *[buffer_pointer(f, number) for number in inputs]]
        outputs = [buffer_pointer(f, first + number) for number in range(len(kernel.stores))]
        nest = LoopNest(f, analysis, loads, outputs, {}, set(), PendingStores(kernel))
        root = VectorScope(nest, (), {}, None)
        targets = [store.value for store in kernel.stores]
        root.prepare(targets)
        stack = rows_in(root, self.contraction.batch, strip.batch)
        stack.prepare(targets)

        def row(number: Value) -> None:
            self._columns(f, rows_in(stack, self.contraction.rows, number), kernel, strip)

        each(f, strip.row, f.plus(strip.row, strip.rows), row)
        nest.pending.check()
        f.finish()

    def _base(self, f: Function, strip: Strip) -> Value:
        """Emit the address of sum 0, 0 of the first matrix, as if a strip held all sums."""
        c = self.contraction
        row = f.plus(f.times(strip.batch, c.size(c.rows)), strip.row)
        back = f.plus(f.times(row, strip.width), strip.column)
        return f.let("ptr", f"getelementptr [{self.dtype.itemsize} x i8], {strip.sums}, {f.minus(i64(0), back)}")

    def _columns(self, f: Function, scope: VectorScope, kernel: Kernel, strip: Strip) -> None:
        """Emit the loops over a row, in runs along the last of the columns' axes."""
        *others, axis = self.contraction.columns
        scope.prepare([store.value for store in kernel.stores], range(len(kernel.stores)))
        end = f.plus(strip.column, strip.columns)
        if not others:
            self._columns_of_block(f, scope, axis, strip.column, end)
            return
        size = kernel.sizes[axis]

        def block_columns(block: Value) -> None:
            start = f.times(block, size)
            column = rows_in(scope, tuple(others), block)
            column.prepare([store.value for store in kernel.stores], range(len(kernel.stores)))
            low = greatest(f, f.minus(strip.column, start), i64(0))
            self._columns_of_block(f, column, axis, low, least(f, f.minus(end, start), i64(size)))

        first, last = f.divided(strip.column, size)[0], f.divided(f.plus(end, i64(size - 1)), size)[0]
        each(f, first, last, block_columns)

    def _columns_of_block(self, f: Function, scope: VectorScope, axis: int, start: Value, end: Value) -> None:
        """Emit the loops over neighbouring columns, by vectors."""
        analysis = scope.nest.analysis
        decided = not any(axis in r.value.axes for n in range(len(analysis.kernel.nodes)) for r in analysis.ranges(n))
        lanes = min(vector_lanes_of(analysis), self.work.lanes) if decided else 1
        segment = Segment(0, analysis.kernel.sizes[axis], {})
        code = RowCode(scope.nest, row_passes(analysis, keeping=False), Vectors(axis, lanes, _UNROLL, (segment,)))
        step = lanes * _UNROLL
        middle = f.plus(start, f.binary("and", f.minus(end, start), i64(-step)))

        def several(column: Value) -> None:
            code.rows_as_lanes(scope, segment, column, None, _UNROLL)

        def last(column: Value) -> None:
            code.rows_as_lanes(scope, segment, column, least(f, f.minus(end, column), i64(lanes)) if lanes > 1 else None, 1)

        each(f, start, middle, several, step)
        each(f, middle, end, last, lanes)


# A register tile for one block of k: the micro-kernel, then the epilogue.

_STRIP_BYTES = 64 << 10  # most bytes of sums that are kept for the epilogue


class BlockState(IntFlag):
    """Which of the blocks of k a tile computes."""

    FIRST = 1
    LAST = 2


class TileArguments(NamedTuple):
    """A tile's arguments: its position, where A and B begin, k, block and strip."""

    buffers: Value
    batch: Value
    row: Value
    column: Value
    depth: Value
    a: Value
    b: Value
    split: Value
    #: A `BlockState`.
    state: Value
    strip: Value

    def tile(self, work: ComputeType, columns: int) -> ResultTile:
        """Return the tile, without sums."""
        return ResultTile(work, self.buffers, self.batch, self.row, self.column, [], columns)


class TileWriter:
    """Writes the tiles of a product."""

    def __init__(
        self,
        work: ComputeType,
        blocking: Blocking,
        a_strides: tuple[int, int],
        b_inner: int | None,
        epilogue: Epilogue,
        partial: PartialSums,
        strips: bool | None = None,
    ) -> None:
        """Take A's strides in elements, and B's along k, or None where it is packed."""
        self.work, self.blocking, self.a_strides, self.b_inner, self.epilogue, self.partial = (
            work,
            blocking,
            a_strides,
            b_inner,
            epilogue,
            partial,
        )
        self.strip_width = blocking.task_columns * blocking.width
        short = blocking.tallest * self.strip_width * work.itemsize <= _STRIP_BYTES
        #: The epilogue, if it runs when all columns of some rows are done.
        self.strips = epilogue if isinstance(epilogue, FusedEpilogue) and short and strips is not False else None
        self.direct = epilogue if isinstance(epilogue, StoreSums | StoreStrided) and epilogue.direct else None

    def write(self, f: Function, rows: int, count: int, arguments: TileArguments) -> None:
        """Emit a tile of `rows` rows and `count` columns for one block of k."""
        tile = arguments.tile(self.work, count)
        if self.blocking.splits > 1:
            self._multiply(f, rows, arguments, tile, None)
        elif self.strips is not None and is_itself(self.work, self.strips.dtype):
            self._multiply(f, rows, arguments, tile, TileAddress(arguments.strip, i64(self.strip_width * self.work.itemsize)))
        elif self.direct is not None:
            self._multiply(f, rows, arguments, tile, self.direct.address(f, tile))
        else:
            f.run(self._tile_and_end(f.module, rows, count), *arguments)

    def _tile_and_end(self, module: Module, rows: int, count: int) -> str:
        """Return the function of a tile for one block of k, and the last's epilogue."""
        name = f"tile{rows}x{count}"

        def write() -> None:
            f = Function(module, name, parameters_of(*TileArguments._fields), "internal void")
            arguments, width = TileArguments(*f.parameters), self._width_of(count)
            tile, sums = arguments.tile(self.work, count), f.alloca(self.work.type, rows * width)
            self._multiply(f, rows, arguments, tile, TileAddress(sums, i64(width * self.work.itemsize)))
            if self.blocking.blocks == 1:
                self._end(f, tile, sums, rows, arguments.strip)
            else:
                last = f.compare("icmp ne", f.binary("and", arguments.state, i64(BlockState.LAST)), i64(0))
                f.branch(last, lambda: self._end(f, tile, sums, rows, arguments.strip))
            f.finish()

        module.define(name, write)
        return name

    def _multiply(self, f: Function, rows: int, arguments: TileArguments, tile: ResultTile, result: TileAddress | None) -> None:
        """Emit the micro-kernel; after the last block, the sums are in the result."""
        outer, inner = self.a_strides
        b_inner = self._width_of(tile.columns) if self.b_inner is None else self.b_inner
        is_raw = self.work.biased and self.blocking.pack_rows is Packing.NONE
        kind = MicroKernel(self.work, rows, tile.columns, None if inner == 1 else outer, inner, b_inner, self.b_inner is None, is_raw)
        source, target = self._addresses(f, arguments, tile, result)
        stride = i64(outer * self.work.itemsize)
        f.run_shared(micro_kernel(kind), arguments.a, stride, arguments.b, arguments.depth, *source, *target)

    def _addresses(
        self, f: Function, arguments: TileArguments, tile: ResultTile, result: TileAddress | None
    ) -> tuple[TileAddress, TileAddress]:
        """Emit the addresses that sums are read from and stored to."""
        null = Value("ptr", "null")
        if self.blocking.blocks == 1 and result is not None:
            return TileAddress(null, i64(0)), result
        partial = self.partial.address(f, tile, arguments.split)
        first, last = [f.compare("icmp ne", f.binary("and", arguments.state, i64(bit)), i64(0)) for bit in BlockState]
        source = partial._replace(pointer=f.select(first, null, partial.pointer))
        if result is None:
            return source, partial
        return source, TileAddress(*[f.select(last, x, y) for x, y in zip(result, partial, strict=True)])

    def _end(self, f: Function, tile: ResultTile, sums: Value, rows: int, strip: Value) -> None:
        """Emit the epilogue of complete sums, or store them to the strip for it."""
        work, width = self.work, self._width_of(tile.columns)
        if isinstance(self.epilogue, FusedEpilogue) and self.strips is None and is_itself(work, self.epilogue.dtype):
            self.epilogue.finish(f, Strip(tile.buffers, tile.batch, tile.row, i64(rows), tile.column, i64(tile.columns), sums, width))
            return
        addresses = [[f.at(sums, work.type, i64(row * width + start)) for start in range(0, width, work.lanes)] for row in range(rows)]
        tile = tile._replace(sums=[[f.load(work.vector, address, work.itemsize) for address in row] for row in addresses])
        if self.strips is None:
            self.epilogue.write(f, tile)
        else:
            self.strips.store_tile(f, tile, strip, self.strip_width)

    def _width_of(self, count: int) -> int:
        return count + -count % self.work.lanes
