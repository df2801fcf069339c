"""Sliding windows: reductions, extrema with their positions, and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.windows import Axis, Windows, over_taps, windows_of
from volta_fn.compiler.contractions import contiguous_strides
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.text import Function, Value, element_of, greatest, i64, lanes_of, least, nest, vector_of
from volta_fn.targets.cpu.library.movement import StridedLanes, first_lanes, flags, narrow, read
from volta_fn.targets.cpu.library.movement import steps as lane_steps
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, chunk_count, converted, empty_routine, lanes_for, map_run, task_range
from volta_fn.targets.cpu.scalars import Number, apply, combine, constant, load, store, supports
from volta_fn.targets.cpu.scalars.values import Lanes

#: The most taps that are unrolled.
_UNROLLED = 9


#: ``body(row, carried)`` gets the number of a row of the operand, and what is carried.
Body = Callable[[Value, list[Value]], list[Value]]


def position_of(f: Function, windows: Windows, row: Value) -> list[Value]:
    """Emit the position, along each vertical axis, of a row of windows."""
    return f.coordinates(f.remainder(row, windows.results), [axis.positions for axis in windows.vertical])


def _over_axis(f: Function, axis: Axis, position: Value, carried: list[Value], body: Body, pool: _Pool | None = None) -> list[Value]:
    """Emit the body for every element that the taps of a window meet along an axis."""
    # Taps outside are left out by the loop's bounds.
    start = f.minus(f.times(position, axis.stride), i64(axis.low))

    def at(k: Value, carried: list[Value]) -> list[Value]:
        element = f.plus(start, f.times(k, axis.dilation))
        if axis.base == 1:
            return body(element, carried)
        meets = f.compare("icmp eq", f.remainder(element, axis.base), i64(0))
        return f.branch(meets, lambda: body(f.quotient(element, axis.base), carried), lambda: carried)

    if axis.inside and axis.taps <= _UNROLLED:
        for k in range(axis.taps):
            carried = at(i64(k), carried)
        return carried
    first = steps(f, f.minus(i64(0), start), axis.dilation)
    end = least(f, i64(axis.taps), steps(f, f.minus(i64((axis.size - 1) * axis.base + 1), start), axis.dilation))
    return pool.loop(f, first, end, axis.taps, carried, at) if pool else f.loop(first, end, 1, carried, at)


def over_rows(f: Function, axes: Sequence[Axis], position: Sequence[Value], carried: list[Value], body: Body) -> list[Value]:
    """Emit the body for every row of the operand that a row of windows meets."""
    return over_taps(f, axes, position, i64(0), carried, partial(_over_axis, f), body)


def steps(f: Function, distance: Value, step: int) -> Value:
    """Emit how many steps cover a distance; none if that is negative."""
    return f.quotient(f.plus(greatest(f, distance, i64(0)), i64(step - 1)), step)


def groups(f: Function, begin: Value, end: Value, lanes: int, most: int, write: Callable[[Value, list[Value | None]], None]) -> None:
    """Call ``write(i, counts)`` for groups of up to `most` vectors in a range.

    The count of a full vector is None.
    """

    def full(count: int) -> Callable[[Value, list[Value]], None]:
        def iteration(i: Value, _: list[Value]) -> None:
            write(i, [None] * count)

        return iteration

    a, b = f.known(begin), f.known(end)
    if a is None or b is None:
        rest = f.remainder(f.minus(end, begin), lanes)
        last = f.minus(end, rest)
        f.loop(begin, last, lanes, [], full(1))

        def remainder() -> None:
            write(last, [rest])

        f.branch(f.compare("icmp sgt", rest, i64(0)), remainder)
        return
    vector_end = a + (b - a) // (lanes * most) * lanes * most
    if vector_end > a:
        f.loop(begin, i64(vector_end), lanes * most, [], full(most), nonempty=True)
    if vector_end < b:
        vectors, rest_size = divmod(b - vector_end, lanes)
        write(i64(vector_end), [None] * vectors + ([i64(rest_size)] if rest_size else []))


# Reductions of windows: first down the rows, into a padded row, then along it.

#: The most elements of a tile of a padded row, about, and its most bytes on the stack.
_TILE, _MOST_BYTES = 2048, 1 << 15
_VECTORS = 4
_TASK = 1 << 14
_BLOCK = 64  # terms of a blocked sum, which bounds the rounding error of long sums


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

    def room(self, lanes: int) -> int:
        """Return the elements of a padded row that loads of strided numbers reach."""
        return self.span + self.windows.across.stride * lanes

    def combine(self, f: Function, x: Number, y: Number) -> Number:
        return combine(f, self.reduction, x, y)

    def loop(self, f: Function, start: Value, end: Value, most: int, carried: list[Value], body: Body, step: int = 1) -> list[Value]:
        """Emit a loop that combines; long sums that round are blocked."""
        if most <= 2 * _BLOCK * step or not self.reduction.rounds or self.dtype not in dtypes.INEXACT:
            return f.loop(start, end, step, carried, body)
        neutral = constant(f, self.reduction.start(self.dtype), lanes_for(self.dtype)).components
        parts = range(0, len(carried), len(neutral))

        def block(i: Value, totals: list[Value]) -> list[Value]:
            sums = f.loop(i, least(f, f.plus(i, i64(_BLOCK * step)), end), step, [*neutral] * len(parts), body, nonempty=True)
            pairs = [[Number(self.dtype, tuple(v[k : k + len(neutral)])) for v in (totals, sums)] for k in parts]
            return [component for old, new in pairs for component in self.combine(f, old, new).components]

        return self.loop(f, start, end, most, carried, block, _BLOCK * step)


def reduce_window(avals: tuple[ShapedArray, ...], params: dict[str, Any], name: str) -> Routine | None:
    """Return the routine of the primitive of that name, which reduces windows."""
    reduction = reduction_of(name)
    (operand,) = avals
    windows = windows_of(operand.shape, params)
    if not windows.number:
        return empty_routine()
    dtype = accumulator(operand.dtype)
    if not supports(reduction.step, (dtype, dtype), {}):
        return None
    lanes = lanes_for(dtype)
    pool = _Pool(windows, operand.dtype, dtype, reduction, _tile(windows.across, lanes))
    if pool.room(lanes) * dtype.itemsize > _MOST_BYTES:
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
    padded = f.alloca(f"[{pool.dtype.itemsize} x i8]", pool.room(lanes))
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

    def clear_vector(i: Value, _: int, count: Value | None) -> None:
        store(f, neutral, f.at(padded, f"[{pool.dtype.itemsize} x i8]", i), count=count)

    map_run(f, i64(0), i64(pool.span), lanes, clear_vector)


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

    def reduce_vectors(i: Value, counts: list[Value | None]) -> None:
        start = constant(f, pool.reduction.start(pool.dtype), lanes)

        def add(met: Value, carried: list[Value]) -> list[Value]:
            result: list[Value] = []
            for k, count in enumerate(counts):
                offset = f.plus(f.plus(base, f.times(met, windows.across.size)), f.plus(i, i64(k * lanes)))
                read = load(f, pool.stored, f.at(operand, f"[{pool.stored.itemsize} x i8]", offset), lanes, count=count)
                old = Number(pool.dtype, tuple(carried[each * k : each * (k + 1)]))
                result += pool.combine(f, old, converted(f, read, pool.dtype)).components
            return result

        sums = over_taps(f, windows.vertical, position, i64(0), [*start.components] * len(counts), partial(_over_axis, f, pool=pool), add)
        for k, count in enumerate(counts):
            total = converted(f, Number(pool.dtype, tuple(sums[each * k : each * (k + 1)])), dtype)
            offset = f.plus(f.times(f.plus(i, i64(k * lanes)), step), shift)
            store(f, total, f.at(target, f"[{dtype.itemsize} x i8]", offset), count=count, stride=step)

    groups(f, begin, end, lanes, _VECTORS, reduce_vectors)


def _along(f: Function, pool: _Pool, padded: Value, result: Value, row: Value, first: Value, end: Value, lanes: int) -> None:
    axis = pool.windows.across

    def reduce_vector(i: Value, _: int, count: Value | None) -> None:
        start = f.times(f.minus(i, first), axis.stride)

        def tap(k: Value) -> Number:
            at = f.at(padded, f"[{pool.dtype.itemsize} x i8]", f.plus(start, f.times(k, axis.dilation)))
            return strided(f, pool.dtype, at, lanes, axis.stride)

        def add(k: Value, carried: list[Value]) -> list[Value]:
            return [*pool.combine(f, Number(pool.dtype, tuple(carried)), tap(k)).components]

        carried = [*tap(i64(0)).components]
        if axis.taps > 16:
            carried = pool.loop(f, i64(1), i64(axis.taps), axis.taps, carried, add)
        else:
            for k in range(1, axis.taps):
                carried = add(i64(k), carried)
        total = Number(pool.dtype, tuple(carried))
        offset = f.plus(row, i)
        store(f, converted(f, total, pool.stored), f.at(result, f"[{pool.stored.itemsize} x i8]", offset), count=count)

    map_run(f, first, end, lanes, reduce_vector)


def strided(f: Function, dtype: np.dtype, pointer: Value, lanes: int, stride: int) -> Number:
    """Emit a load of numbers at a stride; all memory between them may be read."""
    if not 1 < stride <= 4:
        return load(f, dtype, pointer, lanes, stride=stride)
    close = load(f, dtype, pointer, lanes * stride)
    return Number(dtype, tuple([Lanes(f, p).shuffle(range(0, lanes * stride, stride)).value for p in close.components]))


# Pooling's cotangents: each element gets those of the windows that it wins.
#
# A task takes planes, one for each index of the outer axis: it finds the winner of each window, and then either scatters the windows'
# cotangents to their winners or, for windows of stride 1, gathers for each element the cotangents of the windows around it.

_COTANGENT_TASK = 1 << 13


def select_and_scatter_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    source, operand = avals
    selection = selection_of(source, operand, params)
    if selection is None:
        return None
    if not operand.size:
        return empty_routine()
    windows, dtype = selection.windows, accumulator(source.dtype)
    plane, results = windows.rows * windows.across.size, windows.results * windows.across.positions
    work = plane + results * windows.taps
    tasks = chunk_count(windows.outer, max(1, _COTANGENT_TASK // work))
    gathers = windows.across.stride == 1
    scratch = results * 4 if gathers else plane * dtype.itemsize if dtype != source.dtype else 0

    def outer(f: Function, pointers: list[Value], number: Value, mine: Value) -> None:
        result = f.at(pointers[2], f"[{source.dtype.itemsize} x i8]", f.times(number, plane))
        room = f.at(pointers[3], "i8", mine) if scratch else result

        def use(row: Value, i: Value, winner: Value, count: Value | None) -> None:
            offset = f.plus(row, i)
            if gathers:
                store(f, Number(np.dtype(np.int32), (winner,)), f.at(room, "i32", offset), count=count)
            else:
                _scatter_cotangents(f, selection, pointers[0], number, room, offset, winner, count)

        if not gathers:
            zero = constant(f, np.zeros((), dtype), lanes_for(dtype))
            map_run(
                f,
                i64(0),
                i64(plane),
                zero.lanes,
                lambda i, _, count: store(f, zero, f.at(room, f"[{dtype.itemsize} x i8]", i), count=count),
            )
        _each_window(f, selection, pointers, number, use)
        if gathers:
            _gather_cotangents(f, selection, pointers[0], number, room, result)
        elif scratch:

            def round_vector(i: Value, lanes: int, count: Value | None) -> None:
                total = load(f, dtype, f.at(room, f"[{dtype.itemsize} x i8]", i), lanes, count=count)
                store(f, converted(f, total, source.dtype), f.at(result, f"[{source.dtype.itemsize} x i8]", i), count=count)

            map_run(f, i64(0), i64(plane), lanes_for(dtype), round_vector)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        planes = task_range(f, number, windows.outer, tasks)
        nest(f, [windows.outer], lambda index: outer(f, pointers, index[0], f.times(number, scratch)), planes)

    writer = RoutineWriter("select_and_scatter_add", 3 + bool(scratch))
    writer.launch(tasks, windows.outer * work * 0.4, task)
    return writer.routine(tasks * scratch)


#: ``use(row, i, winners, count)``: the winners' offsets of windows from the i-th on, in the row of windows that begins at number `row`.
Use = Callable[[Value, Value, Value, "Value | None"], None]


def _each_window(f: Function, selection: WindowSelection, pointers: list[Value], outer: Value, use: Use) -> None:
    """Emit the winners of all windows of a plane: their offsets in it, or -1."""
    windows, lanes = selection.windows, selection.lanes
    counts = [axis.positions for axis in windows.vertical]

    def offset(first: Value, _at: Value, _mask: Value) -> list[Value]:
        return [f.binary("add", f.splat(narrow(f, first), lanes), lane_steps(lanes, windows.across.stride))]

    def row(position: list[Value]) -> None:
        first = f.times(f.dotted(position, contiguous_strides(counts)), windows.across.positions)

        def select_vector(i: Value, _: int, count: Value | None) -> None:
            none = f.splat(Value("i32", "-1"), lanes)
            (winner,) = winners(f, selection, pointers[1], WindowVector(outer, position, i, count), (none,), offset)
            use(first, i, winner, count)

        map_run(f, i64(0), i64(windows.across.positions), lanes, select_vector)

    nest(f, counts, row)


# windows of stride 1: each element gathers the cotangents of the windows around it


def _gather_cotangents(f: Function, selection: WindowSelection, source: Value, outer: Value, room: Value, result: Value) -> None:
    """Emit for each element the sum of the cotangents of the windows that it wins."""
    windows, lanes, dtype = selection.windows, selection.lanes, accumulator(selection.moved)
    *axes, across = [axis.inverse.backward for axis in windows.axes]
    sizes = [axis.size for axis in windows.vertical]
    cotangents = f.at(source, f"[{selection.moved.itemsize} x i8]", f.times(outer, windows.results * across.size))

    def row(position: list[Value]) -> None:
        first = f.times(f.dotted(position, contiguous_strides(sizes)), windows.across.size)

        def sum_vector(i: Value, _: int, count: Value | None) -> None:
            mine = f.binary("add", f.splat(narrow(f, f.plus(first, i)), lanes), lane_steps(lanes, 1))

            def add(met: Value, carried: list[Value]) -> list[Value]:
                total = Number(dtype, tuple(carried))
                for k in range(across.taps):
                    start = f.plus(i, i64(k * across.dilation - across.low))
                    exist = first_lanes(f, lanes, count) if across.inside else flags(f, lanes, start, 1, across.size, count)
                    at = f.plus(f.times(met, across.size), start)
                    winner = read(f, np.dtype(np.int32), StridedLanes(f.let("ptr", f"getelementptr i32, {room}, {at}"), 1, exist)).value
                    wins = f.binary("and", exist, f.compare("icmp eq", winner, mine))
                    where = f.let("ptr", f"getelementptr [{selection.moved.itemsize} x i8], {cotangents}, {at}")
                    total = apply(f, "add", (total, converted(f, read(f, selection.moved, StridedLanes(where, 1, wins)), dtype)), dtype, {})
                return list(total.components)

            sums = over_rows(f, axes, position, list(constant(f, np.zeros((), dtype), lanes).components), add)
            at = f.at(result, f"[{selection.moved.itemsize} x i8]", f.plus(first, i))
            store(f, converted(f, Number(dtype, tuple(sums)), selection.moved), at, count=count)

        map_run(f, i64(0), i64(windows.across.size), lanes, sum_vector)

    nest(f, sizes, row)


# other windows: their cotangents are scattered to the winners


def _scatter_cotangents(
    f: Function, selection: WindowSelection, source: Value, outer: Value, sums: Value, offset: Value, winner: Value, count: Value | None
) -> None:
    """Emit the addition of some windows' cotangents to their winners."""
    windows = selection.windows
    at = f.plus(f.times(outer, windows.results * windows.across.positions), offset)
    cotangents = load(f, selection.moved, f.at(source, f"[{selection.moved.itemsize} x i8]", at), selection.lanes, count=count)
    _add(f, sums, winner, converted(f, cotangents, accumulator(selection.moved)).value)


