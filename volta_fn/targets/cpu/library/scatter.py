"""Scatters: updates combined into the operand in the order of the indices.

The operand's elements are divided between tasks by their coordinate along one dimension; every task goes through all index vectors in order
and does its own windows. float16 and bfloat16 are summed and multiplied in float32, in a copy, and rounded once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.geometry.strides import row_major
from volta_fn.codegen.geometry.window_offsets import Layout, Starts, WindowStart, scatter_of, window_offset
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.index_arith import nest
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.library.copy_ops import copy_block, unit
from volta_fn.targets.cpu.library.dynamic_slices import copy_operand
from volta_fn.targets.cpu.library.entry_points import TASK_BYTES, RoutineWriter, chunk_count, nothing, task_range
from volta_fn.targets.cpu.library.gather import start_of
from volta_fn.targets.cpu.library.numbers import converted, lanes_for, map_run
from volta_fn.targets.cpu.loops.emit_values import fetch_ahead
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import apply, load, store, supports

_MOST_TASKS = 8
#: Windows of so many contiguous bytes are prefetched: the processor cannot predict where they are.
_FETCHED = range(65, 2049)


class _Scatter(NamedTuple):
    """A scatter.

    Attributes:
        shared: the dimension of the operand along which tasks divide windows, and by how much coordinates are shifted for that, so that
            elements in one cache line belong to one task.
        dtype: the dtype in which numbers are combined.
    """

    starts: Starts
    layout: Layout
    operand: ShapedArray
    dtype: np.dtype
    combines: Reduction | None
    shared: tuple[int, int] | None
    tasks: int


def scatter(avals: tuple[ShapedArray, ...], params: dict[str, Any], name: str) -> Routine | None:
    """Return the routine of the primitive of that name."""
    combines = PRIMITIVES[name].combines
    operand, indices, updates = avals
    if not operand.size:
        return nothing()
    summed = combines is not None and combines.rounds
    dtype = accumulator(operand.dtype) if summed else operand.dtype
    if combines and not supports(combines.step, (dtype, dtype), {}):
        return None
    wide = dtype != operand.dtype
    writer = RoutineWriter("scatter", 4 + wide)
    if wide:
        _convert(writer, operand, operand.dtype, dtype, 0, 4)
    else:
        copy_operand(writer, operand, 3)
    if updates.size:
        problem = _described(operand, indices, updates, params, combines, dtype)
        cost = problem.starts.number * 2.0 * problem.tasks + updates.size * dtype.itemsize / 4
        writer.launch(
            problem.tasks, cost, lambda f, pointers, task: _walk(f, problem, pointers[1], pointers[2], pointers[4 if wide else 3], task)
        )
    if wide:
        _convert(writer, operand, dtype, operand.dtype, 4, 3)
    return writer.routine(operand.size * dtype.itemsize if wide else 0)


def _described(
    operand: ShapedArray, indices: ShapedArray, updates: ShapedArray, params: dict[str, Any], combines: Reduction | None, dtype: np.dtype
) -> _Scatter:
    starts, sizes, layout = scatter_of((operand, indices, updates), params)
    strides = row_major(operand.shape)
    window = math.prod(sizes) * operand.dtype.itemsize
    candidates = [d for d, n in enumerate(sizes) if n == 1 and operand.shape[d] > 1 and d in starts.dimensions]
    if not candidates:
        return _Scatter(starts, layout, operand, dtype, combines, None, 1)
    dim = max(candidates, key=lambda d: operand.shape[d])
    tasks = _task_count(window, updates.size * operand.dtype.itemsize, operand.shape[dim])
    shift = max(0, (63 // (strides[dim] * operand.dtype.itemsize)).bit_length())
    return _Scatter(starts, layout, operand, dtype, combines, (dim, shift), tasks)


def _task_count(window: int, updates: int, most: int) -> int:
    """Return the number of tasks, a power of two and at most `most`.

    `window` and `updates` are the bytes of a window and of all. To look at a window of another task costs some nanoseconds: there are as
    many tasks as make that a small part of the work.
    """
    count = min(_MOST_TASKS, int(window / 48), updates // (TASK_BYTES // 4), most)
    return 1 << max(0, count.bit_length() - 1)


def _walk(f: Function, problem: _Scatter, indices: Value, updates: Value, out: Value, task: Value) -> None:
    """Emit all windows in order; those of the task are combined."""
    shared = problem.shared if problem.tasks > 1 else None
    sizes, here, there = (a + b for a, b in zip(problem.layout.lead, problem.layout.rest, strict=True))
    row = sizes[-1] * problem.dtype.itemsize if len(sizes) == 1 and here == there == (1,) else 0
    fetched = row if row in _FETCHED else 0

    def begin(number: Value) -> tuple[WindowStart[Value], Value | None]:
        """Emit where a window begins, and whether it is valid and this task's."""
        start = start_of(f, problem.starts, indices, number)
        mine = start.valid
        if shared:
            group = f.binary("and", f.binary("lshr", start.coordinates[shared[0]], i64(shared[1])), i64(problem.tasks - 1))
            own = f.compare("icmp eq", group, task)
            mine = own if mine is None else f.binary("and", mine, own)
        return start, mine

    def fetch_later(number: Value) -> None:
        later = f.intrinsic("llvm.smin.i64", "i64", f.binary("add", number, i64(problem.tasks)), i64(problem.starts.number - 1))
        start, mine = begin(later)

        def fetch() -> None:
            for byte in range(0, fetched, 64):
                fetch_ahead(f, f.at(out, unit(problem.dtype.itemsize), start.offset), byte)
                fetch_ahead(f, f.at(updates, unit(problem.operand.dtype.itemsize), window_offset(f, problem.layout, later)), byte)

        f.branch(mine, fetch) if mine is not None else fetch()

    def one(number: Value, _: list[Value]) -> None:
        if fetched:
            fetch_later(number)
        start, mine = begin(number)

        def update() -> None:
            type_ = unit(problem.operand.dtype.itemsize)
            source = f.at(updates, type_, window_offset(f, problem.layout, number))
            _window(f, problem, source, f.at(out, unit(problem.dtype.itemsize), start.offset))

        f.branch(mine, update) if mine is not None else update()

    f.loop(i64(0), i64(problem.starts.number), 1, [], one)


