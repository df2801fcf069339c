"""Blocking of correlations: cache blocks, register tiles, and shared routines.

Several correlations may be one routine, whose launches they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from volta_fn.compiler.contractions import Correlation
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, transposed
from volta_fn.targets.cpu.convolution.emission import (
    Elements,
    Index,
    Operands,
    TileLoops,
    between,
    even_chunks,
    least,
    most,
    plus,
    repeat,
    step,
    times,
    value,
)
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, first_lanes, is_itself, stored_as, write
from volta_fn.targets.cpu.routine import BEGIN, END, Launch, Routine, buffer_pointer, entry_point
from volta_fn.targets.cpu.scalars.number import everywhere, masked_store, scattered

# Several correlations in one routine, which share launches.
#
# Each has up to four stages, and those of one kind are one launch.

#: About how many nanoseconds a multiplication takes.
NANOSECONDS = 1 / 60

#: Bytes of the workspace of all correlations, at most.
ROOM = 32 << 20

#: The dtypes of compute types.
_DTYPES: dict[str, np.dtype] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}

#: Tasks of a stage, at most.
_TASKS = 32

#: The stages of a correlation: converting w, packing it, packing or transforming x, the sums, and what follows them.
STAGES = ("widen", "prepare", "enter", "sum", "finish")


@dataclass
class Job:
    """A stage of a correlation: a function of x, w, y, the workspace and a task."""

    symbol: str
    tasks: int
    cost: float


@dataclass
class CorrelationBuilder:
    """The routine of one correlation, while it is written."""

    name: str
    module: Module
    c: Correlation
    work: ComputeType
    x: Elements
    w: Elements
    y_dtype: np.dtype
    #: Bytes of the workspace that it may take.
    room: int
    #: Bytes of the workspace taken so far, by all correlations.
    workspace: int = 0
    #: Where the workspace has w in the compute type, in bytes; None: w is an operand.
    w_room: int | None = None
    jobs: dict[str, Job] = field(default_factory=dict)

    def reserve(self, elements: int, itemsize: int) -> int:
        """Reserve room in the workspace and return its offset in bytes."""
        offset = self.workspace
        self.workspace += -(-elements * itemsize // 64) * 64
        return offset

    def tasks(self, units: int, elements: int) -> int:
        """Return the number of tasks for some units, if each needs room for `elements`."""
        return max(1, min(units, _TASKS, self.room // 2 // max(1, elements * self.work.itemsize)))

    @property
    def weight_span(self) -> int:
        """The number of elements from the first to the last of w in memory."""
        c = self.c
        sizes = (c.groups, c.outputs, c.channels, *(axis.taps for axis in c.axes))
        return 1 + sum((n - 1) * stride for n, stride in zip(sizes, c.w.strides, strict=True))

    def with_wide_weights(self) -> CorrelationBuilder:
        """Add the stage that converts w; return the builder of what follows."""
        w, c, lanes, count = self.w, self.c, self.work.lanes, self.weight_span
        room, vectors = self.reserve(count, self.work.itemsize), -(-count // lanes)

        def convert(f: Function, args: Arguments, task: Value, unit: Index) -> None:
            start = least(f, times(f, unit, lanes), max(0, count - lanes))
            source = step(f, args.w, w.stored, plus(f, c.w.offset, start))
            to = step(f, args.room(f, room), self.work.type, start)
            mask = first_lanes(min(count, lanes), lanes)
            vector = w.read(f, source, lanes, mask)
            if mask is None:
                f.store(vector, to, self.work.itemsize)
            else:
                masked_store(f, vector, to, self.work.itemsize, mask)

        self.shared_job("widen", self.tasks(-(-vectors // 64), 0), vectors * 0.5, vectors, convert)
        wide = w._replace(dtype=_DTYPES[self.work.type])
        free_bytes = self.room - count * self.work.itemsize
        return replace(self, c=replace(c, w=c.w._replace(offset=0)), w=wide, w_room=room, room=free_bytes)

    def job(self, stage: str, tasks: int, cost: float, body: Callable[[Function, Arguments, Value], None]) -> None:
        """Add a stage, whose code `body` writes."""
        parameters = [Value("ptr", f"%{name}") for name in ("x", "w", "y", "workspace")]
        symbol = f"{self.name}_{stage}"
        task = Value("i64", "%task")
        f = Function(self.module, symbol, [Value("ptr noalias", p.name) for p in parameters] + [task], attributes="nounwind noinline")
        arguments = Arguments(*parameters)
        if self.w_room is not None and stage != "widen":
            arguments.w = arguments.room(f, self.w_room)
        body(f, arguments, task)
        f.finish()
        self.jobs[stage] = Job(symbol, tasks, cost)

    def shared_job(
        self, stage: str, tasks: int, cost: float, units: int, body: Callable[[Function, Arguments, Value, Index], None]
    ) -> None:
        """Add a stage whose tasks share units, for each of which `body` writes the code."""
        self.job(stage, tasks, cost, lambda f, args, task: self.shared(f, task, units, tasks, lambda unit: body(f, args, task, unit)))

    def shared(self, f: Function, task: Value, units: int, tasks: int, body: Callable[[Index], None]) -> None:
        """Emit `body` for each of a task's units, near-equal shares of them all."""
        if units == tasks:
            body(task)
            return
        first = f.binary("udiv", value(times(f, task, units)), i64(tasks))
        last = f.binary("udiv", value(times(f, plus(f, task, 1), units)), i64(tasks))
        repeat(f, last, body, first)

    def at(self, f: Function, which: str, pointer: Value, *indices: Index) -> Value:
        """Emit the address of the element of x, w or y at indices (group first)."""
        c, y = self.c, stored_as(self.y_dtype)
        view, stored = {"x": (c.x, self.x.stored), "w": (c.w, self.w.stored), "y": (c.y, y)}[which]
        offset = plus(f, view.offset, *[times(f, i, s) for i, s in zip(indices, view.strides, strict=False)])
        return pointer if offset == 0 else f.let("ptr", f"getelementptr {stored}, {pointer}, {value(offset)}")


