"""Schedules of kernels: how one dispatch divides a kernel's axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.codegen.loops import row_passes, transposed_loads
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Affine
from volta_fn.compiler.ir.kernel import Buffer, Constant, Reduce
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import LANES, AxisSpan
from volta_fn.targets.wgsl.loops.reductions import fits_subgroups
from volta_fn.targets.wgsl.scalars import wgsl_type

#: Invocations of a workgroup by default; and where there are enough workgroups to keep a GPU busy with fewer invocations each.
_GROUP = 256
_SMALL_GROUP = 64
_LARGE_GROUP = 128

#: The most statements of a row whose elements are unrolled.
_STATEMENTS = 400

#: Values of a row that an invocation keeps in registers: the most; and so few that small workgroups have hardly anything to do.
_VALUES = 32
_FEW_VALUES = 16

#: Values of a row, one for each store along it, that all invocations together keep in registers: half of a multiprocessor's. NVIDIA's
#: compiler mistakes indices of a workgroup that needs many more.
_ROW_VALUES = 1 << 15

#: The fewest invocations that keep a GPU busy.
BUSY = 1 << 17

#: Bytes of an array that an invocation of a large kernel without inner axes loads at once, and the most statements for that.
_BYTES_IN_FLIGHT = 32
_ELEMENT_STATEMENTS = 160

#: Iterations of an invocation from which on a row may be cut into chunks, and how many of them a chunk has at least.
_LONG = 48
_CHUNK = 4

#: Elements of a column that one invocation reduces by itself, without barriers; and that each of several reduces at least.
_SHORT = 32
_LEAST_ELEMENTS = 8

#: The fewest groups of columns of a workgroup, and the fewest workgroups, where there are few columns.
_NARROW = 4

#: Sizes that tests force: invocations per row, and elements of a chunk.
_TEAMS, _CHUNKS = (1, 4, 32), (4, 7)

_NO_AXES = AxisSpan((), ())


class LoopSchedule(NamedTuple):
    """The schedule of a kernel as one dispatch."""

    #: The axes of rows and of the elements of a row; one of the two spans may be walked by lanes.
    outer: AxisSpan
    inner: AxisSpan
    #: Invocations per row (or group of lanes of rows), and such rows per workgroup.
    per_row: int
    rows_per_workgroup: int
    #: Whether neighbouring invocations are in neighbouring rows, and not in one row.
    by_columns: bool
    #: Elements (or groups of lanes of them) of a row that an invocation takes at a time; all that it has, if the row is resident.
    unroll: int
    resident: bool

    @property
    def lane_span(self) -> AxisSpan:
        """The axes that are walked by lanes."""
        return self.outer if self.outer.lanes > 1 else self.inner


class LoopOptions(NamedTuple):
    """Choices of a kernel's steps that are forced; None where a step makes its own."""

    #: The axis along which rows, or columns, are neighbours in memory.
    axis: int | None = None
    #: Whether elements are taken in fours, and in groups of 16 bytes, where memory allows.
    lanes: bool | None = None
    wide: bool | None = None
    #: Invocations per row, and whether they traverse it by loops.
    per_row: int | None = None
    loops: bool = False
    #: Elements, or groups of lanes, that an invocation of a kernel without reductions has.
    unroll: int | None = None
    #: Whether loads that cross the stores' axis go through squares in workgroup memory.
    tiles: bool | None = None
    #: Elements of a chunk of a row; 0: rows are not cut.
    chunk: int | None = None
    #: Whether stores along different sets of axes are steps of their own.
    separate: bool | None = None


DEFAULT_OPTIONS = LoopOptions()


def legal_options(analysis: KernelAnalysis, capabilities: TargetCapabilities) -> Iterator[LoopOptions]:
    """Yield the preferred options and alternatives, for reductions along every axis."""
    yield DEFAULT_OPTIONS
    if not analysis.reduces:
        yield from (
            LoopOptions(lanes=False),
            LoopOptions(wide=True),
            LoopOptions(unroll=2),
            LoopOptions(unroll=4),
            LoopOptions(tiles=False),
            LoopOptions(tiles=True),
        )
        yield LoopOptions(separate=True)
        return
    for axis in range(len(analysis.kernel.sizes)):
        yield from (LoopOptions(axis, chunk=0), LoopOptions(axis, chunk=0, lanes=False), LoopOptions(axis, chunk=0, loops=True))
        for per_row in _TEAMS:
            yield from (LoopOptions(axis, per_row=per_row, chunk=0), LoopOptions(axis, per_row=per_row, chunk=0, loops=True))
    yield from [LoopOptions(chunk=chunk) for chunk in _CHUNKS]


