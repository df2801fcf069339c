"""The collectives as kernels and routines: reductions, gathers, permutations.

Arrays are contiguous. A reduction of several arrays numbers their words of 16 bytes one after another; the last word of an array may be
incomplete. What is moved along an axis is moved in words that divide the bytes behind that axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices import distribution
from volta_fn.core.jaxpr import Equation
from volta_fn.runtime.llvm.text import Value, i64, vector_of
from volta_fn.targets.nvidia.kernel import GLOBAL, KernelFunction, KernelHeader, i32, kernel_dispatch
from volta_fn.targets.nvidia.peers import BLOCKS, CAPACITY, POSTS, RESULTS, WORD, Division, PeerFunction, Peers, divided
from volta_fn.targets.wgsl.routine import Dispatch, Routine

# Words as numbers, which reductions combine.
#
# A word has up to 16 bytes. Floats of 16 bits are added and compared as float32, and rounded once, as the host does.

#: LLVM's types of numbers in memory, by dtype.
_STORED = {
    "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double", "complex64": "float", "complex128": "double",
    "bool": "i8",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

_BFLOAT16 = np.dtype(dtypes.bfloat16)


def word_type(size: int) -> str:
    """Return the type as which a word of so many bytes is loaded and stored."""
    return "<4 x i32>" if size == 16 else f"i{8 * size}"


def combines(step: str, dtype: np.dtype) -> bool:
    """Return whether numbers of a dtype are combined by "sum", "max" or "min" here."""
    return dtype.name in _STORED and (step == "sum" or dtype.kind != "c") and (step != "sum" or dtype.kind != "b")


class Numbers:
    """The numbers of a dtype in words of `size` bytes, under construction.

    Those that are combined may be of another dtype, `source`, of 16 bits: they travel as they are. With `compression` all travel as that
    dtype, also results.
    """

    def __init__(
        self, f: KernelFunction, dtype: np.dtype, size: int, compression: np.dtype | None = None, source: np.dtype | None = None
    ) -> None:
        self.f, self.dtype, self.size = f, dtype, size
        self.lanes = size // (dtype.itemsize if dtype.kind != "c" else dtype.itemsize // 2)
        self.source = source or dtype
        #: The dtypes of operands and of results on their way.
        self.wire, self.result_wire = compression or self.source, compression or dtype
        #: Bytes of a word that is combined, and of operands' and results' words on their way.
        self.source_size, self.wire_size, self.result_size = [
            size * each.itemsize // dtype.itemsize for each in (self.source, self.wire, self.result_wire)
        ]

    def decoded(self, word: Value) -> Value:
        """Emit the numbers of a word that is combined."""
        return self._decoded(word, self.source)

    def encoded(self, numbers: Value) -> Value:
        """Emit the word of numbers."""
        return self._encoded(numbers, self.dtype)

    def sent(self, word: Value) -> Value:
        """Emit a word that is combined as it travels."""
        return word if self.wire == self.source else self._encoded(self.decoded(word), self.wire)

    def arrived(self, word: Value) -> Value:
        """Emit the numbers of a word that has arrived."""
        return self._decoded(word, self.wire)

    def sent_result(self, numbers: Value) -> Value:
        """Emit the word of a result as it travels."""
        return self._encoded(numbers, self.result_wire)

    def arrived_result(self, word: Value) -> Value:
        """Emit the word of a result that has travelled."""
        return word if self.result_wire == self.dtype else self.encoded(self._decoded(word, self.result_wire))

    def _decoded(self, word: Value, dtype: np.dtype) -> Value:
        f, lanes = self.f, self.lanes
        numbers = f.cast("bitcast", word, vector_of(_STORED[dtype.name], lanes))
        if dtype == _BFLOAT16:
            wide = f.cast("zext", numbers, vector_of("i32", lanes))
            shifted = f.binary("shl", wide, f.splat(Value("i32", "16"), lanes))
            return f.cast("bitcast", shifted, vector_of("float", lanes))
        return f.cast("fpext", numbers, vector_of("float", lanes)) if dtype == np.float16 else numbers

    def _encoded(self, numbers: Value, dtype: np.dtype) -> Value:
        f, type_ = self.f, word_type(self.lanes * dtype.itemsize if dtype.kind != "c" else self.size)
        if dtype in (_BFLOAT16, np.dtype(np.float16)):
            numbers = f.cast("fptrunc", numbers, vector_of("bfloat" if dtype == _BFLOAT16 else "half", self.lanes))
        return f.cast("bitcast", numbers, type_)

    def combined(self, step: str, parts: Sequence[Value]) -> Value:
        """Emit the sum, maximum or minimum of numbers, from the first to the last."""
        total = parts[0]
        for part in parts[1:]:
            total = self._pair(step, total, part)
        return total

    def _pair(self, step: str, x: Value, y: Value) -> Value:
        f, is_float = self.f, self.dtype.kind in "fcV"  # bfloat16 is of the kind V
        if step == "sum":
            return f.binary("fadd" if is_float else "add", x, y)
        if is_float:  # NaN stays
            first = f.compare(f"fcmp {'ogt' if step == 'max' else 'olt'}", x, y)
            return f.select(f.binary("or", first, f.compare("fcmp uno", x, x)), x, y)
        sign = "s" if self.dtype.kind == "i" else "u"
        return f.select(f.compare(f"icmp {sign}{'gt' if step == 'max' else 'lt'}", x, y), x, y)


# Kernels.

#: The fewest bytes of a block.
_FEWEST = 1 << 13


class PeerSchedule(NamedTuple):
    """How a collective's kernel runs."""

    threads: int = 512
    #: The most blocks, and those for `many` bytes or more. Fewer leave multiprocessors to kernels that run at the same time.
    blocks: int = 64
    most_blocks: int = BLOCKS
    many: int = 1 << 26
    #: Words that a thread loads before it stores the first.
    unroll: int = 4
    #: The most bytes of an array that processes send whole, so that each reduces all of it. More are reduced in shares, of which each
    #: process sends its own to all: this takes a second round, and less traffic if there are more than two processes.
    whole: int = 1 << 18

    def blocks_for(self, size: int) -> int:
        """Return the most blocks for an array of so many bytes."""
        return self.most_blocks if size >= self.many else self.blocks