@dataclass
class Arguments:
    """The arguments of a stage's function."""

    x: Value
    w: Value
    y: Value
    workspace: Value

    def room(self, f: Function, offset: int, size: int = 0, task: Index = 0) -> Value:
        """Emit the address of a room in the workspace: of rooms of `size`, the task's own."""
        start = plus(f, offset, times(f, task, size))
        return f.let("ptr", f"getelementptr i8, {self.workspace}, {value(start)}")


def assembled(module: Module, builders: Sequence[CorrelationBuilder], workspace: int) -> Routine:
    """Return the routine of correlations written into one module."""
    launches = []
    for stage in STAGES:
        jobs = [builder.jobs[stage] for builder in builders if stage in builder.jobs]
        if jobs:
            symbol = f"convolution_{stage}"
            _entry(module, symbol, jobs, workspace > 0)
            launches.append(Launch(symbol, sum(job.tasks for job in jobs), sum(job.cost for job in jobs)))
    return Routine.of(module, launches, workspace)


def _entry(module: Module, symbol: str, jobs: Sequence[Job], workspace: bool) -> None:
    """Write the entry point of a launch, whose tasks are those of its jobs in order."""
    f = entry_point(module, symbol)
    pointers = [buffer_pointer(f, k) for k in range(4 if workspace else 3)]
    if not workspace:
        pointers.append(Value("ptr", "null"))
    first = 0
    for job in jobs:
        start, stop = most(f, plus(f, BEGIN, -first), 0), least(f, plus(f, END, -first), job.tasks)

        def call_job(index: Value, _: list[Value], job: Job = job) -> list[Value]:
            f.run(job.symbol, *pointers, index)
            return []

        f.loop(value(start), value(stop), 1, [], call_job)
        first += job.tasks
    f.finish()


def write_zeros(builder: CorrelationBuilder) -> None:
    """Add the stage that fills results without taps with zeros."""
    c = builder.c
    sizes = [c.images, c.outputs, *(axis.positions for axis in c.axes)]
    sides = sorted(zip(sizes, c.y.strides[1:], strict=True), key=lambda side: -side[1])

    def fill(f: Function, args: Arguments, task: Value) -> None:
        def loops(rest: list[tuple[int, int]], at: Value) -> None:
            if not rest:
                write(f, builder.work, builder.y_dtype, Value(builder.work.type, "zeroinitializer"), 1, at)
                return
            (size, stride), *inner = rest

            def iteration(index: Index) -> None:
                loops(inner, step(f, at, stored_as(builder.y_dtype), times(f, index, stride)))

            repeat(f, size, iteration)

        loops(sides, builder.at(f, "y", args.y, task))

    builder.job("sum", c.groups, c.groups * prod(sizes) * 0.5, fill)


