"""Packing columns of B that lie in memory as rows: small squares are transposed in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.matmul.compute_dtype import Working, put, read
from volta_fn.targets.cpu.matmul.loops import each


def transposed_rows(
    f: Function, work: Working, dtype: np.dtype, rows_at: Callable[[Value], Sequence[Value]], width: int, depth: Value, target: Value
) -> None:
    """Write `depth` lines of `width` numbers, of which the line k holds what is at ``rows_at(k)``, element k of every row, and zeros."""
    square = 16 // work.itemsize  # what a quarter of the widest register holds: shuffles within quarters are cheap

    def lines(k: Value) -> None:
        rows = rows_at(k)
        for start in range(0, width, work.lanes):
            block = [
                _gathered([_row(f, work, dtype, rows, start + part * square + r, square) for part in range(work.lanes // square)], f)
                for r in range(square)
            ]
            for c, line in enumerate(_squares_transposed(f, block, square)):
                place = f.at(target, work.type, f.binary("add", f.binary("mul", f.binary("add", k, i64(c)), i64(width)), i64(start)))
                put(f, work, line, place, width - start)

    def blocks(k: Value) -> None:
        rows = rows_at(k)
        for start in range(0, width, work.lanes):
            block = [read(f, work, dtype, rows[start + r], work.lanes) if start + r < len(rows) else work.zero() for r in range(work.lanes)]
            for c, line in enumerate(_transposed(f, block, square)):
                place = f.at(target, work.type, f.binary("add", f.binary("mul", f.binary("add", k, i64(c)), i64(width)), i64(start)))
                put(f, work, line, place, width - start)

    def single(k: Value) -> None:
        rows = rows_at(k)
        for j in range(width):
            value = read(f, work, dtype, rows[j], 1) if j < len(rows) else Value(work.type, "zeroinitializer")
            f.store(value, f.at(target, work.type, f.binary("add", f.binary("mul", k, i64(width)), i64(j))), work.itemsize)

    large = f.binary("and", depth, i64(-work.lanes))
    each(f, i64(0), large, blocks, work.lanes)
    whole = f.binary("and", depth, i64(-square))
    each(f, large, whole, lines, square)
    each(f, whole, depth, single)


def _row(f: Function, work: Working, dtype: np.dtype, rows: Sequence[Value], number: int, square: int) -> Value:
    """`square` numbers of a row; zeros beyond the last row."""
    return read(f, work, dtype, rows[number], square) if number < len(rows) else work.zero(square)


def _gathered(parts: Sequence[Value], f: Function) -> Value:
    """Vectors one after another in one vector."""
    parts = list(parts)
    while len(parts) > 1:
        parts = [_joined(f, x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _joined(f: Function, x: Value, y: Value) -> Value:
    lanes, element = x.type[1:-1].split(" x ")
    return shuffled(f, x, y, range(2 * int(lanes)), element)


def _transposed(f: Function, rows: Sequence[Value], square: int) -> list[Value]:
    """As many vectors as they have lanes, transposed: squares within quarters first, then the quarters."""
    lanes = len(rows)
    parts = [
        _squares_transposed(f, rows[g : g + square], square) for g in range(0, lanes, square)
    ]  # by group of rows, and column in a square
    columns: list[Value] = [rows[0]] * lanes
    for c in range(square):
        for q, line in enumerate(_quarters_transposed(f, [part[c] for part in parts], square)):
            columns[q * square + c] = line
    return columns


def _quarters_transposed(f: Function, rows: Sequence[Value], square: int) -> list[Value]:
    """Vectors of as many runs of `square` lanes as there are vectors, the runs transposed."""
    count, element = len(rows), rows[0].type[1:-1].split(" x ")[1]

    def runs(x: Value, y: Value, odd: int) -> Value:
        """The even, or the odd, runs of both."""
        return shuffled(f, x, y, [run * square + lane for run in range(odd, 2 * count, 2) for lane in range(square)], element)

    if count == 1:
        return list(rows)
    if count == 2:
        return [runs(rows[0], rows[1], odd) for odd in (0, 1)]
    halves = [(runs(rows[0], rows[1], odd), runs(rows[2], rows[3], odd)) for odd in (0, 1)]
    return [runs(halves[odd][0], halves[odd][1], late) for late in (0, 1) for odd in (0, 1)]


def _squares_transposed(f: Function, block: Sequence[Value], square: int) -> list[Value]:
    """`square` vectors, every run of `square` lanes of which is a row of a matrix, transposed: vector c holds the columns c."""
    lanes, element = int(block[0].type[1:-1].split(" x ")[0]), block[0].type[1:-1].split(" x ")[1]
    starts = range(0, lanes, square)
    if square == 2:
        x, y = block
        return [shuffled(f, x, y, [s for b in starts for s in (b + half, lanes + b + half)], element) for half in (0, 1)]
    w, x, y, z = block
    low = [shuffled(f, p, q, [s for b in starts for s in (b, lanes + b, b + 1, lanes + b + 1)], element) for p, q in ((w, x), (y, z))]
    high = [
        shuffled(f, p, q, [s for b in starts for s in (b + 2, lanes + b + 2, b + 3, lanes + b + 3)], element) for p, q in ((w, x), (y, z))
    ]
    first = [s for b in starts for s in (b, b + 1, lanes + b, lanes + b + 1)]
    second = [s for b in starts for s in (b + 2, b + 3, lanes + b + 2, lanes + b + 3)]
    return [shuffled(f, p, q, picks, element) for p, q in (low, high) for picks in (first, second)]


def assembled(f: Function, picks: Sequence[tuple[Value, int]]) -> Value:
    """A vector of lanes of others with as many lanes: each by its vector and its number."""
    first, *others = dict.fromkeys([vector for vector, _ in picks])
    lanes, element = len(picks), first.type[1:-1].split(" x ")[1]
    made, places = first, [lane if vector == first else 0 for vector, lane in picks]
    for other in others or [first]:
        chosen = [lanes + lane if vector == other else place for (vector, lane), place in zip(picks, places, strict=True)]
        made, places = shuffled(f, made, other, chosen, element), list(range(lanes))
    return made


def shuffled(f: Function, x: Value, y: Value, picks: Sequence[int], element: str) -> Value:
    """The lanes numbered `picks` of two vectors one after another."""
    indices = ", ".join(f"i32 {p}" for p in picks)
    return f.let(vector_of(element, len(picks)), f"shufflevector {x}, {y}, <{len(picks)} x i32> <{indices}>")
