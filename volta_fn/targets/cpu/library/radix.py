"""Sort keys in machine code, and sorts of rows by them: radix sort, ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.codegen.order import is_float, number_of_key, sort_key
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, counting, i64, lanes_of, vector_of
from volta_fn.targets.cpu.scalars.values import Lanes

# ------------------------------------------------------------------------------
# Sort keys (`codegen.sort_keys`) in machine code.
# ------------------------------------------------------------------------------


def key_bits(dtype: np.dtype) -> int:
    """Return how many bits of the key distinguish numbers of a dtype."""
    return 8 * dtype.itemsize


def key(f: Function, dtype: np.dtype, x: Value, faithful: bool = False) -> Value:
    """Emit the key of the bits of a number (or of a vector of them), in as many bits."""
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


# ------------------------------------------------------------------------------
# Radix sort: passes move elements into buckets by digits, the lowest first.
#
# Elements are integers whose upper bits are a key. A pass has two steps, both over chunks of the row that are the same for any number of
# threads: `count` the digits of a chunk; `deal` the elements of a chunk to where its buckets begin, which all counts tell.
# ------------------------------------------------------------------------------

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

    def one(i: Value, _: list[Value]) -> None:
        at = f.at(counts, "i32", digit.of(f, fetch(i)[1]))
        f.store(f.binary("add", f.load("i32", at, 4), Value("i32", "1")), at, 4)

    f.loop(begin, end, 1, [], one)


def clear(f: Function, counts: Value, buckets: int) -> None:
    """Set all counts to zero."""
    lanes = min(host().lanes(4), buckets)

    def some(i: Value, _: list[Value]) -> None:
        f.store(Value(f"<{lanes} x i32>", "zeroinitializer"), f.at(counts, "i32", i), 4)

    f.loop(i64(0), i64(buckets), lanes, [], some, once=True)


def bucket_starts(f: Function, counts: Value, buckets: int, positions: Value) -> None:
    """Emit where each bucket begins, if there is one chunk."""

    def one(i: Value, carried: list[Value]) -> list[Value]:
        f.store(carried[0], f.at(positions, "i32", i), 4)
        return [f.binary("add", carried[0], f.load("i32", f.at(counts, "i32", i), 4))]

    f.loop(i64(0), i64(buckets), 1, [Value("i32", "0")], one, once=True)


def bucket_starts_of_chunk(f: Function, counts: Value, buckets: int, stride: int, chunks: int, chunk: Value, positions: Value) -> None:
    """Emit where the elements of one of several chunks begin in each bucket.

    `counts` holds those of all chunks, at a stride.
    """
    lanes = min(host().lanes(4), buckets)
    type_ = f"<{lanes} x i32>"
    totals = f.alloca("i32", buckets)
    zero = Value(type_, "zeroinitializer")

    def some(i: Value, _: list[Value]) -> None:
        def add(p: Value, carried: list[Value]) -> list[Value]:
            found = f.load(type_, f.at(counts, "i32", f.plus(f.times(p, stride), i)), 4)
            before = f.select(f.compare("icmp slt", p, chunk), found, zero)
            return [f.binary("add", carried[0], found), f.binary("add", carried[1], before)]

        total, earlier = f.loop(i64(0), i64(chunks), 1, [zero, zero], add, once=True)
        f.store(total, f.at(totals, "i32", i), 4)
        f.store(earlier, f.at(positions, "i32", i), 4)

    f.loop(i64(0), i64(buckets), lanes, [], some, once=True)

    def one(i: Value, carried: list[Value]) -> list[Value]:
        at = f.at(positions, "i32", i)
        f.store(f.binary("add", f.load("i32", at, 4), carried[0]), at, 4)
        return [f.binary("add", carried[0], f.load("i32", f.at(totals, "i32", i), 4))]

    f.loop(i64(0), i64(buckets), 1, [Value("i32", "0")], one, once=True)


def deal(f: Function, digit: Digit, fetch: Fetch, begin: Value, end: Value, positions: Value, emit: Callable[[Value, Value], None]) -> None:
    """Emit ``emit(position, element)`` for each element in the order of the row.

    The next position of a bucket is in `positions`, which advance.
    """

    def one(i: Value, _: list[Value]) -> None:
        element, key = fetch(i)
        at = f.at(positions, "i32", digit.of(f, key))
        position = f.load("i32", at, 4)
        f.store(f.binary("add", position, Value("i32", "1")), at, 4)
        emit(f.cast("zext", position, "i64"), element)

    f.loop(begin, end, 1, [], one)


# ------------------------------------------------------------------------------
# Sorting short rows: an element's rank is the number of those before it.
# ------------------------------------------------------------------------------

#: Rows of up to so many elements are sorted so.
SHORT = 128


def padded(size: int, lanes: int) -> int:
    """Return the size of an array of keys, rounded up to full vectors."""
    return -(-size // lanes) * lanes


def fill_padding(f: Function, keys: Value, bits: int, size: int, lanes: int) -> None:
    """Set what follows the keys of a row to the greatest key."""
    type_ = f"i{bits}"
    for position in range(size, padded(size, lanes)):
        f.store(Value(type_, "-1"), f.at(keys, type_, i64(position)), bits // 8)


def rank_of(f: Function, keys: Sequence[Value], bits: int, size: int, lanes: int, i: Value) -> Value:
    """Emit how many of `size` elements come before number `i`.

    Keys are compared in the order of their arrays, of `bits` each and `padded`.
    """
    type_ = f"i{bits}"
    own = [f.splat(f.load(type_, f.at(array, type_, i), bits // 8), lanes) for array in keys]
    block = f.times(f.quotient(i, lanes), lanes)
    lane = f.remainder(i, lanes)

    def others(begin: Value) -> list[Value]:
        return [f.load(vector_of(type_, lanes), f.at(array, type_, begin), bits // 8) for array in keys]

    def before(begin: Value, equals: Value | None) -> Value:
        """Emit which of a vector of elements come before.

        `equals` tells which do of those with the same keys (None: none).
        """
        result = equals
        for mine, theirs in reversed(list(zip(own, others(begin), strict=True))):
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