# Blocking of a correlation: cache blocks, and register tiles within them.

#: Elements of a tile of x, and of the sums that a block holds, at most.
TILE = 48 * 1024
SUMS = 48 * 1024

#: The least steps of a summation for which it pays to load and store the sums.
STEPS = 256


@dataclass(frozen=True)
class CacheBlocks:
    """The sizes of blocks in images, channels, and positions and taps per axis."""

    images: int
    channels: int
    positions: tuple[int, ...]
    taps: tuple[int, ...]

    def covers_sum(self, c: Correlation) -> bool:
        """Return True if a block has all terms of its sums."""
        return self.channels == c.channels and prod(self.taps) == c.taps

    def reach(self, c: Correlation) -> int:
        """Return the number of elements of x that a block reads."""
        spans = [axis.reach(p, k) for axis, p, k in zip(c.axes, self.positions, self.taps, strict=True)]
        return self.images * self.channels * prod(spans)


def position_blocks(c: Correlation) -> CacheBlocks:
    """Choose blocks of few positions, with all channels and taps if x's tile fits."""
    positions = [axis.positions for axis in c.axes]
    taps = tuple([axis.taps for axis in c.axes])
    channels = c.channels

    def blocks() -> CacheBlocks:
        return CacheBlocks(1, channels, tuple(positions), taps)

    def too_large(bound: int) -> bool:
        return blocks().reach(c) > bound

    for i, axis in enumerate(c.axes):
        while too_large(TILE) and positions[i] > (1 if i + 1 < len(positions) else 16):
            positions[i] = fitting(axis.positions, positions[i] - 1)
    while too_large(4 * TILE) and channels > 16:
        channels = divisor(c.channels, channels // 2)
    return blocks()


def sum_blocks(c: Correlation) -> CacheBlocks:
    """Choose blocks of a long summation: some images, and some taps or channels.

    They have all positions, or as many as there is room for.
    """
    positions = [axis.positions for axis in c.axes]
    for i in range(len(positions)):
        while prod(positions) > SUMS // 64 and positions[i] > 1:
            positions[i] = -(-positions[i] // 2)
    images = fitting(c.images, max(1, min(c.images, SUMS // 64 // prod(positions))))
    taps, channels = [axis.taps for axis in c.axes], c.channels
    if prod(taps) <= STEPS:
        channels = divisor(channels, max(1, STEPS // prod(taps)))
    else:
        channels = 1
        taps[0] = max(1, min(taps[0], STEPS // prod(taps[1:])))

    def blocks() -> CacheBlocks:
        return CacheBlocks(images, channels, tuple(positions), tuple(taps))

    def too_large() -> bool:
        return blocks().reach(c) > 2 * TILE

    while too_large() and images > 1:
        images = fitting(c.images, images - 1)
    while too_large() and channels > 1:
        channels = divisor(c.channels, channels // 2)
    while too_large() and taps[0] > 1:
        taps[0] = -(-taps[0] // 2)
    return blocks()


def fitting(size: int, at_most: int) -> int:
    """Return the length of blocks up to a bound of which the last overlaps least."""
    return min(range(at_most, at_most // 2, -1), key=lambda length: -(-size // length) * length)


def divisor(number: int, at_most: int) -> int:
    """Return the largest divisor up to a bound."""
    return next(k for k in range(min(number, at_most), 0, -1) if number % k == 0)


@dataclass(frozen=True)
class RegisterTile:
    """A register tile's rows (by index) and vectors, and the cycles of a step."""

    rows: tuple[tuple[str, int], ...]
    vectors: int
    cycles: float


def register_tile(
    candidates: Sequence[tuple[str, int]],
    vectors: int,
    steps: int,
    quick: str | None,
    registers: int | None = None,
    same_row: str | None = None,
) -> RegisterTile:
    """Choose the tile for rows along some candidates (index, size) and vectors.

    Storing a vector costs a few steps of the summation, and many unless the last of the tile's rows are along the index `quick`. Every row
    meets its own cache line in every step, unless it is along the index `same_row` (None: if cache lines last for several steps).
    """
    registers = registers or host().vector_registers
    best: RegisterTile | None = None
    sizes = dict(candidates)
    for pair, count, tile in _tiles(candidates, vectors, registers):
        rest = prod(size for name, size in candidates if name not in pair)
        cycles = rest * -(-vectors // count) * _cycles([even_chunks(sizes[n], k) for n, k in zip(pair, tile, strict=True)], count)
        if same_row is not None:
            cycles *= 1 + 0.04 * prod(size for name, size in zip(pair, tile, strict=True) if name != same_row)
        cycles += prod(sizes.values()) * vectors * (5 if quick is None or quick == pair[-1] else 25) / steps
        if best is None or cycles < best.cycles * 0.995:
            best = RegisterTile(tuple(zip(pair, tile, strict=True)), count, cycles)
    assert best is not None
    return best


def _tiles(candidates: Sequence[tuple[str, int]], vectors: int, registers: int) -> Iterator[tuple[tuple[str, ...], int, tuple[int, ...]]]:
    """Yield the tiles that fit the registers: indices, vectors, rows of each index."""
    names = [name for name, size in candidates if size > 1] or [candidates[0][0]]
    sizes = dict(candidates)
    pairs = [(a,) for a in names] + [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    for count, pair in product(range(1, min(4, vectors) + 1), pairs):
        for tile in _shapes([sizes[name] for name in pair], (registers - 3 - count) // count):
            yield pair, count, tile


def _shapes(sizes: Sequence[int], room: int) -> list[tuple[int, ...]]:
    if len(sizes) == 1:
        return [(k,) for k in range(1, min(sizes[0], room) + 1)]
    return [(a, b) for a in range(1, min(sizes[0], room) + 1) for b in range(1, min(sizes[1], room // a) + 1)]


def _cycles(split: Sequence[list[tuple[int, int]]], vectors: int) -> float:
    """Estimate a step's cycles, each with two multiplications and two loads."""
    total = 0.0
    shapes = [(1, 1)]
    for chunks in split:
        shapes = [(rows * size, repeats * number) for rows, repeats in shapes for size, number in chunks]
    for rows, repeats in shapes:
        sums = rows * vectors
        total += repeats * max(sums / 2, (rows + vectors) / 2, 4.0 if sums < 8 else 0) + 0.25 * repeats
    return total


# Stores of sums from registers, in the order of y.


def store_vector(f: Function, work: ComputeType, dtype: np.dtype, vector: Value, to: Value, stride: int, valid_lanes: Index | None) -> None:
    """Store a vector's valid lanes (None: all) with a stride in elements."""
    mask = (
        None
        if valid_lanes is None
        else first_lanes(valid_lanes, work.lanes)
        if isinstance(valid_lanes, int)
        else between(f, work.lanes, 0, 0, valid_lanes)
    )
    if stride == 1 and isinstance(valid_lanes, Value):

        def store_lanes(mask: Value | None) -> list[Value]:
            write(f, work, dtype, vector, work.lanes, to, mask)
            return []

        f.branch(f.compare("icmp sge", valid_lanes, Value("i64", str(work.lanes))), lambda: store_lanes(None), lambda: store_lanes(mask))
    elif stride == 1:
        write(f, work, dtype, vector, work.lanes, to, mask)
    elif is_itself(work, dtype):
        scattered(f, vector, to, work.itemsize, stride, mask or everywhere(work.lanes))
    else:
        _store_lanes_singly(f, work, dtype, vector, to, stride, mask)


def _store_lanes_singly(f: Function, work: ComputeType, dtype: np.dtype, vector: Value, to: Value, stride: int, mask: Value | None) -> None:
    for lane in range(work.lanes):

        def store_lane(lane: int = lane) -> list[Value]:
            number = f.let(work.type, f"extractelement {vector}, i64 {lane}")
            write(f, work, dtype, number, 1, step(f, to, stored_as(dtype), lane * stride))
            return []

        if mask is None:
            store_lane()
        else:
            f.branch(f.let("i1", f"extractelement {mask}, i64 {lane}"), store_lane)


def store_transposed(
    f: Function,
    work: ComputeType,
    dtype: np.dtype,
    rows: Sequence[Value],
    to: Value,
    stride: int,
    valid_lanes: Index | None,
    remain: Index | None = None,
) -> None:
    """Store the transpose of adjacent vectors, whose lanes have a `stride` in memory.

    The first `valid_lanes` of the lanes are stored, and the first `remain` of the vectors (None: all).
    """
    lanes = work.lanes
    for start in range(0, len(rows), lanes):
        square = list(rows[start : start + lanes])
        mask = first_lanes(len(square), lanes) if remain is None else between(f, lanes, start, 0, remain)
        square += [work.zero()] * (lanes - len(square))
        for lane, column in enumerate(transposed(f, square)):

            def store_column(lane: int = lane, column: Value = column, start: int = start, mask: Value | None = mask) -> list[Value]:
                write(f, work, dtype, column, lanes, step(f, to, stored_as(dtype), lane * stride + start), mask)
                return []

            if isinstance(valid_lanes, Value):
                f.branch(f.compare("icmp sgt", valid_lanes, Value("i64", str(lane))), store_column)
            elif valid_lanes is None or lane < valid_lanes:
                store_column()


@dataclass(frozen=True)
class SumTile:
    """The sums of a register tile, between registers and memory."""

    nest: TileLoops
    dtype: np.dtype
    #: The outputs that remain at the start of the panel; None: all of a panel.
    valid_lanes: Index | None

    def result(self, f: Function, at: Operands, counts: Mapping[str, int], sums: list[Value]) -> None:
        """Store sums to the result."""
        nest, work = self.nest, self.nest.work
        along, rows = nest.dims[nest.vector].y, nest.positions(counts)
        last = nest.rows[-1][0]
        adjacent = counts[last] if along != 1 and nest.dims[last].y == 1 else 1
        for v in range(nest.vectors):
            valid_lanes = None if self.valid_lanes is None else plus(f, self.valid_lanes, -v * work.lanes)
            for r in range(0, len(rows), adjacent):
                to = step(f, at.y, nest.y_type, rows[r].y + v * work.lanes * along)
                vectors = [sums[(r + k) * nest.vectors + v] for k in range(adjacent)]
                if adjacent > 1:
                    store_transposed(f, work, self.dtype, vectors, to, along, valid_lanes)
                else:
                    store_vector(f, work, self.dtype, vectors[0], to, along, valid_lanes)

    def store_sums(self, f: Function, at: Operands, counts: Mapping[str, int], sums: list[Value]) -> None:
        """Store sums to the workspace, for `load_sums`."""
        for k, pointer in enumerate(self._sum_addresses(f, at.y, [row.y for row in self.nest.positions(counts)])):
            f.store(sums[k], pointer, self.nest.work.itemsize)

    def load_sums(self, f: Function, at: Value, counts: Mapping[str, int]) -> list[Value]:
        """Load the sums so far."""
        work = self.nest.work
        return [f.load(work.vector, p, work.itemsize) for p in self._sum_addresses(f, at, [row.y for row in self.nest.positions(counts)])]

    def load_splits(self, f: Function, at: Value, counts: Mapping[str, int], splits: int, stride: int) -> list[Value]:
        """Load and add the splits of sums, which have a `stride` in elements."""
        work, rows = self.nest.work, [row.x for row in self.nest.positions(counts)]
        total = [f.load(work.vector, p, work.itemsize) for p in self._sum_addresses(f, at, rows)]
        for split in range(1, splits):
            more = self._sum_addresses(f, step(f, at, work.type, split * stride), rows)
            total = [work.add(f, x, f.load(work.vector, p, work.itemsize)) for x, p in zip(total, more, strict=True)]
        return total

    def _sum_addresses(self, f: Function, at: Value, rows: Sequence[int]) -> list[Value]:
        work = self.nest.work
        return [step(f, at, work.type, row + v * work.lanes) for row in rows for v in range(self.nest.vectors)]