#: The schedule of all collectives.
SCHEDULE = PeerSchedule()


def _dispatch(f: PeerFunction, ranks: tuple[int, ...], buffers: Sequence[int], results: int, division: Division) -> Dispatch:
    """Return the dispatch of a finished kernel, of whose buffers the last are results."""
    return kernel_dispatch(KernelHeader(f.threads, 0, (), ranks), buffers, results, f.text(), division.blocks)


# Reductions of arrays.


class _Arrays:
    """The words of several results of a dtype, numbered one after another.

    What is combined has as many words.
    """

    def __init__(self, f: PeerFunction, sizes: Sequence[int], numbers: Numbers) -> None:
        self.f, self._source_size = f, numbers.source_size
        #: Bytes of numbers that are stored one by one, and the number of the first word of each array.
        self._part = min(numbers.dtype.itemsize, 8)
        self._ends = np.cumsum([-(-size // WORD) for size in sizes]).tolist()
        self._sizes = sizes
        self.words = self._ends[-1]
        starts = [0, *self._ends[:-1]]
        self._sources, self._targets = [
            [
                f.binary("sub", f.cast("ptrtoint", pointer, "i64"), i64(size * start))
                for pointer, start in zip(pointers, starts, strict=True)
            ]
            for pointers, size in ((f.bindings[: len(sizes)], self._source_size), (f.bindings[len(sizes) :], WORD))
        ]

    def source(self, word: Value) -> Value:
        """Emit the pointer to a word that is combined."""
        return self._pointer(self._sources, word, self._source_size)

    def _pointer(self, bases: Sequence[Value], word: Value, size: int) -> Value:
        f, base = self.f, bases[-1]
        for end, other in zip(self._ends[-2::-1], bases[-2::-1], strict=True):
            base = f.select(f.below(word, end), other, base)
        offset = f.wide_times(word, size)
        return f.let(GLOBAL, f"inttoptr {f.binary('add', base, offset)} to {GLOBAL}")

    def load(self, word: Value) -> Value:
        """Emit a word; what is behind an array in its last word is undefined."""
        return self.f.load(word_type(self._source_size), self.source(word), self._source_size)

    def store(self, word: Value, value: Value) -> None:
        """Emit a store of a word, or of the part of it that belongs to an array."""
        f, pointer = self.f, self._pointer(self._targets, word, WORD)
        incomplete = [(end - 1, size % WORD) for end, size in zip(self._ends, self._sizes, strict=True) if size % WORD]
        if not incomplete:
            f.store(value, pointer, WORD)
            return
        remaining = i32(WORD)
        for last, size in incomplete:
            remaining = f.select(f.equals(word, last), i32(size), remaining)
        is_whole = f.compare("icmp eq", remaining, i32(WORD))

        def store_parts() -> None:
            count = WORD // self._part
            parts = f.cast("bitcast", value, vector_of(f"i{8 * self._part}", count))
            for k in range(count - 1):
                with f.only_if(f.compare("icmp ugt", remaining, i32(k * self._part))):
                    f.store(f.shuffle(parts, [k]), f.further(pointer, i64(k * self._part)), self._part)

        f.branch(is_whole, lambda: f.store(value, pointer, WORD), store_parts)


def reduction(
    step: str,
    dtype: np.dtype,
    sizes: Sequence[int],
    buffers: Sequence[int],
    ranks: tuple[int, ...],
    compression: np.dtype | None = None,
    source: np.dtype | None = None,
    schedule: PeerSchedule | None = None,
) -> Dispatch:
    """Return the dispatch that combines arrays over processes.

    Results are of a dtype and of so many bytes. Buffers are the arrays, which may be of another dtype, `source`, then the results. Numbers
    are combined in the order of the processes.
    """
    schedule = schedule or SCHEDULE
    f = PeerFunction(len(buffers), len(ranks), schedule.threads, schedule.unroll)
    numbers = Numbers(f, dtype, WORD, compression, source)
    arrays = _Arrays(f, sizes, numbers)
    # Two processes send each other as much in either way.
    whole = len(ranks) <= 2 or sum(sizes) <= schedule.whole
    schedule = schedule._replace(blocks=schedule.blocks_for(sum(sizes)))
    division = (_reduce_whole if whole else _reduce_shares)(f, arrays, numbers, step, schedule)
    return _dispatch(f, ranks, buffers, len(sizes), division)


def _part(f: PeerFunction, division: Division, exchange: Value, first: Value | None = None, size: int | None = None) -> tuple[Value, Value]:
    """Emit the first word of an exchange, or of a part of it, and how many there are."""
    number = f.plus(f.times(exchange, division.blocks), f.block)
    begin = f.plus(f.times(number, division.each), first or i32(0))
    remaining = f.intrinsic("llvm.usub.sat.i32", "i32", i32(division.words), begin)
    return begin, f.umin(remaining, i32(division.each if size is None else size))


def _parts(f: PeerFunction, numbers: Numbers, word: Value, mine: Value, slots: Sequence[Value]) -> list[Value]:
    """Emit the numbers of all processes in a word, in their order.

    Those of this process are at the pointer `mine`, the others in slots.
    """
    offset = f.wide_times(word, numbers.wire_size)
    pointers = [f.further(slot, offset) for slot in slots]
    is_mine = [f.equals(f.position, number) for number in range(len(slots))]
    if numbers.wire == numbers.source:
        pointers = [f.select(condition, mine, pointer) for condition, pointer in zip(is_mine, pointers, strict=True)]
        return [numbers.decoded(f.load(word_type(numbers.source_size), pointer, numbers.source_size)) for pointer in pointers]
    sent = numbers.arrived(numbers.sent(f.load(word_type(numbers.source_size), mine, numbers.source_size)))
    # This process's own slot has old words, which are not used.
    arrived = [numbers.arrived(f.load(word_type(numbers.wire_size), pointer, numbers.wire_size)) for pointer in pointers]
    return [f.select(condition, sent, part) for condition, part in zip(is_mine, arrived, strict=True)]


def _reduce_whole(f: PeerFunction, arrays: _Arrays, numbers: Numbers, step: str, schedule: PeerSchedule) -> Division:
    """Append a reduction in which each process sends all of its words to all others."""
    size = f.slot_bytes
    division = divided(arrays.words, size // numbers.wire_size, _FEWEST // WORD, schedule.blocks)
    others = [f.other(distance) for distance in range(1, f.size)]

    def post(exchange: Value) -> None:
        begin, count = _part(f, division, exchange)
        slots = [f.slot(owner, f.position, exchange, POSTS, size) for owner in others]

        _send(f, count, lambda word: numbers.sent(arrays.load(f.plus(begin, word))), slots, numbers.wire_size)

    def take(exchange: Value) -> None:
        begin, count = _part(f, division, exchange)
        slots = f.received(exchange)

        def load(word: Value) -> list[Value]:
            return [numbers.combined(step, _parts(f, numbers, word, arrays.source(f.plus(begin, word)), slots))]

        def store(word: Value, total: Sequence[Value]) -> None:
            arrays.store(f.plus(begin, word), numbers.arrived_result(numbers.sent_result(total[0])))

        f.words(count, load, store)

    f.exchanges(division.exchanges, post, take)
    return division


def _store_to_all(f: PeerFunction, slots: Sequence[Value], word: Value, value: Value, size: int) -> None:
    offset = f.wide_times(word, size)
    for slot in slots:
        f.store(value, f.further(slot, offset), size)


def _send(f: PeerFunction, count: Value, load: Callable[[Value], Value], slots: Sequence[Value], size: int) -> None:
    """Append a loop that leaves words of `size` bytes in slots of other processes."""
    f.words(count, lambda word: [load(word)], lambda word, value: _store_to_all(f, slots, word, value[0], size))


def _fetch(f: PeerFunction, count: Value, slot: Value, store: Callable[[Value, Value], None], size: int) -> None:
    """Append a loop that stores the words of `size` bytes that have arrived in a slot."""

    def load(word: Value) -> list[Value]:
        return [f.load(word_type(size), f.word(slot, word, size), size)]

    f.words(count, load, lambda word, value: store(word, value[0]))


def _reduce_shares(f: PeerFunction, arrays: _Arrays, numbers: Numbers, step: str, schedule: PeerSchedule) -> Division:
    """Append a reduction in which each process reduces a share of the words.

    It sends the result to all others.
    """
    size = f.slot_bytes
    most = size // max(numbers.wire_size, numbers.result_size)
    division = divided(arrays.words, f.size * most, f.size * (_FEWEST // WORD), schedule.blocks)
    share = -(-division.each // f.size)
    division = division._replace(each=f.size * share)
    others = [f.other(distance) for distance in range(1, f.size)]

    def part(exchange: Value, owner: Value) -> tuple[Value, Value]:
        return _part(f, division, exchange, f.times(owner, share), share)

    def post(exchange: Value) -> None:
        for owner in others:
            send(exchange, owner)

    def send(exchange: Value, owner: Value) -> None:
        begin, count = part(exchange, owner)
        slot = f.slot(owner, f.position, exchange, POSTS, size)
        _send(f, count, lambda word: numbers.sent(arrays.load(f.plus(begin, word))), [slot], numbers.wire_size)

    def take(exchange: Value) -> None:
        begin, count = part(exchange, f.position)
        slots = f.received(exchange)
        targets = [f.slot(owner, f.position, exchange, RESULTS, size) for owner in others]

        def load(word: Value) -> list[Value]:
            total = numbers.combined(step, _parts(f, numbers, word, arrays.source(f.plus(begin, word)), slots))
            return [numbers.sent_result(total)]

        def store(word: Value, sent: Sequence[Value]) -> None:
            arrays.store(f.plus(begin, word), numbers.arrived_result(sent[0]))
            _store_to_all(f, targets, word, sent[0], numbers.result_size)

        f.words(count, load, store)

    def finish(exchange: Value) -> None:
        for owner in others:
            fetch(exchange, owner)

    def fetch(exchange: Value, owner: Value) -> None:
        begin, count = part(exchange, owner)
        slot = f.slot(f.position, owner, exchange, RESULTS, size)

        def store(word: Value, value: Value) -> None:
            arrays.store(f.plus(begin, word), numbers.arrived_result(value))

        _fetch(f, count, slot, store, numbers.result_size)

    f.exchanges(division.exchanges, post, take, finish)
    return division


# Rows along an axis of processes: gathers, exchanges, sums of rows.


class Rows(NamedTuple):
    """An array with an axis of rows, one for each process, or without it."""

    #: Bytes behind the axis of rows, and the number of rows; 1 for an array without that axis.
    behind: int
    rows: int

    def offset(self, f: PeerFunction, row: Value, word: Value, size: int) -> Value:
        """Emit the offset of a row's word of `size` bytes, as an i64."""
        each = self.behind // size
        before, rest = f.divided(word, each)
        row_words = f.wide_times(row, each) if self.rows > 1 else i64(0)
        words = f.binary("add", f.wide_times(before, self.rows * each), row_words)
        return f.binary("mul", f.binary("add", words, f.widened_index(rest)), i64(size))

    def load(self, f: PeerFunction, array: Value, row: Value, word: Value, size: int) -> Value:
        """Emit a row's word of `size` bytes."""
        return f.load(word_type(size), f.further(array, self.offset(f, row, word, size)), size)


def _word_of(*sizes: int) -> int:
    """Return the bytes of the largest word that divides sizes."""
    return math.gcd(WORD, *sizes)


def _divided_rows(f: PeerFunction, row_bytes: int, word_size: int, schedule: PeerSchedule) -> Division:
    """Divide the words of a row, of which each process has one."""
    fewest = max(_FEWEST // word_size // f.size, 1)
    return divided(row_bytes // word_size, f.slot_bytes // word_size, fewest, schedule.blocks_for(f.size * row_bytes))


def moved(
    row_bytes: int, source: Rows, target: Rows, buffers: Sequence[int], ranks: tuple[int, ...], schedule: PeerSchedule | None = None
) -> Dispatch:
    """Return the dispatch that sends each process its row of an array.

    Rows of `row_bytes` arrive as rows of the result. An array of one row is sent to all.
    """
    schedule = schedule or SCHEDULE
    f = PeerFunction(2, len(ranks), schedule.threads, schedule.unroll)
    word_size = _word_of(row_bytes, source.behind, target.behind)
    size = f.slot_bytes
    division = _divided_rows(f, row_bytes, word_size, schedule)
    array, result = f.bindings
    others = [f.other(distance) for distance in range(1, f.size)]

    def stored(row: Value, word: Value, value: Value) -> None:
        f.store(value, f.further(result, target.offset(f, row, word, word_size)), word_size)

    def post(exchange: Value) -> None:
        slots = [f.slot(owner, f.position, exchange, POSTS, size) for owner in others]
        if source.rows == 1:
            send(exchange, i32(0), slots)
        else:
            for owner, slot in zip(others, slots, strict=True):
                send(exchange, owner, [slot])

    def send(exchange: Value, row: Value, slots: Sequence[Value]) -> None:
        begin, count = _part(f, division, exchange)
        if slots:
            _send(f, count, lambda word: source.load(f, array, row, f.plus(begin, word), word_size), slots, word_size)

    def take(exchange: Value) -> None:
        begin, count = _part(f, division, exchange)
        f.words(
            count,
            lambda word: [source.load(f, array, f.position, f.plus(begin, word), word_size)],
            lambda word, value: stored(f.position, f.plus(begin, word), value[0]),
        )
        for sender in others:
            fetch(exchange, sender)

    def fetch(exchange: Value, sender: Value) -> None:
        begin, count = _part(f, division, exchange)
        slot = f.slot(f.position, sender, exchange, POSTS, size)
        _fetch(f, count, slot, lambda word, value: stored(sender, f.plus(begin, word), value), word_size)

    f.exchanges(division.exchanges, post, take)
    return _dispatch(f, ranks, buffers, 1, division)


def scattered_sum(
    dtype: np.dtype, row_bytes: int, source: Rows, buffers: Sequence[int], ranks: tuple[int, ...], schedule: PeerSchedule | None = None
) -> Dispatch:
    """Return the dispatch that sums arrays, of whose sum each process keeps its row."""
    schedule = schedule or SCHEDULE
    f = PeerFunction(2, len(ranks), schedule.threads, schedule.unroll)
    word_size = _word_of(row_bytes, source.behind)
    numbers = Numbers(f, dtype, word_size)
    size = f.slot_bytes
    division = _divided_rows(f, row_bytes, word_size, schedule)
    array, result = f.bindings

    def post(exchange: Value) -> None:
        for distance in range(1, f.size):
            send(exchange, f.other(distance))

    def send(exchange: Value, owner: Value) -> None:
        begin, count = _part(f, division, exchange)
        slot = f.slot(owner, f.position, exchange, POSTS, size)
        _send(f, count, lambda word: source.load(f, array, owner, f.plus(begin, word), word_size), [slot], word_size)

    def take(exchange: Value) -> None:
        begin, count = _part(f, division, exchange)
        slots = f.received(exchange)

        def load(word: Value) -> list[Value]:
            mine = f.further(array, source.offset(f, f.position, f.plus(begin, word), word_size))
            return [numbers.encoded(numbers.combined("sum", _parts(f, numbers, word, mine, slots)))]

        def store(word: Value, value: Sequence[Value]) -> None:
            f.store(value[0], f.word(result, f.plus(begin, word), word_size), word_size)

        f.words(count, load, store)

    f.exchanges(division.exchanges, post, take)
    return _dispatch(f, ranks, buffers, 1, division)


def permuted(
    row_bytes: int,
    pairs: Sequence[tuple[int, int]],
    buffers: Sequence[int],
    ranks: tuple[int, ...],
    schedule: PeerSchedule | None = None,
) -> Dispatch:
    """Return the dispatch that sends an array by pairs of source and target.

    Others get zeros.
    """
    schedule = schedule or SCHEDULE
    f = PeerFunction(2, len(ranks), schedule.threads, schedule.unroll)
    word_size = _word_of(row_bytes)
    type_ = word_type(word_size)
    division = divided(row_bytes // word_size, CAPACITY // word_size, _FEWEST // word_size, schedule.blocks_for(row_bytes))
    array, result = f.bindings
    nobody = i32(f.size)
    target, source = nobody, nobody
    for sender, receiver in pairs:
        target = f.select(f.equals(f.position, sender), i32(receiver), target)
        source = f.select(f.equals(f.position, receiver), i32(sender), source)

    def at(pointer: Value, word: Value) -> Value:
        return f.word(pointer, word, word_size)

    def is_other(position: Value) -> Value:
        return f.binary("and", f.below(position, f.size), f.compare("icmp ne", position, f.position))

    def post(exchange: Value) -> None:
        begin, count = _part(f, division, exchange)
        with f.only_if(is_other(target)):
            slot = f.slot(target, i32(0), exchange, POSTS, 0)
            f.words(
                count,
                lambda word: [f.load(type_, at(array, f.plus(begin, word)), word_size)],
                lambda word, value: f.store(value[0], at(slot, word), word_size),
            )

    def take(exchange: Value) -> None:
        begin, count = _part(f, division, exchange)
        slot = f.slot(f.position, i32(0), exchange, POSTS, 0)
        # An array that stays is read where it is.
        begins = f.select(f.equals(source, f.size), Value("i1", "false"), f.compare("icmp eq", source, f.position))
        origin = f.select(begins, at(array, begin), slot)
        is_sent = f.compare("icmp ne", source, nobody)
        zero = Value(type_, "zeroinitializer")
        f.words(
            count,
            lambda word: [f.select(is_sent, f.load(type_, at(origin, word), word_size), zero)],
            lambda word, value: f.store(value[0], at(result, f.plus(begin, word)), word_size),
        )

    f.exchanges(division.exchanges, post, take)
    return _dispatch(f, ranks, buffers, 1, division)


# The routines of collectives between processes.
#
# Those of other processes, and of arrays that these kernels do not have, run on the host.

#: The most bytes of an array, so that 32 bits number its words.
_LARGEST = 1 << 30
#: The most arrays of a kernel.
_MOST_ARRAYS = 24


Avals = tuple[ShapedArray, ...]


def _ranks(params: dict[str, Any]) -> tuple[int, ...]:
    return distribution.members_of(params["axis_names"], params.get("axis_index_groups"))


def _bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


# Reductions.


def _buckets(avals: Avals, dtypes: Sequence[np.dtype]) -> list[list[int]]:
    """Group arrays with elements by their dtypes and those of their results."""
    by_dtypes: dict[tuple[np.dtype, np.dtype], list[list[int]]] = {}
    for number, (aval, dtype) in enumerate(zip(avals, dtypes, strict=True)):
        if aval.size:
            groups = by_dtypes.setdefault((aval.dtype, dtype), [[]])
            size = aval.size * dtype.itemsize
            if len(groups[-1]) == _MOST_ARRAYS or sum([avals[i].size * dtype.itemsize for i in groups[-1]]) + size > _LARGEST:
                groups.append([])
            groups[-1].append(number)
    return [group for groups in by_dtypes.values() for group in groups if group]


def _reduced(step: str, avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a reduction by "sum", "max" or "min"."""
    dtypes = params.get("dtypes") or [aval.dtype for aval in avals]
    sizes = [aval.size * dtype.itemsize for aval, dtype in zip(avals, dtypes, strict=True)]
    if any(size > _LARGEST for size in sizes) or not all(combines(step, aval.dtype) for aval in avals) or not any(sizes):
        return None
    ranks = _ranks(params)
    if not shared.connect(ranks):
        return None
    compression = None if params.get("compression") is None else _BFLOAT16
    dispatches: list[Dispatch] = []
    for bucket in _buckets(avals, dtypes):
        buffers = [*bucket, *[len(avals) + number for number in bucket]]
        source, dtype = avals[bucket[0]].dtype, dtypes[bucket[0]]
        dispatches.append(reduction(step, dtype, [sizes[i] for i in bucket], buffers, ranks, compression, source))
    return Routine(tuple(dispatches))


def sums(eqn: Equation, shared: Peers) -> bool:
    """Return whether processes share the memory by which kernels compute a sum."""
    return shared.connect(_ranks(eqn.params))


# Rows.


def _moves(aval: ShapedArray, params: dict[str, Any], shared: Peers, copies: int = 1) -> bool:
    """Return whether an array is moved between processes by a kernel.

    The result has so many `copies` of it.
    """
    return 0 < aval.nbytes <= _LARGEST and aval.nbytes * copies < 2 * _LARGEST and shared.connect(_ranks(params))


def all_gather(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a gather."""
    (aval,) = avals
    if not _moves(aval, params, shared, params["size"]):
        return None
    behind = _bytes(aval.shape[params["axis"] :], aval.dtype)
    target = Rows(behind, params["size"])
    return Routine((moved(aval.nbytes, Rows(aval.nbytes, 1), target, (0, 1), _ranks(params)),))


def all_to_all(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of an exchange of rows."""
    (aval,) = avals
    if not _moves(aval, params, shared):
        return None
    split, concat = params["split_axis"], params["concat_axis"]
    rest = [*aval.shape[:split], *aval.shape[split + 1 :]]
    count = aval.shape[split]
    source, target = Rows(_bytes(aval.shape[split + 1 :], aval.dtype), count), Rows(_bytes(rest[concat:], aval.dtype), count)
    return Routine((moved(aval.nbytes // count, source, target, (0, 1), _ranks(params)),))


def reduce_scatter(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a sum of which each process keeps a row."""
    (aval,) = avals
    if not combines("sum", aval.dtype) or not _moves(aval, params, shared):
        return None
    axis = params["axis"]
    source = Rows(_bytes(aval.shape[axis + 1 :], aval.dtype), aval.shape[axis])
    return Routine((scattered_sum(aval.dtype, aval.nbytes // aval.shape[axis], source, (0, 1), _ranks(params)),))


def ppermute(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a permutation."""
    (aval,) = avals
    if not _moves(aval, params, shared):
        return None
    return Routine((permuted(aval.nbytes, params["perm"], (0, 1), _ranks(params)),))


#: Makers of routines by the name of the primitive.
ROUTINES: dict[str, Callable[..., Routine | None]] = {
    "psum_bucket": partial(_reduced, "sum"),
    "pmax": partial(_reduced, "max"),
    "pmin": partial(_reduced, "min"),
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "reduce_scatter": reduce_scatter,
    "ppermute": ppermute,
}
