"""Pooling's cotangents: each element gets those of the windows that it wins.

A task takes planes, one for each index of the outer axis: it finds the winner of each window, and then either goes through windows and adds
their cotangents to their winners, or, where windows are one element from each other, goes through elements and looks at all windows around.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn.codegen.geometry.strides import row_major
from volta_fn.codegen.geometry.windows import Axis
from volta_fn.core.aval import ShapedArray
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.index_arith import nest
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64, lanes_of, vector_of
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, chunk_count, nothing, task_range
from volta_fn.targets.cpu.library.numbers import converted, lanes_for, map_run
from volta_fn.targets.cpu.library.strided import StridedLanes, first_lanes, flags, narrow, read, steps
from volta_fn.targets.cpu.library.window_argmax import WindowSelection, WindowVector, selection_of, winners
from volta_fn.targets.cpu.library.windows import over_taps
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import Number, apply, constant, load, store

_TASK = 1 << 13


def select_and_scatter_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    source, operand = avals
    selection = selection_of(source, operand, params)
    if selection is None:
        return None
    if not operand.size:
        return nothing()
    windows, dtype = selection.windows, accumulator(source.dtype)
    plane, results = windows.rows * windows.across.size, windows.results * windows.across.positions
    work = plane + results * windows.taps
    tasks = chunk_count(windows.outer, max(1, _TASK // work))
    asks = windows.across.stride == 1
    scratch = results * 4 if asks else plane * dtype.itemsize if dtype != source.dtype else 0

    def outer(f: Function, pointers: list[Value], number: Value, mine: Value) -> None:
        result = f.at(pointers[2], f"[{source.dtype.itemsize} x i8]", f.times(number, plane))
        room = f.at(pointers[3], "i8", mine) if scratch else result

        def use(row: Value, i: Value, winner: Value, count: Value | None) -> None:
            offset = f.plus(row, i)
            _note(f, room, offset, winner, count) if asks else _give(f, selection, pointers[0], number, room, offset, winner, count)

        if not asks:
            _zero(f, room, dtype, plane)
        _each_window(f, selection, pointers, number, use)
        if asks:
            _ask(f, selection, pointers[0], number, room, result)
        elif scratch:
            _round(f, room, dtype, result, source.dtype, plane)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        planes = task_range(f, number, windows.outer, tasks)
        nest(f, [windows.outer], lambda index: outer(f, pointers, index[0], f.times(number, scratch)), planes)

    writer = RoutineWriter("select_and_scatter_add", 3 + bool(scratch))
    writer.launch(tasks, windows.outer * work * 0.4, task)
    return writer.routine(tasks * scratch)


def _zero(f: Function, sums: Value, dtype: np.dtype, size: int) -> None:
    zero = constant(f, np.zeros((), dtype), lanes_for(dtype))
    map_run(f, i64(0), i64(size), zero.lanes, lambda i, _, count: store(f, zero, f.at(sums, f"[{dtype.itemsize} x i8]", i), count=count))


def _round(f: Function, sums: Value, dtype: np.dtype, target: Value, stored: np.dtype, size: int) -> None:
    def some(i: Value, lanes: int, count: Value | None) -> None:
        total = load(f, dtype, f.at(sums, f"[{dtype.itemsize} x i8]", i), lanes, count=count)
        store(f, converted(f, total, stored), f.at(target, f"[{stored.itemsize} x i8]", i), count=count)

    map_run(f, i64(0), i64(size), lanes_for(dtype), some)


#: ``use(row, i, winners, count)``: the winners' offsets of windows from the i-th on, in the row of windows that begins at number `row`.
Use = Callable[[Value, Value, Value, "Value | None"], None]


def _each_window(f: Function, selection: WindowSelection, pointers: list[Value], outer: Value, use: Use) -> None:
    """Emit the winners of all windows of a plane: their offsets in it, or -1."""
    windows, lanes = selection.windows, selection.lanes
    counts = [axis.positions for axis in windows.vertical]

    def offset(first: Value, _at: Value, _mask: Value) -> list[Value]:
        return [f.binary("add", f.splat(narrow(f, first), lanes), steps(lanes, windows.across.stride))]

    def row(position: list[Value]) -> None:
        number = i64(0)
        for index, step in zip(position, row_major(counts), strict=True):
            number = f.plus(number, f.times(index, step))
        first = f.times(number, windows.across.positions)

        def some(i: Value, _: int, count: Value | None) -> None:
            none = f.splat(Value("i32", "-1"), lanes)
            (winner,) = winners(f, selection, pointers[1], WindowVector(outer, position, i, count), (none,), offset)
            use(first, i, winner, count)

        map_run(f, i64(0), i64(windows.across.positions), lanes, some)

    nest(f, counts, row)


# elements ask windows


def _note(f: Function, room: Value, offset: Value, winner: Value, count: Value | None) -> None:
    store(f, Number(np.dtype(np.int32), (winner,)), f.at(room, "i32", offset), count=count)


def _turned(axis: Axis) -> Axis:
    """Return the axis with elements and windows swapped."""
    return Axis(axis.positions, axis.taps, axis.base, (axis.taps - 1) * axis.dilation - axis.low, axis.stride, axis.dilation, axis.size)


def _ask(f: Function, selection: WindowSelection, source: Value, outer: Value, room: Value, result: Value) -> None:
    """Emit each element's sum of what those windows have that it wins."""
    windows, lanes, dtype = selection.windows, selection.lanes, accumulator(selection.moved)
    axes, across = [_turned(axis) for axis in windows.vertical], _turned(windows.across)
    sizes = [axis.size for axis in windows.vertical]
    given = f.at(source, f"[{selection.moved.itemsize} x i8]", f.times(outer, windows.results * across.size))

    def row(position: list[Value]) -> None:
        number = i64(0)
        for index, step in zip(position, row_major(sizes), strict=True):
            number = f.plus(number, f.times(index, step))
        first = f.times(number, windows.across.size)

        def some(i: Value, _: int, count: Value | None) -> None:
            mine = f.binary("add", f.splat(narrow(f, f.plus(first, i)), lanes), steps(lanes, 1))

            def add(met: Value, _: Value, carried: list[Value]) -> list[Value]:
                total = Number(dtype, tuple(carried))
                for k in range(across.taps):
                    start = f.plus(i, i64(k * across.dilation - across.low))
                    exist = first_lanes(f, lanes, count) if across.inside else flags(f, lanes, start, 1, across.size, count)
                    at = f.plus(f.times(met, across.size), start)
                    winner = read(f, np.dtype(np.int32), StridedLanes(f.let("ptr", f"getelementptr i32, {room}, {at}"), 1, exist)).value
                    wins = f.binary("and", exist, f.compare("icmp eq", winner, mine))
                    where = f.let("ptr", f"getelementptr [{selection.moved.itemsize} x i8], {given}, {at}")
                    total = apply(f, "add", (total, converted(f, read(f, selection.moved, StridedLanes(where, 1, wins)), dtype)), dtype, {})
                return list(total.components)

            sums = over_taps(f, axes, position, list(constant(f, np.zeros((), dtype), lanes).components), add)
            at = f.at(result, f"[{selection.moved.itemsize} x i8]", f.plus(first, i))
            store(f, converted(f, Number(dtype, tuple(sums)), selection.moved), at, count=count)

        map_run(f, i64(0), i64(windows.across.size), lanes, some)

    nest(f, sizes, row)


