"""Sorting rows by NumPy's sorts, which are faster than `ranking` and `radix`.

A row of real numbers is copied and sorted in place. NumPy does not sort stably: of equal numbers only zeros of either sign differ, so
these are put in their order afterwards. Of several operands the elements' keys of up to 32 bits are sorted together with their
numbers, as integers of 64 bits, by which the operands are then put in order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from volta_fn.codegen.sort_keys import is_float
from volta_fn.runtime.llvm.index_arith import least, nest
from volta_fn.runtime.llvm.numpy_sorts import address, symbol
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.library.copy_ops import copy_bytes
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, chunk_count, task_range
from volta_fn.targets.cpu.library.keys import widen
from volta_fn.targets.cpu.routine import Routine

if TYPE_CHECKING:
    from volta_fn.targets.cpu.library.sort import SortProblem

_TASK = 1 << 12
#: Columns that are copied together to rows, since their elements share cache lines.
_TOGETHER = 16
_PACKED = np.dtype(np.uint64)
_SORTED = frozenset(map(np.dtype, ("f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")))
_ELEMENTS = {("f", 4): "float", ("f", 8): "double"}


def sort_by_numpy(rows: SortProblem) -> Routine | None:
    """Return the routine for rows that NumPy's functions can sort; None for others."""
    first, *others = rows.keys
    if len(rows.avals) == 1 and not rows.falling:
        return _Alone(rows).routine() if first.dtype in _SORTED and first.components == 1 and address(first.dtype) else None
    fits = not others and first.components == 1 and first.dtype.itemsize <= 4
    return _Packed(rows).routine() if fits and address(_PACKED) else None


def _emit_sort(f: Function, dtype: np.dtype, start: Value, size: int) -> None:
    f.module.declare(symbol(dtype), f"declare i32 @{symbol(dtype)}(ptr, i64, ptr)")
    f.call(symbol(dtype), "i32", start, i64(size), Value("ptr", "null"))


def _cost(rows: SortProblem) -> float:
    return rows.number * rows.size * (0.5 + 0.15 * math.log2(rows.size + 1)) * len(rows.avals)


