"""Sorting short rows: an element's rank is the number of those before it."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.runtime.llvm.index_arith import counting
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of

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
