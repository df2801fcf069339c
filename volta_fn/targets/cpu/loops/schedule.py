"""Schedules of kernels: the axis and lanes of vectors, passes, and tasks.

`schedule_of` makes the choices that are expected to be fastest. `LoopOptions` force other ones, so that tests run a kernel in every way
that it may have (`legal_options`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from volta_fn import dtypes
from volta_fn.codegen import loops
from volta_fn.codegen.loops import RowPass, transposed_loads
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import ZERO, Affine
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, operands, restricted
from volta_fn.runtime.llvm.host import host
from volta_fn.targets.cpu.loops.emit_values import CHAINS
from volta_fn.targets.cpu.loops.rows import Segment, Vectors
from volta_fn.targets.cpu.scalars.number import cost

#: Nanoseconds that a task should take.
GRAIN = 40_000.0

#: Bytes that a core moves in a nanosecond.
_BANDWIDTH = 8.0

#: Bytes of the stack for the values that passes keep of a row, at most.
_STACK = 1 << 16

#: Above these nanoseconds per element, two vectors at a time keep the processor busy.
_EXPENSIVE_NS = 0.4

#: Above these nanoseconds per element, the vectors' axis is chosen by how well its segments fill vectors, too.
_FILLED_NS = 0.15

#: The most segments of an axis, times the operations of each: the code is repeated for every segment.
_MOST_SEGMENT_OPERATIONS = 1 << 13

#: The most nodes times vectors of an unrolled loop.
_MOST_STATEMENTS = 120


class Grid(NamedTuple):
    """Tasks: blocks of rows, or single rows with another axis in chunks."""

    rows: int
    rows_per_task: int
    #: The size of the axis that is cut into chunks, and the iterations of a chunk.
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
    #: Vectors of an iteration, whose instructions alternate.
    unroll: int | None = None
    #: Whether passes keep what is expensive to compute again.
    keeping: bool | None = None
    #: Whether short rows stay in registers from pass to pass.
    resident: bool | None = None
    #: Whether loads that are contiguous along another axis are transposed in tiles, and the results of short last axes interleaved.
    transpose: bool | None = None
    interleaved: bool | None = None
    #: Whether the C library copies what is a copy.
    copies: bool | None = None
    #: Whether loads of arrays that are read in order are prefetched.
    prefetch: bool | None = None
    #: Whether reductions are split into two launches, and whether the first one reads rows of a matrix in full.
    split: bool | None = None
    wide: bool | None = None
    #: Whether short rows are written out.
    written_out: bool | None = None
    #: Nanoseconds that a task should take.
    grain: float = GRAIN


UNFORCED = LoopOptions()


class Transposition(NamedTuple):
    """Loads that are contiguous along another axis than the vectors'.

    Tiles of them are transposed in registers.
    """

    axis: int
    loads: list[int]
    #: The segments of that axis.
    segments: tuple[Segment, ...]


class LoopSchedule(NamedTuple):
    """The schedule of a kernel."""

    analysis: KernelAnalysis
    vectors: Vectors
    passes: list[RowPass]
    #: Nanoseconds for one iteration of all axes.
    iteration_cost: float
    transposition: Transposition | None
    #: The short axes along which results are interleaved.
    interleaved: tuple[int, ...]
    #: The tasks, if reductions are not split into two launches.
    grid: Grid
    options: LoopOptions

    @property
    def axis(self) -> int:
        """The axis of the vectors."""
        return self.vectors.axis


def schedule_of(analysis: KernelAnalysis, options: LoopOptions = UNFORCED) -> LoopSchedule:
    """Return the schedule of a kernel that has axes."""
    axis = _vector_axis(analysis) if options.axis is None else options.axis
    if axis in analysis.parallel_axes and any(axis not in analysis.depends[n] for n in analysis.reduces):
        # Rows are lanes: each lane reduces for itself, even what is the same in all of them, so that results are vectors.
        analysis = KernelAnalysis(analysis.kernel, private_axes=frozenset({axis}))
    lanes = vector_lanes_of(analysis)
    segments = segments_of(analysis, axis)
    if segments is None or analysis.kernel.sizes[axis] == 1 or options.scalar:
        lanes, segments = 1, (Segment(0, analysis.kernel.sizes[axis], {}),)
    passes = row_passes(analysis, keeping=options.keeping is not False)
    slot_bytes = sum(analysis.kernel.nodes[n].dtype.itemsize for row_pass in passes for n in row_pass.keeps)
    if slot_bytes * analysis.size(analysis.reduction_axes) * (1 if axis in analysis.reduction_axes else lanes) > _STACK:
        passes = row_passes(analysis, keeping=False)
    vectors = Vectors(axis, lanes, options.unroll or _unroll(analysis, axis, lanes, passes), segments)
    transposition = None if options.transpose is False else transposition_of(analysis, axis, lanes)
    iteration_cost = iteration_cost_of(analysis, vectors)
    interleaved = interleaved_axes(analysis, axis, lanes) if transposition is None and options.interleaved is not False else ()
    row_grid = _row_grid(analysis, vectors, transposition, interleaved, iteration_cost, options.grain)
    return LoopSchedule(analysis, vectors, passes, iteration_cost, transposition, interleaved, row_grid, options)


def can_split(schedule: LoopSchedule) -> bool:
    """Return True if reductions can be split into two launches.

    They need one pass over a row, and no index of an element.
    """
    has_one_pass = schedule.analysis.pass_count == 2 and not schedule.passes[1].has_iterations
    return has_one_pass and not any(reduce.is_index for reduce in schedule.analysis.reduces.values())


def can_be_wide(schedule: LoopSchedule) -> bool:
    """Return True if the reduction is over the rows of a matrix."""
    return schedule.analysis.parallel_axes == {schedule.axis} and len(schedule.analysis.reduction_axes) == 1


def _row_grid(
    analysis: KernelAnalysis, vectors: Vectors, transposition: Transposition | None, interleaved: tuple[int, ...], cost: float, grain: float
) -> Grid:
    """Return the tasks: rows, vectors of rows, or strips of tiles."""
    sizes, axis = analysis.kernel.sizes, vectors.axis
    if axis in analysis.reduction_axes:
        return grid(analysis.size(analysis.parallel_axes), 1, 1, cost * analysis.size(analysis.reduction_axes), grain)
    if transposition is not None:
        rows = analysis.size(analysis.parallel_axes - {axis, transposition.axis})
        return grid(rows, sizes[transposition.axis], BLOCK, cost * sizes[axis], grain)
    together = frozenset(interleaved) or analysis.reduction_axes
    rows = analysis.size(analysis.parallel_axes - together - {axis})
    return grid(rows, sizes[axis], vectors.lanes * vectors.unroll, cost * analysis.size(together), grain)


def vector_lanes_of(analysis: KernelAnalysis) -> int:
    """Return the lanes of a vector: a register of the widest dtype."""
    widest = max(
        [4 if d in dtypes.FLOATS and d.itemsize == 2 else d.itemsize // (2 if d in dtypes.COMPLEX else 1) for d in analysis.dtypes()]
    )
    return host().lanes(widest)


def _vector_axis(analysis: KernelAnalysis) -> int:
    """Return the axis along which most elements are contiguous."""
    sizes = analysis.kernel.sizes
    shares: dict[tuple[int, Affine], float] = {}
    for n, p in analysis.load_offsets.items():  # loads at a distance from each other read the same memory
        key = _load(analysis, n).input, p._replace(offset=0)
        shares[key] = min(shares.get(key, 0.0) + _share(analysis, n), 1.0)
    offsets = [(share, p) for (_, p), share in shares.items()] + [(1.5, p) for p in analysis.store_offsets]
    iterations, lanes = analysis.size(range(len(sizes))), vector_lanes_of(analysis)
    offsets = [(weight * analysis.size(p.axes) / iterations, p) for weight, p in offsets]

    by_segments = computing_cost(analysis) > _FILLED_NS

    def score(axis: int) -> tuple[float, int]:
        segments = segments_of(analysis, axis)
        parts = [segment.end - segment.start for segment in segments] if by_segments and segments else [sizes[axis]]
        filled = sizes[axis] / (sum(-(-part // lanes) for part in parts) * lanes)
        total = sum(weight * _access_score(offset, axis) for weight, offset in offsets)
        return round(total * filled - (1e-3 if segments is None else 0.0), 6), axis

    return max(range(len(sizes)), key=score)


def _load(analysis: KernelAnalysis, number: int) -> Load:
    node = analysis.kernel.nodes[number]
    assert isinstance(node, Load)
    return node


def _share(analysis: KernelAnalysis, load: int) -> float:
    """Return the part of the iterations in which a load is not masked out.

    Only conditions on single axes count.
    """
    share = 1.0
    for condition in _load(analysis, load).mask:
        if len(condition.value.terms) == 1:
            ((axis, _),) = condition.value.terms
            low, high = condition.interval(analysis.kernel.sizes[axis])
            share *= max(high - low, 0) / analysis.kernel.sizes[axis]
    return share


def _access_score(offset: Affine, axis: int) -> float:
    """Return a score, up to 1, of the speed of loads or stores along an axis."""
    c = abs(coefficient(offset, axis))
    return 1.0 if c == 1 else 0.5 if c == 0 else 0.3 if c <= 4 else 0.0


def segments_of(analysis: KernelAnalysis, axis: int) -> tuple[Segment, ...] | None:
    """Return the segments of an axis in which it is known which conditions hold.

    None if conditions on that axis depend on other axes, too.
    """
    size, nodes = analysis.kernel.sizes[axis], analysis.kernel.nodes
    ranges = {n: [r for r in analysis.ranges(n) if axis in r.value.axes] for n in range(len(nodes))}
    conditions = sorted({r for n in ranges for r in ranges[n]})
    if any(len(r.value.terms) > 1 for r in conditions):
        return None
    bounds = {r: r.interval(size) for r in conditions}

    def parts(start: int, end: int, numbers: Iterable[int]) -> Iterator[Segment]:
        cuts = {cut for n in numbers for r in ranges[n] for cut in bounds[r] if start < cut < end}
        for low, high in itertools.pairwise(sorted({start, end, *cuts})):
            yield Segment(low, high, {r: bounds[r][0] <= low and high <= bounds[r][1] for r in conditions})

    selections = parts(0, size, [n for n in ranges if isinstance(nodes[n], Inside)])
    # What a segment does not select, such as the other operands of a concatenation, divides it no further.
    segments = [part for s in selections for part in parts(s.start, s.end, analysis.live(s.decided))]
    operations = sum(isinstance(node, Apply) and node.op != "select_n" for node in nodes)
    return tuple(segments) if len(segments) * (1 + operations) <= _MOST_SEGMENT_OPERATIONS else None


def _unroll(analysis: KernelAnalysis, axis: int, lanes: int, passes: list[RowPass]) -> int:
    size = analysis.kernel.sizes[axis]
    reduces = max([len(p.reduces) for p in passes], default=0)
    heavy = computing_cost(analysis) > _EXPENSIVE_NS
    chained = any(isinstance(node, Apply) and node.op in CHAINS for node in analysis.kernel.nodes)
    factor = 2 if heavy and not chained else 4
    if reduces and axis not in analysis.reduction_axes:
        factor = 1 if any(p.keeps for p in passes) else 8
    while factor > 1 and (factor * reduces > 16 or factor * lanes > size or len(analysis.kernel.nodes) * factor > _MOST_STATEMENTS):
        factor //= 2
    return factor


def iteration_cost_of(analysis: KernelAnalysis, vectors: Vectors) -> float:
    """Estimate the nanoseconds of one iteration of all axes."""
    iterations = analysis.size(range(len(analysis.kernel.sizes)))
    moved = float(sum(b.size * b.dtype.itemsize for b in analysis.kernel.outputs))
    for segment in vectors.segments:
        share = (segment.end - segment.start) / analysis.kernel.sizes[vectors.axis]
        loads = analysis.load_offsets if len(vectors.segments) == 1 else analysis.live(segment.decided) & analysis.load_offsets.keys()
        moved += share * sum(analysis.size(analysis.load_offsets[n].axes) * analysis.kernel.nodes[n].dtype.itemsize for n in loads)
    return computing_cost(analysis) + moved / iterations / _BANDWIDTH + 0.02


def grid(count: int, size: int, unit: int, iteration_cost: float, grain: float) -> Grid:
    """Return tasks over `count` rows of `size` iterations, given the cost of one.

    A task takes `grain` nanoseconds. Chunks are multiples of `unit`.
    """
    iterations = max(1.0, grain / iteration_cost)
    if size <= 1.5 * iterations or size <= unit:
        return Grid(count, max(1, min(count, int(iterations / size))), size, size)
    return Grid(count, 1, size, max(unit, int(iterations) // unit * unit))


# Kernels that are not emitted vector by vector: transposes, and results of a short innermost axis (`routine`).

#: The most elements along the short axes.
_MOST_INTERLEAVED = 4


def interleaved_axes(analysis: KernelAnalysis, axis: int, lanes: int) -> tuple[int, ...]:
    """Return the short axes along which all results are contiguous, outermost first.

    There are none if vectors along `axis` can be stored as they are.
    """
    kernel = analysis.kernel
    is_complex = dtypes.COMPLEX.intersection([kernel.nodes[s.value].dtype for s in kernel.stores])
    if analysis.reduces or lanes < 4 or axis not in analysis.parallel_axes or is_complex:
        return ()
    interleaved: tuple[int, ...] = ()
    size = 1
    while (step := coefficient(analysis.store_offsets[0], axis)) != size:
        following = [a for a, c in analysis.store_offsets[0].terms if c == size and kernel.sizes[a] > 1]
        if len(following) != 1 or following[0] in (axis, *interleaved) or size > step:
            return ()
        interleaved, size = (*following, *interleaved), size * kernel.sizes[following[0]]
    terms = {(a, coefficient(analysis.store_offsets[0], a)) for a in (axis, *interleaved)}
    alike = all(terms <= set(offset.terms) for offset in analysis.store_offsets)
    return interleaved if 2 <= size <= _MOST_INTERLEAVED and alike and analysis.reduction_axes <= set(interleaved) else ()


#: Iterations along either axis after which a block of tiles ends.
BLOCK = 64


#: The most parts of the two axes of tiles: for each the code is repeated.
_MOST_AREAS = 8


def transposition_of(analysis: KernelAnalysis, axis: int, lanes: int) -> Transposition | None:
    """Return the loads to transpose for vectors along an axis, or None."""
    if analysis.reduction_axes or lanes < 4 or analysis.kernel.sizes[axis] < lanes:
        return None
    candidate = transposed_loads(analysis, axis, lanes, backward=False)
    if candidate is None:
        return None
    along, across = segments_of(analysis, axis), segments_of(analysis, candidate[0])
    if along is None or across is None or len(along) * len(across) > _MOST_AREAS:
        return None
    return Transposition(*candidate, across)


# The values that a pass over a row keeps for later passes, by their costs.

#: A value whose recomputation takes more nanoseconds per element is kept instead.
_KEPT = 0.15


def row_passes(analysis: KernelAnalysis, keeping: bool) -> list[RowPass]:
    """Return the passes; if `keeping`, they keep what is expensive to compute again."""
    result = loops.row_passes(analysis)
    if keeping:
        first_pass: dict[int, int] = {}
        for k, row_pass in enumerate(result):
            for n in _keep_expensive(analysis, row_pass, first_pass, result):
                first_pass.setdefault(n, k)
    return result


def _keep_expensive(analysis: KernelAnalysis, row_pass: RowPass, first_pass: dict[int, int], passes: list[RowPass]) -> set[int]:
    """Return the nodes that a pass computes per element.

    Those that an earlier pass computes first, and that are expensive to compute again, are added to what that pass keeps.
    """
    computed: set[int] = set()
    waiting = row_pass.targets(analysis)
    while waiting:
        n = waiting.pop()
        node = analysis.kernel.nodes[n]
        if n in computed or isinstance(node, Reduce) or not analysis.depends[n] & analysis.reduction_axes:
            continue
        computed.add(n)
        if n in first_pass and cost_of(analysis, [n]) > _KEPT:
            if n not in passes[first_pass[n]].keeps:
                passes[first_pass[n]].keeps.append(n)
            continue
        waiting += operands(node)
    return computed


def computing_cost(analysis: KernelAnalysis) -> float:
    """Estimate the nanoseconds to compute everything in one iteration, without loads."""
    return cost_of(analysis, [s.value for s in analysis.kernel.stores] + [r.operand for r in analysis.reduces.values()])


def cost_of(analysis: KernelAnalysis, targets: Iterable[int]) -> float:
    """Estimate the nanoseconds per element to compute nodes, without loads."""
    visited: set[int] = set()
    waiting = list(targets)
    total = 0.0
    while waiting:
        n = waiting.pop()
        node = analysis.kernel.nodes[n]
        if n in visited or isinstance(node, Reduce | Constant | Load):
            continue
        visited.add(n)
        if isinstance(node, Apply) and not analysis.is_selection(n):  # segments decide selections
            total += cost(node.op, tuple([analysis.kernel.nodes[i].dtype for i in node.operands]))
        waiting += operands(node)
    return total


# Short rows: their reductions are written out as operations on the elements of a row.

#: The most elements of a row, and the most nodes of a kernel, which become as many times more.
_LONGEST, _MOST_NODES = 4, 64


def written_out(kernel: Kernel) -> Kernel | None:
    """Return the same kernel without reductions; None unless its rows are short.

    Nor may what is masked depend on the element of a row. If results are per element, their iterations read other elements of it, too, so
    that all of a row must be computed before any of it is stored (`interleaved_axes`).
    """
    axes, reduces = frozenset(kernel.reduction_axes), [node for node in kernel.nodes if isinstance(node, Reduce)]
    is_short = math.prod(kernel.sizes[axis] for axis in axes) <= _LONGEST and len(kernel.nodes) <= _MOST_NODES
    if not reduces or not is_short or any(node.is_index for node in reduces):
        return None
    ranges = [node.mask if isinstance(node, Load) else node.ranges for node in kernel.nodes if isinstance(node, Load | Inside)]
    if any(condition.value.axes & axes for conditions in ranges for condition in conditions):
        return None
    nodes, numbers = _written_out(kernel)
    stores = tuple([replace(store, value=numbers[store.value]) for store in kernel.stores])
    per_row = not any(affine.axes & axes for store in stores for affine in store.index)
    sizes = kernel.sizes[: kernel.parallel] if per_row else kernel.sizes
    return restricted(Kernel(sizes, kernel.parallel, kernel.inputs, nodes, stores), range(len(stores)))


def _written_out(kernel: Kernel) -> tuple[tuple[Node, ...], list[int]]:
    """Return nodes without reductions, and the number of each of the kernel's."""
    axes = kernel.reduction_axes
    elements = itertools.product(*[range(kernel.sizes[axis]) for axis in axes])
    row = [{axis: ZERO.plus(i) for axis, i in zip(axes, index, strict=True)} for index in elements]
    numbers: dict[Node, int] = {}
    #: Of each node the number of its value at any element of the row, then those at the first element, the second, and so on.
    values: list[list[int]] = []

    def add(node: Node) -> int:
        return numbers.setdefault(node, len(numbers))

    for node in kernel.nodes:
        if isinstance(node, Reduce):
            combined = functools.partial(_combined, node, add)
            values.append([functools.reduce(combined, values[node.operand][1:])] * (1 + len(row)))
        elif isinstance(node, Apply):
            read = zip(*[values[n] for n in node.operands], strict=True)
            values.append([add(replace(node, operands=operands)) for operands in read])
        else:
            values.append([add(_at(node, element)) for element in ({}, *row)])
    return tuple(numbers), [every for every, *_ in values]


