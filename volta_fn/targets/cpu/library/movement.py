"""Slices, gathers and scatters, which move or combine elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.windows import Dims, Layout, Starts, WindowStart, gather_of, merged, scatter_of, window_offset, window_start
from volta_fn.compiler.contractions import contiguous_strides
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.dtypes import accumulator
from volta_fn.primitives.data_movement.gather import default_fill, gather_p, never_meet
from volta_fn.runtime.llvm.text import Function, Value, clamped, i64, lanes_of, least, nest, rounded_down, vector_of, widened
from volta_fn.targets.cpu.loops.emit_values import fetch_ahead
from volta_fn.targets.cpu.routine import (
    TASK_BYTES,
    Routine,
    RoutineWriter,
    chunk_count,
    converted,
    empty_routine,
    lanes_for,
    map_run,
    task_range,
)
from volta_fn.targets.cpu.scalars import Number, apply, load, store, supports
from volta_fn.targets.cpu.scalars.number import everywhere, gathered, lanes_below, masked_load
from volta_fn.targets.cpu.scalars.values import Lanes

# Moving elements: an element of any dtype is an integer of its size.


def unit(itemsize: int) -> str:
    """Return the type that moves elements of `itemsize` bytes."""
    return f"i{8 * itemsize}" if itemsize <= 8 else "<2 x i64>"


def bits(value: object, dtype: np.dtype) -> Value:
    """Return a number of a dtype as a constant of its `unit`."""
    data = np.asarray(value).astype(dtype).tobytes()
    if dtype.itemsize <= 8:
        return Value(unit(dtype.itemsize), str(int.from_bytes(data, "little")))
    low, high = (int.from_bytes(data[k : k + 8], "little") for k in (0, 8))
    return Value("<2 x i64>", f"<i64 {low}, i64 {high}>")


def size_of(type_: str) -> int:
    """Return the bytes of a `unit`."""
    return 16 if type_.startswith("<") else int(type_[1:]) // 8


def alignment(type_: str) -> int:
    """Return the least alignment of elements of a `unit`."""
    return min(8, size_of(type_))


def copy_block(
    f: Function, type_: str, target: Value, source: Value, loops: Sequence[Dims], first: tuple[Value, Value] | None = None
) -> None:
    """Copy a block of `merged` loops: sizes, strides of the target and of the source.

    `first` is the range of the outermost loop to copy.
    """
    sizes, target_strides, source_strides = loops
    runs = bool(sizes) and target_strides[-1] == source_strides[-1] == 1
    depth = len(sizes) - runs

    def copy_run(indices: list[Value]) -> None:
        to = f.at(target, type_, f.dotted(indices, target_strides[:depth]))
        at = f.at(source, type_, f.dotted(indices, source_strides[:depth]))
        if not runs:
            f.store(f.load(type_, at, alignment(type_)), to, alignment(type_))
        elif depth or first is None:
            f.memcpy(to, at, i64(sizes[-1] * size_of(type_)), alignment(type_))
        else:
            begin, end = first
            count = f.times(f.minus(end, begin), size_of(type_))
            f.memcpy(f.at(to, type_, begin), f.at(at, type_, begin), count, alignment(type_))

    nest(f, sizes[:depth], copy_run, first if depth else None)


def fill_block(
    f: Function, value: Value, target: Value, sizes: Sequence[int], strides: Sequence[int], first: tuple[Value, Value] | None = None
) -> None:
    """Store a constant throughout a block, of the given `merged` loops."""
    type_ = value.type

    def store_element(indices: list[Value]) -> None:
        f.store(value, f.at(target, type_, f.dotted(indices, strides)), alignment(type_))

    nest(f, sizes, store_element, first)


# Vectors of strided elements, of which only the existing ones are touched.

#: Up to this stride all memory from the first to the last element is loaded, under a mask.
_NEAR = 4


class StridedLanes(NamedTuple):
    """The first element's address, the stride, and a mask of elements to touch."""

    pointer: Value
    stride: int
    mask: Value


def flags(f: Function, lanes: int, start: Value, stride: int, size: int, count: Value | None) -> Value:
    """Emit which of the first `count` of ``start, start + stride, …`` are in range."""
    in_range = f.compare(
        "icmp ult", f.binary("add", f.splat(narrow(f, start), lanes), steps(lanes, stride)), f.splat(Value("i32", str(size)), lanes)
    )
    return in_range if count is None else f.binary("and", in_range, first_lanes(f, lanes, count))


