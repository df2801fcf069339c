"""Sliding windows over rows of contiguous elements: which rows and which of their elements a window meets.

The axes of an operand are put together into an *outer* one that no window slides over, *vertical* ones, and the one *across*, which is
contiguous: the last one, or all those behind the last that windows slide over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn.backends.native.library.whole import greatest, known, least, minus, plus, quotient, remainder, times
from volta_fn.backends.native.llvm.text import Function, Value, i64
from volta_fn.primitives.geometry import window_counts

#: Up to so many taps are written out one by one.
_UNROLLED = 9


class Axis(NamedTuple):
    """An axis: at position p, tap k meets the element (p * stride + k * dilation - low) / base, if there is one."""

    size: int
    taps: int
    stride: int
    low: int
    base: int
    dilation: int
    positions: int

    @property
    def plain(self) -> bool:
        """Whether every element is a window of its own."""
        return self.taps == self.stride == self.base == 1 and self.low == 0 and self.positions == self.size

    @property
    def inside(self) -> bool:
        """Whether every tap of every window meets an element."""
        reach = (self.positions - 1) * self.stride + (self.taps - 1) * self.dilation - self.low
        return self.low <= 0 and self.base == 1 and reach < self.size


class Windows(NamedTuple):
    """How windows lie on an operand."""

    outer: int
    vertical: tuple[Axis, ...]
    across: Axis

    @property
    def rows(self) -> int:
        """Rows of the operand for each place of the outer axis."""
        return math.prod(axis.size for axis in self.vertical)

    @property
    def results(self) -> int:
        """Rows of windows for each place of the outer axis."""
        return math.prod(axis.positions for axis in self.vertical)

    @property
    def taps(self) -> int:
        """How many taps a window has."""
        return self.across.taps * math.prod(axis.taps for axis in self.vertical)

    def upright(self) -> Windows:
        """The same windows, with all axes that they slide over vertical, and rows of one element."""
        return self if self.across.plain else Windows(self.outer, (*self.vertical, self.across), Axis(1, 1, 1, 0, 1, 1, 1))

    def position(self, f: Function, row: Value) -> list[Value]:
        """The position, along each vertical axis, of a row of windows."""
        found: list[Value] = []
        for axis in reversed(self.vertical):
            found.append(remainder(f, row, axis.positions))
            row = quotient(f, row, axis.positions)
        return found[::-1]


def windows_of(shape: Sequence[int], params: dict[str, Any]) -> Windows:
    """The windows of a window primitive's parameters."""
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    taps, strides, padding, bases, dilations = (params[name] for name in names)
    counts = window_counts(tuple(shape), taps, strides, padding, bases, dilations)
    lows = [low for low, _ in padding]
    axes = [Axis(*axis) for axis in zip(shape, taps, strides, lows, bases, dilations, counts, strict=True)]
    slid = [d for d, axis in enumerate(axes) if not axis.plain]
    first, last = (slid[0], slid[-1]) if slid else (len(axes), len(axes) - 1)
    outer, behind = math.prod(shape[:first]), math.prod(shape[last + 1 :])
    if behind > 1 or not slid:
        return Windows(outer, tuple(axes[first : last + 1]), Axis(behind, 1, 1, 0, 1, 1, behind))
    return Windows(outer, tuple(axes[first:last]), axes[last])


#: ``body(row, tap, carried)`` gets the row of the operand that a tap of the vertical axes meets, the tap's number, and what is carried.
Body = Callable[[Value, Value, list[Value]], list[Value]]


def over_taps(f: Function, axes: Sequence[Axis], position: Sequence[Value], carried: list[Value], body: Body) -> list[Value]:
    """Do the body for every tap of a row of windows that meets a row of the operand."""

    def level(depth: int, row: Value, tap: Value, carried: list[Value]) -> list[Value]:
        if depth == len(axes):
            return body(row, tap, carried)
        axis = axes[depth]
        start = minus(f, times(f, position[depth], axis.stride), i64(axis.low))

        def at(k: Value, carried: list[Value]) -> list[Value]:
            place = plus(f, start, times(f, k, axis.dilation))
            met = plus(f, times(f, row, axis.size), quotient(f, place, axis.base))
            return level(depth + 1, met, plus(f, times(f, tap, axis.taps), k), carried)

        if axis.inside and axis.taps <= _UNROLLED:
            for k in range(axis.taps):
                carried = at(i64(k), carried)
            return carried

        def one(k: Value, carried: list[Value]) -> list[Value]:
            if axis.base == 1:
                return at(k, carried)
            place = plus(f, start, times(f, k, axis.dilation))
            meets = f.compare("icmp eq", remainder(f, place, axis.base), i64(0))
            return f.branch(meets, lambda: at(k, carried), lambda: carried)

        first = steps(f, minus(f, i64(0), start), axis.dilation)
        end = least(f, i64(axis.taps), steps(f, minus(f, i64((axis.size - 1) * axis.base + 1), start), axis.dilation))
        return f.loop(first, end, 1, carried, one)

    return level(0, i64(0), i64(0), carried)


def steps(f: Function, distance: Value, step: int) -> Value:
    """How many steps it takes to cover a distance; none if that is negative."""
    return quotient(f, plus(f, greatest(f, distance, i64(0)), i64(step - 1)), step)


def groups(f: Function, begin: Value, end: Value, lanes: int, most: int, write: Callable[[Value, list[Value | None]], None]) -> None:
    """``write(i, counts)`` for groups of up to `most` vectors from `begin` up to `end`; a vector's count is None if it is full."""

    def full(count: int) -> Callable[[Value, list[Value]], list[Value]]:
        def turn(i: Value, _: list[Value]) -> list[Value]:
            write(i, [None] * count)
            return []

        return turn

    a, b = known(begin), known(end)
    if a is None or b is None:
        rest = remainder(f, minus(f, end, begin), lanes)
        last = minus(f, end, rest)
        f.loop(begin, last, lanes, [], full(1))

        def partly() -> list[Value]:
            write(last, [rest])
            return []

        f.branch(f.compare("icmp sgt", rest, i64(0)), partly)
        return
    whole = a + (b - a) // (lanes * most) * lanes * most
    if whole > a:
        f.loop(begin, i64(whole), lanes * most, [], full(most), once=True)
    if whole < b:
        vectors, rest_size = divmod(b - whole, lanes)
        write(i64(whole), [None] * vectors + ([i64(rest_size)] if rest_size else []))
