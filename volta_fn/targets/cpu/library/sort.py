"""Sorts, by networks and merges or by radix, and the greatest elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.scalars import is_float, number_of_key, row_offset, sort_key
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.host import host, is_this_cpu
from volta_fn.runtime.llvm.machine import sort_address, sort_symbol
from volta_fn.runtime.llvm.text import Function, Value, counting, i64, lanes_of, least, nest, vector_of
from volta_fn.targets.cpu.library.movement import alignment, unit
from volta_fn.targets.cpu.routine import Body, Routine, RoutineWriter, chunk_count, empty_routine, task_range
from volta_fn.targets.cpu.scalars.values import Lanes

# Sort keys (`codegen.scalars`) in machine code.


def key_bits(dtype: np.dtype) -> int:
    """Return how many bits of the key distinguish numbers of a dtype."""
    return 8 * dtype.itemsize


def key(f: Function, dtype: np.dtype, x: Value, faithful: bool = False) -> Value:
    """Emit the key of the bits of a number or a vector, of the same width."""
    return sort_key(Lanes(f, x), dtype, faithful=faithful).value


def number_of(f: Function, dtype: np.dtype, faithful: Value) -> Value:
    """Emit the bits of the number of a faithful key."""
    return number_of_key(Lanes(f, faithful), dtype).value


def level(f: Function, dtype: np.dtype, faithful: Value) -> Value:
    """Emit the key, from a faithful one: that of -0.0 becomes its neighbour."""
    if not is_float(dtype):
        return faithful
    lesser_zero = Lanes(f, faithful).compare("eq", (1 << (key_bits(dtype) - 1)) - 1)
    return f.binary("add", faithful, f.cast("zext", lesser_zero.value, faithful.type))


def widen(f: Function, x: Value, bits: int) -> Value:
    """Emit a key in more bits."""
    return f.cast("zext", x, vector_of(f"i{bits}", lanes_of(x.type)))


# Radix sort: passes move elements into buckets by digits, the lowest first.
#
# Elements are integers whose upper bits are a key. A pass has two steps, both over chunks of the row that are the same for any number of
# threads: `count` the digits of a chunk; `deal` the elements of a chunk to where its buckets begin, which all counts tell.

#: ``fetch(i)`` gives an element and the key bits in it as a number that `digit` looks at.
Fetch = Callable[[Value], tuple[Value, Value]]


class Digit(NamedTuple):
    """Some bits of a key."""

    shift: int
    bits: int

    @property
    def buckets(self) -> int:
        """The number of values."""
        return 1 << self.bits

    def of(self, f: Function, key: Value) -> Value:
        """Emit the digit of a key, as a 64-bit integer."""
        moved = f.binary("lshr", key, Value(key.type, str(self.shift))) if self.shift else key
        width = int(key.type[1:])
        if width < 64:
            moved = f.cast("zext", moved, "i64")
        return f.binary("and", moved, i64(self.buckets - 1)) if self.shift + self.bits < width else moved


def digits(bits: int, wide: bool) -> list[Digit]:
    """Return a key's digits, of 11 bits for many elements (`wide`), else of 8."""
    passes = -(-bits // (11 if wide else 8))
    each = -(-bits // passes)
    return [Digit(shift, min(each, bits - shift)) for shift in range(0, bits, each)]


def count(f: Function, digit: Digit, fetch: Fetch, begin: Value, end: Value, counts: Value) -> None:
    """Set `counts` (32-bit, one per bucket) to how often each digit occurs."""
    clear(f, counts, digit.buckets)

    def count_digit(i: Value, _: list[Value]) -> None:
        at = f.at(counts, "i32", digit.of(f, fetch(i)[1]))
        f.store(f.binary("add", f.load("i32", at, 4), Value("i32", "1")), at, 4)

    f.loop(begin, end, 1, [], count_digit)


def clear(f: Function, counts: Value, buckets: int) -> None:
    """Set all counts to zero."""
    lanes = min(host().lanes(4), buckets)

    def clear_vector(i: Value, _: list[Value]) -> None:
        f.store(Value(f"<{lanes} x i32>", "zeroinitializer"), f.at(counts, "i32", i), 4)

    f.loop(i64(0), i64(buckets), lanes, [], clear_vector, nonempty=True)


def bucket_starts(f: Function, counts: Value, buckets: int, positions: Value) -> None:
    """Emit where each bucket begins, if there is one chunk."""

    def accumulate(i: Value, carried: list[Value]) -> list[Value]:
        f.store(carried[0], f.at(positions, "i32", i), 4)
        return [f.binary("add", carried[0], f.load("i32", f.at(counts, "i32", i), 4))]

    f.loop(i64(0), i64(buckets), 1, [Value("i32", "0")], accumulate, nonempty=True)


def bucket_starts_of_chunk(f: Function, counts: Value, buckets: int, stride: int, chunks: int, chunk: Value, positions: Value) -> None:
    """Emit where the elements of one of several chunks begin in each bucket.

    `counts` holds those of all chunks, at a stride.
    """
    lanes = min(host().lanes(4), buckets)
    type_ = f"<{lanes} x i32>"
    totals = f.alloca("i32", buckets)
    zero = Value(type_, "zeroinitializer")

    def sum_counts(i: Value, _: list[Value]) -> None:
        def add(p: Value, carried: list[Value]) -> list[Value]:
            frequencies = f.load(type_, f.at(counts, "i32", f.plus(f.times(p, stride), i)), 4)
            before = f.select(f.compare("icmp slt", p, chunk), frequencies, zero)
            return [f.binary("add", carried[0], frequencies), f.binary("add", carried[1], before)]

        total, earlier = f.loop(i64(0), i64(chunks), 1, [zero, zero], add, nonempty=True)
        f.store(total, f.at(totals, "i32", i), 4)
        f.store(earlier, f.at(positions, "i32", i), 4)

    f.loop(i64(0), i64(buckets), lanes, [], sum_counts, nonempty=True)

    def accumulate(i: Value, carried: list[Value]) -> list[Value]:
        at = f.at(positions, "i32", i)
        f.store(f.binary("add", f.load("i32", at, 4), carried[0]), at, 4)
        return [f.binary("add", carried[0], f.load("i32", f.at(totals, "i32", i), 4))]

    f.loop(i64(0), i64(buckets), 1, [Value("i32", "0")], accumulate, nonempty=True)


def deal(f: Function, digit: Digit, fetch: Fetch, begin: Value, end: Value, positions: Value, emit: Callable[[Value, Value], None]) -> None:
    """Emit ``emit(position, element)`` for each element in the order of the row.

    The next position of a bucket is in `positions`, which advance.
    """

    def deal_element(i: Value, _: list[Value]) -> None:
        element, key = fetch(i)
        at = f.at(positions, "i32", digit.of(f, key))
        position = f.load("i32", at, 4)
        f.store(f.binary("add", position, Value("i32", "1")), at, 4)
        emit(f.cast("zext", position, "i64"), element)

    f.loop(begin, end, 1, [], deal_element)


# Sorting short rows: an element's rank is the number of those before it.

#: The longest rows that are sorted by ranking.
SHORT = 128


def padded(size: int, lanes: int) -> int:
    """Return the size of an array of keys, rounded up to full vectors."""
    return -(-size // lanes) * lanes


def fill_padding(f: Function, keys: Value, bits: int, size: int, lanes: int) -> None:
    """Fill the padding after the keys of a row with the greatest key."""
    type_ = f"i{bits}"
    for position in range(size, padded(size, lanes)):
        f.store(Value(type_, "-1"), f.at(keys, type_, i64(position)), bits // 8)


def rank_of(f: Function, keys: Sequence[Value], bits: int, size: int, lanes: int, i: Value) -> Value:
    """Emit how many of `size` elements come before number `i`.

    Keys are compared in the order of their arrays, of `bits` each and `padded`.
    """
    type_ = f"i{bits}"
    element_keys = [f.splat(f.load(type_, f.at(array, type_, i), bits // 8), lanes) for array in keys]
    block = f.times(f.quotient(i, lanes), lanes)
    lane = f.remainder(i, lanes)

    def others(begin: Value) -> list[Value]:
        return [f.load(vector_of(type_, lanes), f.at(array, type_, begin), bits // 8) for array in keys]

    def before(begin: Value, equals: Value | None) -> Value:
        """Emit which of a vector of elements come before.

        `equals` tells which do of those with the same keys (None: none).
        """
        result = equals
        for mine, theirs in reversed(list(zip(element_keys, others(begin), strict=True))):
            less = f.compare("icmp ult", theirs, mine)
            if result is not None:
                same = f.compare("icmp eq", theirs, mine)
                less = f.binary("or", less, f.binary("and", same, result))
            result = less
        assert result is not None
        return result

    def count(flags: Value) -> Value:
        mask = f.let(f"i{lanes}", f"bitcast {flags} to i{lanes}")
        return f.cast("zext", f.intrinsic(f"llvm.ctpop.i{lanes}", f"i{lanes}", mask), "i64")

    total = count(before(block, f.compare("icmp slt", counting(lanes, "i32"), f.splat(f.cast("trunc", lane, "i32"), lanes))))
    if size <= lanes:
        return total
    yes = Value(vector_of("i1", lanes), "splat (i1 true)")

    def earlier(begin: Value, carried: list[Value]) -> list[Value]:
        return [f.plus(carried[0], count(before(begin, yes)))]

    def later(begin: Value, carried: list[Value]) -> list[Value]:
        return [f.plus(carried[0], count(before(begin, None)))]

    (total,) = f.loop(i64(0), block, lanes, [total], earlier)
    (total,) = f.loop(f.plus(block, i64(lanes)), i64(size), lanes, [total], later)
    return total


# Sorting rows by NumPy's sorts, which are faster than ranking and radix sort.
#
# A row of real numbers is copied and sorted in place. NumPy does not sort stably: of equal numbers only zeros of either sign differ, so
# these are put in their order afterwards. Of several operands the elements' keys of up to 32 bits are sorted together with their
# numbers, as integers of 64 bits, by which the operands are then put in order.

_TASK = 1 << 12
#: Columns that are copied together to rows, since their elements share cache lines.
_TOGETHER = 16
_PACKED = np.dtype(np.uint64)
_SORTED = frozenset(map(np.dtype, ("f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")))
_ELEMENTS = {("f", 4): "float", ("f", 8): "double"}


def sort_by_numpy(rows: SortProblem) -> Routine | None:
    """Return the routine for rows that NumPy's functions can sort; None for others."""
    if not is_this_cpu():
        return None
    first, *others = rows.keys
    if len(rows.avals) == 1 and not rows.falling:
        return _Alone(rows).routine() if first.dtype in _SORTED and first.components == 1 and sort_address(first.dtype) else None
    fits = not others and first.components == 1 and first.dtype.itemsize <= 4
    return _Packed(rows).routine() if fits and sort_address(_PACKED) else None


def _emit_sort(f: Function, dtype: np.dtype, start: Value, size: int) -> None:
    f.module.declare(sort_symbol(dtype), f"declare i32 @{sort_symbol(dtype)}(ptr, i64, ptr)")
    f.call(sort_symbol(dtype), "i32", start, i64(size), Value("ptr", "null"))


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
        rows, writer = self.rows, RoutineWriter("sort", 2 if self.rows.columns == 1 else 3)
        together = 1 if rows.columns == 1 else min(_TOGETHER, rows.columns)
        groups = rows.number // rows.columns * -(-rows.columns // together)
        tasks = chunk_count(groups, max(1, _TASK // (rows.size * together)), 32)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            def sort_group(index: list[Value]) -> None:
                if rows.columns == 1:
                    self._row(f, pointers, f.times(index[0], rows.size))
                else:
                    self._columns(f, pointers, index[0], number, together)

            nest(f, [groups], sort_group, task_range(f, number, groups, tasks))

        writer.launch(tasks, _cost(rows), task)
        return writer.routine(0 if rows.columns == 1 else tasks * together * rows.size * self.bytes)

    def _row(self, f: Function, pointers: list[Value], offset: Value) -> None:
        source, target = (f.at(pointer, self.element, offset) for pointer in pointers[:2])
        f.memcpy(target, source, i64(self.rows.size * self.bytes), self.bytes)
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
            def copy_element(i: Value, column: Value) -> None:
                in_array = f.at(source if to_memory else target, self.element, f.plus(f.times(i, rows.columns), column))
                in_memory = f.at(memory, self.element, f.plus(f.times(column, rows.size), i))
                read, written = (in_array, in_memory) if to_memory else (in_memory, in_array)
                f.store(f.load(self.element, read, self.bytes), written, self.bytes)

            def each(index: list[Value]) -> None:
                f.loop(i64(0), count, 1, [], lambda column, _: copy_element(index[0], column))

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

        def place_zeros() -> None:
            def place_zero(i: Value, carried: list[Value]) -> list[Value]:
                number = element(f.times(i, stride), source)

                def next_zero() -> list[Value]:
                    f.store(number, f.at(row, self.element, carried[0]), self.bytes)
                    return [f.plus(carried[0], i64(1))]

                return f.branch(f.compare("fcmp oeq", number, zero), next_zero, lambda: carried)

            f.loop(i64(0), i64(size), 1, [before], place_zero)

        f.branch(several, place_zeros)


class _Packed:
    """The routine for operands that are put in the order of packed keys."""

    def __init__(self, rows: SortProblem) -> None:
        self.rows = rows

    def routine(self) -> Routine:
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
            bits = widen(f, rows.read_key(f, pointers, rows.keys[0], rows.offset(f, row, index[0])), 64)
            f.store(f.binary("or", f.binary("shl", bits, i64(32)), index[0]), f.at(memory, "i64", index[0]), 8)

        def place(index: list[Value]) -> None:
            source = f.binary("and", f.load("i64", f.at(memory, "i64", index[0]), 8), i64((1 << 32) - 1))
            rows.move(f, pointers, rows.offset(f, row, source), rows.offset(f, row, index[0]))

        nest(f, [rows.size], pack)
        _emit_sort(f, _PACKED, memory, rows.size)
        nest(f, [rows.size], place)


# Sorting rows, of one or several operands, by one or several keys.
#
# Numbers that NumPy has a fast sort for are sorted by that. Of others, short rows are sorted by ranking, long ones by radix sort. An
# element then holds, above its key, either nothing, or the bits of the one other operand, or its number, by which the
# operands are put in order at the end; of several keys the last is sorted by first. A few long rows are split into chunks for the
# passes; of many rows each is sorted by one task.

#: The most rows, and the least elements, of rows that are split into chunks.
_FEW = 8
_LONG = 1 << 16
_CHUNK = 1 << 15

#: The least elements of rows whose digits have 11 bits.
_WIDE = 1 << 12


class SortKey(NamedTuple):
    """A key to sort by: an operand, or one component of complex numbers."""

    operand: int
    dtype: np.dtype
    components: int = 1
    component: int = 0


class SortProblem(NamedTuple):
    """Rows to be sorted.

    Attributes:
        avals: the operands.
        number, size, columns: the number of rows, their elements, and the number of columns after the sorted axis.
        keys: the keys, the most significant first.
        stable: whether equal elements keep their order.
        falling: whether the greatest come first.
    """

    avals: tuple[ShapedArray, ...]
    number: int
    size: int
    columns: int
    keys: tuple[SortKey, ...]
    stable: bool
    falling: bool = False

    def offset(self, f: Function, row: Value, i: Value) -> Value:
        """Emit the offset in memory of a row's element."""
        return row_offset(f, row, i, self.size, self.columns)

    def read_key(self, f: Function, pointers: list[Value], which: SortKey, position: Value, faithful: bool = False) -> Value:
        """Emit the key of the element at an offset."""
        type_ = unit(which.dtype.itemsize)
        at = f.at(pointers[which.operand], type_, f.plus(f.times(position, which.components), i64(which.component)))
        return self.key(f, which, f.load(type_, at, which.dtype.itemsize), faithful)

    def key(self, f: Function, which: SortKey, bits: Value, faithful: bool = False) -> Value:
        """Emit the key of the bits of a number."""
        result = key(f, which.dtype, bits, faithful)
        return f.binary("xor", result, Value(bits.type, "-1")) if self.falling else result

    def move(self, f: Function, pointers: list[Value], source: Value, target: Value) -> None:
        """Copy an element of every operand to its offset in the results."""
        for k, aval in enumerate(self.avals):
            type_ = unit(aval.dtype.itemsize)
            read = f.load(type_, f.at(pointers[k], type_, source), alignment(type_))
            f.store(read, f.at(pointers[len(self.avals) + k], type_, target), alignment(type_))


def sort(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    shape, axis = avals[0].shape, params["dimension"]
    if not avals[0].size or shape[axis] >= 1 << 31:
        return None if avals[0].size else empty_routine()
    keys = tuple([key for k in range(params["num_keys"]) for key in _keys(k, avals[k].dtype)])
    columns = math.prod(shape[axis + 1 :])
    rows = SortProblem(avals, avals[0].size // shape[axis], shape[axis], columns, keys, params["is_stable"] or len(avals) > 1)
    if (routine := sort_by_numpy(rows)) is not None:
        return routine
    radix = Radix(rows)
    return ranked(rows, "sort", len(avals), _TASK // rows.size, radix.place) if rows.size <= SHORT else radix.routine()


def _keys(operand: int, dtype: np.dtype) -> list[SortKey]:
    if dtype.kind != "c":
        return [SortKey(operand, dtype)]
    real = np.dtype(f"f{dtype.itemsize // 2}")
    return [SortKey(operand, real, 2, component) for component in (0, 1)]


def ranked(
    rows: SortProblem, name: str, results: int, together: int, place: Callable[[Function, list[Value], Value, Value, Value], None]
) -> Routine:
    """Return a routine that counts, for each element of short rows, those before it.

    ``place(f, pointers, row, position, number)`` emits what is stored of an element. A task has `together` rows.
    """
    bits = 64 if any(k.dtype.itemsize == 8 for k in rows.keys) else 32
    lanes = host().lanes(bits // 8)
    tasks = chunk_count(rows.number, max(1, together))

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        arrays = [f.alloca(f"i{bits}", padded(rows.size, lanes)) for _ in rows.keys]
        for array in arrays:
            fill_padding(f, array, bits, rows.size, lanes)

        def row(index: list[Value]) -> None:
            def store_keys(i: list[Value]) -> None:
                for array, which in zip(arrays, rows.keys, strict=True):
                    value = widen(f, rows.read_key(f, pointers, which, rows.offset(f, index[0], i[0])), bits)
                    f.store(value, f.at(array, f"i{bits}", i[0]), bits // 8)

            def place_element(i: list[Value]) -> None:
                place(f, pointers, index[0], rank_of(f, arrays, bits, rows.size, lanes, i[0]), i[0])

            nest(f, [rows.size], store_keys)
            nest(f, [rows.size], place_element)

        nest(f, [rows.number], row, task_range(f, number, rows.number, tasks))

    writer = RoutineWriter(name, len(rows.avals) + results)
    writer.launch(tasks, rows.number * rows.size * (4 + rows.size / 16), task)
    return writer.routine()


class _Pass(NamedTuple):
    """A pass by a digit of a key, between buffers 0 and 1; None: operands and results.

    `fresh` says that elements so far have another key: this one is read anew.
    """

    source: int | None
    target: int | None
    which: SortKey
    digit: Digit
    fresh: bool


class Radix:
    """The routine for long rows, with its `name` and its number of `results`."""

    name = "sort"

    def __init__(self, rows: SortProblem) -> None:
        self.rows = rows
        self.results = len(rows.avals)
        self.count = rows.size
        narrow = len(rows.keys) == 1 and rows.keys[0].components == 1 and rows.keys[0].dtype.itemsize <= 4
        alone = len(rows.avals) == 1 and rows.keys[0].components == 1 and not rows.falling
        #: Whether elements hold all there is to store, and not a number.
        self.self_contained = alone or (narrow and len(rows.avals) == 2 and rows.avals[1].dtype.itemsize <= 4)
        wide = any(k.dtype.itemsize == 8 for k in rows.keys)
        self.shift = 0 if alone else 64 if wide else 32
        self.type = f"i{self.shift + (64 if wide else 32) if self.shift else 64 if wide else 32}"
        self.bytes = int(self.type[1:]) // 8
        self.passes = self._passes()

    def _passes(self) -> list[_Pass]:
        passes: list[_Pass] = []
        for number, which in enumerate(reversed(self.rows.keys)):
            for digit_number, digit in enumerate(digits(key_bits(which.dtype), self.rows.size >= _WIDE)):
                source = passes[-1].target if passes else None
                passes.append(_Pass(source, 1 - (source or 0), which, digit, bool(number) and not digit_number))
        if self.self_contained:
            passes[-1] = passes[-1]._replace(target=None)
        return passes

    def routine(self) -> Routine:
        """Return the routine."""
        rows = self.rows
        cost = rows.number * rows.size * (2.0 * len(self.passes) + 2)
        writer = RoutineWriter(self.name, len(rows.avals) + self.results + 1)
        if rows.number >= _FEW or rows.size < _LONG:
            tasks = chunk_count(rows.number, max(1, _TASK // rows.size), 32)
            writer.launch(tasks, cost, lambda f, pointers, number: self._row_by_row(f, pointers, number, tasks))
            return writer.routine(tasks * 2 * rows.size * self.bytes)
        chunks = chunk_count(rows.size, _CHUNK, 16)
        for step in self.passes:
            self._cut(writer, step, chunks, cost / len(self.passes))
        if not self.self_contained:
            writer.launch(rows.number * chunks, cost / len(self.passes), self._shared(chunks))
        return writer.routine(rows.number * (2 * rows.size * self.bytes + chunks * 4 * 2048))

    # tasks

    def _row_by_row(self, f: Function, pointers: list[Value], number: Value, tasks: int) -> None:
        counts, positions = f.alloca("i32", 2048), f.alloca("i32", 2048)
        begin, end = i64(0), i64(self.rows.size)

        def row(index: list[Value]) -> None:
            for step in self.passes:
                fetch = self._fetch(f, pointers, step, index[0], number)
                count(f, step.digit, fetch, begin, end, counts)
                bucket_starts(f, counts, step.digit.buckets, positions)
                deal(f, step.digit, fetch, begin, end, positions, self._emit(f, pointers, step, index[0], number))
            if not self.self_contained:
                self._collect(f, pointers, index[0], number, begin, i64(self.count))

        nest(f, [self.rows.number], row, task_range(f, number, self.rows.number, tasks))

    def _cut(self, writer: RoutineWriter, step: _Pass, chunks: int, cost: float) -> None:
        buckets = step.digit.buckets

        def counts_of(f: Function, pointers: list[Value], number: Value) -> Value:
            first = f.at(pointers[-1], self.type, i64(2 * self.rows.size * self.rows.number))
            return f.at(first, "i32", f.times(number, 2048))

        def counting(f: Function, pointers: list[Value], number: Value) -> None:
            row = f.quotient(number, chunks)
            begin, end = task_range(f, f.remainder(number, chunks), self.rows.size, chunks, 64)
            count(f, step.digit, self._fetch(f, pointers, step, row, row), begin, end, counts_of(f, pointers, number))

        def dealing(f: Function, pointers: list[Value], number: Value) -> None:
            row, mine = f.quotient(number, chunks), f.remainder(number, chunks)
            begin, end = task_range(f, mine, self.rows.size, chunks, 64)
            positions = f.alloca("i32", 2048)
            bucket_starts_of_chunk(f, counts_of(f, pointers, f.times(row, chunks)), buckets, 2048, chunks, mine, positions)
            fetch, emit = self._fetch(f, pointers, step, row, row), self._emit(f, pointers, step, row, row)
            deal(f, step.digit, fetch, begin, end, positions, emit)

        writer.launch(self.rows.number * chunks, cost / 3, counting)
        writer.launch(self.rows.number * chunks, cost, dealing)

    def _shared(self, chunks: int) -> Body:
        def task(f: Function, pointers: list[Value], number: Value) -> None:
            row = f.quotient(number, chunks)
            self._collect(f, pointers, row, row, *task_range(f, f.remainder(number, chunks), self.count, chunks, 64))

        return task

    # elements

    def _buffer(self, f: Function, pointers: list[Value], which: int, slot: Value) -> Value:
        return f.at(pointers[-1], self.type, f.times(f.plus(f.times(slot, 2), i64(which)), self.rows.size))

    def _fetch(self, f: Function, pointers: list[Value], step: _Pass, row: Value, slot: Value) -> Fetch:
        """Return the function that emits the elements of a pass."""
        buffer = None if step.source is None else self._buffer(f, pointers, step.source, slot)
        levels = self.self_contained and self.rows.stable and is_float(step.which.dtype)

        def fetch(i: Value) -> tuple[Value, Value]:
            if buffer is None or step.fresh:
                number = i if buffer is None else self._number(f, f.load(self.type, f.at(buffer, self.type, i), self.bytes))
                element, bits = self._packed(f, pointers, step.which, self.rows.offset(f, row, number), number)
            else:
                element = f.load(self.type, f.at(buffer, self.type, i), self.bytes)
                bits = self._key_in(f, element, step.which.dtype)
            return element, level(f, step.which.dtype, bits) if levels else bits

        return fetch

    def _packed(self, f: Function, pointers: list[Value], which: SortKey, position: Value, number: Value) -> tuple[Value, Value]:
        bits = self.rows.read_key(f, pointers, which, position, self.self_contained)
        element = widen(f, bits, int(self.type[1:]))
        if not self.shift:
            return element, bits
        if self.self_contained:
            size = self.rows.avals[1].dtype.itemsize
            below = f.load(unit(size), f.at(pointers[1], unit(size), position), size)
        else:
            below = f.cast("trunc", number, "i32") if number.name.startswith("%") else Value("i32", number.name)
        moved = f.binary("shl", element, Value(self.type, str(self.shift)))
        return f.binary("or", moved, f.cast("zext", below, self.type)), bits

    def _key_in(self, f: Function, element: Value, dtype: np.dtype) -> Value:
        moved = f.binary("lshr", element, Value(self.type, str(self.shift))) if self.shift else element
        return f.cast("trunc", moved, f"i{key_bits(dtype)}")

    def _number(self, f: Function, element: Value) -> Value:
        return f.cast("zext", f.cast("trunc", element, "i32"), "i64")

    def _emit(self, f: Function, pointers: list[Value], step: _Pass, row: Value, slot: Value) -> Callable[[Value, Value], None]:
        """Return the function that emits the stores of a pass."""
        if step.target is not None:
            buffer = self._buffer(f, pointers, step.target, slot)
            return lambda position, element: f.store(element, f.at(buffer, self.type, position), self.bytes)

        def store_numbers(position: Value, element: Value) -> None:
            dtype = step.which.dtype
            values = [number_of(f, dtype, self._key_in(f, element, dtype))]
            if self.shift:
                values.append(f.cast("trunc", element, unit(self.rows.avals[1].dtype.itemsize)))
            at = self.rows.offset(f, row, position)
            for value, result in zip(values, pointers[len(self.rows.avals) :], strict=False):
                f.store(value, f.at(result, value.type, at), alignment(value.type))

        return store_numbers

    def _collect(self, f: Function, pointers: list[Value], row: Value, slot: Value, begin: Value, end: Value) -> None:
        """Put the operands in the order of the numbers in sorted elements."""
        target = self.passes[-1].target
        assert target is not None
        buffer = self._buffer(f, pointers, target, slot)

        def place_next(i: Value, _: list[Value]) -> None:
            number = self._number(f, f.load(self.type, f.at(buffer, self.type, i), self.bytes))
            self.place(f, pointers, row, i, number)

        f.loop(begin, end, 1, [], place_next)

    def place(self, f: Function, pointers: list[Value], row: Value, position: Value, number: Value) -> None:
        """Emit the move of element `number` of a row to a position."""
        self.rows.move(f, pointers, self.rows.offset(f, row, number), self.rows.offset(f, row, position))


# The greatest elements of rows, and their indices.
#
# For a small k, one pass over the row keeps a list of the best: a vector of elements is compared with the last entry, and only greater
# elements are inserted. Short rows are ranked, others are sorted.

#: The largest k for which elements are inserted one by one, and the least ratio of a row's size to k.
_TOP_FEW = 128
_OF_MANY = 8

_TOP_TASK = 1 << 14

#: The most rows, and the least elements, of rows that are split into chunks.
_ROWS = 8
_TOP_LONG = 1 << 17
_TOP_CHUNK = 1 << 16


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
    if k <= _TOP_FEW and k * _OF_MANY <= size:
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

    return ranked(rows, "top_k", 2, _TOP_TASK // rows.size**2, place)


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
        chunks = chunk_count(rows.size, _TOP_CHUNK) if rows.number <= _ROWS and rows.size >= _TOP_LONG else 1
        groups = rows.number if chunks > 1 else chunk_count(rows.number, max(1, _TOP_TASK // rows.size), 1 << 10)
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
