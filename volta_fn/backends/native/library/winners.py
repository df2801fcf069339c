"""What moves numbers between windows and their winners: pooling's tangents and cotangents.

A window's winner is the first of its elements, in row-major order, that equals the maximum (or minimum); NaN wins over numbers. A vector
of neighbouring windows visits its taps in order and remembers the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.backends.native.library.numbers import converted, lanes_for, map_run, working
from volta_fn.backends.native.library.strided import Apart, first_lanes, flags, narrow, read, steps
from volta_fn.backends.native.library.whole import nest, plus, quotient, times
from volta_fn.backends.native.library.windows import Windows, over_taps, windows_of
from volta_fn.backends.native.library.writing import Writer, nothing, part, pieces, row_major
from volta_fn.backends.native.llvm.text import Function, Value, element_of, i64, lanes_of, vector_of
from volta_fn.backends.native.routine import Routine
from volta_fn.backends.native.scalars import Number, constant, load, store, supports
from volta_fn.core.aval import ShapedArray

_TASK = 1 << 13


class _Moves(NamedTuple):
    """What is to be moved: the windows, the dtypes of what is moved and of what decides, "ge" for maxima or "le" for minima."""

    windows: Windows
    moved: np.dtype
    deciding: np.dtype
    select: str

    @property
    def lanes(self) -> int:
        """How many windows are looked at together."""
        return min(lanes_for(self.moved), lanes_for(self.deciding))


class _Some(NamedTuple):
    """Some neighbouring windows: their place along the outer axis and the vertical ones, the first's across, how many (None: all)."""

    outer: Value
    position: Sequence[Value]
    first: Value
    number: Value | None


def _described(moved: ShapedArray, operand: ShapedArray, params: dict[str, Any]) -> _Moves | None:
    windows = windows_of(operand.shape, params)
    fits = all(supports("max", (d, d), {}) for d in (operand.dtype, moved.dtype))
    if math.prod(operand.shape) >= 1 << 31 or moved.dtype not in dtypes.FLOATS or operand.dtype.kind in "cb" or not fits:
        return None
    return _Moves(windows.upright() if windows.across.base > 1 else windows, moved.dtype, operand.dtype, params["select"])