def _add(f: Function, sums: Value, offsets: Value, values: Value) -> None:
    """Emit the addition of numbers to elements one by one."""
    # Several windows may have one winner. Negative offsets are left out.
    lanes, element = lanes_of(offsets.type), element_of(values.type)
    exist = f.compare("icmp sge", offsets, f.splat(Value("i32", "0"), lanes))
    values = f.select(exist, values, Value(values.type, "zeroinitializer"))
    offsets = f.cast("zext", f.select(exist, offsets, Value(offsets.type, "zeroinitializer")), vector_of("i64", lanes))
    for lane in range(lanes):
        at = f.at(sums, element, f.let("i64", f"extractelement {offsets}, i64 {lane}"))
        more = f.let(element, f"extractelement {values}, i64 {lane}")
        align = 4 if element == "float" else 8
        f.store(f.binary("fadd", f.load(element, at, align), more), at, align)


# The extrema of windows and their positions; pooling's tangents.
#
# A window's winner is the first of its elements, in row-major order, that equals the maximum (or minimum); NaN wins over numbers. A
# vector of neighbouring windows visits its taps in order and remembers the best so far.

_ARGMAX_TASK = 1 << 13


class WindowSelection(NamedTuple):
    """A selection by windows, with the dtypes of what is moved and of what decides.

    `select` is "ge" for maxima or "le" for minima.
    """

    windows: Windows
    moved: np.dtype
    deciding: np.dtype
    select: str

    @property
    def lanes(self) -> int:
        """The number of windows that are processed together."""
        return min(lanes_for(self.moved), lanes_for(self.deciding))