def first_lanes(f: Function, lanes: int, count: Value | None) -> Value:
    """Emit a mask of the first `count` lanes; of all if there is no count."""
    return everywhere(lanes) if count is None else lanes_below(f, count, lanes)


def steps(lanes: int, stride: int) -> Value:
    """Return 0, stride, 2 stride, … in 32 bits."""
    return Value(vector_of("i32", lanes), f"<{', '.join(f'i32 {k * stride}' for k in range(lanes))}>")


def narrow(f: Function, x: Value) -> Value:
    """Emit an index in 32 bits."""
    return f.cast("trunc", x, "i32") if f.known(x) is None else Value("i32", x.name)


def read(f: Function, dtype: np.dtype, where: StridedLanes) -> Number:
    """Emit the load of the elements; those that are not touched are 0."""
    raw = _read(f, unit(dtype.itemsize), where, dtype.itemsize)
    return apply(f, "bitcast_convert_type", (Number(np.dtype(f"u{dtype.itemsize}"), (raw,)),), dtype, {"new_dtype": dtype})


def _read(f: Function, element: str, where: StridedLanes, align: int) -> Value:
    lanes = lanes_of(where.mask.type)
    type_ = vector_of(element, lanes)
    if where.stride > _NEAR:
        return gathered(f, type_, where.pointer, align, where.stride, where.mask)
    wide = vector_of(element, lanes * where.stride)
    vector = masked_load(f, wide, where.pointer, align, _spread(f, where.mask, where.stride))
    return vector if where.stride == 1 else Lanes(f, vector).shuffle(range(0, lanes * where.stride, where.stride)).value


