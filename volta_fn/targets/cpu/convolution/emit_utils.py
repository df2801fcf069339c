"""Indices, loops, transposes and strided copies in generated code.

Indices that are known are Python integers, so that constants are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.runtime.llvm.index_arith import counting
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.scalars.values import overload

#: A number known now, or an i64 known when the code runs.
Index = int | Value


def value(index: Index) -> Value:
    """Return an index as an operand."""
    return i64(index) if isinstance(index, int) else index


def plus(f: Function, *terms: Index) -> Index:
    """Emit the sum of indices."""
    known = sum(term for term in terms if isinstance(term, int))
    total: Index = known
    for term in terms:
        if isinstance(term, Value):
            total = term if total == 0 else f.binary("add nsw", term, value(total))
    return total


def times(f: Function, x: Index, factor: int) -> Index:
    """Emit an index times a known number."""
    if isinstance(x, int):
        return x * factor
    if factor in (0, 1):
        return x if factor else 0
    return f.binary("mul nsw", x, i64(factor))


def rounded_down(f: Function, x: Index, unit: int) -> Index:
    """Emit an index rounded down to a multiple of a power of two."""
    return x // unit * unit if isinstance(x, int) else f.binary("and", x, i64(-unit))


def least(f: Function, x: Index, y: Index) -> Index:
    """Emit the smaller of two indices."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return f.intrinsic("llvm.smin.i64", "i64", value(x), value(y))


def most(f: Function, x: Index, y: Index) -> Index:
    """Emit the larger of two indices."""
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    return f.intrinsic("llvm.smax.i64", "i64", value(x), value(y))


def split(f: Function, x: Index, sizes: Sequence[int]) -> list[Index]:
    """Emit the indices of a flat index into an array of the given sizes."""
    found: list[Index] = []
    for size in reversed(sizes[1:]):
        if size == 1:
            found.append(0)
        elif isinstance(x, int):
            x, rest = divmod(x, size)
            found.append(rest)
        else:
            quotient = f.binary("udiv", x, i64(size))
            found.append(f.binary("sub nsw", x, f.binary("mul nsw", quotient, i64(size))))
            x = quotient
    return [x, *reversed(found)]


def step(f: Function, pointer: Value, type_: str, offset: Index) -> Value:
    """Emit the address `offset` elements after `pointer`, which may be out of bounds."""
    if offset == 0:
        return pointer
    return f.let("ptr", f"getelementptr {type_}, {pointer}, {value(offset)}")


def repeat(f: Function, size: Index, body: Callable[[Index], None], start: Index = 0, by: int = 1) -> None:
    """Emit `body` for every `by`-th number from `start` below `size`."""
    if isinstance(size, int) and isinstance(start, int) and size - start <= by:
        if size > start:
            body(start)
        return
    f.loop(value(start), value(size), by, [], lambda index, _: body(index), once=isinstance(size, int) and isinstance(start, int))


def even_chunks(total: int, at_most: int) -> list[tuple[int, int]]:
    """Return the (size, count) of near-equal chunks of at most `at_most`."""
    count = -(-total // at_most)
    quotient, longer = divmod(total, count)
    return [(size, number) for size, number in ((quotient + 1, longer), (quotient, count - longer)) if number and size]


def each_even_chunk(f: Function, total: int, at_most: int, body: Callable[[Index, int], None]) -> None:
    """Emit `body` for the start and the size of each near-equal chunk of `total`."""
    start = 0
    for size, number in even_chunks(total, at_most):
        stop = start + size * number

        def one(index: Index, size: int = size) -> None:
            body(index, size)

        repeat(f, stop, one, start, size)
        start = stop


def between(f: Function, lanes: int, start: Index, low: Index, high: Index) -> Value:
    """Emit the mask of lanes whose number plus `start` is in [`low`, `high`)."""

    def bound(limit: Index) -> Value:
        distance = plus(f, limit, times(f, start, -1))
        capped = least(f, most(f, distance, -1), lanes + 1)
        return f.splat(f.cast("trunc", value(capped), "i32") if isinstance(capped, Value) else Value("i32", str(capped)), lanes)

    below = f.compare("icmp slt", counting(lanes, "i32"), bound(high))
    return below if low == 0 and start == 0 else f.binary("and", below, f.compare("icmp sge", counting(lanes, "i32"), bound(low)))


def addresses(f: Function, pointer: Value, type_: str, stride: int, lanes: int) -> Value:
    """Emit the addresses of elements with a stride."""
    indices = "<" + ", ".join(f"i64 {k * stride}" for k in range(lanes)) + ">"
    return f.let(vector_of("ptr", lanes), f"getelementptr {type_}, {pointer}, {vector_of('i64', lanes)} {indices}")


def gathered(f: Function, pointer: Value, type_: str, align: int, stride: int, lanes: int, mask: Value) -> Value:
    """Emit a gather of elements with a stride; zero where masked out."""
    vector = vector_of(type_, lanes)
    pointers = addresses(f, pointer, type_, stride, lanes)
    name = f"llvm.masked.gather.{overload(vector)}.v{lanes}p0"
    f.module.declare(name, f"declare {vector} @{name}({pointers.type}, i32, {mask.type}, {vector})")
    return f.let(vector, f"call {vector} @{name}({pointers}, i32 {align}, {mask}, {vector} zeroinitializer)")


def scattered(f: Function, vector: Value, pointer: Value, type_: str, align: int, stride: int, lanes: int, mask: Value) -> None:
    """Emit a scatter of the lanes that the mask has, with a stride."""
    pointers = addresses(f, pointer, type_, stride, lanes)
    name = f"llvm.masked.scatter.{overload(vector.type)}.v{lanes}p0"
    f.module.declare(name, f"declare void @{name}({vector.type}, {pointers.type}, i32, {mask.type})")
    f.do(f"call void @{name}({vector}, {pointers}, i32 {align}, {mask})")


def everywhere(lanes: int) -> Value:
    """Return the mask of all lanes."""
    return Value(vector_of("i1", lanes), "splat (i1 true)")


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Emit the columns of as many vectors as each has lanes (a power of two)."""
    lanes = len(rows)
    found = list(rows)
    half = 1
    while half < lanes:
        following = list(found)
        for i in range(lanes):
            if i & half:
                continue
            low = [lanes + lane - half if lane & half else lane for lane in range(lanes)]
            high = [lanes + lane if lane & half else lane + half for lane in range(lanes)]
            following[i] = f.taken(found[i], low, found[i + half])
            following[i + half] = f.taken(found[i], high, found[i + half])
        found = following
        half *= 2
    return found
