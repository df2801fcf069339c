"""Routines of kernels: schedules as code, and long rows split between tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient, simplified
from volta_fn.compiler.ir.index import Affine, Range, along, row_major
from volta_fn.compiler.ir.kernel import Buffer, Constant, Kernel, Load, NodeBuilder, PendingStores, closure, operands
from volta_fn.runtime.llvm.text import Function, Module, Value, greatest, i64, least, rounded_down, transposed, vector_of
from volta_fn.runtime.llvm.text import lanes_of as vector_lanes
from volta_fn.targets.cpu.loops.emit_values import LoopNest, SpillSlot, VectorAxis, VectorScope, fetch_ahead
from volta_fn.targets.cpu.loops.rows import RowCode, Segment, States, Vectors
from volta_fn.targets.cpu.loops.schedule import (
    BLOCK,
    GRAIN,
    UNFORCED,
    Grid,
    LoopOptions,
    LoopSchedule,
    Transposition,
    can_be_wide,
    can_split,
    grid,
    legal_options,
    schedule_of,
    written_out,
)
from volta_fn.targets.cpu.routine import BEGIN, END, Launch, Routine, buffer_pointer, entry_point
from volta_fn.targets.cpu.scalars import Number, load, store, supports
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.cpu.scalars.values import bits_of

# Kernels whose innermost axes are short: interleaved results.
#
# `repeat` has such kernels, `stack` along the last axis, and products of stacks of 2×2 matrices. Vectors go along a longer axis, whose
# elements are not neighbours in memory. So the elements of all indices along the short axes are computed together, and their lanes are
# interleaved before the store.


class InterleavedStores:
    """Writes vectors of a kernel with short innermost axes."""

    def __init__(self, analysis: KernelAnalysis, vectors: Vectors, axes: tuple[int, ...]) -> None:
        self.analysis = analysis
        self.vectors = vectors
        kernel = analysis.kernel
        self.targets = [s.value for s in kernel.stores]
        ranges = {r for n in range(len(kernel.nodes)) for r in analysis.ranges(n) if r.value.axes and r.value.axes <= set(axes)}
        #: The indices along the short axes, and which conditions on them hold.
        self.indices = [dict(zip(axes, index, strict=True)) for index in itertools.product(*[range(kernel.sizes[a]) for a in axes])]
        self.decided = [{r: _holds(r, index) for r in ranges} for index in self.indices]

    def emit(self, scope: VectorScope, segment: Segment, start: Value, count: Value | None, unroll: int) -> None:
        """Emit some vectors from a position on."""
        vector_axis = VectorAxis(self.vectors.axis, self.vectors.lanes, count)
        for column in scope.vectors(vector_axis, start, unroll, segment.decided):
            column.hoist(self.targets)
            cells = []
            for index, decided in zip(self.indices, self.decided, strict=True):
                cells.append(column.child({axis: i64(i) for axis, i in index.items()}))
                cells[-1].decided.update(decided)
            # All before the first store, as a result may share the memory of another one's operand.
            results = [_interleaved(scope.nest.f, [cell.spread(target) for cell in cells]) for target in self.targets]
            wide = None if count is None else scope.nest.f.times(count, len(cells))
            for number, result in enumerate(results):
                scope.nest.pending.discard(number)
                store(scope.nest.f, result, cells[0].pointer(("store", number)), count=wide)


def _interleaved(f: Function, vectors: Sequence[Number]) -> Number:
    """Emit the first lanes of all vectors, then the second ones, and so on."""
    lanes, size, components = vectors[0].lanes, len(vectors), [vector.components[0] for vector in vectors]
    order = [lanes * k + lane for lane in range(lanes) for k in range(size)]
    if size % 2:
        components, order = _blended(f, components, lanes), list(range(lanes * size))
        components += [components[-1]]
    pairs = [f.shuffle(x, range(2 * lanes), y) for x, y in zip(components[::2], components[1::2], strict=True)]
    return Number(vectors[0].dtype, (f.shuffle(pairs[0], order, pairs[1] if len(pairs) > 1 else None),))


def _blended(f: Function, vectors: Sequence[Value], lanes: int) -> list[Value]:
    """Emit an odd number of vectors interleaved, by one permutation of each."""
    # No two lanes of a vector go to the same lane of results.
    size = len(vectors)
    rotated = [f.shuffle(x, [(lane - k) * pow(size, -1, lanes) % lanes for lane in range(lanes)]) for k, x in enumerate(vectors)]
    results = [rotated[0]] * size
    for k, x in enumerate(rotated[1:], 1):
        results = [f.shuffle(y, [j + lanes * ((lanes * i + j) % size == k) for j in range(lanes)], x) for i, y in enumerate(results)]
    return results


def _holds(condition: Range, index: Mapping[int, int]) -> bool:
    value = condition.value.offset + sum(c * index[axis] for axis, c in condition.value.terms)
    return condition.low <= value < condition.high


# Transposes: kernels whose loads and stores are contiguous along different axes.
#
# Square tiles of vectors are loaded along the loads' axis, transposed in registers, stored on the stack, and used along
# the stores' axis, so that memory is read and written by full cache lines. Tiles are visited in blocks that few pages of memory hold.


class Area(NamedTuple):
    """A part of the two axes of tiles in which all conditions on these are decided."""

    #: Its extent along the vectors' axis, and along the other one.
    along: Segment
    across: Segment
    #: The loads of which tiles are transposed: those that are not masked out.
    loads: Sequence[int]


class TransposeTiles:
    """Writes blocks of tiles over two axes of a kernel without inner axes."""

    def __init__(self, f: Function, schedule: LoopSchedule, transposition: Transposition) -> None:
        self.analysis, self.f = schedule.analysis, f
        self.axis, self.lanes = schedule.axis, schedule.vectors.lanes
        self.other = transposition.axis
        self.areas = [
            Area(along, across, [n for n in transposition.loads if self._is_loaded(n, along.decided | across.decided)])
            for along in schedule.vectors.segments
            for across in transposition.segments
        ]
        #: Tiles of a block along the vectors' axis.
        self.columns = -(-BLOCK // self.lanes)
        #: The tile of every part of every load.
        self.tiles: dict[int, list[Value]] = {}

    def _is_loaded(self, node: int, decided: Mapping[Range, bool]) -> bool:
        load_node = self.analysis.kernel.nodes[node]
        assert isinstance(load_node, Load)
        return all(decided.get(r, True) for r in load_node.mask)

    def strip(self, scope: VectorScope, start: Value, stop: Value) -> None:
        """Emit the full extent of the vectors' axis, for a strip along the other one."""
        f, size = self.f, self.analysis.kernel.sizes[self.other]
        for area in self.areas:
            inner = scope.child({})
            inner.decided.update(area.along.decided | area.across.decided)
            if (area.across.start, area.across.end) == (0, size):
                self.blocks(inner, area, start, stop)
            else:
                low, high = greatest(f, start, i64(area.across.start)), least(f, stop, i64(area.across.end))
                f.branch(f.compare("icmp slt", low, high), partial(self.blocks, inner, area, low, high))

    def blocks(self, scope: VectorScope, area: Area, low: Value, high: Value) -> None:
        """Emit the blocks of a strip in an area."""
        f, is_full = self.f, self.is_full(area)

        def block(first: Value, _: list[Value]) -> None:
            end = least(f, f.plus(first, i64(BLOCK)), i64(area.along.end))

            def across(u: Value, _: list[Value]) -> None:
                wide = None if is_full else least(f, i64(self.lanes), f.minus(high, u))
                f.loop(first, end, self.lanes, [], lambda v, _: self.tile(scope, area, u, wide, v, first, end), nonempty=True)
                rows = i64(self.lanes) if wide is None else wide
                f.loop(i64(0), rows, 1, [], lambda i, _: self.work_row(scope, area, u, i, first, end), nonempty=True)

            f.loop(low, high, self.lanes, [], across, nonempty=True)

        f.loop(i64(area.along.start), i64(area.along.end), BLOCK, [], block, nonempty=True)

    def is_full(self, area: Area) -> bool:
        """Return True if all tiles of an area are full."""
        ends = (area.along.end - area.along.start, area.across.start, area.across.end)
        return all(end % self.lanes == 0 for end in ends)

    def tile(self, scope: VectorScope, area: Area, u: Value, wide: Value | None, v: Value, first: Value, end: Value) -> None:
        """Emit the load of one tile, of which some may be beyond the ends."""
        f, column = self.f, self.f.divided(self.f.minus(v, first), self.lanes)[0]
        if wide is None:
            self.stage_tile(scope, area, u, None, v, None, column)
            return
        high = least(f, i64(self.lanes), f.minus(end, v))
        full = f.compare("icmp eq", f.plus(wide, high), i64(2 * self.lanes))
        f.branch(
            full,
            lambda: self.stage_tile(scope, area, u, None, v, None, column),
            lambda: self.stage_tile(scope, area, u, wide, v, high, column),
        )

    def work_row(self, scope: VectorScope, area: Area, u: Value, i: Value, first: Value, end: Value) -> None:
        """Emit the work on a row of a block of tiles, along the vectors' axis."""
        f, targets = self.f, [store.value for store in self.analysis.kernel.stores]
        outside = scope.child({self.other: f.plus(u, i)})
        outside.prepare(targets, range(len(targets)))

        def iteration(v: Value, _: list[Value]) -> None:
            count = None if self.is_full(area) else least(f, i64(self.lanes), f.minus(end, v))
            inside = outside.child({self.axis: v}, VectorAxis(self.axis, self.lanes, count))
            column = f.divided(f.minus(v, first), self.lanes)[0]
            for node in area.loads:
                inside.values[node] = self.load_tile_row(node, self.tiles[node], f.plus(f.times(i, self.columns), column))
            for node in inside.needed(targets):  # before the first store, as a result may share the memory of another one's operand
                inside.value(node)
            for s in range(len(targets)):
                inside.store(s)

        f.loop(first, end, self.lanes, [], iteration, nonempty=True)

    def stage_tile(self, scope: VectorScope, area: Area, u: Value, wide: Value | None, v: Value, high: Value | None, column: Value) -> None:
        """Emit the loads and the transpose of a tile, and store it on the stack."""
        for node in area.loads:
            rows = []
            for k in range(self.lanes):
                count = wide
                if wide is not None and high is not None:
                    count = self.f.select(self.f.compare("icmp slt", i64(k), high), wide, i64(0))
                row = scope.child({self.other: u, self.axis: self.f.plus(v, i64(k))}, VectorAxis(self.other, self.lanes, count))
                rows.append(row.value(node).components)
                fetch_ahead(self.f, row.pointer(("load", node)), self.analysis.kernel.nodes[node].dtype.itemsize * self.lanes)
            type_ = vector_of(_tile_element(self.analysis.kernel.nodes[node].dtype), self.lanes)
            for component, columns in enumerate(zip(*rows, strict=True)):
                self.store_tile(node, component, transposed(self.f, [self.f.cast("zext", x, type_) for x in columns]), column)

    def store_tile(self, node: int, component: int, vectors: Sequence[Value], column: Value) -> None:
        """Emit the stores of a tile on the stack."""
        tiles, type_ = self.tiles.setdefault(node, []), vectors[0].type
        if component == len(tiles):
            tiles.append(self.f.alloca(type_, self.lanes * self.columns))
        for k, vector in enumerate(vectors):
            slot = self.f.plus(i64(k * self.columns), column)
            self.f.store(vector, self.f.at(tiles[component], type_, slot), _align(type_))

    def load_tile_row(self, node: int, tiles: Sequence[Value], i: Value) -> Number:
        """Emit the load of a row of a tile on the stack."""
        dtype = self.analysis.kernel.nodes[node].dtype
        components = []
        for tile in tiles:
            type_ = vector_of(_tile_element(dtype), self.lanes)
            x = self.f.load(type_, self.f.at(tile, type_, i), _align(type_))
            components.append(self.f.cast("trunc", x, vector_of("i1", self.lanes)) if dtype.kind == "b" else x)
        return Number(dtype, tuple(components))