class WindowVector(NamedTuple):
    """Neighbouring windows: the first's position, and their number (None: all)."""

    outer: Value
    position: Sequence[Value]
    first: Value
    number: Value | None


def selection_of(moved: ShapedArray, operand: ShapedArray, params: dict[str, Any]) -> WindowSelection | None:
    """Return the selection, if it is supported."""
    windows = windows_of(operand.shape, params)
    windows = windows.upright() if windows.across.base > 1 else windows
    selection = WindowSelection(windows, moved.dtype, operand.dtype, params["select"])
    supported = all(supports("max", (d, d), {}) for d in (operand.dtype, moved.dtype))
    if moved.dtype not in dtypes.FLOATS or operand.dtype.kind in "cb" or not supported:
        return None
    # Offsets in a plane, and elements along an axis that the lanes of windows meet, have 32 bits.
    return selection if max(windows.elements, windows.reach + selection.lanes * windows.across.stride) < 1 << 31 else None


def _start(f: Function, selection: WindowSelection, vector: WindowVector, tap: int) -> Value:
    """Emit the element across that a tap of the first window meets."""
    axis = selection.windows.across
    return f.plus(f.times(vector.first, axis.stride), i64(tap * axis.dilation - axis.low))


def strided_lanes(f: Function, selection: WindowSelection, base: Value, dtype: np.dtype, at: Value, mask: Value) -> StridedLanes:
    """Return the elements of an array at the distance of windows, the first at `at`."""
    return StridedLanes(f.let("ptr", f"getelementptr [{dtype.itemsize} x i8], {base}, {at}"), selection.windows.across.stride, mask)


