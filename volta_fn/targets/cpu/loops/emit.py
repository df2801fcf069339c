"""A kernel's schedule as a routine, or as copies of long ranges."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import along, row_major
from volta_fn.compiler.ir.kernel import Apply, Inside, Load, PendingStores
from volta_fn.runtime.llvm.text import Function, Value, greatest, i64, least
from volta_fn.targets.cpu.loops.emit_values import LoopNest, SpillSlot, VectorScope
from volta_fn.targets.cpu.loops.rows import RowCode, Segment, States, Vectors
from volta_fn.targets.cpu.loops.schedule import Grid, LoopSchedule
from volta_fn.targets.cpu.loops.tiles import InterleavedStores, TransposeTiles
from volta_fn.targets.cpu.routine import BEGIN, END, Launch, buffer_pointer

# Kernels that copy long ranges as they are, such as concatenations.
#
# The C library copies them in less time than a loop over vectors, which reads the result's cache lines before it writes them.

#: Bytes of the longest range from which on a call of the C library pays.
_MEMCPY_BYTES = 1 << 12


class Copies:
    """The writer of a kernel's only store, whose segments are copies of loads."""

    def __init__(self, vectors: Vectors, sources: list[int], itemsize: int) -> None:
        self.vectors, self.sources, self.itemsize = vectors, sources, itemsize

    def emit(self, scope: VectorScope, start: Value, stop: Value) -> None:
        """Emit the copies between two positions along the axis."""
        f: Function = scope.nest.f
        scope.nest.pending.discard(0)
        for segment, source in zip(self.vectors.segments, self.sources, strict=True):
            low = greatest(f, start, i64(segment.start))
            high = greatest(f, low, least(f, stop, i64(segment.end)))
            inner = scope.child({self.vectors.axis: low})
            size = f.times(f.minus(high, low), self.itemsize)
            f.memcpy(inner.pointer(("store", 0)), inner.pointer(("load", source)), size)


def copies_of(analysis: KernelAnalysis, vectors: Vectors, wanted: bool | None = None) -> Copies | None:
    """Return the copies of a kernel; None if some elements are computed.

    Unless `wanted` forces the choice, only long ranges are copied.
    """
    kernel = analysis.kernel
    if analysis.reduction_axes or len(kernel.stores) != 1 or coefficient(analysis.store_offsets[0], vectors.axis) != 1:
        return None
    itemsize = kernel.nodes[kernel.stores[0].value].dtype.itemsize
    long = max(segment.end - segment.start for segment in vectors.segments) * itemsize >= _MEMCPY_BYTES
    if not (long if wanted is None else wanted):
        return None
    sources = [source for segment in vectors.segments if (source := _source(analysis, vectors.axis, segment)) is not None]
    return Copies(vectors, sources, itemsize) if len(sources) == len(vectors.segments) else None


def _source(analysis: KernelAnalysis, axis: int, segment: Segment) -> int | None:
    """Return the load whose contiguous elements a segment of the store copies."""
    nodes, node_number = analysis.kernel.nodes, analysis.kernel.stores[0].value
    while isinstance(node := nodes[node_number], Apply):
        condition = nodes[node.operands[0]] if node.op == "select_n" and len(node.operands) == 3 else None
        if not isinstance(condition, Inside) or not all(r in segment.decided for r in condition.ranges):
            return None
        node_number = node.operands[2 if all(segment.decided[r] for r in condition.ranges) else 1]
    if not isinstance(node, Load) or coefficient(analysis.load_offsets[node_number], axis) != 1:
        return None
    return node_number if all(segment.decided.get(r, False) for r in node.mask) else None


# A kernel's schedule as a routine.

#: ``body(row, start, stop)`` emits one row, and of the grid's axis the iterations from `start` up to `stop`.
Body = Callable[[Value, Value, Value], None]


