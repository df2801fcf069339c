"""Sliding windows: the rows and elements that a window meets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.codegen.geometry.windows import Axis, Windows
from volta_fn.runtime.llvm.index_arith import greatest, least
from volta_fn.runtime.llvm.text import Function, Value, i64

#: Up to so many taps are written out one by one.
_UNROLLED = 9


def position_of(f: Function, windows: Windows, row: Value) -> list[Value]:
    """Emit the position, along each vertical axis, of a row of windows."""
    found: list[Value] = []
    for axis in reversed(windows.vertical):
        found.append(f.remainder(row, axis.positions))
        row = f.quotient(row, axis.positions)
    return found[::-1]


#: ``body(row, tap, carried)`` gets the row of the operand that a tap of the vertical axes meets, the tap's number, and what is carried.
Body = Callable[[Value, Value, list[Value]], list[Value]]


def over_taps(f: Function, axes: Sequence[Axis], position: Sequence[Value], carried: list[Value], body: Body) -> list[Value]:
    """Emit the body for every tap of a row of windows that meets a row of the operand."""

    def level(depth: int, row: Value, tap: Value, carried: list[Value]) -> list[Value]:
        if depth == len(axes):
            return body(row, tap, carried)
        axis = axes[depth]
        start = f.minus(f.times(position[depth], axis.stride), i64(axis.low))

        def at(k: Value, carried: list[Value]) -> list[Value]:
            element = f.plus(start, f.times(k, axis.dilation))
            met = f.plus(f.times(row, axis.size), f.quotient(element, axis.base))
            return level(depth + 1, met, f.plus(f.times(tap, axis.taps), k), carried)

        if axis.inside and axis.taps <= _UNROLLED:
            for k in range(axis.taps):
                carried = at(i64(k), carried)
            return carried

        def one(k: Value, carried: list[Value]) -> list[Value]:
            if axis.base == 1:
                return at(k, carried)
            element = f.plus(start, f.times(k, axis.dilation))
            meets = f.compare("icmp eq", f.remainder(element, axis.base), i64(0))
            return f.branch(meets, lambda: at(k, carried), lambda: carried)

        first = steps(f, f.minus(i64(0), start), axis.dilation)
        end = least(f, i64(axis.taps), steps(f, f.minus(i64((axis.size - 1) * axis.base + 1), start), axis.dilation))
        return f.loop(first, end, 1, carried, one)

    return level(0, i64(0), i64(0), carried)


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

        def partly() -> None:
            write(last, [rest])

        f.branch(f.compare("icmp sgt", rest, i64(0)), partly)
        return
    vector_end = a + (b - a) // (lanes * most) * lanes * most
    if vector_end > a:
        f.loop(begin, i64(vector_end), lanes * most, [], full(most), once=True)
    if vector_end < b:
        vectors, rest_size = divmod(b - vector_end, lanes)
        write(i64(vector_end), [None] * vectors + ([i64(rest_size)] if rest_size else []))
