"""Gather: windows of the operand copied into the result.

A task finds the offsets of a block of windows and then copies them. Dimensions of the windows that come before the batch in the result
are loops around that copying, so that the result is written in order. Windows of one element are copied as their offsets are
found, several at a time where all of them are inside, which one comparison of vectors finds out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.codegen.geometry.window_offsets import Layout, Starts, WindowStart, gather_of, window_offset, window_start
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.data_movement.indexing import default_fill
from volta_fn.runtime.llvm.index_arith import clamped, least, nest, rounded_down, widened
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.library.copy_ops import alignment, bits, copy_block, fill_block, unit
from volta_fn.targets.cpu.library.entry_points import TASK_BYTES, RoutineWriter, chunk_count, nothing, task_range
from volta_fn.targets.cpu.routine import Routine

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
        return nothing()
    windows = gather_of(avals, params)
    fill = bits(default_fill(operand.dtype) if params["fill_value"] is None else params["fill_value"], operand.dtype)
    added = operand.shape[windows.starts.addressed[0][0]] if wraps else 0
    gathering = _Gather(windows.starts, windows.layout, unit(operand.dtype.itemsize), fill, added)
    return _write(gathering, result.size * operand.dtype.itemsize)


def _write(gathering: _Gather, size: int) -> Routine:
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

            def one(number: Value, _: list[Value]) -> None:
                offset = f.load("i64", f.at(offsets, "i64", f.minus(number, begin)), 8)
                self._window(f, source, f.at(target, self.type, window_offset(f, self.layout, number)), offset, None if sizes else first)

            f.loop(begin, end, 1, [], one)

        nest(f, sizes, lead, first)

    def _elements(self, f: Function, pointers: list[Value], begin: Value, end: Value) -> None:
        """Emit the copies of windows of one element."""
        operand, indices, result = pointers

        def one(number: Value, checked: bool = True) -> None:
            start = start_of(f, self.starts, indices, number, self.added, checked)
            value = f.load(self.type, f.at(operand, self.type, start.offset), alignment(self.type))
            kept = value if start.valid is None else f.select(start.valid, value, self.fill)
            f.store(kept, f.at(result, self.type, window_offset(f, self.layout, number)), alignment(self.type))

        def several(first: Value, _: list[Value]) -> None:
            def unchecked() -> None:
                for distance in range(_UNROLLED):
                    one(f.plus(first, i64(distance)), checked=False)

            def checked() -> None:
                f.loop(first, f.plus(first, i64(_UNROLLED)), 1, [], lambda number, _: one(number))

            f.branch(are_inside(f, self.starts, indices, first, _UNROLLED), unchecked, checked)

        middle = f.plus(begin, rounded_down(f, f.minus(end, begin), _UNROLLED))
        f.loop(begin, middle, _UNROLLED, [], several)
        f.loop(middle, end, 1, [], lambda number, _: one(number))

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
    """Emit whether so many windows, from a number on, lie inside as they are."""
    kind, entries = starts.indices.dtype, len(starts.addressed)
    if not entries:
        return Value("i1", "true")
    type_, lanes = f"i{8 * kind.itemsize}", count * entries
    most = int(np.iinfo(kind).max)
    limits = ", ".join(f"{type_} {min(limit, most)}" for _ in range(count) for *_, limit in starts.addressed)
    found = f.load(vector_of(type_, lanes), f.at(indices, type_, f.times(first, entries)), kind.itemsize)
    inside = f.compare("icmp ule", found, Value(found.type, f"<{limits}>"))
    return f.intrinsic(f"llvm.vector.reduce.and.v{lanes}i1", "i1", inside)