class _Alone:
    """The routine for one operand."""

    def __init__(self, rows: SortProblem) -> None:
        self.rows, self.dtype = rows, rows.keys[0].dtype
        self.bytes = self.dtype.itemsize
        self.element = _ELEMENTS.get((self.dtype.kind, self.bytes), f"i{8 * self.bytes}")
        self.has_zeros = rows.stable and is_float(self.dtype)

    def routine(self) -> Routine:
        """Return the routine."""
        rows, writer = self.rows, RoutineWriter("sort", 2 if self.rows.columns == 1 else 3)
        together = 1 if rows.columns == 1 else min(_TOGETHER, rows.columns)
        groups = rows.number // rows.columns * -(-rows.columns // together)
        tasks = chunk_count(groups, max(1, _TASK // (rows.size * together)), 32)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            def one(index: list[Value]) -> None:
                if rows.columns == 1:
                    self._row(f, pointers, f.times(index[0], rows.size))
                else:
                    self._columns(f, pointers, index[0], number, together)

            nest(f, [groups], one, task_range(f, number, groups, tasks))

        writer.launch(tasks, _cost(rows), task)
        return writer.routine(0 if rows.columns == 1 else tasks * together * rows.size * self.bytes)

    def _row(self, f: Function, pointers: list[Value], offset: Value) -> None:
        source, target = (f.at(pointer, self.element, offset) for pointer in pointers[:2])
        copy_bytes(f, target, source, i64(self.rows.size * self.bytes), self.bytes)
        self._sorted(f, target, source, 1)

    def _sorted(self, f: Function, row: Value, source: Value, stride: int) -> None:
        """Sort a row, whose elements are at `source` in their order."""
        _emit_sort(f, self.dtype, row, self.rows.size)
        if self.has_zeros and self.rows.size > 1:
            self._order_zeros(f, row, source, stride)

    def _columns(self, f: Function, pointers: list[Value], group: Value, task: Value, together: int) -> None:
        """Sort neighbouring columns in the task's memory."""
        rows = self.rows
        blocks = -(-rows.columns // together)
        first = f.times(f.remainder(group, blocks), together)
        count = least(f, f.minus(i64(rows.columns), first), i64(together))
        start = f.plus(f.times(f.quotient(group, blocks), rows.size * rows.columns), first)
        source, target = (f.at(pointer, self.element, start) for pointer in pointers[:2])
        memory = f.at(pointers[2], self.element, f.times(task, together * rows.size))

        def move(to_memory: bool) -> None:
            def one(i: Value, column: Value) -> None:
                here = f.at(source if to_memory else target, self.element, f.plus(f.times(i, rows.columns), column))
                there = f.at(memory, self.element, f.plus(f.times(column, rows.size), i))
                read, written = (here, there) if to_memory else (there, here)
                f.store(f.load(self.element, read, self.bytes), written, self.bytes)

            def each(index: list[Value]) -> None:
                f.loop(i64(0), count, 1, [], lambda column, _: one(index[0], column))

            nest(f, [rows.size], each)

        def sort_column(column: Value, _: list[Value]) -> None:
            row = f.at(memory, self.element, f.times(column, rows.size))
            self._sorted(f, row, f.at(source, self.element, column), rows.columns)

        move(True)
        f.loop(i64(0), count, 1, [], sort_column)
        move(False)

    def _order_zeros(self, f: Function, row: Value, source: Value, stride: int) -> None:
        """Put zeros, if there are several, in the order of the source."""
        size, zero = self.rows.size, Value(self.element, "0.0")

        def element(at: Value, array: Value = row) -> Value:
            return f.load(self.element, f.at(array, self.element, at), self.bytes)

        before = i64(0)  # how many elements are less than zero
        for bit in reversed(range(size.bit_length())):
            longer = f.plus(before, i64(1 << bit))
            last = least(f, f.minus(longer, i64(1)), i64(size - 1))
            fits = f.binary("and", f.compare("icmp sle", longer, i64(size)), f.compare("fcmp olt", element(last), zero))
            before = f.select(fits, longer, before)
        second = least(f, f.plus(before, i64(1)), i64(size - 1))
        several = f.binary("and", f.compare("icmp slt", before, second), f.compare("fcmp oeq", element(second), zero))

        def put_all() -> None:
            def put(i: Value, carried: list[Value]) -> list[Value]:
                found = element(f.times(i, stride), source)

                def next_zero() -> list[Value]:
                    f.store(found, f.at(row, self.element, carried[0]), self.bytes)
                    return [f.plus(carried[0], i64(1))]

                return f.branch(f.compare("fcmp oeq", found, zero), next_zero, lambda: carried)

            f.loop(i64(0), i64(size), 1, [before], put)

        f.branch(several, put_all)


class _Packed:
    """The routine for operands that follow keys."""

    def __init__(self, rows: SortProblem) -> None:
        self.rows = rows

    def routine(self) -> Routine:
        """Return the routine."""
        rows, writer = self.rows, RoutineWriter("sort", 2 * len(self.rows.avals) + 1)
        tasks = chunk_count(rows.number, max(1, _TASK // rows.size), 32)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            memory = f.at(pointers[-1], "i64", f.times(number, rows.size))
            nest(f, [rows.number], lambda index: self._row(f, pointers, memory, index[0]), task_range(f, number, rows.number, tasks))

        writer.launch(tasks, 2 * _cost(rows), task)
        return writer.routine(tasks * rows.size * _PACKED.itemsize)

    def _row(self, f: Function, pointers: list[Value], memory: Value, row: Value) -> None:
        rows = self.rows

        def pack(index: list[Value]) -> None:
            found = widen(f, rows.read_key(f, pointers, rows.keys[0], rows.offset(f, row, index[0])), 64)
            f.store(f.binary("or", f.binary("shl", found, i64(32)), index[0]), f.at(memory, "i64", index[0]), 8)

        def put(index: list[Value]) -> None:
            source = f.binary("and", f.load("i64", f.at(memory, "i64", index[0]), 8), i64((1 << 32) - 1))
            rows.move(f, pointers, rows.offset(f, row, source), rows.offset(f, row, index[0]))

        nest(f, [rows.size], pack)
        _emit_sort(f, _PACKED, memory, rows.size)
        nest(f, [rows.size], put)