#: ``bring(offset, at, mask)`` emits the values that belong to the elements that a tap meets. `offset` and `at` are the offsets of the first
#: element in its plane and in the array, `mask` tells which elements exist.
Bring = Callable[[Value, Value, Value], list[Value]]


def winners(
    f: Function, selection: WindowSelection, operand: Value, vector: WindowVector, along: Sequence[Value], bring: Bring
) -> list[Value]:
    """Emit the values that `bring` gives for the windows' winners.

    Windows without a winner have those of `along`.
    """
    windows, axis, lanes = selection.windows, selection.windows.across, selection.lanes
    base = f.times(vector.outer, windows.rows * axis.size)

    def row(met: Value, carried: list[Value]) -> list[Value]:
        has_winner, best, *values = carried
        for k in range(axis.taps):
            start = _start(f, selection, vector, k)
            offset = f.plus(f.times(met, axis.size), start)
            at = f.plus(base, offset)
            exist = first_lanes(f, lanes, vector.number) if axis.inside else flags(f, lanes, start, axis.stride, axis.size, vector.number)
            value = read(f, selection.deciding, strided_lanes(f, selection, operand, selection.deciding, at, exist)).value
            other = bring(offset, at, exist)
            takes = f.binary(
                "and", exist, f.binary("or", _ahead(f, selection, value, best), f.binary("xor", has_winner, first_lanes(f, lanes, None)))
            )
            values = [f.select(takes, x, y) for x, y in zip(other, values, strict=True)]
            best, has_winner = f.select(takes, value, best), f.binary("or", has_winner, exist)
        return [has_winner, best, *values]

    none = Value(f"<{lanes} x i1>", "zeroinitializer")
    zero = constant(f, np.zeros((), selection.deciding), lanes).value
    _, _, *brought = over_rows(f, windows.vertical, vector.position, [none, zero, *along], row)
    return brought


