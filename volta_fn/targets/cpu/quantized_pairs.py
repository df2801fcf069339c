"""Products of few rows with quantised matrices by pairs of bfloat16.

Where the CPU multiplies pairs of bfloat16 and sums them in float32 (`vdpbf16ps`), codes are looked up as bfloat16, 32 at a time, by 5 bits
(`vpermw`): a number of 4 bits takes one lookup, one of 8 bits two, whose sum it is. Codes are not unpacked: a vector of words of 16 bits is
shifted so that some bits of each word are an index, and the numbers of x are put into the order in which lookups deliver weights, once for
all rows of the matrix. The products of a group are multiplied by its scale, and its offset by the sum of the group's x.

x is bfloat16, products are exact, and sums those of float32. Where x is infinite, the result may be NaN; numbers below 1.2e-38 count as
zeros, in x and in sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.quantized import BLOCK, TABLES, QuantizedLayout
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.library.emission import RoutineWriter, task_range
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, compute_type, first_lanes, load, prefetch, read, write

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: The bytes of codes that are looked up together, and the words of 16 bits and the sums of pairs that these are.
_BYTES, _WORDS, _LANES = 64, 32, 16
_WORD_VECTOR, _PAIR_VECTOR = vector_of("i16", _WORDS), vector_of("bfloat", _WORDS)
#: The most rows of x for which two lookups a number of 4 bits are faster than products in float32, and the most rows at a time.
_FEW_ROWS, _ROWS = 2, 8
#: Chunks that are written out one after another, each with sums of its own.
_UNROLLED = 2
#: Bytes by which codes are prefetched.
_AHEAD = 16 << 10
#: Bytes of weights that a task reads, about, and nanoseconds for a byte.
_TASK_BYTES, _BYTE_NS = 1 << 17, 0.03


class _Lookup(NamedTuple):
    """A lookup of 32 weights, or of terms of them.

    The words of codes are shifted right, and their lower 5 bits pick from a table; `part` is the vector of x that belongs to them.
    """

    shift: int
    table: tuple[float, ...]
    part: int


def _lookups(scheme: str) -> list[_Lookup]:
    if scheme == "int8":
        # The lower 5 bits as a signed number, and the rest, a multiple of 32 that the upper 5 bits tell. Small numbers have no rest, so
        # that rounding errors of the two sums are small beside those of the products.
        lower = tuple([float(n - 32 * (n >= 16)) for n in range(32)])
        upper = tuple([8.0 * (n & ~3) + 32 * (n >> 1 & 1) - 256 * (n >= 16) for n in range(32)])
        return [_Lookup(shift, table, part) for part in (0, 1) for shift, table in ((8 * part, lower), (8 * part + 3, upper))]
    values = np.tile(TABLES[scheme], 2)
    nearest = values.astype(_BFLOAT16).astype(np.float32)
    tables = [nearest, values - nearest] if (nearest != values).any() else [nearest]
    return [_Lookup(4 * part, tuple(table.tolist()), part) for part in range(4) for table in tables]


def _order(layout: QuantizedLayout) -> list[list[int]]:
    """Return, for each part of x, the numbers of a chunk that belong to its words."""
    if not layout.is_packed:
        return [list(range(part, 2 * _WORDS, 2)) for part in (0, 1)]
    half = BLOCK // 2
    first = [BLOCK * (word // (half // 2)) + 2 * (word % (half // 2)) for word in range(_WORDS)]
    return [[number + place for number in first] for place in (0, half, 1, half + 1)]


def suits(avals: Sequence[ShapedArray], layout: QuantizedLayout) -> bool:
    """Return True if products by pairs are faster, of operands with a routine."""
    cpu, x = host(), avals[0]
    if not (cpu.triple.startswith("x86") and cpu.vector_bytes == 64 and cpu.has("avx512bf16") and x.dtype == _BFLOAT16):
        return False
    chunk = _BYTES * (2 if layout.is_packed else 1)
    whole = layout.groups == 1 or layout.group_size % chunk == 0 or (chunk % layout.group_size == 0 and chunk // layout.group_size <= 4)
    return whole and (layout.scheme in ("int4", "int8") or (layout.scheme == "nf4" and x.shape[-2] <= _FEW_ROWS))


def write_products(writer: RoutineWriter, avals: Sequence[ShapedArray], layout: QuantizedLayout) -> int:
    """Write the products, and return the bytes of the workspace, the last buffer."""
    product = _PairProducts(avals, layout)
    product.write(writer)
    return product.workspace


class _PairProducts:
    """The writer of products by pairs.

    Buffers are x, the codes, scales, perhaps offsets, the result, and a workspace with the rows of x by chunks: their parts and, if there
    are offsets, the sums of the numbers that a lane has.
    """

    def __init__(self, avals: Sequence[ShapedArray], layout: QuantizedLayout) -> None:
        self.x, self.data, self.by_group = avals[0], avals[1], avals[2:]
        self.layout = layout
        work = compute_type(np.dtype(np.float32))
        assert work is not None
        self.work: ComputeType = work
        self.stack = 1 if self.data.ndim == 2 else self.data.shape[0]
        self.rows, self.outputs = self.x.shape[-2], self.data.shape[-2]
        self.lookups, self.order = _lookups(layout.scheme), _order(layout)
        self.has_offsets = len(self.by_group) == 2
        #: Numbers of a chunk, and chunks of a row.
        self.numbers = len(self.order) * _WORDS
        self.chunks = -(-layout.width // _BYTES)
        #: Vectors of a chunk of x, and bytes of a row of it.
        self.vectors = len(self.order) + self.has_offsets
        self.row_bytes = self.chunks * self.vectors * _BYTES
        self.workspace = math.prod(self.x.shape[:-1]) * self.row_bytes
        self.out = 2 + len(self.by_group)

    def write(self, writer: RoutineWriter) -> None:
        """Write the code."""
        writer.launch(1, self.workspace * 0.05, self._arrange)
        each = max(1, min(self.outputs, _TASK_BYTES // self.layout.width))
        tasks = -(-self.outputs // each)
        total = self.stack * self.outputs * self.layout.width
        count = -(-self.rows // _ROWS)
        ends = [self.rows * (k + 1) // count for k in range(count)]
        for first, end in itertools.pairwise([0, *ends]):

            def task(f: Function, pointers: list[Value], number: Value, limits: tuple[int, int] = (first, end)) -> None:
                example = f.quotient(number, tasks)
                begin, last = task_range(f, f.remainder(number, tasks), self.outputs, tasks)
                tables = {lookup.table: _words(lookup.table) for lookup in self.lookups}
                f.loop(begin, last, 1, [], lambda row, _: self._row(f, pointers, example, row, *limits, tables))

            writer.launch(self.stack * tasks, total * _BYTE_NS * max(1, (end - first) / 2), task)

    # x in the order of the weights

    def _arrange(self, f: Function, pointers: list[Value], _: Value) -> None:
        """Emit the parts of every row of x."""
        rest = self.layout.size % self.numbers
        whole = self.layout.size // self.numbers

        def row(number: Value, _: list[Value]) -> None:
            source = f.at(pointers[0], f"[{self.layout.size * self.x.dtype.itemsize} x i8]", number)
            target = f.at(pointers[-1], f"[{self.row_bytes} x i8]", number)
            f.loop(i64(0), i64(whole), 1, [], lambda chunk, _: self._arrange_chunk(f, source, target, chunk, self.numbers))
            if rest:
                self._arrange_chunk(f, source, target, i64(whole), rest)

        f.loop(i64(0), i64(math.prod(self.x.shape[:-1])), 1, [], row)

    def _arrange_chunk(self, f: Function, source: Value, target: Value, chunk: Value, count: int) -> None:
        """Emit the parts of a chunk of which `count` numbers exist; others are zeros."""
        itemsize, numbers = self.x.dtype.itemsize, self.numbers
        place = f.at(source, f"[{numbers * itemsize} x i8]", chunk)
        x = load(f, "i16", itemsize, place, numbers, first_lanes(count, numbers))
        target = f.at(target, f"[{self.vectors * _BYTES} x i8]", chunk)
        total, ones = self.work.zero(), _words([1.0] * _WORDS)
        for number, order in enumerate(self.order):
            part = f.shuffle(x, order)
            f.store(part, f.at(target, f"[{_BYTES} x i8]", i64(number)), 4)
            if self.has_offsets:
                total = _add_pairs(f, ones, part, total)
        if self.has_offsets:
            f.store(total, f.at(target, f"[{_BYTES} x i8]", i64(self.vectors - 1)), 4)

    # products

    def _row(
        self, f: Function, pointers: list[Value], example: Value, row: Value, first: int, end: int, tables: dict[tuple[float, ...], Value]
    ) -> None:
        """Emit the products of a row of weights with the rows `first` to `end` of x."""
        layout, work, rows = self.layout, self.work, end - first
        number = f.plus(f.times(example, self.outputs), row)
        codes = f.at(pointers[1], f"[{layout.width} x i8]", number)
        x_row = f.plus(f.times(example, self.rows), i64(first))
        x = f.at(pointers[-1], f"[{self.row_bytes} x i8]", x_row)
        by_group = [f.at(pointers[2 + k], f"[{layout.groups * a.dtype.itemsize} x i8]", number) for k, a in enumerate(self.by_group)]
        whole = layout.width // _BYTES
        unrolled = min(_UNROLLED, whole) or 1
        sums = [work.zero()] * (rows * unrolled)

        def chunk(at: Value, sums: list[Value], size: int = _BYTES) -> list[Value]:
            place = f.at(codes, f"[{_BYTES} x i8]", at)
            if size == _BYTES:
                prefetch(f, f.at(place, "i8", i64(_AHEAD)))
            words = f.cast("bitcast", load(f, "i8", 1, place, _BYTES, first_lanes(size, _BYTES)), _WORD_VECTOR)
            return self._chunk(f, words, f.at(x, f"[{self.vectors * _BYTES} x i8]", at), self._by_lane(f, by_group, at, size), sums, tables)

        def chunks(start: Value, sums: list[Value]) -> list[Value]:
            return [total for k in range(unrolled) for total in chunk(f.plus(start, i64(k)), sums[k * rows : (k + 1) * rows])]

        sums = f.loop(i64(0), i64(whole - whole % unrolled), unrolled, sums, chunks)
        rest = [(k, _BYTES) for k in range(whole - whole % unrolled, whole)]
        rest += [(whole, layout.width % _BYTES)] * (layout.width % _BYTES > 0)
        for k, (at, size) in enumerate(rest):
            those = slice(k % unrolled * rows, (k % unrolled + 1) * rows)
            sums[those] = chunk(i64(at), sums[those], size)
        dtype = self.x.dtype
        for i in range(rows):
            parts = sums[i::rows]
            while len(parts) > 1:
                parts = [work.add(f, *parts[k : k + 2]) if k + 1 < len(parts) else parts[k] for k in range(0, len(parts), 2)]
            place = f.plus(f.times(f.plus(x_row, i64(i)), self.outputs), row)
            write(f, work, dtype, lane_sum(f, work, parts[0]), 1, f.at(pointers[self.out], f"[{dtype.itemsize} x i8]", place))

    def _chunk(
        self, f: Function, words: Value, x: Value, by_lane: list[Value], sums: list[Value], tables: dict[tuple[float, ...], Value]
    ) -> list[Value]:
        """Emit the sums with the products of a chunk added."""
        shifted = {0: words}
        weights = []
        for lookup in self.lookups:
            if lookup.shift not in shifted:
                shifted[lookup.shift] = f.binary("lshr", words, f.splat(Value("i16", str(lookup.shift)), _WORDS))
            weights.append(f.intrinsic("llvm.x86.avx512.permvar.hi.512", _WORD_VECTOR, tables[lookup.table], shifted[lookup.shift]))

        def vector(row: int, number: int, type_: str) -> Value:
            return f.load(type_, f.at(f.at(x, f"[{self.row_bytes} x i8]", i64(row)), f"[{_BYTES} x i8]", i64(number)), 4)

        totals = []
        for i, total in enumerate(sums):
            products = self.work.zero()
            for lookup, weight in zip(self.lookups, weights, strict=True):
                products = _add_pairs(f, weight, vector(i, lookup.part, _WORD_VECTOR), products)
            total = self.work.multiply_add(f, products, by_lane[0], total)
            if self.has_offsets:
                total = self.work.multiply_add(f, vector(i, self.vectors - 1, self.work.vector), by_lane[1], total)
            totals.append(total)
        return totals

    def _by_lane(self, f: Function, by_group: list[Value], chunk: Value, size: int) -> list[Value]:
        """Emit the scale, and the offset, of each lane of a chunk's sums."""
        layout, numbers = self.layout, self.numbers
        count = 1 if layout.groups == 1 else max(1, numbers // layout.group_size)
        if layout.groups == 1:
            first = i64(0)
        elif count > 1:
            first = f.times(chunk, count)
        else:
            first = f.quotient(chunk, layout.group_size // numbers)
        existing = min(count, -(-size * (numbers // _BYTES) // layout.group_size))
        vectors = []
        for pointer, a in zip(by_group, self.by_group, strict=True):
            place = f.at(pointer, f"[{a.dtype.itemsize} x i8]", first)
            values = read(f, self.work, a.dtype, place, existing)
            if count == 1:
                vectors.append(f.splat(values, _LANES))
                continue
            group_lanes = _LANES // count
            lanes = [lane // group_lanes for lane in range(_LANES)]
            if existing == 1:
                values = f.splat(values, 2)
            zeros = Value(values.type, "zeroinitializer")
            vectors.append(f.shuffle(values, [n if n < existing else max(existing, 2) for n in lanes], zeros))
        return vectors


def lane_sum(f: Function, work: ComputeType, x: Value) -> Value:
    """Emit the sum of a vector's lanes: lower half plus upper half, and so on."""
    lanes = work.lanes
    while lanes > 1:
        lanes //= 2
        x = work.add(f, f.shuffle(x, range(lanes)), f.shuffle(x, range(lanes, 2 * lanes)))
    return x


def _words(numbers: Sequence[float]) -> Value:
    """Return the words of bfloat16 numbers as a constant."""
    bits = np.asarray(numbers, _BFLOAT16).view(np.int16).tolist()
    return Value(vector_of("i16", len(bits)), f"<{', '.join([f'i16 {n}' for n in bits])}>")


def _add_pairs(f: Function, x: Value, y: Value, total: Value) -> Value:
    """Emit a total plus the products of pairs of bfloat16, given as words."""
    pairs = [f.cast("bitcast", value, _PAIR_VECTOR) for value in (x, y)]
    return f.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", total.type, total, *pairs)
