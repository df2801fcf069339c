"""The greatest elements of rows, and their indices.

For a small k, one pass over the row keeps a list of the best: a vector of elements is compared with the last entry, and only greater
elements are inserted. Short rows are ranked, others are sorted.
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn.codegen.scalars import row_offset
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, least, nest, vector_of
from volta_fn.targets.cpu.library.movement import alignment, unit
from volta_fn.targets.cpu.library.sort import SHORT, Radix, SortKey, SortProblem, padded, ranked, widen
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, chunk_count, empty_routine, task_range

#: The largest k for which elements are inserted one by one, and the least ratio of a row's size to k.
_FEW = 128
_OF_MANY = 8

_TASK = 1 << 14

#: The most rows, and the least elements, of rows that are split into chunks.
_ROWS = 8
_LONG = 1 << 17
_CHUNK = 1 << 16


def top_k(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    (operand,) = avals
    k, axis = params["k"], params["axis"]
    size = operand.shape[axis]
    if not k * operand.size:
        return empty_routine()
    if size >= 1 << 31:
        return None
    columns = math.prod(operand.shape[axis + 1 :])
    rows = SortProblem(avals, operand.size // size, size, columns, (SortKey(0, operand.dtype),), True, True)
    if k <= _FEW and k * _OF_MANY <= size:
        return _Chosen(rows, k).routine()
    return _ranked(rows, k) if size <= SHORT else _Sorted(rows, k).routine()


def _store_result(f: Function, rows: SortProblem, k: int, pointers: list[Value], row: Value, position: Value, number: Value) -> None:
    """Emit the stores of an element and its number at a position of the results."""
    type_ = unit(rows.avals[0].dtype.itemsize)
    read = f.load(type_, f.at(pointers[0], type_, rows.offset(f, row, number)), alignment(type_))
    at = row_offset(f, row, position, k, rows.columns)
    f.store(read, f.at(pointers[1], type_, at), alignment(type_))
    f.store(f.cast("trunc", number, "i32"), f.at(pointers[2], "i32", at), 4)


def _ranked(rows: SortProblem, k: int) -> Routine:
    def place(f: Function, pointers: list[Value], row: Value, position: Value, number: Value) -> None:
        f.branch(f.compare("icmp slt", position, i64(k)), lambda: _store_result(f, rows, k, pointers, row, position, number))

    return ranked(rows, "top_k", 2, _TASK // rows.size**2, place)


class _Sorted(Radix):
    name = "top_k"

    def __init__(self, rows: SortProblem, k: int) -> None:
        super().__init__(rows)
        self.results = 2
        self.count = k

    def place(self, f: Function, pointers: list[Value], row: Value, position: Value, number: Value) -> None:
        _store_result(f, self.rows, self.count, pointers, row, position, number)


class _Chosen:
    """The routine that keeps the best in a list, the best first.

    An entry is an integer that orders as its element does: the key in the upper bits, the complement of the element's index in the lower.
    The greatest integer precedes the list as a sentinel.
    """

    def __init__(self, rows: SortProblem, k: int) -> None:
        self.rows = rows._replace(falling=False)
        self.k = k
        self.key_bits = 64 if rows.keys[0].dtype.itemsize == 8 else 32
        self.bits = 2 * self.key_bits
        self.type = f"i{self.bits}"
        #: Numbers that are compared at once as the list is changed, and elements that are compared with its last.
        self.lanes = max(1, host().lanes(self.bits // 8)) if self.bits == 64 else 1
        self.wide = host().lanes(self.key_bits // 8) if rows.columns == 1 else 1
        self.room = padded(k, self.lanes)

    def routine(self) -> Routine:
        rows = self.rows
        chunks = chunk_count(rows.size, _CHUNK) if rows.number <= _ROWS and rows.size >= _LONG else 1
        groups = rows.number if chunks > 1 else chunk_count(rows.number, max(1, _TASK // rows.size), 1 << 10)
        writer = RoutineWriter("top_k", 3 + (chunks > 1))

        def choose(f: Function, pointers: list[Value], number: Value) -> None:
            best = f.alloca(self.type, self.room + 1)
            row, mine = f.quotient(number, chunks), f.remainder(number, chunks)

            def choose_in_row(index: list[Value]) -> None:
                self._walk(f, pointers, index[0], *task_range(f, mine, rows.size, chunks, 64), best)
                if chunks == 1:
                    self._finish(f, pointers, index[0], best)
                else:
                    self._save(f, best, f.at(pointers[3], self.type, f.times(number, self.k)))

            nest(f, [rows.number], choose_in_row, task_range(f, row, rows.number, groups))

        def merge(f: Function, pointers: list[Value], row: Value) -> None:
            best = f.alloca(self.type, self.room + 1)
            self._clear(f, best)
            start = f.times(row, chunks * self.k)

            def insert_candidate(i: list[Value]) -> None:
                self._insert(f, best, f.load(self.type, f.at(pointers[3], self.type, f.plus(start, i[0])), 8))

            nest(f, [chunks * self.k], insert_candidate)
            self._finish(f, pointers, row, best)

        writer.launch(groups * chunks, rows.number * rows.size * (0.2 if rows.columns == 1 else 1.0), choose)
        if chunks > 1:
            writer.launch(rows.number, rows.number * chunks * self.k * 10.0, merge)
        return writer.routine(rows.number * chunks * self.k * self.bits // 8 if chunks > 1 else 0)

    def _walk(self, f: Function, pointers: list[Value], row: Value, begin: Value, end: Value, best: Value) -> None:
        """Emit the pass over a range of a row."""
        self._clear(f, best)
        first = least(f, f.plus(begin, i64(self.k)), end)  # the last chunk may be short
        nest(f, [self.rows.size], lambda i: self._take(f, pointers, row, i[0], best), (begin, first))
        vector_end = f.plus(first, f.times(f.quotient(f.minus(end, first), self.wide), self.wide))
        f.loop(first, vector_end, self.wide, [], lambda i, _: self._look(f, pointers, row, i, best))
        nest(f, [self.rows.size], lambda i: self._take(f, pointers, row, i[0], best), (vector_end, end))

    def _look(self, f: Function, pointers: list[Value], row: Value, i: Value, best: Value) -> None:
        """Insert the elements of a vector that are greater than the last entry."""
        if self.wide == 1:
            self._take(f, pointers, row, i, best)
            return
        dtype = self.rows.keys[0].dtype
        type_ = unit(dtype.itemsize)
        raw = f.load(vector_of(type_, self.wide), f.at(pointers[0], type_, self.rows.offset(f, row, i)), dtype.itemsize)
        keys = widen(f, self.rows.key(f, self.rows.keys[0], raw), self.key_bits)
        last = f.load(self.type, f.at(best, self.type, i64(self.k)), self.bits // 8)
        least = f.cast("trunc", f.binary("lshr", last, Value(self.type, str(self.bits - self.key_bits))), f"i{self.key_bits}")
        better = f.compare("icmp ugt", keys, f.splat(least, self.wide))
        mask_type = f"i{self.wide}"
        mask = f.let(mask_type, f"bitcast {better} to {mask_type}")

        def insert_better() -> None:
            count = f.cast("zext", f.intrinsic(f"llvm.ctpop.{mask_type}", mask_type, mask), "i64")

            def insert_next(_: Value, carried: list[Value]) -> list[Value]:
                lane = f.intrinsic(f"llvm.cttz.{mask_type}", mask_type, carried[0], Value("i1", "true"))
                self._take(f, pointers, row, f.plus(i, f.cast("zext", lane, "i64")), best)
                return [f.binary("and", carried[0], f.binary("sub", carried[0], Value(mask_type, "1")))]

            f.loop(i64(0), count, 1, [mask], insert_next)

        f.branch(f.compare("icmp ne", mask, Value(mask_type, "0")), insert_better)

    def _take(self, f: Function, pointers: list[Value], row: Value, i: Value, best: Value) -> None:
        """Insert an element if it is greater than the last entry."""
        bits = widen(f, self.rows.read_key(f, pointers, self.rows.keys[0], self.rows.offset(f, row, i)), self.bits)
        above = f.binary("shl", bits, Value(self.type, str(self.bits - self.key_bits)))
        complement = f.binary("xor", f.cast("trunc", i, "i32") if i.name.startswith("%") else Value("i32", i.name), Value("i32", "-1"))
        self._insert(f, best, f.binary("or", above, f.cast("zext", complement, self.type)))

    def _insert(self, f: Function, best: Value, new: Value) -> None:
        """Insert an entry into the list, if it is greater than the last."""
        last = f.load(self.type, f.at(best, self.type, i64(self.k)), self.bits // 8)

        def move() -> None:
            type_ = vector_of(self.type, self.lanes)
            suffix = f"v{self.lanes}{self.type}" if self.lanes > 1 else self.type
            many = f.splat(new, self.lanes)
            for position in range(self.room - self.lanes, -1, -self.lanes):
                # Each position keeps its number, or gets the new one, or that of the position before.
                before = f.load(type_, f.at(best, self.type, i64(position)), self.bits // 8)
                current = f.load(type_, f.at(best, self.type, i64(position + 1)), self.bits // 8)
                lesser = f.intrinsic(f"llvm.umin.{suffix}", type_, before, many)
                f.store(
                    f.intrinsic(f"llvm.umax.{suffix}", type_, current, lesser), f.at(best, self.type, i64(position + 1)), self.bits // 8
                )

        f.branch(f.compare("icmp ugt", new, last), move)

    def _clear(self, f: Function, best: Value) -> None:
        f.store(Value(self.type, "-1"), best, self.bits // 8)
        for position in range(self.room):
            f.store(Value(self.type, "0"), f.at(best, self.type, i64(position + 1)), self.bits // 8)

    def _save(self, f: Function, best: Value, target: Value) -> None:
        for position in range(self.k):
            f.store(f.load(self.type, f.at(best, self.type, i64(position + 1)), 8), f.at(target, self.type, i64(position)), 8)

    def _finish(self, f: Function, pointers: list[Value], row: Value, best: Value) -> None:

        def write_entry(position: list[Value]) -> None:
            entry = f.load(self.type, f.at(f.at(best, self.type, i64(1)), self.type, position[0]), self.bits // 8)
            number = f.cast("zext", f.binary("xor", f.cast("trunc", entry, "i32"), Value("i32", "-1")), "i64")
            _store_result(f, self.rows, self.k, pointers, row, position[0], number)

        nest(f, [self.k], write_entry)