def _tile_element(dtype: np.dtype) -> str:
    return "i8" if dtype.kind == "b" else element(dtype)


def _align(type_: str) -> int:
    return min(64, bits_of(type_) // 8 * vector_lanes(type_))


# Kernels that copy long ranges as they are, such as concatenations.
#
# The C library copies them in less time than a loop over vectors, which reads the result's cache lines before it writes them.

#: The least bytes of the longest range for which a call of the C library pays.
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


def copies_of(analysis: KernelAnalysis, vectors: Vectors, forced: bool | None = None) -> Copies | None:
    """Return the copies of a kernel; None if some elements are computed.

    Unless `forced` settles the choice, only long ranges are copied.
    """
    kernel = analysis.kernel
    if analysis.reduction_axes or len(kernel.stores) != 1 or coefficient(analysis.store_offsets[0], vectors.axis) != 1:
        return None
    itemsize = kernel.nodes[kernel.stores[0].value].dtype.itemsize
    long = max(segment.end - segment.start for segment in vectors.segments) * itemsize >= _MEMCPY_BYTES
    if not (long if forced is None else forced):
        return None
    sources = [source for segment in vectors.segments if (source := _source(analysis, vectors.axis, segment)) is not None]
    return Copies(vectors, sources, itemsize) if len(sources) == len(vectors.segments) else None


def _source(analysis: KernelAnalysis, axis: int, segment: Segment) -> int | None:
    """Return the load whose contiguous elements a segment of the store copies."""
    node_number = analysis.kernel.stores[0].value
    while analysis.is_selection(node_number):
        read = analysis.operands(node_number, segment.decided)
        if len(read) > 1:
            return None
        (node_number,) = read
    node = analysis.kernel.nodes[node_number]
    if not isinstance(node, Load) or coefficient(analysis.load_offsets[node_number], axis) != 1:
        return None
    return node_number if all(segment.decided.get(r, False) for r in node.mask) else None


# A kernel's schedule as a routine.

#: ``body(row, start, stop)`` emits one row, and of the grid's axis the iterations from `start` up to `stop`.
RowBody = Callable[[Value, Value, Value], None]


def write(nest: LoopNest, schedule: LoopSchedule) -> Launch:
    """Return the launch of a kernel whose rows are independent tasks."""
    analysis = schedule.analysis
    nest = nest._replace(analysis=analysis, streams=streams_of(schedule))
    root = VectorScope(nest, (), {}, None)
    if schedule.transposition is not None:
        body = _transposed_rows(schedule, root)
    elif schedule.interleaved:
        body = _interleaved_rows(schedule, root)
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


def over_tasks(f: Function, grid: Grid, body: RowBody) -> None:
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


def _along_rows(schedule: LoopSchedule, root: VectorScope) -> RowBody:
    """Return the body for rows whose elements are the lanes."""
    analysis, nest = schedule.analysis, root.nest
    _reserve_spills(schedule, nest)
    code = RowCode(nest, schedule.passes, schedule.vectors, schedule.options.resident)
    rows = tuple(range(analysis.kernel.parallel))
    root.prepare(_first_targets(schedule))
    return lambda row, start, stop: code.row(rows_in(root, rows, row))


def _across_rows(schedule: LoopSchedule, root: VectorScope) -> RowBody:
    """Return the body for rows that are the lanes."""
    analysis, nest, vectors = schedule.analysis, root.nest, schedule.vectors
    _reserve_spills(schedule, nest)
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


def _transposed_rows(schedule: LoopSchedule, root: VectorScope) -> RowBody:
    """Return the body for loads and stores along different axes."""
    analysis, nest, axis = schedule.analysis, root.nest, schedule.axis
    assert schedule.transposition is not None
    tiles = TransposeTiles(nest.f, schedule, schedule.transposition)
    rows = tuple([a for a in range(analysis.kernel.parallel) if a not in (axis, tiles.other)])
    root.prepare(_first_targets(schedule))

    def body(row: Value, start: Value, stop: Value) -> None:
        scope = rows_in(root, rows, row)
        scope.prepare(_first_targets(schedule), schedule.passes[0].row_stores)
        tiles.strip(scope, start, stop)

    return body


def _interleaved_rows(schedule: LoopSchedule, root: VectorScope) -> RowBody:
    """Return the body for results whose innermost axes are short."""
    analysis, vectors = schedule.analysis, schedule.vectors
    stores = InterleavedStores(analysis, vectors, schedule.interleaved)
    rows = tuple([a for a in range(analysis.kernel.parallel) if a not in (vectors.axis, *schedule.interleaved)])
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


def _reserve_spills(schedule: LoopSchedule, nest: LoopNest) -> None:
    """Reserve room on the stack for what passes keep."""
    analysis, axis = schedule.analysis, schedule.axis
    lanes_are_elements = axis in analysis.reduction_axes
    order = [*[a for a in analysis.kernel.reduction_axes if a != axis], *([axis] if lanes_are_elements else [])]
    offset = row_major(tuple(map(along, order)), tuple([analysis.kernel.sizes[a] for a in order]))
    unit = 1 if lanes_are_elements else schedule.vectors.lanes
    for n in [n for row_pass in schedule.passes for n in row_pass.keeps]:
        memory = nest.f.alloca(f"[{analysis.kernel.nodes[n].dtype.itemsize} x i8]", analysis.size(analysis.reduction_axes) * unit)
        nest.spills[n] = SpillSlot(memory, offset, unit)


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
    if not can_split(schedule):
        return False
    if schedule.options.split is not None:
        return schedule.options.split
    few = schedule.grid.tasks < _FEW_TASKS or reads_whole_rows(schedule)
    return few and schedule.iteration_cost * schedule.analysis.size(range(len(schedule.analysis.kernel.sizes))) > 3 * GRAIN


def reads_whole_rows(schedule: LoopSchedule) -> bool:
    """Return True if a matrix is so wide that its rows are best read in full."""
    analysis, axis = schedule.analysis, schedule.axis
    if not can_be_wide(schedule):
        return False
    if schedule.options.wide is not None:
        return schedule.options.wide
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
        unit = schedule.vectors.lanes * schedule.vectors.unroll if self.axis == schedule.axis else 1
        if self.lanes_are_elements:
            self.grid: Grid = grid(self.rows, kernel.sizes[self.axis], unit, schedule.iteration_cost * rest, schedule.options.grain)
        else:
            self.grid = grid(1, kernel.sizes[self.axis], unit, schedule.iteration_cost * rest * self.rows, schedule.options.grain)
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
                nest.spills[n] = SpillSlot(position, self.row_number, 1)
            if reads_whole_rows(schedule):
                self.sum_whole_rows(code, root, start, stop)
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

    def sum_whole_rows(self, code: RowCode, root: VectorScope, start: Value, stop: Value) -> None:
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
        needed = closure(old.nodes, targets, self.analysis.reduces)
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


def routine(kernel: Kernel, options: LoopOptions = UNFORCED) -> Routine | None:
    """Return the routine of a kernel; None if it has unsupported operations or dtypes."""
    analysis = _analysis_of(kernel)
    if analysis is None:
        return None
    schedule = _with_short_rows(analysis, options) or schedule_of(analysis, options)
    if pays_to_split(schedule):
        return SplitReduction(schedule).routine()
    module = Module()
    launch = write(nest_of(entry_point(module, "kernel"), schedule.analysis), schedule)
    return Routine.of(module, (launch,))


def _with_short_rows(analysis: KernelAnalysis, options: LoopOptions) -> LoopSchedule | None:
    """Return the schedule of a kernel of short rows, or None.

    These are written out if results are interleaved, or products of matrices. Each element of a row is then computed from all of them,
    which are read before any is stored, as a result may overwrite an operand.
    """
    kernel = written_out(analysis.kernel) if options.written_out or options == UNFORCED else None
    short = None if kernel is None else _analysis_of(kernel)
    if short is None:
        return None
    schedule, is_product = schedule_of(short, options), contraction_of(analysis.kernel) is not None
    return schedule if schedule.interleaved or is_product else None


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


def options_of(kernel: Kernel) -> Iterator[LoopOptions]:
    """Yield the options that `routine` takes for a kernel, for tests."""
    analysis = _analysis_of(kernel)
    if analysis is not None:
        yield from legal_options(analysis)
