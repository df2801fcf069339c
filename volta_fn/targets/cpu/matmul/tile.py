"""The innermost loop: a tile of C, kept in registers, summed over k.

A tile has a few rows by a few vectors of columns. For each k it loads the vectors of B's row once and multiplies them by every row's
number of A, broadcast from memory. So that the multiplications, and not the loads, take the time, tiles are as large as registers allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.compute_dtype import Working, first_lanes, load

_UNROLLED = 56  # multiplications written out in a turn of the loop, at most
_AHEAD = 24  # how many k ahead packed panels are fetched
LINE = 64  # bytes of a line of memory in the caches, as a rule
_SHARE = 3  # rows that share a pointer
_NEAR = 128  # bytes between the k of A, up to which that is done for A


class View(NamedTuple):
    """Numbers of the working type in memory: A by (row, k) or B by (k, column), whose columns are adjacent. Strides in elements.

    How far A's rows are apart may be known only when the code runs: a value, in bytes.
    """

    pointer: Value
    outer: int | Value
    inner: int


class Place(NamedTuple):
    """Where the rows of a tile lie: the address of the first one, and how many bytes they are apart."""

    pointer: Value
    apart: Value


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


def accumulate(f: Function, work: Working, rows: int, count: int, a: View, b: View, depth: Value, *, padded: bool) -> list[list[Value]]:
    """The sums of ``A(i, k) B(k, j)`` over `depth` values of k, for `rows` rows and `count` columns, by row and vector.

    `padded` says that B is packed: it may be read beyond the last column, to a whole number of vectors, and is fetched ahead. Lines of B
    where it lies may be so far apart that what is fetched drives out the rest.
    """
    vectors = -(-count // work.lanes)
    masks = [None if padded else first_lanes(count - v * work.lanes, work.lanes) for v in range(vectors)]
    unrolled = max(1, min(8, _UNROLLED // (rows * vectors)))
    sums = [work.zero() for _ in range(rows * vectors)]
    lines = Lines(f, a.outer * work.itemsize if isinstance(a.outer, int) else a.outer, rows)

    def turns(steps: int, carried: Sequence[Value]) -> list[Value]:
        a_pointers, b_pointer, totals = carried[: lines.pointers], carried[lines.pointers], list(carried[lines.pointers + 1 :])
        for step in range(steps):
            if padded and 1 < a.inner * work.itemsize <= _NEAR and a.outer == 1:
                fetch(f, _beyond(f, a_pointers[0], (step + _AHEAD) * a.inner * work.itemsize))
            for start in range(0, vectors * work.lanes * work.itemsize if padded else 0, LINE):
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
                place = _beyond(f, lines.place(f, a_pointers, i), step * a.inner * work.itemsize)
                x = f.splat(f.load(work.type, place, work.itemsize), work.lanes)
                for v in range(vectors):
                    totals[i * vectors + v] = work.multiply_add(f, x, line[v], totals[i * vectors + v])
        ahead = [_beyond(f, p, steps * a.inner * work.itemsize) for p in a_pointers]
        return [*ahead, _beyond(f, b_pointer, steps * b.inner * work.itemsize), *totals]

    whole = f.binary("sub", depth, f.binary("urem", depth, i64(unrolled)))
    carried = [*lines.starts(f, a.pointer), b.pointer, *sums]
    carried = f.loop(i64(0), whole, unrolled, carried, lambda _, values: turns(unrolled, values))
    if unrolled > 1:
        carried = f.loop(whole, depth, 1, carried, lambda _, values: turns(1, values))
    totals = carried[lines.pointers + 1 :]
    return [totals[i * vectors : (i + 1) * vectors] for i in range(rows)]


class Lines:
    """The addresses of rows. Where their distance is told when the code runs, three rows share a pointer: the machine adds the rest."""

    def __init__(self, f: Function, apart: int | Value, rows: int) -> None:
        self.apart = apart
        #: How many pointers there are.
        self.pointers = 1 if isinstance(apart, int) else -(-rows // _SHARE)
        if isinstance(apart, Value):
            self._steps = [apart, f.binary("shl", apart, i64(1)), f.binary("mul", apart, i64(_SHARE))]

    def starts(self, f: Function, first: Value) -> list[Value]:
        """The pointers, by the address of the first row."""
        starts = [first]
        while len(starts) < self.pointers:
            starts.append(f.at(starts[-1], "i8", self._steps[-1]))
        return starts

    def place(self, f: Function, pointers: Sequence[Value], row: int) -> Value:
        """The address of a row, by the pointers, all of which may have gone further along their rows."""
        if isinstance(self.apart, int):
            return _beyond(f, pointers[0], row * self.apart)
        pointer, rest = pointers[row // _SHARE], row % _SHARE
        return f.at(pointer, "i8", self._steps[rest - 1]) if rest else pointer


def _beyond(f: Function, pointer: Value, bytes_: int) -> Value:
    return f.let("ptr", f"getelementptr inbounds i8, {pointer}, i64 {bytes_}") if bytes_ else pointer


def fetch(f: Function, pointer: Value, *, to_write: bool = False, soon: bool = True) -> None:
    """Have a line of memory brought near, by the time it is wanted: into the level-1 cache if that is soon, else the level-2 one."""
    f.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.do(f"call void @llvm.prefetch.p0({pointer}, i32 {int(to_write)}, i32 {3 if soon else 2}, i32 1)")
