"""Schedules of kernels: the axis and lanes of vectors, passes, and tasks.

Transposes are traversed in tiles. Kernels whose innermost axis is short interleave their results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.loops import RowPass, crossing_loads
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Affine, Range
from volta_fn.compiler.ir.kernel import Apply
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, least, vector_of
from volta_fn.runtime.llvm.text import lanes_of as vector_lanes
from volta_fn.targets.cpu.loops.emit_values import CHAINS, VectorAxis, VectorScope, fetch_ahead
from volta_fn.targets.cpu.loops.rows import Segment, Vectors, cost_of, row_passes
from volta_fn.targets.cpu.scalars import Number, store
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.cpu.scalars.values import bits_of

# Kernels whose innermost axis is short: interleaved results.
#
# `repeat` has such kernels, and `stack` along the last axis. Vectors go along a longer axis, whose elements are not neighbours in
# memory. So the elements of all indices along the short axis are computed together, and their lanes are interleaved before the store.

#: The most elements of the short axis.
_LONGEST_SHORT_AXIS = 4


def interleaved_axis(analysis: KernelAnalysis, axis: int, lanes: int) -> int | None:
    """Return the short axis along which all results are contiguous.

    None if there is none, or if vectors along `axis` can be stored as they are.
    """
    kernel = analysis.kernel
    is_complex = dtypes.COMPLEX.intersection([kernel.nodes[s.value].dtype for s in kernel.stores])
    if analysis.reduces or lanes < 4 or axis not in analysis.parallel_axes or is_complex:
        return None
    for inner, size in enumerate(kernel.sizes):
        others = analysis.reduction_axes - {inner}
        if inner == axis or others or not 2 <= size <= _LONGEST_SHORT_AXIS:
            continue
        if all((coefficient(offset, inner), coefficient(offset, axis)) == (1, size) for offset in analysis.store_offsets):
            return inner
    return None


class InterleavedStores:
    """Writes vectors of a kernel with a short innermost axis."""

    def __init__(self, analysis: KernelAnalysis, vectors: Vectors, inner: int) -> None:
        self.analysis = analysis
        self.vectors = vectors
        self.inner = inner
        kernel = analysis.kernel
        self.targets = [s.value for s in kernel.stores]
        ranges = {r for n in range(len(kernel.nodes)) for r in analysis.ranges(n) if r.value.axes == {inner}}
        #: For each index along the short axis, which conditions on it hold.
        self.decided = [{r: _holds(r, inner, k) for r in ranges} for k in range(kernel.sizes[inner])]

    def emit(self, scope: VectorScope, segment: Segment, start: Value, count: Value | None, unroll: int) -> None:
        """Emit some vectors from a position on."""
        vector_axis = VectorAxis(self.vectors.axis, self.vectors.lanes, count)
        for column in scope.vectors(vector_axis, start, unroll, segment.decided):
            column.hoist(self.targets)
            cells = []
            for index, decided in enumerate(self.decided):
                cells.append(column.child({self.inner: i64(index)}))
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
    """Emit an odd number of vectors interleaved, by one permutation of each.

    No two lanes of a vector go to the same lane of results.
    """
    size = len(vectors)
    rotated = [f.shuffle(x, [(lane - k) * pow(size, -1, lanes) % lanes for lane in range(lanes)]) for k, x in enumerate(vectors)]
    results = [rotated[0]] * size
    for k, x in enumerate(rotated[1:], 1):
        results = [f.shuffle(y, [j + lanes * ((lanes * i + j) % size == k) for j in range(lanes)], x) for i, y in enumerate(results)]
    return results


def _holds(condition: Range, axis: int, index: int) -> bool:
    value = condition.value.offset + coefficient(condition.value, axis) * index
    return condition.low <= value < condition.high


# Transposes: kernels whose loads and stores are contiguous along different axes.
#
# Square tiles of vectors are loaded along the loads' axis, transposed in registers, stored on the stack, and used along
# the stores' axis, so that memory is read and written by full cache lines. Tiles are visited in blocks that few pages of memory hold.

#: Iterations along either axis after which a block of tiles ends.
BLOCK = 64


def crossing(analysis: KernelAnalysis, axis: int, lanes: int) -> tuple[int, list[int]] | None:
    """Return the loads that cross the vectors' axis, and their contiguous axis.

    None if tiles do not help.
    """
    if analysis.reduction_axes or lanes < 4 or analysis.kernel.sizes[axis] < lanes:
        return None
    candidate = crossing_loads(analysis, axis, lanes, backward=False)
    if candidate is None or any(r.value.axes & {axis, candidate[0]} for n in range(len(analysis.kernel.nodes)) for r in analysis.ranges(n)):
        return None
    return candidate


class TransposeTiles:
    """Writes blocks of tiles over two axes of a kernel without inner axes."""

    def __init__(self, analysis: KernelAnalysis, f: Function, axis: int, other: int, lanes: int, loads: Sequence[int]) -> None:
        self.analysis = analysis
        self.f = f
        self.axis = axis
        self.other = other
        self.lanes = lanes
        self.loads = loads
        #: Tiles of a block along the vectors' axis.
        self.columns = -(-BLOCK // lanes)
        #: The tile of every part of every load.
        self.tiles: dict[int, list[Value]] = {}

    def strip(self, scope: VectorScope, start: Value, stop: Value) -> None:
        """Emit the full extent of the vectors' axis, for a strip along the other one."""
        f, size = self.f, self.analysis.kernel.sizes[self.axis]

        def block(first: Value, _: list[Value]) -> None:
            end = least(f, f.plus(first, i64(BLOCK)), i64(size))

            def across(u: Value, _: list[Value]) -> None:
                wide = i64(self.lanes) if self.is_full else least(f, i64(self.lanes), f.minus(stop, u))
                f.loop(first, end, self.lanes, [], lambda v, _: self.tile(scope, u, wide, v, first, end), nonempty=True)
                f.loop(i64(0), wide, 1, [], lambda i, _: self.work_row(scope, u, i, first, end), nonempty=True)

            f.loop(start, stop, self.lanes, [], across, nonempty=True)

        f.loop(i64(0), i64(size), BLOCK, [], block, nonempty=True)

    @property
    def is_full(self) -> bool:
        """True if all tiles are full."""
        sizes = self.analysis.kernel.sizes
        return sizes[self.axis] % self.lanes == 0 and sizes[self.other] % self.lanes == 0

    def tile(self, scope: VectorScope, u: Value, wide: Value, v: Value, first: Value, end: Value) -> None:
        """Emit the load of one tile, of which some may be beyond the ends."""
        f, column = self.f, self.f.divided(self.f.minus(v, first), self.lanes)[0]
        if self.is_full:
            self.stage_tile(scope, u, None, v, None, column)
            return
        high = least(f, i64(self.lanes), f.minus(end, v))
        full = f.compare("icmp eq", f.plus(wide, high), i64(2 * self.lanes))
        f.branch(full, lambda: self.stage_tile(scope, u, None, v, None, column), lambda: self.stage_tile(scope, u, wide, v, high, column))

    def work_row(self, scope: VectorScope, u: Value, i: Value, first: Value, end: Value) -> None:
        """Emit the work on a row of a block of tiles, along the vectors' axis."""
        f, targets = self.f, [store.value for store in self.analysis.kernel.stores]
        outside = scope.child({self.other: f.plus(u, i)})
        outside.prepare(targets, range(len(targets)))

        def iteration(v: Value, _: list[Value]) -> None:
            count = None if self.is_full else least(f, i64(self.lanes), f.minus(end, v))
            inside = outside.child({self.axis: v}, VectorAxis(self.axis, self.lanes, count))
            column = f.divided(f.minus(v, first), self.lanes)[0]
            for node, tiles in self.tiles.items():
                inside.values[node] = self.load_tile_row(node, tiles, f.plus(f.times(i, self.columns), column))
            for node in inside.needed(targets):  # before the first store, as a result may share the memory of another one's operand
                inside.value(node)
            for s in range(len(targets)):
                inside.store(s)

        f.loop(first, end, self.lanes, [], iteration, nonempty=True)

    def stage_tile(self, scope: VectorScope, u: Value, wide: Value | None, v: Value, high: Value | None, column: Value) -> None:
        """Emit the loads and the transpose of a tile, and store it on the stack."""
        for node in self.loads:
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


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Emit the transpose of a square of vectors, by swaps of growing blocks."""
    result, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        upper = [j if not j & step else lanes + j - step for j in range(lanes)]
        lower = [j + step if not j & step else lanes + j for j in range(lanes)]
        for i in [i for i in range(lanes) if not i & step]:
            a, b = result[i], result[i + step]
            result[i], result[i + step] = f.shuffle(a, upper, b), f.shuffle(a, lower, b)
        step *= 2
    return result


# Schedules of kernels: the axis and lanes of vectors, passes, and tasks.
#
# `schedule_of` makes the choices that are expected to be fastest. `LoopOptions` force other ones, and `legal_options` lists those that a
# kernel may have, so that tests run it in every way.

#: Nanoseconds that a task should take.
GRAIN = 40_000.0

#: Bytes that a core moves in a nanosecond.
_BANDWIDTH = 8.0

#: Bytes of the stack for the values that passes keep of a row, at most.
_STACK = 1 << 16

#: Nanoseconds per element from which on two interleaved vectors keep the processor busy.
_EXPENSIVE_NS = 0.4

#: The most segments of an axis.
_MOST_SEGMENTS = 8

#: The most nodes times vectors that are interleaved.
_MOST_STATEMENTS = 120


class Grid(NamedTuple):
    """Tasks: blocks of rows, or single rows with another axis in chunks."""

    rows: int
    rows_per_task: int
    #: The axis that is cut, its size, and how much of it a task does.
    size: int
    chunk: int

    @property
    def chunks(self) -> int:
        """The number of chunks of the axis."""
        return -(-self.size // self.chunk)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return -(-self.rows // self.rows_per_task) * self.chunks


class LoopOptions(NamedTuple):
    """Choices of a schedule that are forced; None where the schedule makes its own."""

    #: The axis of the vectors.
    axis: int | None = None
    #: Whether vectors have one lane.
    scalar: bool = False
    #: Vectors that are interleaved.
    unroll: int | None = None
    #: Whether passes keep what is expensive to compute again.
    keeping: bool | None = None
    #: Whether short rows stay in registers from pass to pass.
    resident: bool | None = None
    #: Whether loads that cross the vectors' axis are transposed in tiles, and results of a short last axis interleaved.
    tiles: bool | None = None
    interleaved: bool | None = None
    #: Whether the C library copies what is a copy.
    copies: bool | None = None
    #: Whether loads of arrays that are read in order are prefetched.
    prefetch: bool | None = None
    #: Whether reductions are split into two launches, and whether the first one reads rows of a matrix in full.
    split: bool | None = None
    wide: bool | None = None
    #: Nanoseconds that a task should take.
    grain: float = GRAIN


PREFERRED = LoopOptions()


class LoopSchedule(NamedTuple):
    """The schedule of a kernel."""

    analysis: KernelAnalysis
    vectors: Vectors
    passes: list[RowPass]
    #: Nanoseconds for one iteration of all axes.
    iteration_cost: float
    #: The axis along which some loads are contiguous, if it is not the vectors' axis, and those loads.
    crossing: tuple[int, list[int]] | None
    #: The short axis along which results are interleaved.
    interleaved: int | None
    #: The tasks, if rows are not cut.
    cut: Grid
    options: LoopOptions

    @property
    def axis(self) -> int:
        """The axis of the vectors."""
        return self.vectors.axis


def schedule_of(analysis: KernelAnalysis, options: LoopOptions = PREFERRED) -> LoopSchedule:
    """Return the schedule of a kernel that has axes."""
    axis = _vector_axis(analysis) if options.axis is None else options.axis
    if axis in analysis.parallel_axes and any(axis not in analysis.depends[n] for n in analysis.reduces):
        # Rows are lanes: each lane reduces for itself, even what is the same in all of them, so that results are vectors.
        analysis = KernelAnalysis(analysis.kernel, each=frozenset({axis}))
    lanes = vector_lanes_of(analysis)
    segments = segments_of(analysis, axis)
    if segments is None or analysis.kernel.sizes[axis] == 1 or options.scalar:
        lanes, segments = 1, (Segment(0, analysis.kernel.sizes[axis], {}),)
    passes = row_passes(analysis, keeping=options.keeping is not False)
    slot_bytes = sum(analysis.kernel.nodes[n].dtype.itemsize for row_pass in passes for n in row_pass.keeps)
    if slot_bytes * analysis.size(analysis.reduction_axes) * (1 if axis in analysis.reduction_axes else lanes) > _STACK:
        passes = row_passes(analysis, keeping=False)
    vectors = Vectors(axis, lanes, options.unroll or _unroll(analysis, axis, lanes, passes), segments)
    transposition, iteration_cost = None if options.tiles is False else crossing(analysis, axis, lanes), iteration_cost_of(analysis)
    inner = interleaved_axis(analysis, axis, lanes) if transposition is None and options.interleaved is not False else None
    cut = _tasks_of_rows(analysis, vectors, transposition, inner, iteration_cost * GRAIN / options.grain)
    return LoopSchedule(analysis, vectors, passes, iteration_cost, transposition, inner, cut, options)


def legal_options(analysis: KernelAnalysis) -> Iterator[LoopOptions]:
    """Yield options that force every choice both ways, for every axis of the vectors.

    Several choices are forced together. Interleaved vectors of rows share the memory of the values that passes keep.
    """
    yield PREFERRED
    for axis in range(len(analysis.kernel.sizes)):
        yield LoopOptions(axis)
        schedule = schedule_of(analysis, LoopOptions(axis))
        if schedule.vectors.lanes > 1:
            yield LoopOptions(axis, scalar=True, grain=1.0)
        most = max(1, _MOST_STATEMENTS // len(analysis.kernel.nodes))
        keeping = None if axis in analysis.reduction_axes else False
        yield LoopOptions(axis, unroll=1, prefetch=True, keeping=False, interleaved=False)
        yield LoopOptions(axis, unroll=min(2, most), keeping=keeping, tiles=False, copies=True, resident=False, grain=1.0)
        yield LoopOptions(axis, unroll=min(4, most), keeping=keeping, tiles=False, interleaved=False, copies=False, grain=1.0)
        yield LoopOptions(axis, unroll=min(8, most), keeping=keeping, prefetch=True, grain=1.0)
        if can_split(schedule):
            yield LoopOptions(axis, split=False)
            yield LoopOptions(axis, split=True, wide=False, grain=1.0)
            yield LoopOptions(axis, split=True, wide=can_be_wide(schedule), unroll=1)
            if can_be_wide(schedule):
                yield LoopOptions(axis, split=True, wide=True, scalar=True, grain=1.0)


def can_split(schedule: LoopSchedule) -> bool:
    """Return True if reductions can be split into two launches.

    They need one pass over a row, and no index of an element.
    """
    has_one_pass = schedule.analysis.passes == 2 and not schedule.passes[1].has_iterations
    return has_one_pass and not any(reduce.is_index for reduce in schedule.analysis.reduces.values())


def can_be_wide(schedule: LoopSchedule) -> bool:
    """Return True if the reduction is over the rows of a matrix."""
    return schedule.analysis.parallel_axes == {schedule.axis} and len(schedule.analysis.reduction_axes) == 1


def _tasks_of_rows(
    analysis: KernelAnalysis, vectors: Vectors, transposition: tuple[int, list[int]] | None, inner: int | None, iteration_cost: float
) -> Grid:
    """Return the tasks: rows, vectors of rows, or strips of tiles."""
    sizes, axis = analysis.kernel.sizes, vectors.axis
    if axis in analysis.reduction_axes:
        return grid(analysis.size(analysis.parallel_axes), 1, 1, iteration_cost * analysis.size(analysis.reduction_axes))
    if transposition is not None:
        return grid(
            analysis.size(analysis.parallel_axes - {axis, transposition[0]}), sizes[transposition[0]], BLOCK, iteration_cost * sizes[axis]
        )
    together = analysis.reduction_axes if inner is None else frozenset({inner})
    return grid(
        analysis.size(analysis.parallel_axes - together - {axis}),
        sizes[axis],
        vectors.lanes * vectors.unroll,
        iteration_cost * analysis.size(together),
    )


def vector_lanes_of(analysis: KernelAnalysis) -> int:
    """Return the lanes of a vector: a register of the widest dtype."""
    widest = max(
        [4 if d in dtypes.FLOATS and d.itemsize == 2 else d.itemsize // (2 if d in dtypes.COMPLEX else 1) for d in analysis.dtypes()]
    )
    return host().lanes(widest)


def _vector_axis(analysis: KernelAnalysis) -> int:
    """Return the axis along which most elements are contiguous."""
    sizes = analysis.kernel.sizes
    offsets = [(1.0, p) for p in analysis.load_offsets.values()] + [(1.5, p) for p in analysis.store_offsets]
    lanes = vector_lanes_of(analysis)

    def score(axis: int) -> tuple[float, int]:
        vectors = -(-sizes[axis] // lanes)
        filled = sizes[axis] / (vectors * lanes)
        total = sum(weight * _access_score(offset, axis) for weight, offset in offsets)
        return round(total * filled - (1e-3 if segments_of(analysis, axis) is None else 0.0), 6), axis

    return max(range(len(sizes)), key=score)


def _access_score(offset: Affine, axis: int) -> float:
    """Return a score, up to 1, of the speed of loads or stores along an axis."""
    c = abs(coefficient(offset, axis))
    return 1.0 if c == 1 else 0.5 if c == 0 else 0.3 if c <= 4 else 0.0


def segments_of(analysis: KernelAnalysis, axis: int) -> tuple[Segment, ...] | None:
    """Return the segments of an axis in which it is known which conditions hold.

    None if conditions on that axis depend on other axes, too.
    """
    size = analysis.kernel.sizes[axis]
    ranges = {r for n in range(len(analysis.kernel.nodes)) for r in analysis.ranges(n) if axis in r.value.axes}
    if any(len(r.value.terms) > 1 for r in ranges):
        return None
    cuts = {0, size}
    for r in ranges:
        cuts.update(n for n in _bounds(r, size) if 0 < n < size)
    ends = sorted(cuts)
    if len(ends) - 1 > _MOST_SEGMENTS:
        return None
    ordered = sorted(ranges)
    return tuple([Segment(a, b, {r: _bounds(r, size)[0] <= a < _bounds(r, size)[1] for r in ordered}) for a, b in itertools.pairwise(ends)])


def _bounds(condition: Range, size: int) -> tuple[int, int]:
    """Return the range, along its only axis, in which a condition holds."""
    ((_, c),) = condition.value.terms
    inside = [condition.low - condition.value.offset, condition.high - condition.value.offset]
    low, high = (-(-n // c) for n in inside) if c > 0 else (n // c + 1 for n in reversed(inside))
    return max(min(low, size), 0), max(min(high, size), 0)


def _unroll(analysis: KernelAnalysis, axis: int, lanes: int, passes: list[RowPass]) -> int:
    size = analysis.kernel.sizes[axis]
    reduces = max([len(p.reduces) for p in passes], default=0)
    heavy = cost_of(analysis, [s.value for s in analysis.kernel.stores] + [r.operand for r in analysis.reduces.values()]) > _EXPENSIVE_NS
    chained = any(isinstance(node, Apply) and node.op in CHAINS for node in analysis.kernel.nodes)
    wanted = 2 if heavy and not chained else 4
    if reduces and axis not in analysis.reduction_axes:
        wanted = 1 if any(p.keeps for p in passes) else 8
    while wanted > 1 and (wanted * reduces > 16 or wanted * lanes > size or len(analysis.kernel.nodes) * wanted > _MOST_STATEMENTS):
        wanted //= 2
    return wanted


def iteration_cost_of(analysis: KernelAnalysis) -> float:
    """Estimate the nanoseconds of one iteration of all axes."""
    total = cost_of(analysis, [s.value for s in analysis.kernel.stores] + [r.operand for r in analysis.reduces.values()])
    iterations = analysis.size(range(len(analysis.kernel.sizes)))
    moved = sum(analysis.size(p.axes) * analysis.kernel.nodes[n].dtype.itemsize for n, p in analysis.load_offsets.items())
    moved += sum(b.size * b.dtype.itemsize for b in analysis.kernel.outputs)
    return total + moved / iterations / _BANDWIDTH + 0.02


def grid(count: int, size: int, unit: int, iteration_cost: float) -> Grid:
    """Return tasks over `count` rows of `size` iterations, given the cost of one.

    Chunks are multiples of `unit`.
    """
    wanted = max(1.0, GRAIN / iteration_cost)
    if size <= 1.5 * wanted or size <= unit:
        return Grid(count, max(1, min(count, int(wanted / size))), size, size)
    return Grid(count, 1, size, max(unit, int(wanted) // unit * unit))
