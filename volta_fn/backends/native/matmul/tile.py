"""The innermost loop: a tile of C, kept in registers, summed over k.

A tile has a few rows by a few vectors of columns. For each k it loads the vectors of B's row once and multiplies them by every row's
number of A, broadcast from memory. So that the multiplications, and not the loads, take the time, tiles are as large as registers allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.native.llvm.host import host
from volta_fn.backends.native.llvm.text import Function, Value, i64
from volta_fn.backends.native.matmul.numbers import Working, first_lanes, load

_UNROLLED = 56  # multiplications written out in a turn of the loop, at most
_AHEAD = 24  # how many k ahead packed panels are fetched
LINE = 64  # bytes of a line of memory in the caches, as a rule
_NEAR = 128  # bytes between the k of A, up to which that is done for A


class View(NamedTuple):
    """Numbers of the working type in memory: A by (row, k) or B by (k, column), whose columns are adjacent. Strides in elements."""

    pointer: Value
    outer: int
    inner: int


class Tile(NamedTuple):
    """A tile of the result, for an epilogue: its sums by row and vector, and where they belong. Only the first `columns` columns exist."""

    work: Working
    buffers: Value
    batch: Value
    row: Value
    column: Value
    sums: Sequence[Sequence[Value]]
    columns: int

    def mask(self, vector: int) -> Value | None:
        """The lanes of the vector number `vector` that exist; None if all do."""
        return first_lanes(self.columns - vector * self.work.lanes, self.work.lanes)


def tile_shapes() -> dict[int, int]:
    """The most rows for each number of vectors such that sums, a row of B and a number of A fit into the registers."""
    if host().vector_registers >= 32:
        return {1: 24, 2: 14, 3: 8, 4: 6, 5: 5, 6: 4, 8: 2, 16: 1}
    return {1: 12, 2: 6, 3: 4, 4: 2, 8: 1}


def accumulate(
    f: Function, work: Working, rows: int, count: int, a: View, b: View, depth: Value | int, *, padded: bool, prefetch: bool = False
) -> list[list[Value]]:
    """The sums of ``A(i, k) B(k, j)`` over `depth` values of k, for `rows` rows and `count` columns, by row and vector.

    `padded` says that B may be read beyond the last column, to a whole number of vectors.
    """
    vectors = -(-count // work.lanes)
    masks = [None if padded else first_lanes(count - v * work.lanes, work.lanes) for v in range(vectors)]
    unrolled = max(1, min(8, _UNROLLED // (rows * vectors)))
    sums = [work.zero() for _ in range(rows * vectors)]

    def turns(steps: int, carried: Sequence[Value]) -> list[Value]:
        a_pointer, b_pointer, *totals = carried
        for step in range(steps):
            if prefetch and 1 < a.inner * work.itemsize <= _NEAR and a.outer == 1:
                fetch(f, _beyond(f, a_pointer, (step + _AHEAD) * a.inner * work.itemsize))
            if prefetch:
                for start in range(0, vectors * work.lanes * work.itemsize, LINE):
                    fetch(f, _beyond(f, b_pointer, (step + _AHEAD) * b.inner * work.itemsize + start))
            line = [
                load(
                    f,
                    work.type,
                    work.itemsize,
                    _beyond(f, b_pointer, (step * b.inner + v * work.lanes) * work.itemsize),
                    work.lanes,
                    masks[v],
                )
                for v in range(vectors)
            ]
            for i in range(rows):
                place = _beyond(f, a_pointer, (i * a.outer + step * a.inner) * work.itemsize)
                x = f.splat(f.load(work.type, place, work.itemsize), work.lanes)
                for v in range(vectors):
                    totals[i * vectors + v] = work.multiply_add(f, x, line[v], totals[i * vectors + v])
        ahead = [_beyond(f, p, steps * view.inner * work.itemsize) for p, view in ((a_pointer, a), (b_pointer, b))]
        return [*ahead, *totals]

    carried = [a.pointer, b.pointer, *sums]
    if isinstance(depth, int):
        rest = depth % unrolled
        if depth > rest:
            carried = f.loop(i64(0), i64(depth - rest), unrolled, carried, lambda _, values: turns(unrolled, values), once=True)
        if rest:
            carried = turns(rest, carried)
    else:
        whole = f.binary("sub", depth, f.binary("urem", depth, i64(unrolled)))
        carried = f.loop(i64(0), whole, unrolled, carried, lambda _, values: turns(unrolled, values))
        if unrolled > 1:
            carried = f.loop(whole, depth, 1, carried, lambda _, values: turns(1, values))
    return [list(carried[2 + i * vectors : 2 + (i + 1) * vectors]) for i in range(rows)]


def _beyond(f: Function, pointer: Value, bytes_: int) -> Value:
    return f.let("ptr", f"getelementptr inbounds i8, {pointer}, i64 {bytes_}") if bytes_ else pointer


def fetch(f: Function, pointer: Value, *, to_write: bool = False, soon: bool = True) -> None:
    """Have a line of memory brought near, by the time it is wanted: into the level-1 cache if that is soon, else the level-2 one."""
    f.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.do(f"call void @llvm.prefetch.p0({pointer}, i32 {int(to_write)}, i32 {3 if soon else 2}, i32 1)")