def select_and_gather_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of the primitive: to each window what its winner has."""
    moves = _described(avals[0], avals[1], params)
    if moves is None:
        return None
    windows, lanes = moves.windows, moves.lanes
    rows, across = windows.outer * windows.results, windows.across.positions
    if not rows * across:
        return nothing()
    tasks = pieces(rows, max(1, _TASK // (across * windows.taps + 1)))

    def row(f: Function, pointers: list[Value], number: Value) -> None:
        outer, position = quotient(f, number, windows.results), windows.position(f, number)

        def some(i: Value, _: int, count: Value | None) -> None:
            def bring(_: Value, at: Value, mask: Value) -> list[Value]:
                return list(read(f, moves.moved, _apart(f, moves, pointers[0], moves.moved, at, mask)).parts)

            nothing_yet = constant(f, np.zeros((), moves.moved), lanes).parts
            found = _winners(f, moves, pointers[1], _Some(outer, position, i, count), nothing_yet, bring)
            at = plus(f, times(f, number, across), i)
            store(f, Number(moves.moved, tuple(found)), f.at(pointers[2], f"[{moves.moved.itemsize} x i8]", at), count=count)

        map_run(f, i64(0), i64(across), lanes, some)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        nest(f, [rows], lambda index: row(f, pointers, index[0]), part(f, number, rows, tasks))

    writer = Writer("select_and_gather_add", 3)
    writer.phase(tasks, rows * across * windows.taps * 0.3, task)
    return writer.routine()


def select_and_scatter_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of the primitive: to each element the sum of what the windows have that it wins."""
    source, operand = avals
    moves = _described(source, operand, params)
    if moves is None:
        return None
    if not operand.size:
        return nothing()
    windows, dtype = moves.windows, working(source.dtype)
    plane = windows.rows * windows.across.size
    work = plane + windows.results * windows.across.positions * windows.taps
    tasks = pieces(windows.outer, max(1, _TASK // work))
    wide = dtype != source.dtype

    def outer(f: Function, pointers: list[Value], number: Value, task: Value) -> None:
        result = f.at(pointers[2], f"[{source.dtype.itemsize} x i8]", times(f, number, plane))
        sums = f.at(pointers[3], f"[{dtype.itemsize} x i8]", times(f, task, plane)) if wide else result
        _zero(f, sums, dtype, plane)
        _scatter(f, moves, pointers, number, sums)
        if wide:
            _round(f, sums, dtype, result, source.dtype, plane)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        mine = part(f, number, windows.outer, tasks)
        nest(f, [windows.outer], lambda index: outer(f, pointers, index[0], number), mine)

    writer = Writer("select_and_scatter_add", 3 + wide)
    writer.phase(tasks, windows.outer * work * 0.4, task)
    return writer.routine(tasks * plane * dtype.itemsize if wide else 0)


def _zero(f: Function, sums: Value, dtype: np.dtype, size: int) -> None:
    zero = constant(f, np.zeros((), dtype), lanes_for(dtype))
    map_run(f, i64(0), i64(size), zero.lanes, lambda i, _, count: store(f, zero, f.at(sums, f"[{dtype.itemsize} x i8]", i), count=count))


def _round(f: Function, sums: Value, dtype: np.dtype, target: Value, stored: np.dtype, size: int) -> None:
    def some(i: Value, lanes: int, count: Value | None) -> None:
        total = load(f, dtype, f.at(sums, f"[{dtype.itemsize} x i8]", i), lanes, count=count)
        store(f, converted(f, total, stored), f.at(target, f"[{stored.itemsize} x i8]", i), count=count)

    map_run(f, i64(0), i64(size), lanes_for(dtype), some)


def _scatter(f: Function, moves: _Moves, pointers: list[Value], outer: Value, sums: Value) -> None:
    """All windows of one place of the outer axis."""
    windows, lanes = moves.windows, moves.lanes
    counts = [axis.positions for axis in windows.vertical]

    def place(first: Value, _at: Value, _mask: Value) -> list[Value]:
        return [f.binary("add", f.splat(narrow(f, first), lanes), steps(lanes, windows.across.stride))]

    def row(position: list[Value]) -> None:
        number = times(f, outer, windows.results)
        for index, step in zip(position, row_major(counts), strict=True):
            number = plus(f, number, times(f, index, step))

        def some(i: Value, _: int, count: Value | None) -> None:
            none = f.splat(Value("i32", "-1"), lanes)
            (winner,) = _winners(f, moves, pointers[1], _Some(outer, position, i, count), (none,), place)
            at = plus(f, times(f, number, windows.across.positions), i)
            given = load(f, moves.moved, f.at(pointers[0], f"[{moves.moved.itemsize} x i8]", at), lanes, count=count)
            _add(f, sums, winner, converted(f, given, working(moves.moved)).value)

        map_run(f, i64(0), i64(windows.across.positions), lanes, some)

    nest(f, counts, row)


def _add(f: Function, sums: Value, places: Value, given: Value) -> None:
    """Add numbers to elements, one after another: several windows may have one winner. Those of places below 0 are left out."""
    lanes, element = lanes_of(places.type), element_of(given.type)
    exist = f.compare("icmp sge", places, f.splat(Value("i32", "0"), lanes))
    given = f.select(exist, given, Value(given.type, "zeroinitializer"))
    places = f.cast("zext", f.select(exist, places, Value(places.type, "zeroinitializer")), vector_of("i64", lanes))
    for lane in range(lanes):
        at = f.at(sums, element, f.let("i64", f"extractelement {places}, i64 {lane}"))
        more = f.let(element, f"extractelement {given}, i64 {lane}")
        align = 4 if element == "float" else 8
        f.store(f.binary("fadd", f.load(element, at, align), more), at, align)


def _start(f: Function, moves: _Moves, some: _Some, tap: int) -> Value:
    """The element across that a tap of the first window meets."""
    axis = moves.windows.across
    return plus(f, times(f, some.first, axis.stride), i64(tap * axis.dilation - axis.low))


def _apart(f: Function, moves: _Moves, base: Value, dtype: np.dtype, at: Value, mask: Value) -> Apart:
    return Apart(f.let("ptr", f"getelementptr [{dtype.itemsize} x i8], {base}, {at}"), moves.windows.across.stride, mask)


#: ``bring(place, at, mask)``: what goes along with the elements that a tap meets: where the first is in its plane, and in the array, and
#: which of them exist.
Bring = Callable[[Value, Value, Value], list[Value]]


def _winners(f: Function, moves: _Moves, operand: Value, some: _Some, along: Sequence[Value], bring: Bring) -> list[Value]:
    """What goes along with the winners of some windows; `along` where there is none."""
    windows, axis, lanes = moves.windows, moves.windows.across, moves.lanes
    base = times(f, some.outer, windows.rows * axis.size)

    def row(met: Value, _: Value, carried: list[Value]) -> list[Value]:
        found, best, *with_it = carried
        for k in range(axis.taps):
            start = _start(f, moves, some, k)
            place = plus(f, times(f, met, axis.size), start)
            at = plus(f, base, place)
            exist = first_lanes(f, lanes, some.number) if axis.inside else flags(f, lanes, start, axis.stride, axis.size, some.number)
            value = read(f, moves.deciding, _apart(f, moves, operand, moves.deciding, at, exist)).value
            other = bring(place, at, exist)
            takes = f.binary(
                "and", exist, f.binary("or", _ahead(f, moves, value, best), f.binary("xor", found, first_lanes(f, lanes, None)))
            )
            with_it = [f.select(takes, x, y) for x, y in zip(other, with_it, strict=True)]
            best, found = f.select(takes, value, best), f.binary("or", found, exist)
        return [found, best, *with_it]

    none = Value(f"<{lanes} x i1>", "zeroinitializer")
    zero = constant(f, np.zeros((), moves.deciding), lanes).value
    _, _, *winners = over_taps(f, windows.vertical, some.position, [none, zero, *along], row)
    return winners


def _ahead(f: Function, moves: _Moves, x: Value, y: Value) -> Value:
    """Whether x wins over y, which came before it."""
    beats = "gt" if moves.select == "ge" else "lt"
    if moves.deciding in dtypes.FLOATS:
        return f.binary("and", f.compare(f"fcmp u{beats}", x, y), f.compare("fcmp ord", y, y))
    return f.compare(f"icmp {'u' if moves.deciding.kind == 'u' else 's'}{beats}", x, y)
