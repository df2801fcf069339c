"""Routines of kernels, whose long rows may be split between tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from volta_fn.compiler.ir.axes import KernelAnalysis, simplified
from volta_fn.compiler.ir.index import Affine, along, row_major
from volta_fn.compiler.ir.kernel import Buffer, Constant, Kernel, Load, NodeBuilder, PendingStores, closure, operands
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, rounded_down
from volta_fn.targets.cpu.loops.emit import nest_of, over_tasks, plain_walk, rows_in, streams_of, write
from volta_fn.targets.cpu.loops.emit_values import LoopNest, SpillSlot, VectorAxis, VectorScope
from volta_fn.targets.cpu.loops.rows import RowCode, Segment
from volta_fn.targets.cpu.loops.schedule import (
    GRAIN,
    PREFERRED,
    Grid,
    LoopOptions,
    LoopSchedule,
    can_be_wide,
    can_split,
    grid,
    legal_options,
    schedule_of,
)
from volta_fn.targets.cpu.routine import Launch, Routine, buffer_pointer, entry_point
from volta_fn.targets.cpu.scalars import load, store, supports

# Split reductions of long rows: one launch reduces chunks, another combines.
#
# The second launch is a kernel itself: it reduces over the chunks, and does what is per row.

#: Fewer tasks than this, and rows are cut.
_FEW_TASKS = 16

#: Rows that are added up before they are added to sums in memory.
_ROWS_TOGETHER = 4


def pays_to_split(schedule: LoopSchedule) -> bool:
    """Return True if rows are best split.

    They are if there is much to do in few tasks, in one pass.
    """
    if not can_split(schedule) or schedule.options.split is not None:
        return bool(schedule.options.split) and can_split(schedule)
    few = schedule.grid.tasks < _FEW_TASKS or pays_to_stream(schedule)
    return few and schedule.iteration_cost * schedule.analysis.size(range(len(schedule.analysis.kernel.sizes))) > 3 * GRAIN


def pays_to_stream(schedule: LoopSchedule) -> bool:
    """Return True if a matrix is so wide that its rows are best read in full."""
    analysis, axis = schedule.analysis, schedule.axis
    if not can_be_wide(schedule) or schedule.options.wide is not None:
        return bool(schedule.options.wide) and can_be_wide(schedule)
    return analysis.kernel.sizes[axis] > 8 * schedule.vectors.lanes and analysis.size(analysis.reduction_axes) >= 64


class SplitReduction:
    """The routine of a reduction of long rows: two launches."""

    def __init__(self, schedule: LoopSchedule) -> None:
        self.schedule = schedule
        self.analysis: KernelAnalysis = schedule.analysis
        kernel = self.analysis.kernel
        self.lanes_are_elements = schedule.axis in self.analysis.reduction_axes
        #: The inner axis that is cut.
        self.axis = next((a for a in kernel.reduction_axes if a != schedule.axis), schedule.axis)
        outer = [a for a in range(kernel.parallel) if a != schedule.axis]
        self.order = tuple(outer if self.lanes_are_elements else [*outer, schedule.axis])
        self.rows = self.analysis.size(self.order)
        rest = self.analysis.size(self.analysis.reduction_axes) // kernel.sizes[self.axis]
        iteration_cost = schedule.iteration_cost * GRAIN / schedule.options.grain
        unit = schedule.vectors.lanes * schedule.vectors.unroll if self.axis == schedule.axis else 1
        if self.lanes_are_elements:
            self.grid: Grid = grid(self.rows, kernel.sizes[self.axis], unit, iteration_cost * rest)
        else:
            self.grid = grid(1, kernel.sizes[self.axis], unit, iteration_cost * rest * self.rows)
        self.row_number: Affine = row_major(tuple(map(along, self.order)), tuple([kernel.sizes[a] for a in self.order]))
        #: The offset in the workspace of every reduction's partial results.
        self.offsets: dict[int, int] = {}
        self.workspace = 0
        for n, node in self.analysis.reduces.items():
            self.offsets[n] = self.workspace
            self.workspace += -(-node.dtype.itemsize * self.rows * self.grid.chunks // 64) * 64

    def routine(self) -> Routine:
        """Return the routine of both launches."""
        module = Module()
        launches = (self.reduce_chunks(module), self.combine_chunks(module))
        return Routine.of(module, launches, self.workspace)

    def workspace_pointer(self, f: Function) -> Value:
        """Emit the address of the workspace."""
        return buffer_pointer(f, len(self.analysis.kernel.inputs) + len(self.analysis.kernel.stores))

    @property
    def later_stores(self) -> list[int]:
        """The stores that the second launch does."""
        return [s for s in range(len(self.analysis.kernel.stores)) if s not in self.schedule.passes[0].stores]

    # chunks

    def reduce_chunks(self, module: Module) -> Launch:
        """Return the launch that reduces the chunks."""
        schedule, f = self.schedule, entry_point(module, "chunks")
        row_pass = replace(schedule.passes[0], row_stores=[], keeps=[])
        nest = nest_of(f, self.analysis)._replace(streams=streams_of(schedule))
        root = VectorScope(nest, (), {}, None)
        code = RowCode(nest, [row_pass], schedule.vectors, resident=False)
        memory = self.workspace_pointer(f)
        root.prepare(row_pass.targets(self.analysis))

        def body(number: Value, start: Value, stop: Value) -> None:
            code.bounds[self.axis] = (start, stop)
            chunk = f.divided(start, self.grid.chunk)[0]
            for n, node in self.analysis.reduces.items():
                size = node.dtype.itemsize
                index = f.times(chunk, self.rows * size)
                position = f.at(memory, "i8", f.plus(index, i64(self.offsets[n])))
                nest.slots[n] = SpillSlot(position, self.row_number, 1)
            if pays_to_stream(schedule):
                self.stream_rows(code, root, start, stop)
            elif self.lanes_are_elements:
                scope = rows_in(root, self.order, number)
                code.row(scope)
                for n in row_pass.reduces:
                    store(f, scope.value(n), scope.pointer(("slot", n)))
            else:
                self.rows_as_lanes(code, root)

        over_tasks(f, self.grid, body)
        nest.pending.check(self.later_stores)
        f.finish()
        iterations = self.analysis.size(range(len(self.analysis.kernel.sizes)))
        return Launch(f.name, self.grid.tasks, schedule.iteration_cost * iterations)

    def rows_as_lanes(self, code: RowCode, root: VectorScope) -> None:
        """Emit a chunk of all rows, which are the lanes."""
        vectors, others = self.schedule.vectors, self.order[:-1]
        row_pass = code.passes[0]

        def row(number: Value, _: list[Value]) -> None:
            scope = rows_in(root, others, number)
            scope.prepare(row_pass.targets(self.analysis), row_pass.stores)

            def iteration(segment: Segment, position: Value, count: Value | None, unroll: int) -> None:
                for row_vector in code.rows_as_lanes(scope, segment, position, count, unroll):
                    for n in row_pass.reduces:
                        store(root.nest.f, row_vector.value(n), row_vector.pointer(("slot", n)), count=row_vector.count)

            plain_walk(root.nest.f, vectors, i64(0), i64(self.analysis.kernel.sizes[vectors.axis]), iteration)

        root.nest.f.loop(i64(0), i64(self.analysis.size(others)), 1, [], row, nonempty=True)

    def stream_rows(self, code: RowCode, root: VectorScope, start: Value, stop: Value) -> None:
        """Emit a chunk of all columns of the matrix, some rows at a time."""
        # Memory is read in its order. Sums are in the workspace, which stays in the cache.
        f = root.nest.f
        self.clear_sums(code, root)
        middle = f.plus(start, rounded_down(f, f.minus(stop, start), _ROWS_TOGETHER))
        for low, high, step in ((start, middle, _ROWS_TOGETHER), (middle, stop, 1)):
            f.loop(low, high, step, [], partial(self.add_rows, code, root, step))

    def walk_columns(self, code: RowCode, body: Callable[[Segment, Value, Value | None, int], None]) -> None:
        """Emit a walk along all columns of the matrix."""
        vectors = self.schedule.vectors._replace(unroll=2)
        plain_walk(code.f, vectors, i64(0), i64(self.analysis.kernel.sizes[vectors.axis]), body)

    def clear_sums(self, code: RowCode, scope: VectorScope) -> None:
        """Emit the identities that sums begin with."""
        row_pass, vectors = code.passes[0], self.schedule.vectors

        def iteration(segment: Segment, position: Value, count: Value | None, unroll: int) -> None:
            for column in scope.vectors(VectorAxis(vectors.axis, vectors.lanes, count), position, unroll, segment.decided):
                for n, accumulator in zip(row_pass.reduces, code.accumulators(row_pass), strict=True):
                    start = accumulator.result(accumulator.start(vectors.lanes))
                    store(code.f, start, column.pointer(("slot", n)), count=count)

        self.walk_columns(code, iteration)

    def add_rows(self, code: RowCode, scope: VectorScope, together: int, i: Value, _: list[Value]) -> None:
        """Emit the addition of some rows to the sums."""
        row_pass, f, vectors = code.passes[0], code.f, self.schedule.vectors
        rows = [scope.child({self.axis: f.plus(i, i64(k))}) for k in range(together)]
        for row in rows:
            row.prepare(row_pass.targets(self.analysis), row_pass.stores)

        def iteration(segment: Segment, position: Value, count: Value | None, unroll: int) -> None:
            vector_axis = VectorAxis(vectors.axis, vectors.lanes, count)
            columns = scope.vectors(vector_axis, position, unroll, segment.decided)
            iterations = [row.vectors(vector_axis, position, unroll, segment.decided, columns) for row in rows]
            for k, column in enumerate(columns):
                for n, accumulator in zip(row_pass.reduces, code.accumulators(row_pass), strict=True):
                    sums = accumulator.merged([t[k].spread(accumulator.node.operand).components for t in iterations])
                    pointer = column.pointer(("slot", n))
                    old = load(f, accumulator.node.dtype, pointer, vectors.lanes, count=count).components
                    store(f, accumulator.result(accumulator.merge(old, sums)), pointer, count=count)
                for s in row_pass.stores:
                    for t in iterations:
                        t[k].store(s)

        self.walk_columns(code, iteration)

    # rows

    def combine_chunks(self, module: Module) -> Launch:
        """Return the launch that combines partial results."""
        f = entry_point(module, "rows")
        kernel, numbers = self.combining_kernel()
        analysis = KernelAnalysis(simplified(kernel))
        analysis = analysis if analysis.kernel.sizes else KernelAnalysis(replace(analysis.kernel, sizes=(1,), parallel=1))
        count = len(self.analysis.kernel.inputs)
        memory = self.workspace_pointer(f)
        addresses = [f.at(memory, "i8", i64(self.offsets[n])) for n in self.analysis.reduces]
        inputs = [*[buffer_pointer(f, n) for n in range(count)], *addresses]
        outputs = [buffer_pointer(f, count + s) for s in numbers]
        return write(LoopNest(f, analysis, inputs, outputs, {}, set(), PendingStores(analysis.kernel)), schedule_of(analysis))

    def combining_kernel(self) -> tuple[Kernel, list[int]]:
        """Return the kernel of the second launch, and the numbers of its stores.

        Its inputs are the old ones and the partial results of every reduction.
        """
        old = self.analysis.kernel
        numbers = self.later_stores
        targets, nodes = [old.stores[s].value for s in numbers], NodeBuilder(old)
        needed = closure(old, targets, self.analysis.reduces)
        for k, (n, node) in enumerate(self.analysis.reduces.items()):
            if n in targets or any(n in operands(old.nodes[m]) for m in needed):
                nodes.numbers[n] = nodes.add(replace(node, operand=nodes.add(self.chunk_result(node.dtype, len(old.inputs) + k))))
        nodes.copy(targets)
        buffers = [Buffer(self.rows * self.grid.chunks, node.dtype) for node in self.analysis.reduces.values()]
        stores = tuple([replace(old.stores[s], value=nodes.numbers[old.stores[s].value]) for s in numbers])
        sizes = (*old.sizes[: old.parallel], self.grid.chunks)
        return Kernel(sizes, old.parallel, (*old.inputs, *buffers), tuple(nodes.nodes), stores), numbers

    def chunk_result(self, dtype: np.dtype, number: int) -> Load:
        """Return the load of a partial result."""
        index = (along(self.analysis.kernel.parallel), self.row_number)
        return Load(dtype, number, (self.grid.chunks, self.rows), index, (), Constant.of(0, dtype))


# Routines of kernels.


def routine(kernel: Kernel, options: LoopOptions = PREFERRED) -> Routine | None:
    """Return the routine of a kernel; None if it has unsupported operations or dtypes."""
    analysis = _analysis_of(kernel)
    if analysis is None:
        return None
    schedule = schedule_of(analysis, options)
    if pays_to_split(schedule):
        return SplitReduction(schedule).routine()
    module = Module()
    launch = write(nest_of(entry_point(module, "kernel"), analysis), schedule)
    return Routine.of(module, (launch,))


def options_of(kernel: Kernel) -> Iterator[LoopOptions]:
    """Yield the options that `routine` takes for a kernel."""
    analysis = _analysis_of(kernel)
    if analysis is not None:
        yield from legal_options(analysis)


def _analysis_of(kernel: Kernel) -> KernelAnalysis | None:
    if 0 in kernel.sizes or not kernel.stores:
        return None
    kernel = simplified(kernel)
    analysis = KernelAnalysis(kernel if kernel.sizes else replace(kernel, sizes=(1,), parallel=1))
    return analysis if _is_supported(analysis) else None


def _is_supported(analysis: KernelAnalysis) -> bool:
    for reduce in analysis.reduces.values():
        if not supports(reduce.reduction.step, [analysis.kernel.nodes[reduce.operand].dtype] * 2, {}):
            return False
    return all(supports(a.op, tuple([analysis.kernel.nodes[i].dtype for i in a.operands]), dict(a.params)) for _, a in analysis.applies())
