"""Windows and their winners, for pooling's tangents and cotangents.

A window's winner is the first of its elements, in row-major order, that equals the maximum (or minimum); NaN wins over numbers. A vector
of neighbouring windows visits its taps in order and remembers the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.geometry.windows import Windows, windows_of
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.index_arith import nest
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.library.entry_points import Writer, nothing, part, pieces
from volta_fn.targets.cpu.library.numbers import lanes_for, map_run
from volta_fn.targets.cpu.library.strided import Apart, first_lanes, flags, read
from volta_fn.targets.cpu.library.windows import over_taps, position_of
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import Number, constant, store, supports

_TASK = 1 << 13


class Moves(NamedTuple):
    """What is to be moved: the windows, the dtypes of what is moved and of what decides, "ge" for maxima or "le" for minima."""

    windows: Windows
    moved: np.dtype
    deciding: np.dtype
    select: str

    @property
    def lanes(self) -> int:
        """How many windows are looked at together."""
        return min(lanes_for(self.moved), lanes_for(self.deciding))


class Some(NamedTuple):
    """Some neighbouring windows: their place along the outer axis and the vertical ones, the first's across, how many (None: all)."""

    outer: Value
    position: Sequence[Value]
    first: Value
    number: Value | None


def moves_of(moved: ShapedArray, operand: ShapedArray, params: dict[str, Any]) -> Moves | None:
    """What is to be moved, if there are routines for it."""
    windows = windows_of(operand.shape, params)
    fits = all(supports("max", (d, d), {}) for d in (operand.dtype, moved.dtype))
    if math.prod(operand.shape) >= 1 << 31 or moved.dtype not in dtypes.FLOATS or operand.dtype.kind in "cb" or not fits:
        return None
    return Moves(windows.upright() if windows.across.base > 1 else windows, moved.dtype, operand.dtype, params["select"])


def _start(f: Function, moves: Moves, some: Some, tap: int) -> Value:
    """The element across that a tap of the first window meets."""
    axis = moves.windows.across
    return f.plus(f.times(some.first, axis.stride), i64(tap * axis.dilation - axis.low))


def apart(f: Function, moves: Moves, base: Value, dtype: np.dtype, at: Value, mask: Value) -> Apart:
    """Elements of an array as far apart as windows are, the first at `at`."""
    return Apart(f.let("ptr", f"getelementptr [{dtype.itemsize} x i8], {base}, {at}"), moves.windows.across.stride, mask)


#: ``bring(place, at, mask)``: what goes along with the elements that a tap meets: where the first is in its plane, and in the array, and
#: which of them exist.
Bring = Callable[[Value, Value, Value], list[Value]]


def winners(f: Function, moves: Moves, operand: Value, some: Some, along: Sequence[Value], bring: Bring) -> list[Value]:
    """What goes along with the winners of some windows; `along` where there is none."""
    windows, axis, lanes = moves.windows, moves.windows.across, moves.lanes
    base = f.times(some.outer, windows.rows * axis.size)

    def row(met: Value, _: Value, carried: list[Value]) -> list[Value]:
        found, best, *with_it = carried
        for k in range(axis.taps):
            start = _start(f, moves, some, k)
            place = f.plus(f.times(met, axis.size), start)
            at = f.plus(base, place)
            exist = first_lanes(f, lanes, some.number) if axis.inside else flags(f, lanes, start, axis.stride, axis.size, some.number)
            value = read(f, moves.deciding, apart(f, moves, operand, moves.deciding, at, exist)).value
            other = bring(place, at, exist)
            takes = f.binary(
                "and", exist, f.binary("or", _ahead(f, moves, value, best), f.binary("xor", found, first_lanes(f, lanes, None)))
            )
            with_it = [f.select(takes, x, y) for x, y in zip(other, with_it, strict=True)]
            best, found = f.select(takes, value, best), f.binary("or", found, exist)
        return [found, best, *with_it]

    none = Value(f"<{lanes} x i1>", "zeroinitializer")
    zero = constant(f, np.zeros((), moves.deciding), lanes).value
    _, _, *brought = over_taps(f, windows.vertical, some.position, [none, zero, *along], row)
    return brought


def _ahead(f: Function, moves: Moves, x: Value, y: Value) -> Value:
    """Whether x wins over y, which came before it."""
    beats = "gt" if moves.select == "ge" else "lt"
    if moves.deciding in dtypes.FLOATS:
        return f.binary("and", f.compare(f"fcmp u{beats}", x, y), f.compare("fcmp ord", y, y))
    return f.compare(f"icmp {'u' if moves.deciding.kind == 'u' else 's'}{beats}", x, y)


def select_and_gather_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of the primitive."""
    moves = moves_of(avals[0], avals[1], params)
    if moves is None:
        return None
    windows, lanes = moves.windows, moves.lanes
    rows, across = windows.outer * windows.results, windows.across.positions
    if not rows * across:
        return nothing()
    tasks = pieces(rows, max(1, _TASK // (across * windows.taps + 1)))

    def row(f: Function, pointers: list[Value], number: Value) -> None:
        outer, position = f.quotient(number, windows.results), position_of(f, windows, number)

        def some(i: Value, _: int, count: Value | None) -> None:
            def bring(_: Value, at: Value, mask: Value) -> list[Value]:
                return list(read(f, moves.moved, apart(f, moves, pointers[0], moves.moved, at, mask)).components)

            nothing_yet = constant(f, np.zeros((), moves.moved), lanes).components
            found = winners(f, moves, pointers[1], Some(outer, position, i, count), nothing_yet, bring)
            at = f.plus(f.times(number, across), i)
            store(f, Number(moves.moved, tuple(found)), f.at(pointers[2], f"[{moves.moved.itemsize} x i8]", at), count=count)

        map_run(f, i64(0), i64(across), lanes, some)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        nest(f, [rows], lambda index: row(f, pointers, index[0]), part(f, number, rows, tasks))

    writer = Writer("select_and_gather_add", 3)
    writer.phase(tasks, rows * across * windows.taps * 0.3, task)
    return writer.routine()
