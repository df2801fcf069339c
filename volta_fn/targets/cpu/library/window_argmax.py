"""The extrema of windows and their positions; pooling's tangents.

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
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, chunk_count, nothing, task_range
from volta_fn.targets.cpu.library.numbers import lanes_for, map_run
from volta_fn.targets.cpu.library.strided import StridedLanes, first_lanes, flags, read
from volta_fn.targets.cpu.library.windows import over_taps, position_of
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import Number, constant, store, supports

_TASK = 1 << 13


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
    fits = all(supports("max", (d, d), {}) for d in (operand.dtype, moved.dtype))
    if math.prod(operand.shape) >= 1 << 31 or moved.dtype not in dtypes.FLOATS or operand.dtype.kind in "cb" or not fits:
        return None
    return WindowSelection(windows.upright() if windows.across.base > 1 else windows, moved.dtype, operand.dtype, params["select"])


def _start(f: Function, selection: WindowSelection, some: WindowVector, tap: int) -> Value:
    """Emit the element across that a tap of the first window meets."""
    axis = selection.windows.across
    return f.plus(f.times(some.first, axis.stride), i64(tap * axis.dilation - axis.low))


def strided_lanes(f: Function, selection: WindowSelection, base: Value, dtype: np.dtype, at: Value, mask: Value) -> StridedLanes:
    """Return the elements of an array at the distance of windows, the first at `at`."""
    return StridedLanes(f.let("ptr", f"getelementptr [{dtype.itemsize} x i8], {base}, {at}"), selection.windows.across.stride, mask)


#: ``bring(offset, at, mask)`` emits what goes along with the elements that a tap meets: given the offsets of the first in its plane and in
#: the array, and which of them exist.
Bring = Callable[[Value, Value, Value], list[Value]]


def winners(
    f: Function, selection: WindowSelection, operand: Value, some: WindowVector, along: Sequence[Value], bring: Bring
) -> list[Value]:
    """Emit what `bring` gives for the windows' winners; `along` where there is none."""
    windows, axis, lanes = selection.windows, selection.windows.across, selection.lanes
    base = f.times(some.outer, windows.rows * axis.size)

    def row(met: Value, _: Value, carried: list[Value]) -> list[Value]:
        found, best, *with_it = carried
        for k in range(axis.taps):
            start = _start(f, selection, some, k)
            offset = f.plus(f.times(met, axis.size), start)
            at = f.plus(base, offset)
            exist = first_lanes(f, lanes, some.number) if axis.inside else flags(f, lanes, start, axis.stride, axis.size, some.number)
            value = read(f, selection.deciding, strided_lanes(f, selection, operand, selection.deciding, at, exist)).value
            other = bring(offset, at, exist)
            takes = f.binary(
                "and", exist, f.binary("or", _ahead(f, selection, value, best), f.binary("xor", found, first_lanes(f, lanes, None)))
            )
            with_it = [f.select(takes, x, y) for x, y in zip(other, with_it, strict=True)]
            best, found = f.select(takes, value, best), f.binary("or", found, exist)
        return [found, best, *with_it]

    none = Value(f"<{lanes} x i1>", "zeroinitializer")
    zero = constant(f, np.zeros((), selection.deciding), lanes).value
    _, _, *brought = over_taps(f, windows.vertical, some.position, [none, zero, *along], row)
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
        return nothing()
    tasks = chunk_count(rows, max(1, _TASK // (across * windows.taps + 1)))

    def row(f: Function, pointers: list[Value], number: Value) -> None:
        outer, position = f.quotient(number, windows.results), position_of(f, windows, number)

        def some(i: Value, _: int, count: Value | None) -> None:
            def bring(_: Value, at: Value, mask: Value) -> list[Value]:
                return list(read(f, selection.moved, strided_lanes(f, selection, pointers[0], selection.moved, at, mask)).components)

            nothing_yet = constant(f, np.zeros((), selection.moved), lanes).components
            found = winners(f, selection, pointers[1], WindowVector(outer, position, i, count), nothing_yet, bring)
            at = f.plus(f.times(number, across), i)
            store(f, Number(selection.moved, tuple(found)), f.at(pointers[2], f"[{selection.moved.itemsize} x i8]", at), count=count)

        map_run(f, i64(0), i64(across), lanes, some)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        nest(f, [rows], lambda index: row(f, pointers, index[0]), task_range(f, number, rows, tasks))

    writer = RoutineWriter("select_and_gather_add", 3)
    writer.launch(tasks, rows * across * windows.taps * 0.3, task)
    return writer.routine()