# windows give to elements


def _give(
    f: Function, selection: WindowSelection, source: Value, outer: Value, sums: Value, offset: Value, winner: Value, count: Value | None
) -> None:
    """Emit the sums of what some windows have into their winners."""
    windows = selection.windows
    at = f.plus(f.times(outer, windows.results * windows.across.positions), offset)
    given = load(f, selection.moved, f.at(source, f"[{selection.moved.itemsize} x i8]", at), selection.lanes, count=count)
    _add(f, sums, winner, converted(f, given, accumulator(selection.moved)).value)


def _add(f: Function, sums: Value, offsets: Value, given: Value) -> None:
    """Emit the addition of numbers to elements one by one.

    Several windows may have one winner. Negative offsets are left out.
    """
    lanes, element = lanes_of(offsets.type), element_of(given.type)
    exist = f.compare("icmp sge", offsets, f.splat(Value("i32", "0"), lanes))
    given = f.select(exist, given, Value(given.type, "zeroinitializer"))
    offsets = f.cast("zext", f.select(exist, offsets, Value(offsets.type, "zeroinitializer")), vector_of("i64", lanes))
    for lane in range(lanes):
        at = f.at(sums, element, f.let("i64", f"extractelement {offsets}, i64 {lane}"))
        more = f.let(element, f"extractelement {given}, i64 {lane}")
        align = 4 if element == "float" else 8
        f.store(f.binary("fadd", f.load(element, at, align), more), at, align)