def _window(f: Function, problem: _Scatter, source: Value, target: Value) -> None:
    sizes, here, there = (a + b for a, b in zip(problem.layout.lead, problem.layout.rest, strict=True))
    old, dtype = problem.operand.dtype, problem.dtype
    combines = problem.combines
    if combines is None:
        copy_block(f, unit(dtype.itemsize), target, source, (sizes, there, here))
        return
    runs = bool(sizes) and here[-1] == there[-1] == 1
    loops = len(sizes) - runs

    def combined(lanes: int, to: Value, at: Value, count: Value | None) -> None:
        new = converted(f, load(f, old, at, lanes, count=count), dtype)
        before = load(f, dtype, to, lanes, count=count)
        store(f, apply(f, combines.step, (before, new), dtype, {}), to, count=count)

    def run(indices: list[Value]) -> None:
        to = f.at(target, unit(dtype.itemsize), f.dotted(indices, there[:loops]))
        at = f.at(source, unit(old.itemsize), f.dotted(indices, here[:loops]))
        if not runs:
            combined(1, to, at, None)
            return

        def some(i: Value, lanes: int, count: Value | None) -> None:
            combined(lanes, f.at(to, unit(dtype.itemsize), i), f.at(at, unit(old.itemsize), i), count)

        map_run(f, i64(0), i64(sizes[-1]), lanes_for(dtype), some)

    nest(f, sizes[:loops], run)


def _convert(writer: RoutineWriter, operand: ShapedArray, old: np.dtype, new: np.dtype, source: int, target: int) -> None:
    tasks = chunk_count(operand.size * 4, TASK_BYTES)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        def some(i: Value, lanes: int, count: Value | None) -> None:
            read = load(f, old, f.at(pointers[source], unit(old.itemsize), i), lanes, count=count)
            store(f, converted(f, read, new), f.at(pointers[target], unit(new.itemsize), i), count=count)

        begin, end = task_range(f, number, operand.size, tasks, 64)
        map_run(f, begin, end, lanes_for(np.dtype(np.float32)), some)

    writer.launch(tasks, operand.size / 2, task)
