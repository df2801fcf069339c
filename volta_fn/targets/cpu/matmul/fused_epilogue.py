"""Epilogues that are kernels, fused into a product.

The sums of a few rows by some columns, a *strip*, are put on the stack, and the kernel's loops go over them there.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.contraction import Contraction
from volta_fn.compiler.ir.index import along
from volta_fn.compiler.ir.kernel import Kernel, PendingStores
from volta_fn.compiler.ir.views import row_major
from volta_fn.runtime.llvm.index_arith import least
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.loops.emit import buffer, rows_in
from volta_fn.targets.cpu.loops.emit_values import LoopNest, VectorScope
from volta_fn.targets.cpu.loops.passes import passes_of
from volta_fn.targets.cpu.loops.rows import RowCode, Segment, Vectors
from volta_fn.targets.cpu.loops.schedule import lanes_of
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, is_itself, write
from volta_fn.targets.cpu.matmul.micro_kernel import ResultTile
from volta_fn.targets.cpu.matmul.task_loops import each

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
        self.holds_sums = self._holder()

    def _holder(self) -> int | None:
        """Return an output that has the sums' type and order."""
        c, kernel = self.contraction, self.contraction.kernel
        order = (*c.batch, *c.rows, *c.columns)
        wanted = row_major(tuple(map(along, order)), tuple([kernel.sizes[a] for a in order]))
        for number, (store, output) in enumerate(zip(kernel.stores, kernel.outputs, strict=True)):
            if row_major(store.index, store.shape) == wanted and is_itself(self.work, output.dtype):
                return len(kernel.inputs) + number
        return None

    def write(self, f: Function, tile: ResultTile) -> None:
        """See `Epilogue`."""
        width = len(tile.sums[0]) * self.work.lanes
        sums = f.alloca(f"[{self.dtype.itemsize} x i8]", len(tile.sums) * width)
        self.put(f, tile, sums, width)
        strip = Strip(tile.buffers, tile.batch, tile.row, i64(len(tile.sums)), tile.column, i64(tile.columns), sums, width)
        self.finish(f, strip)

    def put(self, f: Function, tile: ResultTile, sums: Value, width: int) -> None:
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
        loads = [self._base(f, strip), *[buffer(f, number) for number in inputs]]
        outputs = [buffer(f, first + number) for number in range(len(kernel.stores))]
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
            self._run(f, scope, axis, strip.column, end)
            return
        size = kernel.sizes[axis]

        def run(block: Value) -> None:
            start = f.times(block, size)
            column = rows_in(scope, tuple(others), block)
            column.prepare([store.value for store in kernel.stores], range(len(kernel.stores)))
            low = f.intrinsic("llvm.smax.i64", "i64", f.minus(strip.column, start), i64(0))
            self._run(f, column, axis, low, least(f, f.minus(end, start), i64(size)))

        first, last = f.divided(strip.column, size)[0], f.divided(f.plus(end, i64(size - 1)), size)[0]
        each(f, first, last, run)

    def _run(self, f: Function, scope: VectorScope, axis: int, start: Value, end: Value) -> None:
        """Emit the loops over neighbouring columns, by vectors."""
        analysis = scope.nest.analysis
        decided = not any(axis in r.value.axes for n in range(len(analysis.kernel.nodes)) for r in analysis.ranges(n))
        lanes = min(lanes_of(analysis), self.work.lanes) if decided else 1
        segment = Segment(0, analysis.kernel.sizes[axis], {})
        code = RowCode(scope.nest, passes_of(analysis, keeping=False), Vectors(axis, lanes, _UNROLL, (segment,)))
        step = lanes * _UNROLL
        middle = f.plus(start, f.binary("and", f.minus(end, start), i64(-step)))

        def several(column: Value) -> None:
            code.columns(scope, segment, column, None, _UNROLL)

        def last(column: Value) -> None:
            code.columns(scope, segment, column, least(f, f.minus(end, column), i64(lanes)) if lanes > 1 else None, 1)

        each(f, start, middle, several, step)
        each(f, middle, end, last, lanes)