def write(nest: LoopNest, schedule: LoopSchedule) -> Launch:
    """Return the launch of a kernel whose rows are independent tasks."""
    analysis = schedule.analysis
    nest = nest._replace(analysis=analysis, streams=streams_of(schedule))
    root = VectorScope(nest, (), {}, None)
    if schedule.crossing is not None:
        body = _tiled(schedule, root)
    elif schedule.interleaved is not None:
        body = _interleaved(schedule, root, schedule.interleaved)
    elif schedule.axis in analysis.reduction_axes:
        body = _along_rows(schedule, root)
    else:
        body = _across_rows(schedule, root)
    over_tasks(nest.f, schedule.grid, body)
    nest.pending.check()
    nest.f.finish()
    return Launch(nest.f.name, schedule.grid.tasks, schedule.iteration_cost * analysis.size(range(len(analysis.kernel.sizes))))


def streams_of(schedule: LoopSchedule) -> frozenset[int]:
    """Return the loads that are prefetched."""
    prefetch = schedule.options.prefetch
    return frozenset() if prefetch is False else schedule.analysis.streams(schedule.axis, at_any_length=prefetch is True)


def nest_of(f: Function, analysis: KernelAnalysis) -> LoopNest:
    """Return the loop nest of a kernel in an entry point.

    The kernel's inputs are the first buffers, its outputs the next ones.
    """
    count = len(analysis.kernel.inputs)
    pointers = [buffer_pointer(f, n) for n in range(count + len(analysis.kernel.stores))]
    return LoopNest(f, analysis, pointers[:count], pointers[count:], {}, set(), PendingStores(analysis.kernel))


def rows_in(scope: VectorScope, axes: tuple[int, ...], row: Value) -> VectorScope:
    """Return the scope of a row, by its row-major number along some axes."""
    sizes, bound = scope.nest.analysis.kernel.sizes, {}
    for axis in reversed(axes[1:]):
        row, bound[axis] = scope.nest.f.divided(row, sizes[axis])
    if axes:
        bound[axes[0]] = row
    return scope.child(bound)


def over_tasks(f: Function, grid: Grid, body: Body) -> None:
    """Emit the loops over an entry point's tasks and their rows."""

    def task(number: Value, _: list[Value]) -> None:
        block, chunk = f.divided(number, grid.chunks) if grid.rows > 1 else (i64(0), number)
        start = f.times(chunk, grid.chunk) if grid.chunks > 1 else i64(0)
        stop = least(f, f.plus(start, i64(grid.chunk)), i64(grid.size)) if grid.chunks > 1 else i64(grid.size)
        first = f.times(block, grid.rows_per_task)
        if grid.rows_per_task == 1:
            body(first if grid.rows > 1 else i64(0), start, stop)
            return

        def row(number: Value, _: list[Value]) -> None:
            body(number, start, stop)

        f.loop(first, least(f, f.plus(first, i64(grid.rows_per_task)), i64(grid.rows)), 1, [], row, nonempty=True)

    f.loop(BEGIN, END, 1, [], task)


def _along_rows(schedule: LoopSchedule, root: VectorScope) -> Body:
    """Return the body for rows whose elements are the lanes."""
    analysis, nest = schedule.analysis, root.nest
    _make_slots(schedule, nest)
    code = RowCode(nest, schedule.passes, schedule.vectors, schedule.options.resident)
    rows = tuple(range(analysis.kernel.parallel))
    root.prepare(_first_targets(schedule))
    return lambda row, start, stop: code.row(rows_in(root, rows, row))