def _combined(node: Reduce, add: Callable[[Node], int], x: int, y: int) -> int:
    return add(Apply(node.dtype, node.reduction.step, (x, y)))


def _at(node: Node, element: Mapping[int, Affine]) -> Node:
    """Return a node without operands at an element of a row."""
    if isinstance(node, Load):
        return replace(node, index=tuple([affine.replaced(element) for affine in node.index]))
    return replace(node, value=node.value.replaced(element)) if isinstance(node, Position) else node


# For tests: kernels under every schedule that they may have.


def legal_options(analysis: KernelAnalysis) -> Iterator[LoopOptions]:
    """Yield options that force every choice both ways, for every axis of the vectors.

    Several choices are forced together. Unrolled vectors of rows share the memory of the values that passes keep.
    """
    yield UNFORCED
    yield LoopOptions(written_out=False)
    yield LoopOptions(written_out=True, unroll=1, grain=1.0)
    for axis in range(len(analysis.kernel.sizes)):
        yield LoopOptions(axis)
        schedule = schedule_of(analysis, LoopOptions(axis))
        if schedule.vectors.lanes > 1:
            yield LoopOptions(axis, scalar=True, grain=1.0)
        most = 1 << max(0, (_MOST_STATEMENTS // len(analysis.kernel.nodes)).bit_length() - 1)  # a power of two
        keeping = None if axis in analysis.reduction_axes else False
        yield LoopOptions(axis, unroll=1, prefetch=True, keeping=False, interleaved=False)
        yield LoopOptions(axis, unroll=min(2, most), keeping=keeping, transpose=False, copies=True, resident=False, grain=1.0)
        yield LoopOptions(axis, unroll=min(4, most), keeping=keeping, transpose=False, interleaved=False, copies=False, grain=1.0)
        yield LoopOptions(axis, unroll=min(8, most), keeping=keeping, prefetch=True, grain=1.0)
        if can_split(schedule):
            yield LoopOptions(axis, split=False)
            yield LoopOptions(axis, split=True, wide=False, grain=1.0)
            yield LoopOptions(axis, split=True, wide=can_be_wide(schedule), unroll=1)
            if can_be_wide(schedule):
                yield LoopOptions(axis, split=True, wide=True, scalar=True, grain=1.0)
