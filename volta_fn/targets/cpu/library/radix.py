"""Radix sort: passes move elements into buckets by digits, the lowest first.

Elements are integers whose upper bits are a key. A pass has two steps, both over chunks of the row that are the same for any number of
threads: `count` the digits of a chunk; `deal` the elements of a chunk to where its buckets begin, which all counts tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64

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