def elementwise(analysis: KernelAnalysis, capabilities: TargetCapabilities, options: LoopOptions = DEFAULT_OPTIONS) -> LoopSchedule:
    """Return the schedule of a kernel without reduction axes."""
    sizes = analysis.kernel.sizes
    offset = max(
        enumerate(analysis.store_offsets), key=lambda p: (analysis.kernel.outputs[p[0]].dtype.itemsize < 4, analysis.size(p[1].axes), -p[0])
    )[1]
    order = sorted(range(len(sizes)), key=lambda a: (abs(coefficient(offset, a)) or math.inf, -a), reverse=True)
    span = AxisSpan(tuple(order), tuple([sizes[a] for a in order]))
    span = _wider(analysis, _in_lanes(analysis, span, options, unaligned=True), options.wide)
    unroll = options.unroll or _unroll_elementwise(analysis, span)
    return LoopSchedule(span, _NO_AXES, 1, min(_workgroup_size(span.lane_groups), power_above(span.lane_groups)), False, unroll, True)


def _workgroup_size(invocations: int) -> int:
    # It is larger if there are very many workgroups, since the rate at which a GPU starts them is limited.
    return _LARGE_GROUP if invocations > BUSY else _SMALL_GROUP


def _unroll_elementwise(analysis: KernelAnalysis, span: AxisSpan) -> int:
    """Return the number of elements, or groups of lanes, of an invocation."""
    # It is large enough to keep enough bytes in flight. One wide group of narrow numbers suffices, and takes half the text.
    if span.lane_groups <= 8 * BUSY or span.lanes > LANES:
        return 1
    widest = max([b.dtype.itemsize for b in (*analysis.kernel.inputs, *analysis.kernel.outputs)])
    statements = span.lanes * len(analysis.kernel.nodes)
    return max(1, min(4, _BYTES_IN_FLIGHT // (widest * span.lanes), _ELEMENT_STATEMENTS // statements))


def _in_lanes(analysis: KernelAnalysis, span: AxisSpan, options: LoopOptions, unaligned: bool) -> AxisSpan:
    """Return the span walked by lanes, if memory is then accessed by vectors of four."""
    wide = span._replace(lanes=LANES)
    if options.lanes is False or span.total < LANES or not (wide.is_aligned or unaligned):
        return span
    fours = [b for p, b in _accesses(analysis) if wide.vector(p) is not None]
    if any(b.dtype.itemsize < 4 or (b.dtype.itemsize == 4 and b.size % LANES == 0) for b in fours):
        return wide
    return span


def _accesses(analysis: KernelAnalysis) -> list[tuple[Affine, Buffer]]:
    kernel = analysis.kernel
    loads = [(p, kernel.inputs[analysis.loads[n].input]) for n, p in analysis.load_offsets.items()]
    return [*loads, *zip(analysis.store_offsets, kernel.outputs, strict=True)]


def _wider(analysis: KernelAnalysis, span: AxisSpan, forced: bool | None) -> AxisSpan:
    """Return a long span walked by lanes of 16 bytes, if all accesses allow that.

    If `forced`, so are short spans.
    """
    accessed = [(p, b) for p, b in _accesses(analysis) if p.axes & set(span.axes)]
    width = max([b.dtype.itemsize for _, b in accessed], default=LANES)
    wide = span._replace(lanes=max(16 // width, LANES))
    if span.lanes == 1 or (wide.lane_groups < 2 * BUSY and not forced) or wide.lanes * len(analysis.kernel.nodes) > _ELEMENT_STATEMENTS:
        return span
    fits = span.total % wide.lanes == 0 and all(
        b.dtype.itemsize == width and b.size % wide.lanes == 0 and wide.vector(p) is not None for p, b in accessed
    )
    return wide if fits else span


def rows_or_columns(analysis: KernelAnalysis, capabilities: TargetCapabilities, options: LoopOptions = DEFAULT_OPTIONS) -> LoopSchedule:
    """Return the schedule of a kernel with reductions."""
    axis = contiguous_axis(analysis) if options.axis is None else options.axis
    return (
        by_columns(analysis, capabilities, axis, options)
        if axis in analysis.parallel_axes
        else by_rows(analysis, capabilities, axis, options)
    )


def contiguous_axis(analysis: KernelAnalysis) -> int:
    """Return the axis along which most accesses are contiguous."""
    offsets = [*analysis.load_offsets.values(), *analysis.store_offsets]

    def score(axis: int) -> tuple[int, int]:
        return sum(analysis.size(p.axes) for p in offsets if abs(coefficient(p, axis)) == 1), axis

    return max(range(len(analysis.kernel.sizes)), key=score)


def _span(analysis: KernelAnalysis, axes: Sequence[int], last: int | None) -> AxisSpan:
    """Return axes in the order of their strides in memory, largest first."""
    offsets = sorted([*analysis.load_offsets.values(), *analysis.store_offsets], key=lambda p: -analysis.size(p.axes))

    def step(axis: int) -> tuple[bool, int, int]:
        stride = next((abs(c) for p in offsets if (c := coefficient(p, axis))), 0)
        return axis == last, -stride, axis

    order = sorted(axes, key=step)
    return AxisSpan(tuple(order), tuple([analysis.kernel.sizes[a] for a in order]))


def by_rows(analysis: KernelAnalysis, capabilities: TargetCapabilities, axis: int, options: LoopOptions) -> LoopSchedule:
    """Return the schedule of rows that are contiguous in memory."""
    row = _in_lanes(analysis, _span(analysis, analysis.kernel.reduction_axes, axis), options, unaligned=False)
    outer = _span(analysis, range(analysis.kernel.parallel), None)
    statements = _per_element(analysis) * row.lanes
    most = max(1, min(_VALUES // row.lanes, _STATEMENTS // statements))
    invocations = min(capabilities.invocations, 1024)
    first = options.per_row or _invocations_per_row(capabilities, row, outer.total, most)
    stored = sum(bool(analysis.store_axes(s) & analysis.reduction_axes) for s in range(len(analysis.kernel.stores)))
    loops = options.loops or row.total * stored > _ROW_VALUES
    for per_row in _powers(first, 0 if loops else options.per_row or invocations):
        unroll = -(-row.lane_groups // per_row)
        if unroll <= most:
            few = outer.total * per_row >= BUSY and unroll * row.lanes <= _FEW_VALUES
            rows_per_workgroup = _rows_per_workgroup(capabilities, per_row, outer.total, few)
            return _fitted(analysis, capabilities, LoopSchedule(outer, row, per_row, rows_per_workgroup, False, unroll, True))
    per_row = options.per_row or min(256, invocations)
    return _fitted(analysis, capabilities, LoopSchedule(outer, row, per_row, 1, False, _unroll(analysis, row.lanes), False))


def _invocations_per_row(capabilities: TargetCapabilities, row: AxisSpan, rows: int, unroll: int) -> int:
    """Return the number of invocations that reduce a row."""
    # There is one for each group of lanes, or for several. With very many short rows an invocation has four groups, since fewer results are
    # combined then, or two, if combining them takes no workgroup memory.
    if row.lane_groups <= 4:
        return 1
    if row.lanes > 1 and rows >= BUSY:
        each, most = (2, 32) if fits_subgroups(capabilities, 2, capabilities.subgroup_most) else (4, 16)
        if row.lane_groups <= most:
            return power_above(-(-row.lane_groups // each))
    return max(min(power_above(row.lane_groups), 32), power_above(-(-row.lane_groups // unroll)))


def _rows_per_workgroup(capabilities: TargetCapabilities, per_row: int, rows: int, few: bool) -> int:
    """Return the number of rows of a workgroup."""
    # It is one if that fills subgroups, unless rows have `few` values, since the rate at which a GPU starts workgroups is limited.
    if (
        capabilities.subgroups
        and per_row >= capabilities.subgroup_most
        and not (few and fits_subgroups(capabilities, per_row, 2 * per_row))
    ):
        return 1
    return min(_workgroup_size(rows) if per_row == 1 else max(1, _SMALL_GROUP // per_row), power_above(rows))


def _unroll(analysis: KernelAnalysis, lanes: int) -> int:
    statements = lanes * (_per_element(analysis) + sum(4 if r.is_index else 2 for r in analysis.reduces.values()))
    return 4 if statements <= 24 else 2 if statements <= 48 else 1


def by_columns(analysis: KernelAnalysis, capabilities: TargetCapabilities, axis: int, options: LoopOptions) -> LoopSchedule:
    """Return the schedule of rows that are columns in memory."""
    outer = _in_lanes(analysis, _span(analysis, range(analysis.kernel.parallel), axis), options, unaligned=False)
    row = _span(analysis, analysis.kernel.reduction_axes, None)
    rows_per_workgroup = min(32, power_above(outer.lane_groups))
    width = power_above(-(-outer.sizes[-1] // outer.lanes))
    if width < rows_per_workgroup <= 2 * width:
        rows_per_workgroup = width
    per_row = 1
    while (
        row.total > _SHORT
        and per_row * rows_per_workgroup < _GROUP
        and row.total >= _LEAST_ELEMENTS * per_row
        and outer.lane_groups * per_row < BUSY
    ):
        per_row *= 2
    if options.per_row is not None:
        per_row, rows_per_workgroup = options.per_row, min(rows_per_workgroup, _GROUP // options.per_row)
    if per_row == 1:
        rows_per_workgroup = min(_workgroup_size(outer.lane_groups), power_above(outer.lane_groups))
    statements = _per_element(analysis) * outer.lanes
    unroll = -(-row.total // per_row)
    several = sum(row_pass.has_iterations for row_pass in row_passes(analysis)) > 1
    most = max(1, min(_VALUES // outer.lanes if several else 4, _STATEMENTS // statements))
    if unroll <= most and not options.loops:
        return _fitted(analysis, capabilities, LoopSchedule(outer, row, per_row, rows_per_workgroup, True, unroll, True))
    return _fitted(
        analysis, capabilities, LoopSchedule(outer, row, per_row, rows_per_workgroup, True, _unroll(analysis, outer.lanes), False)
    )


def spread(schedule: LoopSchedule) -> LoopSchedule:
    """Return the schedule with more workgroups for few long columns.

    Each has fewer columns, and more invocations for each of them.
    """
    if not schedule.by_columns or schedule.resident or schedule.per_row == 1:
        return schedule
    rows, row, per_row, rows_per_workgroup = schedule.outer.lane_groups, schedule.inner.total, schedule.per_row, schedule.rows_per_workgroup
    while rows_per_workgroup > _NARROW and rows < _NARROW * rows_per_workgroup and row >= 2 * _LEAST_ELEMENTS * per_row:
        per_row, rows_per_workgroup = 2 * per_row, rows_per_workgroup // 2
    return schedule._replace(per_row=per_row, rows_per_workgroup=rows_per_workgroup)


# Long rows, in chunks.


class Cut(NamedTuple):
    """A reduction axis in chunks of a size."""

    axis: int
    chunks: int
    size: int


def cut_of(analysis: KernelAnalysis, schedule: LoopSchedule, chunk: int | None = None) -> Cut | None:
    """Return the cut of rows that are long and few; None if they are not cut.

    With `chunk`, rows of any length are cut in chunks of this size; 0 stands for no cut.
    """
    invocations = schedule.outer.lane_groups * schedule.per_row
    unroll = schedule.inner.lane_groups // schedule.per_row
    sizes = analysis.kernel.sizes
    axis = max(analysis.reduction_axes, key=lambda a: (sizes[a], a), default=0)
    if chunk is not None:
        return _cut(axis, sizes[axis], chunk) if chunk and analysis.reduction_axes else None
    if unroll < _LONG or invocations >= BUSY // 2:
        return None
    # Workgroups that have full rows: half as many are enough.
    alone = schedule.by_columns and schedule.outer.lane_groups <= schedule.rows_per_workgroup
    chunks = min((BUSY if alone else 2 * BUSY) // invocations, unroll // _CHUNK, sizes[axis])
    return _cut(axis, sizes[axis], -(-sizes[axis] // chunks))


def _cut(axis: int, length: int, size: int) -> Cut | None:
    if length % LANES:
        size |= 1  # not taken in lanes (`is_aligned`), so that no group has lanes on both sides of the row's end
    else:
        size = -(-size // LANES) * LANES
    chunks = -(-length // size)
    return Cut(axis, chunks, size) if chunks > 1 else None


# Transposes: loads that cross the stores, through squares in workgroup memory.

#: Sides of large squares, along the stores and along those loads, the best first; the fewest iterations for them; and sides of others.
_LARGE_SQUARES = [(64, 128), (64, 64)]
_MANY_ITERATIONS = 1 << 21
_SMALL_SQUARE = (32, 32)

#: Bytes of workgroup memory for a square.
_SQUARE_MEMORY = 1 << 14

#: Iterations from which on squares pay.
_LEAST_FOR_SQUARES = 1 << 14


class Crossing(NamedTuple):
    """The axis of the stores, that of the loads that cross it, and those loads."""

    axis: int
    other: int
    loads: tuple[int, ...]
    #: Of a square, along either axis.
    sides: tuple[int, int]


def crossing_of(analysis: KernelAnalysis, axis: int, forced: bool | None = None) -> Crossing | None:
    """Return the loads that cross the stores' axis; None if squares do not help.

    `forced` requires or forbids squares; by default they are used in large kernels.
    """
    sizes, iterations = analysis.kernel.sizes, analysis.size(analysis.parallel_axes)
    if not (iterations >= _LEAST_FOR_SQUARES if forced is None else forced) or sizes[axis] < LANES:
        return None
    axis_and_loads = transposed_loads(analysis, axis, LANES, backward=True)
    if axis_and_loads is None:
        return None
    other, loads = axis_and_loads
    packed = any(b.dtype.itemsize < 4 for b in analysis.kernel.outputs)
    size = sum(tile_dtype(analysis.kernel.nodes[n].dtype).itemsize for n in loads)
    large = [sides for sides in _LARGE_SQUARES if iterations >= _MANY_ITERATIONS and sides[0] <= sizes[axis] and sides[1] <= sizes[other]]
    fitting = [sides for sides in (*large, _SMALL_SQUARE) if math.prod(sides) * size <= _SQUARE_MEMORY]
    return Crossing(axis, other, tuple(loads), fitting[0]) if fitting and not (packed and sizes[axis] % LANES) else None


def tile_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of numbers in workgroup memory; packing float16 is very slow."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


# Workgroup memory, and counts.


def bytes_per_invocation(analysis: KernelAnalysis, schedule: LoopSchedule) -> int:
    """Return the bytes of workgroup memory per invocation to combine results."""
    kinds = {
        (wgsl_type(analysis.kernel.nodes[r.operand].dtype), analysis.kernel.nodes[r.operand].dtype.itemsize)
        for r in analysis.reduces.values()
    }
    size = sum(size for _, size in kinds) + (4 if any(r.is_index for r in analysis.reduces.values()) else 0)
    return 2 * size * schedule.outer.lanes  # two areas alternate (`WorkgroupReduction`)


def _fitted(analysis: KernelAnalysis, capabilities: TargetCapabilities, schedule: LoopSchedule) -> LoopSchedule:
    """Return the schedule with fewer invocations, if workgroup memory requires it."""
    while bytes_per_invocation(analysis, schedule) * schedule.per_row * schedule.rows_per_workgroup > capabilities.workgroup_memory:
        if schedule.rows_per_workgroup > 1:
            schedule = schedule._replace(rows_per_workgroup=schedule.rows_per_workgroup // 2)
        else:
            unroll = -(-schedule.inner.lane_groups * 2 // schedule.per_row) if schedule.resident else schedule.unroll
            schedule = schedule._replace(per_row=schedule.per_row // 2, unroll=unroll)
    return schedule


def _per_element(analysis: KernelAnalysis) -> int:
    """Return the number of nodes that are evaluated for each element of a row."""
    nodes = enumerate(analysis.kernel.nodes)
    return max(1, sum(not isinstance(node, Constant | Reduce) and bool(analysis.depends[n] & analysis.reduction_axes) for n, node in nodes))


def power_above(n: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()


def _powers(first: int, last: int) -> list[int]:
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]
