"""Random bits: the Threefry-2x32 cipher on vectors of counters, to the bit what `volta_fn.backends.numpy.random_bits` says.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Twenty rounds of an addition, a rotation and an
exclusive or depend on each other, so several vectors are enciphered side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.backends.native.library.moving import merged
from volta_fn.backends.native.library.whole import counting, dotted, known, minus, nest, plus, quotient, remainder, times
from volta_fn.backends.native.library.writing import Writer, nothing, part, pieces, row_major
from volta_fn.backends.native.llvm.host import host
from volta_fn.backends.native.llvm.text import Function, Value, i64, lanes_of, vector_of
from volta_fn.backends.native.routine import Routine
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.random import threefry2x32_p

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5
_PARITY = 0x1BD11BDA

#: Vectors enciphered side by side, and counters of a task (some 20 µs).
_SIDE_BY_SIDE = 4
_TASK = 1 << 14

#: About what a counter costs, in ns.
_COST = 0.6

Pair = tuple[Value, Value]


def encipher(f: Function, keys: Sequence[Pair], counters: Sequence[Pair]) -> list[Pair]:
    """The cipher of several vectors of counters, each under its vector of keys."""
    type_ = counters[0][0].type
    lanes = lanes_of(type_)
    suffix = f"v{lanes}i32" if lanes > 1 else "i32"

    def number(n: int) -> Value:
        return f.splat(Value("i32", str(n)), lanes)

    words: dict[Pair, tuple[Value, Value, Value]] = {}
    for one, two in keys:
        if (one, two) not in words:
            words[one, two] = (one, two, f.binary("xor", f.binary("xor", one, two), number(_PARITY)))
    state = [(f.binary("add", x, k[0]), f.binary("add", y, k[1])) for (x, y), k in zip(counters, keys, strict=True)]
    for group in range(_GROUPS):
        for bits in _ROTATIONS[group % 2]:
            sums = [f.binary("add", x, y) for x, y in state]
            turned = [f.intrinsic(f"llvm.fshl.{suffix}", type_, y, y, number(bits)) for _, y in state]
            state = [(x, f.binary("xor", y, x)) for x, y in zip(sums, turned, strict=True)]
        state = [
            (
                f.binary("add", x, words[key][(group + 1) % 3]),
                f.binary("add", y, f.binary("add", words[key][(group + 2) % 3], number(group + 1))),
            )
            for (x, y), key in zip(state, keys, strict=True)
        ]
    return state


def random_bits(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of the primitive: a row of bits per key."""
    keys, size = math.prod(avals[0].shape[:-1]), math.prod(params["shape"])
    if not keys * size:
        return nothing()
    writer = Writer("random_bits", 2)
    if size >= host().lanes(4):
        cuts = pieces(size, _TASK, 1 << 20)
        rows = pieces(keys, _TASK // size) if cuts == 1 else keys

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            bounds = part(f, remainder(f, number, cuts), size, cuts, 64)
            nest(
                f,
                [keys],
                lambda i: _row(f, pointers, i[0], size, params["bit_width"], bounds),
                part(f, quotient(f, number, cuts), keys, rows),
            )

        writer.phase(rows * cuts, keys * size * _COST, task)
    else:
        tasks = pieces(keys, _TASK // size)
        writer.phase(
            tasks, keys * size * _COST, lambda f, p, number: _across(f, p, part(f, number, keys, tasks), size, params["bit_width"])
        )
    return writer.routine()


def _row(f: Function, pointers: list[Value], row: Value, size: int, width: int, bounds: tuple[Value, Value]) -> None:
    """Some counters of one key."""
    lanes = host().lanes(4)
    pair = f.at(pointers[0], "i32", times(f, row, 2))
    one, two = (f.load("i32", f.at(pair, "i32", i64(k)), 4) for k in (0, 1))
    out = f.at(pointers[1], f"i{width}", times(f, row, size))
    key = (f.splat(one, lanes), f.splat(two, lanes))

    def vectors(begin: Value, count: int) -> list[Value]:
        firsts = [plus(f, begin, i64(lanes * k)) for k in range(count)]
        state = encipher(f, [key] * count, [_counters(f, first, lanes, size) for first in firsts])
        return [_joined(f, *words, width) for words in state]

    def several(i: Value, _: list[Value]) -> list[Value]:
        for k, value in enumerate(vectors(i, _SIDE_BY_SIDE)):
            f.store(value, f.at(out, f"i{width}", plus(f, i, i64(lanes * k))), width // 8)
        return []

    begin, end = bounds
    step = lanes * _SIDE_BY_SIDE
    whole = minus(f, end, remainder(f, minus(f, end, begin), step))
    f.loop(begin, whole, step, [], several)

    def last(i: Value, _: list[Value]) -> list[Value]:
        (value,) = vectors(i, 1)
        _store_some(f, value, f.at(out, f"i{width}", i), minus(f, end, i), width)
        return []

    f.loop(whole, end, lanes, [], last)


def _counters(f: Function, first: Value, lanes: int, size: int) -> Pair:
    """The numbers from `first` on, in two words."""
    low = f.binary("add", f.splat(_low(f, first), lanes), counting(lanes, "i32"))
    if size <= 1 << 32:
        return f.splat(Value("i32", "0"), lanes), low
    # A vector's counters share the upper word: it begins at a multiple of its lanes.
    high = f.cast("trunc", f.binary("lshr", first, i64(32)), "i32")
    return f.splat(high, lanes), low


def _low(f: Function, x: Value) -> Value:
    number = known(x)
    return f.cast("trunc", x, "i32") if number is None else Value("i32", str(number & 0xFFFFFFFF))


def _joined(f: Function, first: Value, second: Value, width: int) -> Value:
    """Both words as one of 64 bits, or their exclusive or as one of fewer."""
    lanes = lanes_of(first.type)
    if width == 64:
        wide = vector_of("i64", lanes)
        high = f.binary("shl", f.cast("zext", first, wide), f.splat(i64(32), lanes))
        return f.binary("or", high, f.cast("zext", second, wide))
    mixed = f.binary("xor", first, second)
    return mixed if width == 32 else f.cast("trunc", mixed, vector_of(f"i{width}", lanes))


def _store_some(f: Function, value: Value, pointer: Value, count: Value, width: int) -> None:
    """Store the first `count` lanes, or all if it is more."""
    lanes = lanes_of(value.type)
    mask = f.compare("icmp slt", counting(lanes), f.splat(count, lanes)) if lanes > 1 else Value("i1", "true")
    name = f"llvm.masked.store.v{lanes}i{width}.p0"
    f.module.declare(name, f"declare void @{name}({value.type}, ptr, i32 immarg, <{lanes} x i1>)")
    f.do(f"call void @{name}({value}, {pointer}, i32 {width // 8}, {mask})")


def _across(f: Function, pointers: list[Value], bounds: tuple[Value, Value], size: int, width: int) -> None:
    """Rows of few numbers: each of them for a vector of keys."""
    lanes = host().lanes(4)

    def keys(row: Value, count: int) -> list[Value]:
        at = f.at(pointers[0], "i32", times(f, row, 2))
        if count == 1:
            return [f.load("i32", f.at(at, "i32", i64(k)), 4) for k in (0, 1)]
        both = f.load(f"<{2 * count} x i32>", at, 4)
        picks = [", ".join(f"i32 {2 * k + word}" for k in range(count)) for word in (0, 1)]
        return [f.let(f"<{count} x i32>", f"shufflevector {both}, {both.type} poison, <{count} x i32> <{pick}>") for pick in picks]

    def rows(count: int) -> Callable[[Value, list[Value]], list[Value]]:
        def turn(row: Value, _: list[Value]) -> list[Value]:
            key = keys(row, count)
            zero = f.splat(Value("i32", "0"), count)
            counters = [(zero, f.splat(Value("i32", str(k)), count)) for k in range(size)]
            words = encipher(f, [(key[0], key[1])] * size, counters)
            for k, pair in enumerate(words):
                value = _joined(f, *pair, width)
                for lane in range(count):
                    one = f.let(f"i{width}", f"extractelement {value}, i64 {lane}") if count > 1 else value
                    place = plus(f, times(f, plus(f, row, i64(lane)), size), i64(k))
                    f.store(one, f.at(pointers[1], f"i{width}", place), width // 8)
            return []

        return turn

    begin, end = bounds
    whole = minus(f, end, remainder(f, minus(f, end, begin), lanes))
    f.loop(begin, whole, lanes, [], rows(lanes))
    f.loop(whole, end, 1, [], rows(1))


def threefry2x32(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of the primitive, whose four operands broadcast."""
    result, _ = threefry2x32_p.result_avals(avals, params)
    if not result.size:
        return nothing()
    strides = [_broadcast(aval.shape, result.shape) for aval in avals]
    sizes, out, *strides = merged(result.shape, row_major(result.shape), *strides)
    sizes, out, strides = sizes or (1,), out or (1,), [s or (1,) for s in strides]
    outer = math.prod(sizes[:-1])
    inner = sizes[-1]
    cuts = pieces(inner, _TASK, 1 << 20)
    groups = pieces(outer, max(1, _TASK // inner)) if cuts == 1 else outer

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        bounds = part(f, remainder(f, number, cuts), inner, cuts)

        def row(index: list[Value]) -> None:
            place = []
            for d, step in enumerate(row_major(sizes[:-1])):
                place.append(remainder(f, quotient(f, index[0], step), sizes[d]))
            sources = [f.at(p, "i32", dotted(f, place, s[:-1])) for p, s in zip(pointers, strides, strict=False)]
            targets = [f.at(p, "i32", times(f, index[0], inner)) for p in pointers[4:]]
            _words(f, sources, [s[-1] for s in strides], targets, bounds)

        nest(f, [outer], row, part(f, quotient(f, number, cuts), outer, groups))

    writer = Writer("threefry2x32", 6)
    writer.phase(groups * cuts, result.size * _COST * 1.5, task)
    return writer.routine()


def _broadcast(shape: Sequence[int], whole: Sequence[int]) -> tuple[int, ...]:
    """The strides of an operand seen as an array of a larger shape."""
    steps = [0 if size == 1 else step for size, step in zip(shape, row_major(shape), strict=True)]
    return (*[0] * (len(whole) - len(shape)), *steps)


def _words(f: Function, sources: list[Value], steps: list[int], targets: list[Value], bounds: tuple[Value, Value]) -> None:
    """A run of counters and keys, each of which stays or goes on by one."""
    lanes = host().lanes(4)

    def vectors(count: int) -> Callable[[Value, list[Value]], list[Value]]:
        def turn(i: Value, _: list[Value]) -> list[Value]:
            words = []
            for source, step in zip(sources, steps, strict=True):
                if step:
                    words.append(f.load(vector_of("i32", count), f.at(source, "i32", i), 4))
                else:
                    words.append(f.splat(f.load("i32", source, 4), count))
            (pair,) = encipher(f, [(words[0], words[1])], [(words[2], words[3])])
            for value, target in zip(pair, targets, strict=True):
                f.store(value, f.at(target, "i32", i), 4)
            return []

        return turn

    begin, end = bounds
    whole = minus(f, end, remainder(f, minus(f, end, begin), lanes))
    f.loop(begin, whole, lanes, [], vectors(lanes))
    f.loop(whole, end, 1, [], vectors(1))