def _spread(f: Function, x: Value, stride: int) -> Value:
    """Emit lanes `stride` apart, with zeros between them."""
    if stride == 1:
        return x
    lanes = lanes_of(x.type)
    order = [k // stride if k % stride == 0 else lanes for k in range(lanes * stride)]
    return Lanes(f, x).shuffle(order, Lanes(f, Value(x.type, "zeroinitializer"))).value


# Blocks read or replaced at positions that are known when the program runs.


def dynamic_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    operand, *starts = avals
    sizes: tuple[int, ...] = params["slice_sizes"]
    if not math.prod(sizes):
        return empty_routine()
    type_ = unit(operand.dtype.itemsize)
    loops = merged(sizes, contiguous_strides(sizes), contiguous_strides(operand.shape))
    tasks, outermost = _tasks(loops[0], operand.dtype.itemsize)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        source = _corner(f, pointers[0], pointers[1:-1], operand, starts, sizes)
        copy_block(f, type_, pointers[-1], source, loops, task_range(f, number, outermost, tasks) if tasks > 1 else None)

    writer = RoutineWriter("dynamic_slice", len(avals) + 1)
    writer.launch(tasks, math.prod(sizes) * operand.dtype.itemsize / 6, task)
    return writer.routine()


def dynamic_update_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    # Its first launch copies the operand, unless that is the result.
    operand, update, *starts = avals
    if not operand.size:
        return empty_routine()
    writer = RoutineWriter("dynamic_update_slice", len(avals) + 1)
    copy_operand(writer, operand)
    if update.size:
        type_ = unit(operand.dtype.itemsize)
        loops = merged(update.shape, contiguous_strides(operand.shape), contiguous_strides(update.shape))
        tasks, outermost = _tasks(loops[0], operand.dtype.itemsize)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            target = _corner(f, pointers[-1], pointers[2:-1], operand, starts, update.shape)
            copy_block(f, type_, target, pointers[1], loops, task_range(f, number, outermost, tasks) if tasks > 1 else None)

        writer.launch(tasks, update.size * operand.dtype.itemsize / 6, task)
    return writer.routine()


def copy_operand(writer: RoutineWriter, operand: ShapedArray, result: int = -1) -> None:
    """Add a launch that copies the first operand to a buffer, if that is another."""
    size = operand.size * operand.dtype.itemsize
    tasks = chunk_count(size, TASK_BYTES)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        source, target = pointers[0], pointers[result]

        def copy() -> None:
            begin, end = task_range(f, number, operand.size, tasks)
            type_ = unit(operand.dtype.itemsize)
            count = f.times(f.minus(end, begin), operand.dtype.itemsize)
            f.memcpy(f.at(target, type_, begin), f.at(source, type_, begin), count, min(8, operand.dtype.itemsize))

        f.branch(f.compare("icmp ne", source, target), copy)

    writer.launch(tasks, size / 6, task, is_copy=True)


def _tasks(sizes: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return the number of tasks, and the size of the outermost loop that they divide."""
    outermost = sizes[0] if sizes else 1
    return min(outermost, chunk_count(math.prod(sizes) * itemsize, TASK_BYTES)), outermost


def _corner(
    f: Function, base: Value, starts: Sequence[Value], operand: ShapedArray, avals: Sequence[ShapedArray], sizes: Sequence[int]
) -> Value:
    """Emit the address of a block's first element."""
    positions = []
    for pointer, aval, full, size in zip(starts, avals, operand.shape, sizes, strict=True):
        index = f.load(f"i{8 * aval.dtype.itemsize}", pointer, aval.dtype.itemsize)
        positions.append(clamped(f, widened(f, index, aval.dtype.kind == "i"), full - size))
    return f.at(base, unit(operand.dtype.itemsize), f.dotted(positions, contiguous_strides(operand.shape)))


# Gather: windows of the operand copied into the result.
#
# A task finds the offsets of a block of windows and then copies them. Dimensions of the windows that come before the batch in the result
# are loops around that copying, so that the result is written in order. Windows of one element are copied as their offsets are
# found, several at a time where all of them are inside, which one comparison of vectors finds out.

#: The most windows whose offsets are found at once.
_BLOCK = 1024
#: Windows of one element that are copied in one iteration.
_UNROLLED = 16


def gather(avals: tuple[ShapedArray, ...], params: dict[str, Any], wraps: bool = False) -> Routine | None:
    """Return the routine of the primitive.

    If it `wraps`, negative positions count from the end.
    """
    operand = avals[0]
    result = gather_p.result_avals(avals, params)
    if not result.size:
        return empty_routine()
    windows = gather_of(avals, params)
    fill = bits(default_fill(operand.dtype) if params["fill_value"] is None else params["fill_value"], operand.dtype)
    added = operand.shape[windows.starts.addressed[0][0]] if wraps else 0
    gathering = _Gather(windows.starts, windows.layout, unit(operand.dtype.itemsize), fill, added)
    size = result.size * operand.dtype.itemsize
    count = gathering.starts.number
    each = size // count
    # Windows that are read a row at a time, around the batch, are the better for long rows of the result.
    block = min(count, _BLOCK if gathering.layout.lead[0] else max(1, min(_BLOCK, TASK_BYTES // each)))
    blocks = math.ceil(count / block)
    outermost = gathering.outermost
    cuts = min(outermost, chunk_count(each * block, TASK_BYTES))

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        begin = f.times(f.quotient(number, cuts), block)
        first = task_range(f, f.remainder(number, cuts), outermost, cuts) if cuts > 1 else None
        gathering.block(f, pointers, begin, least(f, f.plus(begin, i64(block)), i64(count)), block, first)

    writer = RoutineWriter("gather", 3)
    writer.launch(blocks * cuts, count * 1.5 + size / 6, task)
    return writer.routine()


class _Gather:
    """A gather, in units. Negative positions stand for their sum with `added`."""

    def __init__(self, starts: Starts, layout: Layout, type_: str, fill: Value, added: int) -> None:
        self.starts, self.layout, self.type, self.fill, self.added = starts, layout, type_, fill, added

    @property
    def outermost(self) -> int:
        """The size of the outermost loop over a window."""
        sizes = self.layout.lead[0] + self.layout.rest[0]
        return sizes[0] if sizes else 1

    def block(self, f: Function, pointers: list[Value], begin: Value, end: Value, most: int, first: tuple[Value, Value] | None) -> None:
        """Emit the copies of the windows from `begin` up to `end`.

        `first` is the range of a window's outermost dimension.
        """
        operand, indices, result = pointers
        if not self.layout.lead[0] and not self.layout.rest[0]:
            self._elements(f, pointers, begin, end)
            return
        offsets = f.alloca("i64", most)

        def find(number: Value, _: list[Value]) -> None:
            start = start_of(f, self.starts, indices, number, self.added)
            offset = start.offset if start.valid is None else f.select(start.valid, start.offset, i64(-1))
            f.store(offset, f.at(offsets, "i64", f.minus(number, begin)), 8)

        f.loop(begin, end, 1, [], find)
        sizes, steps, strides = self.layout.lead

        def lead(at: list[Value]) -> None:
            source = f.at(operand, self.type, f.dotted(at, strides))
            target = f.at(result, self.type, f.dotted(at, steps))

            def copy_window(number: Value, _: list[Value]) -> None:
                offset = f.load("i64", f.at(offsets, "i64", f.minus(number, begin)), 8)
                self._window(f, source, f.at(target, self.type, window_offset(f, self.layout, number)), offset, None if sizes else first)

            f.loop(begin, end, 1, [], copy_window)

        nest(f, sizes, lead, first)

    def _elements(self, f: Function, pointers: list[Value], begin: Value, end: Value) -> None:
        """Emit the copies of windows of one element."""
        operand, indices, result = pointers

        def copy_element(number: Value, checked: bool = True) -> None:
            start = start_of(f, self.starts, indices, number, self.added, checked)
            value = f.load(self.type, f.at(operand, self.type, start.offset), alignment(self.type))
            element = value if start.valid is None else f.select(start.valid, value, self.fill)
            f.store(element, f.at(result, self.type, window_offset(f, self.layout, number)), alignment(self.type))

        def several(first: Value, _: list[Value]) -> None:
            def unchecked() -> None:
                for distance in range(_UNROLLED):
                    copy_element(f.plus(first, i64(distance)), checked=False)

            def checked() -> None:
                f.loop(first, f.plus(first, i64(_UNROLLED)), 1, [], lambda number, _: copy_element(number))

            f.branch(are_inside(f, self.starts, indices, first, _UNROLLED), unchecked, checked)

        middle = f.plus(begin, rounded_down(f, f.minus(end, begin), _UNROLLED))
        f.loop(begin, middle, _UNROLLED, [], several)
        f.loop(middle, end, 1, [], lambda number, _: copy_element(number))

    def _window(self, f: Function, source: Value, target: Value, offset: Value, first: tuple[Value, Value] | None) -> None:
        sizes, steps, _ = self.layout.rest
        if self.starts.clips:
            copy_block(f, self.type, target, f.at(source, self.type, offset), self.layout.rest, first)
            return
        valid = f.compare("icmp sge", offset, i64(0))

        def copy() -> None:
            copy_block(f, self.type, target, f.at(source, self.type, offset), self.layout.rest, first)

        def fill() -> None:
            fill_block(f, self.fill, target, sizes, steps, first)

        f.branch(valid, copy, fill)


def start_of(f: Function, starts: Starts, indices: Value, number: Value, added: int = 0, checked: bool = True) -> WindowStart[Value]:
    """Emit the start of the window of a number, by the index vectors at an address.

    Negative positions stand for their sum with `added`. Those that are known to be inside are not `checked`.
    """
    kind = starts.indices.dtype
    type_ = f"i{8 * kind.itemsize}"

    def clamp(position: Value, limit: int) -> tuple[Value, Value | None]:
        index = widened(f, f.load(type_, f.at(indices, type_, position), kind.itemsize), kind.kind == "i")
        if not checked:
            return index, None
        if added:
            index = f.select(f.compare("icmp slt", index, i64(0)), f.plus(index, i64(added)), index)
        inside = clamped(f, index, limit)
        return inside, None if starts.clips else f.compare("icmp ule", index, i64(limit))

    return window_start(f, starts, clamp, lambda x, y: f.binary("and", x, y), number)


def are_inside(f: Function, starts: Starts, indices: Value, first: Value, count: int) -> Value:
    """Emit whether `count` windows from number `first` on are all in bounds."""
    kind, entries = starts.indices.dtype, len(starts.addressed)
    if not entries:
        return Value("i1", "true")
    type_, lanes = f"i{8 * kind.itemsize}", count * entries
    most = int(np.iinfo(kind).max)
    limits = ", ".join(f"{type_} {min(limit, most)}" for _ in range(count) for *_, limit in starts.addressed)
    positions = f.load(vector_of(type_, lanes), f.at(indices, type_, f.times(first, entries)), kind.itemsize)
    inside = f.compare("icmp ule", positions, Value(positions.type, f"<{limits}>"))
    return f.intrinsic(f"llvm.vector.reduce.and.v{lanes}i1", "i1", inside)


# Scatters: updates combined into the operand in the order of the indices.
#
# The operand's elements are divided between tasks by their coordinate along one dimension; every task goes through all index vectors in
# order and does its own windows. float16 and bfloat16 are summed and multiplied in float32, in a copy unless each element has one update,
# and rounded once.

_MOST_TASKS = 8
#: The bytes of contiguous windows that are prefetched, since the processor cannot predict their addresses.
_FETCHED = range(65, 2049)


class _Scatter(NamedTuple):
    """A scatter.

    Attributes:
        shared: the dimension of the operand along which tasks divide windows, and by how much coordinates are shifted for that, so that
            elements in one cache line belong to one task.
        dtype: the dtype of the memory in which numbers are combined.
        accumulator: the dtype in which they are.
    """

    starts: Starts
    layout: Layout
    operand: ShapedArray
    dtype: np.dtype
    accumulator: np.dtype
    combines: Reduction | None
    shared: tuple[int, int] | None
    tasks: int


def scatter(avals: tuple[ShapedArray, ...], params: dict[str, Any], name: str) -> Routine | None:
    """Return the routine of the primitive of that name."""
    combines = PRIMITIVES[name].combines
    operand, indices, updates = avals
    if not operand.size:
        return empty_routine()
    summed = combines is not None and combines.rounds
    total = accumulator(operand.dtype) if summed else operand.dtype
    if combines and not supports(combines.step, (total, total), {}):
        return None
    dtype = operand.dtype if never_meet(indices.shape, params) else total
    wide = dtype != operand.dtype
    writer = RoutineWriter("scatter", 4 + wide)
    if wide:
        _convert(writer, operand, operand.dtype, dtype, 0, 4)
    else:
        copy_operand(writer, operand, 3)
    if updates.size:
        problem = _described(operand, indices, updates, params, combines, dtype, total)
        cost = problem.starts.number * 2.0 * problem.tasks + updates.size * dtype.itemsize / 4
        writer.launch(
            problem.tasks, cost, lambda f, pointers, task: _walk(f, problem, pointers[1], pointers[2], pointers[4 if wide else 3], task)
        )
    if wide:
        _convert(writer, operand, dtype, operand.dtype, 4, 3)
    return writer.routine(operand.size * dtype.itemsize if wide else 0)


def _described(
    operand: ShapedArray,
    indices: ShapedArray,
    updates: ShapedArray,
    params: dict[str, Any],
    combines: Reduction | None,
    dtype: np.dtype,
    total: np.dtype,
) -> _Scatter:
    starts, sizes, layout = scatter_of((operand, indices, updates), params)
    strides = contiguous_strides(operand.shape)
    window = math.prod(sizes) * operand.dtype.itemsize
    candidates = [d for d, n in enumerate(sizes) if n == 1 and operand.shape[d] > 1 and d in starts.dimensions]
    if not candidates:
        return _Scatter(starts, layout, operand, dtype, total, combines, None, 1)
    dim = max(candidates, key=lambda d: operand.shape[d])
    tasks = _task_count(window, updates.size * operand.dtype.itemsize, operand.shape[dim])
    shift = max(0, (63 // (strides[dim] * operand.dtype.itemsize)).bit_length())
    return _Scatter(starts, layout, operand, dtype, total, combines, (dim, shift), tasks)


def _task_count(window: int, updates: int, most: int) -> int:
    """Return the number of tasks, a power of two and at most `most`."""
    # `window` and `updates` are the bytes of a window and of all. To look at a window of another task costs some nanoseconds: there are as
    # many tasks as make that a small part of the work.
    count = min(_MOST_TASKS, int(window / 48), updates // (TASK_BYTES // 4), most)
    return 1 << max(0, count.bit_length() - 1)


def _walk(f: Function, problem: _Scatter, indices: Value, updates: Value, out: Value, task: Value) -> None:
    """Emit all windows in order; those of the task are combined."""
    shared = problem.shared if problem.tasks > 1 else None
    sizes, update_strides, operand_strides = (a + b for a, b in zip(problem.layout.lead, problem.layout.rest, strict=True))
    row = sizes[-1] * problem.dtype.itemsize if len(sizes) == 1 and update_strides == operand_strides == (1,) else 0
    fetched = row if row in _FETCHED else 0

    def begin(number: Value) -> tuple[WindowStart[Value], Value | None]:
        """Emit where a window begins, and whether it is valid and this task's."""
        start = start_of(f, problem.starts, indices, number)
        mine = start.valid
        if shared:
            group = f.binary("and", f.binary("lshr", start.coordinates[shared[0]], i64(shared[1])), i64(problem.tasks - 1))
            is_owner = f.compare("icmp eq", group, task)
            mine = is_owner if mine is None else f.binary("and", mine, is_owner)
        return start, mine

    def fetch_later(number: Value) -> None:
        later = least(f, f.binary("add", number, i64(problem.tasks)), i64(problem.starts.number - 1))
        start, mine = begin(later)

        def fetch() -> None:
            for byte in range(0, fetched, 64):
                fetch_ahead(f, f.at(out, unit(problem.dtype.itemsize), start.offset), byte)
                fetch_ahead(f, f.at(updates, unit(problem.operand.dtype.itemsize), window_offset(f, problem.layout, later)), byte)

        f.branch(mine, fetch) if mine is not None else fetch()

    def update_window(number: Value, _: list[Value]) -> None:
        if fetched:
            fetch_later(number)
        start, mine = begin(number)

        def update() -> None:
            type_ = unit(problem.operand.dtype.itemsize)
            source = f.at(updates, type_, window_offset(f, problem.layout, number))
            _window(f, problem, source, f.at(out, unit(problem.dtype.itemsize), start.offset))

        f.branch(mine, update) if mine is not None else update()

    f.loop(i64(0), i64(problem.starts.number), 1, [], update_window)


def _window(f: Function, problem: _Scatter, source: Value, target: Value) -> None:
    sizes, update_strides, operand_strides = (a + b for a, b in zip(problem.layout.lead, problem.layout.rest, strict=True))
    old, dtype, total = problem.operand.dtype, problem.dtype, problem.accumulator
    combines = problem.combines
    if combines is None:
        copy_block(f, unit(dtype.itemsize), target, source, (sizes, operand_strides, update_strides))
        return
    runs = bool(sizes) and update_strides[-1] == operand_strides[-1] == 1
    loops = len(sizes) - runs

    def combined(lanes: int, to: Value, at: Value, count: Value | None) -> None:
        new = converted(f, load(f, old, at, lanes, count=count), total)
        before = converted(f, load(f, dtype, to, lanes, count=count), total)
        store(f, converted(f, apply(f, combines.step, (before, new), total, {}), dtype), to, count=count)

    def combine_run(indices: list[Value]) -> None:
        to = f.at(target, unit(dtype.itemsize), f.dotted(indices, operand_strides[:loops]))
        at = f.at(source, unit(old.itemsize), f.dotted(indices, update_strides[:loops]))
        if not runs:
            combined(1, to, at, None)
            return

        def combine_vector(i: Value, lanes: int, count: Value | None) -> None:
            combined(lanes, f.at(to, unit(dtype.itemsize), i), f.at(at, unit(old.itemsize), i), count)

        map_run(f, i64(0), i64(sizes[-1]), lanes_for(total), combine_vector)

    nest(f, sizes[:loops], combine_run)


def _convert(writer: RoutineWriter, operand: ShapedArray, old: np.dtype, new: np.dtype, source: int, target: int) -> None:
    tasks = chunk_count(operand.size * 4, TASK_BYTES)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        def convert_vector(i: Value, lanes: int, count: Value | None) -> None:
            read = load(f, old, f.at(pointers[source], unit(old.itemsize), i), lanes, count=count)
            store(f, converted(f, read, new), f.at(pointers[target], unit(new.itemsize), i), count=count)

        begin, end = task_range(f, number, operand.size, tasks, 64)
        map_run(f, begin, end, lanes_for(np.dtype(np.float32)), convert_vector)

    writer.launch(tasks, operand.size / 2, task)