def _across_rows(schedule: LoopSchedule, root: VectorScope) -> Body:
    """Return the body for rows that are the lanes."""
    analysis, nest, vectors = schedule.analysis, root.nest, schedule.vectors
    _make_slots(schedule, nest)
    code = RowCode(nest, schedule.passes, vectors)
    rows = tuple([a for a in range(analysis.kernel.parallel) if a != vectors.axis])
    copies = copies_of(analysis, vectors, schedule.options.copies)
    if copies is not None:
        return lambda row, start, stop: copies.emit(rows_in(root, rows, row), start, stop)
    root.prepare(_first_targets(schedule))

    def body(row: Value, start: Value, stop: Value) -> None:
        scope = rows_in(root, rows, row)
        scope.prepare(_first_targets(schedule), [*schedule.passes[0].stores, *schedule.passes[0].row_stores])
        for later in schedule.passes[1:]:  # before the vectors' loops, as none of them may use what another one computes
            scope.prepare(later.targets(analysis))

        def iteration(segment: Segment, offset: Value, count: Value | None, unroll: int) -> None:
            code.rows_as_lanes(scope, segment, offset, count, unroll)

        plain_walk(nest.f, vectors, start, stop, iteration)

    return body


def _tiled(schedule: LoopSchedule, root: VectorScope) -> Body:
    """Return the body for loads and stores along different axes."""
    analysis, nest, axis = schedule.analysis, root.nest, schedule.axis
    assert schedule.crossing is not None
    other, loads = schedule.crossing
    tiles = TransposeTiles(analysis, nest.f, axis, other, schedule.vectors.lanes, loads)
    rows = tuple([a for a in range(analysis.kernel.parallel) if a not in (axis, other)])
    root.prepare(_first_targets(schedule))

    def body(row: Value, start: Value, stop: Value) -> None:
        scope = rows_in(root, rows, row)
        scope.prepare(_first_targets(schedule), schedule.passes[0].row_stores)
        tiles.strip(scope, start, stop)

    return body


def _interleaved(schedule: LoopSchedule, root: VectorScope, inner: int) -> Body:
    """Return the body for results whose innermost axis is short."""
    analysis, vectors = schedule.analysis, schedule.vectors
    stores = InterleavedStores(analysis, vectors, inner)
    rows = tuple([a for a in range(analysis.kernel.parallel) if a not in (vectors.axis, inner)])
    root.prepare(stores.targets)

    def body(row: Value, start: Value, stop: Value) -> None:
        scope = rows_in(root, rows, row)
        scope.prepare(stores.targets)

        def iteration(segment: Segment, offset: Value, count: Value | None, unroll: int) -> None:
            stores.emit(scope, segment, offset, count, unroll)

        plain_walk(root.nest.f, vectors, start, stop, iteration)

    return body


def plain_walk(f: Function, vectors: Vectors, start: Value, stop: Value, body: Callable[[Segment, Value, Value | None, int], None]) -> None:
    """Emit a walk along the vectors' axis that carries nothing."""

    def iteration(segment: Segment, offset: Value, count: Value | None, unroll: int, _: States) -> States:
        body(segment, offset, count, unroll)
        return []

    def loop(low: Value, high: Value, step: int, _: States, body: Callable[[Value, States], States]) -> States:
        def without_carry(i: Value, _: list[Value]) -> None:
            body(i, [])

        f.loop(low, high, step, [], without_carry)
        return []

    vectors.walk(f, start, stop, [], iteration, loop)


def _first_targets(schedule: LoopSchedule) -> list[int]:
    first, kernel = schedule.passes[0], schedule.analysis.kernel
    return [*first.targets(schedule.analysis), *[kernel.stores[s].value for s in first.row_stores]]


def _make_slots(schedule: LoopSchedule, nest: LoopNest) -> None:
    """Reserve room on the stack for what passes keep."""
    analysis, axis = schedule.analysis, schedule.axis
    lanes_are_elements = axis in analysis.reduction_axes
    order = [*[a for a in analysis.kernel.reduction_axes if a != axis], *([axis] if lanes_are_elements else [])]
    offset = row_major(tuple(map(along, order)), tuple([analysis.kernel.sizes[a] for a in order]))
    unit = 1 if lanes_are_elements else schedule.vectors.lanes
    for n in [n for row_pass in schedule.passes for n in row_pass.keeps]:
        memory = nest.f.alloca(f"[{analysis.kernel.nodes[n].dtype.itemsize} x i8]", analysis.size(analysis.reduction_axes) * unit)
        nest.slots[n] = SpillSlot(memory, offset, unit)
