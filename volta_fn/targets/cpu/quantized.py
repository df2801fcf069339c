"""Products of few rows with quantised matrices, which are converted in registers.

The time of such a product is that of reading the matrix, so fewer bits a weight are faster as long as converting them keeps pace. Codes of
4 bits are indices of a table of 16 numbers that one register holds, with the scale and the offset of the group applied to the table rather
than to each weight. Products of more rows are expanded to loops over blocks of rows (`volta_fn/primitives/quantized.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.dtypes import FLOATS
from volta_fn.primitives.quantized import BLOCK, TABLES, QuantizedLayout
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, least, vector_of
from volta_fn.targets.cpu.matmul.gemv import sums_across
from volta_fn.targets.cpu.matmul.micro_kernel import (
    CACHE_LINE,
    ComputeType,
    compute_type,
    first_lanes,
    load,
    prefetch,
    read,
    readable,
    write,
)  # fmt: skip
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, even_count, task_range

# By pairs of bfloat16.
#
# Where the CPU multiplies pairs of bfloat16 and sums them in float32 (`vdpbf16ps`), codes are looked up as bfloat16, 32 at a time, by 5
# bits (`vpermw`): a number of 4 bits takes one lookup, one of 8 bits two, whose sum it is. Codes are not unpacked: a vector of words of 16
# bits is shifted so that some bits of each word are an index, and the numbers of x are put into the order in which lookups deliver weights,
# once for all rows of the matrix. The products of a group are multiplied by its scale, and its offset by the sum of the group's x.
#
# Rows of weights are one stream of whole cache lines, the best that processors prefetch. Where a row is no whole number of lines, two or
# four rows are, and x is put into order for as many copies of it.
#
# x is bfloat16, products are exact, and sums those of float32. Where x is infinite, the result may be NaN; numbers below 1.2e-38 count as
# zeros, in x and in sums.

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: The bytes of codes that are looked up together, and the words of 16 bits and the sums of pairs that these are.
_BYTES, _WORDS, _LANES = 64, 32, 16
_WORD_VECTOR, _PAIR_VECTOR = vector_of("i16", _WORDS), vector_of("bfloat", _WORDS)
#: The most rows of x for which two lookups a number of 4 bits are faster than products in float32, and for which rows of weights share
#: chunks; and the most rows at a time.
_FEW_ROWS, _PAIR_ROWS = 2, 8
#: The most rows of weights in a stream of whole chunks.
_MOST_PERIOD = 4
#: Bytes by which codes are prefetched; scales and offsets are by as many rows.
_AHEAD = 10 << 10
#: Bytes of weights that a task reads, about, and nanoseconds for a byte.
_PAIR_TASK_BYTES, _PAIR_BYTE_NS = 1 << 17, 0.03


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


def suits_pairs(avals: Sequence[ShapedArray], layout: QuantizedLayout) -> bool:
    """Return True if products by pairs are faster, of operands with a routine."""
    cpu, x = host(), avals[0]
    if not (cpu.triple.startswith("x86") and cpu.vector_bytes == 64 and cpu.has("avx512bf16") and x.dtype == _BFLOAT16):
        return False
    chunk = _BYTES * (2 if layout.is_packed else 1)
    whole = layout.groups == 1 or layout.group_size % chunk == 0 or (chunk % layout.group_size == 0 and chunk // layout.group_size <= 4)
    return whole and (layout.scheme in ("int4", "int8") or (layout.scheme == "nf4" and x.shape[-2] <= _FEW_ROWS))


def write_pair_products(writer: RoutineWriter, avals: Sequence[ShapedArray], layout: QuantizedLayout) -> int:
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
        #: Numbers of a chunk.
        self.numbers = len(self.order) * _WORDS
        #: Rows of weights that are read as one stream of whole chunks, and chunks of as many copies of a row of x.
        self.period = self._period()
        self.chunks = -(-self.period * layout.width // _BYTES)
        #: Vectors of a chunk of x, and bytes of a row of it.
        self.vectors = len(self.order) + self.has_offsets
        self.row_bytes = self.chunks * self.vectors * _BYTES
        self.workspace = math.prod(self.x.shape[:-1]) * self.row_bytes
        self.out = 2 + len(self.by_group)

    def _period(self) -> int:
        """Return how many rows of weights are whole chunks.

        It is 1 if their groups do not allow it, or x has many rows.
        """
        layout = self.layout
        period = _BYTES // math.gcd(_BYTES, layout.width)
        is_dense = layout.size == layout.width * self.numbers // _BYTES
        divides = layout.groups == 1 or (layout.size % layout.group_size == 0 and self.numbers % layout.group_size == 0)
        return period if self.rows <= _FEW_ROWS and period <= min(_MOST_PERIOD, self.outputs) and is_dense and divides else 1

    def write(self, writer: RoutineWriter) -> None:
        """Write the code."""
        writer.launch(1, self.workspace * 0.05, self._arrange)
        tasks = min(self.outputs, even_count(-(-self.outputs * self.layout.width // _PAIR_TASK_BYTES)))
        total = self.stack * self.outputs * self.layout.width
        count = -(-self.rows // _PAIR_ROWS)
        ends = [self.rows * (k + 1) // count for k in range(count)]
        for first, end in itertools.pairwise([0, *ends]):

            def task(f: Function, pointers: list[Value], number: Value, limits: tuple[int, int] = (first, end)) -> None:
                example, period = f.quotient(number, tasks), self.period
                begin, last = task_range(f, f.remainder(number, tasks), self.outputs, tasks, period)
                whole = f.plus(begin, f.times(f.quotient(f.minus(last, begin), period), period))
                f.loop(begin, whole, period, [], lambda row, _: self._stream(f, pointers, example, row, period, *limits))
                if period > 1:
                    f.loop(whole, last, 1, [], lambda row, _: self._stream(f, pointers, example, row, 1, *limits))

            writer.launch(self.stack * tasks, total * _PAIR_BYTE_NS * max(1, (end - first) / 2), task)

    # x in the order of the weights

    def _arrange(self, f: Function, pointers: list[Value], _: Value) -> None:
        """Emit the parts of every row of x, which is repeated for each row of a stream."""
        size, numbers, itemsize = self.layout.size, self.numbers, self.x.dtype.itemsize

        def row(number: Value, _: list[Value]) -> None:
            source = f.at(pointers[0], f"[{size * itemsize} x i8]", number)
            target = f.at(pointers[-1], f"[{self.row_bytes} x i8]", number)

            def run(chunks: range, copy: int) -> None:
                start = f.at(source, "i16", i64(chunks.start * numbers - copy * size))

                def whole(chunk: Value, _: list[Value]) -> None:
                    place = f.at(start, f"[{numbers} x i16]", f.minus(chunk, i64(chunks.start)))
                    self._arrange_chunk(f, load(f, "i16", itemsize, place, numbers), target, chunk)

                f.loop(i64(chunks.start), i64(chunks.stop), 1, [], whole)

            def joined(chunk: int, pieces: list[_Piece]) -> None:
                x = Value(vector_of("i16", numbers), "zeroinitializer")
                for copy, begin, end in pieces:
                    place = f.at(source, "i16", i64(chunk * numbers + begin - copy * size))
                    part = load(f, "i16", itemsize, place, numbers, first_lanes(end - begin, numbers))
                    x = f.shuffle(x, [numbers + lane - begin if begin <= lane < end else lane for lane in range(numbers)], part)
                self._arrange_chunk(f, x, target, i64(chunk))

            for chunk, pieces in _pieces(self.period, size, numbers):
                if isinstance(chunk, range):
                    run(chunk, pieces[0].row)
                else:
                    joined(chunk, pieces)

        f.loop(i64(0), i64(math.prod(self.x.shape[:-1])), 1, [], row)

    def _arrange_chunk(self, f: Function, x: Value, target: Value, chunk: Value) -> None:
        """Emit the parts of a chunk of x."""
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

    def _stream(self, f: Function, pointers: list[Value], example: Value, row: Value, count: int, first: int, end: int) -> None:
        """Emit the products of `count` rows of weights with some rows of x.

        The rows of x are `first` to `end`, and those of weights one stream. Lanes of a shared chunk belong to one row each.
        """
        layout, work, rows = self.layout, self.work, end - first
        number = f.plus(f.times(example, self.outputs), row)
        codes = f.at(pointers[1], f"[{layout.width} x i8]", number)
        x_row = f.plus(f.times(example, self.rows), i64(first))
        x = f.at(pointers[-1], f"[{self.row_bytes} x i8]", x_row)
        by_group = [f.at(pointers[2 + k], f"[{layout.groups * a.dtype.itemsize} x i8]", number) for k, a in enumerate(self.by_group)]
        for pointer, a in zip(by_group, self.by_group, strict=True):
            size = layout.groups * a.dtype.itemsize
            for start in range(0, count * size, CACHE_LINE):
                prefetch(f, f.at(pointer, "i8", i64(_AHEAD // layout.width * size + start)))
        sums = [[work.zero()] * rows for _ in range(count)]

        def products(chunk: Value, size: int, copies: int) -> tuple[list[Value], Value]:
            """Emit the products of a chunk of `size` bytes, and the address of its x."""
            place = f.at(codes, f"[{_BYTES} x i8]", chunk)
            if size == _BYTES:
                prefetch(f, f.at(place, "i8", i64(_AHEAD)))
            words = f.cast("bitcast", load(f, "i8", 1, place, _BYTES, first_lanes(size, _BYTES)), _WORD_VECTOR)
            parts = f.at(x, f"[{self.vectors * _BYTES} x i8]", f.minus(chunk, i64(copies * self.chunks)))
            return self._products(f, words, parts, rows), parts

        def run(chunks: range, j: int) -> None:
            copies = chunks.start // self.chunks

            def added(chunk: Value, totals: list[Value]) -> list[Value]:
                return self._add(f, *products(chunk, _BYTES, copies), self._by_lane(f, by_group, j, chunk, _BYTES), totals)

            sums[j] = f.loop(i64(chunks.start), i64(chunks.stop), 1, sums[j], added)

        def shared(chunk: int, pieces: list[_Piece]) -> None:
            size = pieces[-1].end
            terms = products(i64(chunk), size, chunk // self.chunks)
            for j, begin, end in pieces:
                added = self._add(f, *terms, self._by_lane(f, by_group, j, i64(chunk), size), sums[j])
                if self.period > 1:  # x has numbers in the lanes of other rows
                    mask = _lanes_between(begin // 4, end // 4)
                    added = [f.select(mask, total, before) for total, before in zip(added, sums[j], strict=True)]
                sums[j] = added

        for chunk, pieces in _pieces(count, layout.width, _BYTES):
            if isinstance(chunk, range):
                run(chunk, pieces[0].row)
            else:
                shared(chunk, pieces)
        dtype = self.x.dtype
        for i in range(rows):
            place = f.plus(f.times(f.plus(x_row, i64(i)), self.outputs), row)
            total = sums_across(f, work, [totals[i] for totals in sums])
            write(f, work, dtype, total, count, f.at(pointers[self.out], f"[{dtype.itemsize} x i8]", place))

    def _products(self, f: Function, words: Value, x: Value, rows: int) -> list[Value]:
        """Emit the sums of products of a chunk's codes with each row of x."""
        shifted = {0: words}
        weights = []
        for lookup in self.lookups:
            if lookup.shift not in shifted:
                shifted[lookup.shift] = f.binary("lshr", words, f.splat(Value("i16", str(lookup.shift)), _WORDS))
            weights.append(f.intrinsic("llvm.x86.avx512.permvar.hi.512", _WORD_VECTOR, _words(lookup.table), shifted[lookup.shift]))
        sums = []
        for i in range(rows):
            total = self.work.zero()
            for lookup, weight in zip(self.lookups, weights, strict=True):
                total = _add_pairs(f, weight, self._part(f, x, i, lookup.part, _WORD_VECTOR), total)
            sums.append(total)
        return sums

    def _part(self, f: Function, x: Value, row: int, number: int, type_: str) -> Value:
        """Emit a vector of a chunk of a row of x."""
        return f.load(type_, f.at(f.at(x, f"[{self.row_bytes} x i8]", i64(row)), f"[{_BYTES} x i8]", i64(number)), 4)

    def _add(self, f: Function, products: list[Value], x: Value, by_lane: list[Value], sums: list[Value]) -> list[Value]:
        """Emit the sums with the products of a chunk added, scaled, and its offsets."""
        totals = []
        for i, (product, total) in enumerate(zip(products, sums, strict=True)):
            total = self.work.multiply_add(f, product, by_lane[0], total)
            if self.has_offsets:
                total = self.work.multiply_add(f, self._part(f, x, i, self.vectors - 1, self.work.vector), by_lane[1], total)
            totals.append(total)
        return totals

    def _by_lane(self, f: Function, by_group: list[Value], row: int, chunk: Value, size: int) -> list[Value]:
        """Emit the scale, and the offset, of each lane of a chunk of a stream's row."""
        layout, numbers = self.layout, self.numbers
        count = 1 if layout.groups == 1 else max(1, numbers // layout.group_size)
        if count > 1:  # groups of rows follow one another as their codes do
            first = f.times(chunk, count)
        elif layout.groups == 1:
            first = i64(row)
        else:
            within = f.minus(chunk, i64(row * layout.width // _BYTES))
            first = f.plus(f.quotient(within, layout.group_size // numbers), i64(row * layout.groups))
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


class _Piece(NamedTuple):
    """Where a row's part of a chunk begins and ends."""

    row: int
    begin: int
    end: int


def _pieces(rows: int, width: int, chunk: int) -> Iterator[tuple[int | range, list[_Piece]]]:
    """Divide rows, one after another, into chunks.

    Yield runs of chunks that belong to one row, and single chunks that are shared, or not whole, with their parts.
    """
    at = 0
    while at * chunk < rows * width:
        start = at * chunk
        touched = range(start // width, min(rows, -(-(start + chunk) // width)))
        pieces = [_Piece(j, max(j * width - start, 0), min((j + 1) * width - start, chunk)) for j in touched]
        if pieces[0] == (touched[0], 0, chunk):
            run = range(at, (touched[0] + 1) * width // chunk)
            yield run, pieces
            at = run.stop
        else:
            yield at, pieces
            at += 1


def _lanes_between(begin: int, end: int) -> Value:
    """Return the mask of some lanes of sums."""
    bits = ", ".join(f"i1 {'true' if begin <= lane < end else 'false'}" for lane in range(_LANES))
    return Value(vector_of("i1", _LANES), f"<{bits}>")


def _words(numbers: Sequence[float]) -> Value:
    """Return the words of bfloat16 numbers as a constant."""
    bits = np.asarray(numbers, _BFLOAT16).view(np.int16).tolist()
    return Value(vector_of("i16", len(bits)), f"<{', '.join([f'i16 {n}' for n in bits])}>")


def _add_pairs(f: Function, x: Value, y: Value, total: Value) -> Value:
    """Emit a total plus the products of pairs of bfloat16, given as words."""
    pairs = [f.cast("bitcast", value, _PAIR_VECTOR) for value in (x, y)]
    return f.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", total.type, total, *pairs)


# Products.

#: The most rows of the left operand. With more, a product with blocks of weights that are converted once is faster.
MOST_ROWS = 32
#: The most rows of the left operand for which weights are read once.
_ROWS = 8
#: Vectors of sums that fit into the registers beside other values, by the number of registers.
_SUMS = {32: 24, 16: 8}
#: Independent sums for each result, at most, which break the dependency chain.
_MOST_CHAINS = 4
#: Steps of a group that are written out one after another.
_UNROLLED = 4
#: Bytes of weights that a task reads, about, and nanoseconds for a byte.
_TASK_BYTES, _BYTE_NS = 1 << 17, 0.06
_FLOAT = np.dtype(np.float32)
#: What the bits of float8_e4m3fn, as the upper ones of a float16, are too small by.
_FLOAT8_FACTOR = 256.0


def has_routine(eqn: Equation) -> bool:
    """Return True if a product with a quantised matrix has a routine."""
    return suits(tuple([v.aval for v in eqn.invars]), **eqn.params)


def suits(avals: Sequence[ShapedArray], layout: QuantizedLayout, transposed: bool) -> bool:
    """Return True if operands of these types have a routine."""
    x, data, *by_group = avals
    few = not transposed and 0 < x.shape[-2] <= MOST_ROWS and 0 not in (*data.shape, layout.size)
    narrow = all(a.dtype in FLOATS and a.dtype.itemsize <= 4 and readable(a.dtype) for a in (x, *by_group))
    whole_groups = (
        layout.groups == 1 or layout.group_size % BLOCK == 0 or (not layout.is_packed and layout.group_size % host().lanes(4) == 0)
    )
    by_instructions = {"nf4": _has_tables(), "fp8": readable(np.dtype(np.float16))}
    return few and narrow and whole_groups and by_instructions.get(layout.scheme, True)


def _has_tables() -> bool:
    """Return True if one or two instructions look numbers up in a table of 16."""
    return host().triple.startswith("x86") and host().vector_bytes >= 32


def quantized_dot(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    if not suits(avals, **params):
        return None
    rows, size = avals[0].shape[-2], params["layout"].size
    stack = math.prod(avals[0].shape[:-2])
    if suits_pairs(avals, params["layout"]):
        writer = RoutineWriter("quantized_dot", len(avals) + 2)
        return writer.routine(write_pair_products(writer, avals, params["layout"]))
    count = -(-rows // _ROWS)
    ends = [rows * (k + 1) // count for k in range(count)]
    parts = [_FewRows(avals, params["layout"], *limits) for limits in zip([0, *ends], ends, strict=False)]
    writer = RoutineWriter("quantized_dot", parts[0].out + 1 + parts[0].converts)
    if parts[0].converts:
        writer.launch(1, stack * rows * size * 0.1, parts[0].convert)
    for part in parts:
        part.write(writer)
    return writer.routine(stack * rows * parts[0].padded * 4 if parts[0].converts else 0)


ROUTINES = {"quantized_dot": quantized_dot}


class _Pointers(NamedTuple):
    """Where a tile's operands begin.

    These are x as float32, and by row of weights the codes, and scales and perhaps offsets.
    """

    x: Value
    data: list[Value]
    by_group: list[list[Value]]


class _FewRows:
    """The writer of the products of rows `first` to `end` of x.

    Buffers are x, the codes, scales, perhaps offsets, the result, and as a workspace x as float32.

    A row of weights is read at a time, since a single stream is what processors prefetch best. With more than two rows of x, reading these
    takes longer than that, so that several rows of weights, a *tile*, share what is read of x.
    """

    def __init__(self, avals: tuple[ShapedArray, ...], layout: QuantizedLayout, first: int, end: int) -> None:
        self.x, self.data, self.by_group = avals[0], avals[1], avals[2:]
        self.layout = layout
        work = compute_type(_FLOAT)
        assert work is not None
        self.work: ComputeType = work
        self.stack = 1 if self.data.ndim == 2 else self.data.shape[0]
        self.first, self.rows, self.outputs = first, end - first, self.data.shape[-2]
        #: Whether sums of a group are multiplied by its scale, rather than each weight.
        self.scales_sums = not layout.is_packed and len(self.by_group) == 1 and self.rows <= 2
        room = _SUMS[host().vector_registers]
        if layout.is_packed:  # tables and halves of blocks need registers, too
            room -= room // 3
        room //= (2 if self.scales_sums else 1) * self.rows
        self.tile = max(1, min(4, room, self.outputs)) if self.rows > 2 else 1
        room //= self.tile
        chains = max([n for n in (1, 2, _MOST_CHAINS) if n <= room], default=1)
        least_step = BLOCK if layout.is_packed else work.lanes
        period = layout.size if layout.groups == 1 else layout.group_size
        #: Numbers of an iteration: as many vectors as there are independent sums, where groups are as long.
        self.step = least_step
        while self.step < chains * work.lanes and period % (2 * self.step) == 0:
            self.step *= 2
        #: Groups of an iteration, so that short ones together have as many vectors.
        self.together = 1
        while self.together * self.step < chains * work.lanes and layout.groups % (2 * self.together) == 0:
            self.together *= 2
        self.chains = min(chains, max(1, self.together * self.step // work.lanes))
        #: The numbers of a row of x as float32, padded with zeros to a multiple of every step.
        self.padded = layout.size + -layout.size % max(BLOCK, _MOST_CHAINS * work.lanes)
        self.converts = self.x.dtype != _FLOAT or self.padded != layout.size
        self.out = 2 + len(self.by_group)

    def write(self, writer: RoutineWriter) -> None:
        """Write the code."""
        each = max(1, min(self.outputs, _TASK_BYTES // self.layout.width))
        chunks = -(-self.outputs // each)
        total = self.stack * self.outputs * self.layout.width

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            example = f.quotient(number, chunks)
            begin, end = task_range(f, f.remainder(number, chunks), self.outputs, chunks, self.tile)
            whole = f.plus(begin, f.times(f.quotient(f.minus(end, begin), self.tile), self.tile))
            f.loop(begin, whole, self.tile, [], lambda row, _: self._rows(f, pointers, example, row, self.tile))
            if self.tile > 1:
                f.loop(whole, end, 1, [], lambda row, _: self._rows(f, pointers, example, row, 1))

        writer.launch(self.stack * chunks, total * _BYTE_NS * max(1, self.rows / 2), task)

    def convert(self, f: Function, pointers: list[Value], _: Value) -> None:
        """Emit the conversion of x to float32, padded with zeros to whole steps."""
        size, lanes, itemsize = self.layout.size, self.work.lanes, self.x.dtype.itemsize

        def row(number: Value, _: list[Value]) -> None:
            source = f.at(pointers[0], f"[{size * itemsize} x i8]", number)
            target = f.at(pointers[-1], f"[{self.padded} x float]", number)

            def vector(start: Value, count: int) -> None:
                value = read(f, self.work, self.x.dtype, f.at(source, f"[{itemsize} x i8]", start), lanes, first_lanes(count, lanes))
                f.store(value, f.at(target, "float", start), 4)

            f.loop(i64(0), i64(size - size % lanes), lanes, [], lambda start, _: vector(start, lanes))
            for start in range(size - size % lanes, self.padded, lanes):
                if start < size:
                    vector(i64(start), size - start)
                else:
                    f.store(self.work.zero(), f.at(target, "float", i64(start)), 4)

        f.loop(i64(0), i64(math.prod(self.x.shape[:-1])), 1, [], row)

    def _rows(self, f: Function, pointers: list[Value], example: Value, row: Value, count: int) -> None:
        """Emit the products of `count` rows of weights with each row of x."""
        layout, work = self.layout, self.work
        x_rows = f.plus(f.times(example, self.x.shape[-2]), i64(self.first))
        numbers = [f.plus(f.times(example, self.outputs), f.plus(row, i64(j))) for j in range(count)]
        at = _Pointers(
            f.at(pointers[-1 if self.converts else 0], f"[{self.padded} x float]", x_rows),
            [f.at(pointers[1], f"[{layout.width} x i8]", number) for number in numbers],
            [
                [f.at(pointers[2 + k], f"[{layout.groups * a.dtype.itemsize} x i8]", number) for k, a in enumerate(self.by_group)]
                for number in numbers
            ],
        )
        zeros = [work.zero()] * (count * self.rows * self.chains)
        if layout.scheme == "fp8":
            zeros += [Value(vector_of("i8", work.lanes), "zeroinitializer")] * count

        def groups(first: Value, carried: list[Value]) -> list[Value]:
            for k in range(self.together):
                carried = self._group(f, at, f.plus(first, i64(k)), carried, k * self.step // work.lanes)
            return carried

        sums = f.loop(i64(0), i64(layout.groups), self.together, zeros, groups, nonempty=True)
        dtype = self.x.dtype
        for j, i in itertools.product(range(count), range(self.rows)):
            first = (j * self.rows + i) * self.chains
            parts = sums[first : first + self.chains]
            while len(parts) > 1:
                parts = [work.add(f, *parts[k : k + 2]) for k in range(0, len(parts), 2)]
            total = sums_across(f, work, parts[:1])
            if layout.scheme == "fp8":
                total = f.select(self._any_nan(f, sums[j - count]), Value("float", _hexadecimal(float("nan"))), total)
            place = f.plus(f.times(f.plus(x_rows, i64(i)), self.outputs), f.plus(row, i64(j)))
            write(f, work, dtype, total, 1, f.at(pointers[self.out], f"[{dtype.itemsize} x i8]", place))

    def _group(self, f: Function, at: _Pointers, group: Value, sums: list[Value], first_chain: int) -> list[Value]:
        """Emit the sums with a group's products added."""
        layout, work = self.layout, self.work
        decoders = []
        for places in at.by_group:
            pairs = zip(self.by_group, places, strict=True)
            numbers = [read(f, work, a.dtype, f.at(p, f"[{a.dtype.itemsize} x i8]", group), 1) for a, p in pairs]
            decoders.append(_Decoder(self, f, *[f.splat(number, work.lanes) for number in numbers]))
        pairs_of_rows = list(zip(decoders, at.data, strict=True))
        start, size = f.times(group, layout.group_size), layout.group_size
        count = len(decoders) * self.rows * self.chains

        def step(k: Value, carried: list[Value], rest: int | None = None) -> list[Value]:
            totals = list(carried)
            rows = [decoder.weights(data, k, rest, totals, j - len(decoders)) for j, (decoder, data) in enumerate(pairs_of_rows)]
            for number, (place, _) in enumerate(rows[0]):
                for i in range(self.rows):
                    x = f.load(work.vector, f.at(f.at(at.x, f"[{self.padded} x float]", i64(i)), "float", f.plus(k, i64(place))), 4)
                    for j, row in enumerate(rows):
                        index = (j * self.rows + i) * self.chains + (first_chain + number) % self.chains
                        totals[index] = work.multiply_add(f, x, row[number][1], totals[index])
            return totals

        group_sums = [work.zero()] * count + sums[count:] if self.scales_sums else sums
        if layout.size % size == 0 and size % self.step == 0 and size <= _UNROLLED * self.step:
            for offset in range(0, size, self.step):
                group_sums = step(f.plus(start, i64(offset)), group_sums)
        else:
            group_sums = self._long_group(f, group, start, group_sums, step)
        if not self.scales_sums:
            return group_sums
        each = self.rows * self.chains
        scaled = [work.multiply_add(f, group_sums[k], decoders[k // each].scale, sums[k]) for k in range(count)]
        return scaled + group_sums[count:]

    def _long_group(self, f: Function, group: Value, start: Value, sums: list[Value], step: Callable[..., list[Value]]) -> list[Value]:
        """Emit a group's products in a loop.

        The last step of the last group may have fewer numbers.
        """
        layout = self.layout
        size = layout.width * (2 if layout.is_packed else 1)  # packed rows are padded to whole blocks, not to whole steps
        rest = size % self.step
        end = f.plus(start, i64(layout.group_size))
        if size % layout.group_size or rest:
            end = least(f, end, i64(size - rest))
        sums = f.loop(start, end, self.step, sums, step)
        if not rest:
            return sums
        last = f.compare("icmp eq", group, i64(layout.groups - 1))
        return f.branch(last, lambda: step(i64(size - rest), sums, rest), lambda: sums)

    def _any_nan(self, f: Function, largest: Value) -> Value:
        """Emit whether some magnitude of float8_e4m3fn is that of NaN."""
        top = f.intrinsic(f"llvm.vector.reduce.umax.v{self.work.lanes}i8", "i8", largest)
        return f.compare("icmp eq", top, Value("i8", "127"))


class _Decoder:
    """Converts a row's codes of one group to weights, in registers."""

    def __init__(self, product: _FewRows, f: Function, scale: Value, offset: Value | None = None) -> None:
        self.f, self.work, self.product = f, product.work, product
        self.scheme, self.scale, self.offset = product.layout.scheme, scale, offset
        self.tables: list[Value] = []
        if product.layout.is_packed and _has_tables():
            lanes = min(self.work.lanes, 16)
            numbers = TABLES[self.scheme].tolist()
            self.tables = [self._scaled(_constant(numbers[start : start + lanes])) for start in range(0, 16, lanes)]
        elif self.scheme == "int4":  # (code - 8) * scale + offset
            base = f.binary("fmul", self._splat(-8.0), scale)
            self.offset = base if offset is None else self.work.add(f, base, offset)
        elif self.scheme == "fp8":
            self.scale = f.binary("fmul", self._splat(_FLOAT8_FACTOR), scale)

    def weights(self, row: Value, k: Value, rest: int | None, sums: list[Value], largest: int) -> list[tuple[int, Value]]:
        """Emit the weights of a step, of which `rest` exist: positions and vectors.

        The element `largest` of `sums` collects the largest magnitude of float8_e4m3fn's codes.
        """
        f, lanes = self.f, self.work.lanes
        size = self.product.step if rest is None else rest
        if self.product.layout.is_packed:
            blocks = [(first, self._block(row, f.plus(k, i64(first)))) for first in range(0, size, BLOCK)]
            return [(first + place, vector) for first, block in blocks for place, vector in block]
        vectors = []
        for start in range(0, size, lanes):
            mask = None if rest is None else first_lanes(rest - start, lanes)
            codes = load(f, "i8", 1, f.at(row, "i8", f.plus(k, i64(start))), lanes, mask)
            if self.scheme == "fp8":
                magnitude = f.binary("and", codes, f.splat(Value("i8", "127"), lanes))
                sums[largest] = f.intrinsic(f"llvm.umax.v{lanes}i8", codes.type, sums[largest], magnitude)
                value = self._float8(codes)
            else:
                value = f.cast("sitofp", f.cast("sext", codes, vector_of("i32", lanes)), self.work.vector)
            vectors.append((start, value if self.product.scales_sums else self._scaled(value)))
        return vectors

    def _block(self, row: Value, k: Value) -> list[tuple[int, Value]]:
        """Emit the weights of a block of codes of 4 bits: positions and vectors."""
        f, lanes = self.f, self.work.lanes
        block = f.at(row, "i8", f.quotient(k, 2))
        parts = [(start, f.load(vector_of("i8", lanes), f.at(block, "i8", i64(start)), 1)) for start in range(0, BLOCK // 2, lanes)]
        wide = [(start, f.cast("zext", part, vector_of("i32", lanes))) for start, part in parts]
        four = self._integer(4)
        upper = [(BLOCK // 2 + start, f.binary("lshr", part, four)) for start, part in wide]
        return [(start, self._looked_up(codes)) for start, codes in (*wide, *upper)]

    def _scaled(self, x: Value) -> Value:
        """Emit x times the scale, plus the offset."""
        return self.f.binary("fmul", x, self.scale) if self.offset is None else self.work.multiply_add(self.f, x, self.scale, self.offset)

    def _float8(self, codes: Value) -> Value:
        """Emit the values of float8_e4m3fn divided by `_FLOAT8_FACTOR`.

        Its fields are those of a float16, with another bias.
        """
        f, lanes = self.f, self.work.lanes
        short = vector_of("i16", lanes)
        fields = f.binary("shl", f.cast("sext", codes, short), f.splat(Value("i16", "7"), lanes))
        half = f.binary("and", fields, f.splat(Value("i16", str(0xBFFF - 0x10000)), lanes))
        return f.cast("fpext", f.cast("bitcast", half, vector_of("half", lanes)), self.work.vector)

    def _looked_up(self, codes: Value) -> Value:
        """Emit the weights of codes in the lower 4 bits."""
        f, lanes = self.f, self.work.lanes
        if not self.tables:
            low = f.binary("and", codes, self._integer(15))
            return self._scaled(f.cast("uitofp", low, self.work.vector))
        if len(self.tables) == 1:
            return f.intrinsic("llvm.x86.avx512.permvar.sf.512", self.work.vector, self.tables[0], codes)
        picks = [f.intrinsic("llvm.x86.avx2.permps", self.work.vector, table, codes) for table in self.tables]
        upper = f.compare("icmp ne", f.binary("and", codes, self._integer(8)), Value(vector_of("i32", lanes), "zeroinitializer"))
        return f.select(upper, picks[1], picks[0])

    def _integer(self, number: int) -> Value:
        return self.f.splat(Value("i32", str(number)), self.work.lanes)

    def _splat(self, number: float) -> Value:
        return Value(self.work.vector, f"splat (float {_hexadecimal(number)})")


def _hexadecimal(number: float) -> str:
    """Return a float32 as LLVM's text: the bits of the float64 of the same value."""
    return f"0x{np.float64(np.float32(number)).view(np.uint64):016X}"


def _constant(numbers: Sequence[float]) -> Value:
    lanes = ", ".join(f"float {_hexadecimal(number)}" for number in numbers)
    return Value(vector_of("float", len(numbers)), f"<{lanes}>")