def _ahead(f: Function, selection: WindowSelection, x: Value, y: Value) -> Value:
    """Emit whether x wins over y, which came before it."""
    beats = "gt" if selection.select == "ge" else "lt"
    if selection.deciding in dtypes.FLOATS:
        return f.binary("and", f.compare(f"fcmp u{beats}", x, y), f.compare("fcmp ord", y, y))
    return f.compare(f"icmp {'u' if selection.deciding.kind == 'u' else 's'}{beats}", x, y)


def select_and_gather_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    selection = selection_of(avals[0], avals[1], params)
    if selection is None:
        return None
    windows, lanes = selection.windows, selection.lanes
    rows, across = windows.outer * windows.results, windows.across.positions
    if not rows * across:
        return empty_routine()
    tasks = chunk_count(rows, max(1, _ARGMAX_TASK // (across * windows.taps + 1)))

    def row(f: Function, pointers: list[Value], number: Value) -> None:
        outer, position = f.quotient(number, windows.results), position_of(f, windows, number)

        def gather_vector(i: Value, _: int, count: Value | None) -> None:
            def bring(_: Value, at: Value, mask: Value) -> list[Value]:
                return list(read(f, selection.moved, strided_lanes(f, selection, pointers[0], selection.moved, at, mask)).components)

            nothing_yet = constant(f, np.zeros((), selection.moved), lanes).components
            components = winners(f, selection, pointers[1], WindowVector(outer, position, i, count), nothing_yet, bring)
            at = f.plus(f.times(number, across), i)
            store(f, Number(selection.moved, tuple(components)), f.at(pointers[2], f"[{selection.moved.itemsize} x i8]", at), count=count)

        map_run(f, i64(0), i64(across), lanes, gather_vector)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        nest(f, [rows], lambda index: row(f, pointers, index[0]), task_range(f, number, rows, tasks))

    writer = RoutineWriter("select_and_gather_add", 3)
    writer.launch(tasks, rows * across * windows.taps * 0.3, task)
    return writer.routine()
