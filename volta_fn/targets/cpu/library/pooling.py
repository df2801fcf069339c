"""Reductions of windows: first down the rows, into a padded row, then along it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.geometry.windows import Axis, Windows, windows_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.index_arith import least, nest
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, chunk_count, nothing, task_range
from volta_fn.targets.cpu.library.numbers import converted, lanes_for, map_run
from volta_fn.targets.cpu.library.windows import groups, over_taps, position_of, steps
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import Number, combine, constant, load, store, supports
from volta_fn.targets.cpu.scalars.values import Lanes

#: The elements of a padded row that are made at once, at most (about).
_TILE = 2048
_MOST_BYTES = 1 << 15
_VECTORS = 4
_TASK = 1 << 14


class _Pool(NamedTuple):
    """A reduction of windows, and how many positions across are one tile."""

    windows: Windows
    stored: np.dtype
    dtype: np.dtype
    reduction: Reduction
    tile: int

    @property
    def span(self) -> int:
        """The elements of a padded row that the windows of a tile meet."""
        axis = self.windows.across
        return (self.tile - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1

    def combine(self, f: Function, x: Number, y: Number) -> Number:
        return combine(f, self.reduction, x, y)


def reduce_window(avals: tuple[ShapedArray, ...], params: dict[str, Any], name: str) -> Routine | None:
    """Return the routine of the primitive of that name, which reduces windows."""
    reduction = reduction_of(name)
    (operand,) = avals
    windows = windows_of(operand.shape, params)
    if not windows.outer * windows.results * windows.across.positions:
        return nothing()
    dtype = accumulator(operand.dtype)
    if not supports(reduction.step, (dtype, dtype), {}):
        return None
    lanes = lanes_for(dtype)
    pool = _Pool(windows, operand.dtype, dtype, reduction, _tile(windows.across, lanes))
    if pool.span * dtype.itemsize > _MOST_BYTES:
        windows = windows.upright()
        pool = _Pool(windows, operand.dtype, dtype, reduction, windows.across.positions)
    axis = windows.across
    rows = windows.outer * windows.results
    tasks = chunk_count(rows, max(1, _TASK // (axis.size * windows.taps // axis.taps + 1)))
    writer = RoutineWriter("reduce_window", 2)
    cost = rows * (axis.size * windows.taps / axis.taps + axis.positions * axis.taps) * 0.15
    writer.launch(tasks, cost, lambda f, pointers, number: _task(f, pool, pointers, task_range(f, number, rows, tasks), lanes))
    return writer.routine()


def _tile(axis: Axis, lanes: int) -> int:
    """Return how many positions to reduce together."""
    if (axis.positions - 1) * axis.stride + (axis.taps - 1) * axis.dilation < _TILE:
        return axis.positions
    return min(axis.positions, max(lanes, (_TILE - axis.taps * axis.dilation) // axis.stride // lanes * lanes))


def _task(f: Function, pool: _Pool, pointers: list[Value], bounds: tuple[Value, Value], lanes: int) -> None:
    windows, axis = pool.windows, pool.windows.across
    if axis.plain:
        full = i64(0), i64(axis.size)

        def reduced(row: list[Value]) -> None:
            _down(f, pool, pointers[0], row[0], *full, pointers[1], f.times(row[0], axis.size), pool.stored, lanes)

        nest(f, [windows.outer * windows.results], reduced, bounds)
        return
    # Loads of strided numbers reach a little further than the windows.
    padded = f.alloca(f"[{pool.dtype.itemsize} x i8]", pool.span + axis.stride * lanes)
    tiles = -(-axis.positions // pool.tile)
    if tiles == 1:
        _clear(f, pool, padded, lanes)

    def row(index: list[Value]) -> None:
        def tile(which: list[Value]) -> None:
            first = f.times(which[0], pool.tile)
            end = least(f, f.plus(first, i64(pool.tile)), i64(axis.positions))
            if tiles > 1:
                _clear(f, pool, padded, lanes)
            _fill(f, pool, pointers[0], index[0], first, padded, lanes)
            _along(f, pool, padded, pointers[1], f.times(index[0], axis.positions), first, end, lanes)

        nest(f, [tiles], tile)

    nest(f, [windows.outer * windows.results], row, bounds)


def _clear(f: Function, pool: _Pool, padded: Value, lanes: int) -> None:
    neutral = constant(f, pool.reduction.start(pool.dtype), lanes)

    def some(i: Value, _: int, count: Value | None) -> None:
        store(f, neutral, f.at(padded, f"[{pool.dtype.itemsize} x i8]", i), count=count)

    map_run(f, i64(0), i64(pool.span), lanes, some)


def _fill(f: Function, pool: _Pool, operand: Value, row: Value, first: Value, padded: Value, lanes: int) -> None:
    """Emit the reduction of rows into the padded row of a tile."""
    axis = pool.windows.across
    start = f.minus(f.times(first, axis.stride), i64(axis.low))  # the element that the padded row begins with
    begin = least(f, i64(axis.size), steps(f, start, axis.base))
    end = least(f, i64(axis.size), steps(f, f.plus(start, i64(pool.span)), axis.base))
    shift = f.minus(i64(0), start)
    _down(f, pool, operand, row, begin, end, padded, shift, pool.dtype, lanes, axis.base)


def _down(
    f: Function,
    pool: _Pool,
    operand: Value,
    row: Value,
    begin: Value,
    end: Value,
    target: Value,
    shift: Value,
    dtype: np.dtype,
    lanes: int,
    step: int = 1,
) -> None:
    """Emit the reduction of elements `begin` to `end` of the rows that windows meet.

    Element i goes to the offset ``i * step + shift``.
    """
    windows = pool.windows
    position = position_of(f, windows, row)
    base = f.times(f.quotient(row, windows.results), windows.rows * windows.across.size)
    each = 2 if pool.dtype.kind == "c" else 1

    def some(i: Value, counts: list[Value | None]) -> None:
        start = constant(f, pool.reduction.start(pool.dtype), lanes)

        def add(met: Value, tap: Value, carried: list[Value]) -> list[Value]:
            result: list[Value] = []
            for k, count in enumerate(counts):
                offset = f.plus(f.plus(base, f.times(met, windows.across.size)), f.plus(i, i64(k * lanes)))
                read = load(f, pool.stored, f.at(operand, f"[{pool.stored.itemsize} x i8]", offset), lanes, count=count)
                old = Number(pool.dtype, tuple(carried[each * k : each * (k + 1)]))
                result += pool.combine(f, old, converted(f, read, pool.dtype)).components
            return result

        sums = over_taps(f, windows.vertical, position, [*start.components] * len(counts), add)
        for k, count in enumerate(counts):
            total = converted(f, Number(pool.dtype, tuple(sums[each * k : each * (k + 1)])), dtype)
            offset = f.plus(f.times(f.plus(i, i64(k * lanes)), step), shift)
            store(f, total, f.at(target, f"[{dtype.itemsize} x i8]", offset), count=count, stride=step)

    groups(f, begin, end, lanes, _VECTORS, some)


def _along(f: Function, pool: _Pool, padded: Value, result: Value, row: Value, first: Value, end: Value, lanes: int) -> None:
    axis = pool.windows.across

    def some(i: Value, _: int, count: Value | None) -> None:
        start = f.times(f.minus(i, first), axis.stride)

        def tap(k: Value) -> Number:
            at = f.at(padded, f"[{pool.dtype.itemsize} x i8]", f.plus(start, f.times(k, axis.dilation)))
            return strided(f, pool.dtype, at, lanes, axis.stride)

        total = tap(i64(0))
        if axis.taps <= 16:
            for k in range(1, axis.taps):
                total = pool.combine(f, total, tap(i64(k)))
        else:
            more = f.loop(
                i64(1),
                i64(axis.taps),
                1,
                total.components,
                lambda k, c: list(pool.combine(f, Number(pool.dtype, tuple(c)), tap(k)).components),
            )
            total = Number(pool.dtype, tuple(more))
        offset = f.plus(row, i)
        store(f, converted(f, total, pool.stored), f.at(result, f"[{pool.stored.itemsize} x i8]", offset), count=count)

    map_run(f, first, end, lanes, some)


def strided(f: Function, dtype: np.dtype, pointer: Value, lanes: int, stride: int) -> Number:
    """Emit a load of numbers at a stride; all memory between them may be read."""
    if not 1 < stride <= 4:
        return load(f, dtype, pointer, lanes, stride=stride)
    close = load(f, dtype, pointer, lanes * stride)
    return Number(dtype, tuple([Lanes(f, p).taken(range(0, lanes * stride, stride)).value for p in close.components]))
