"""From registers to the result: sums in the order of y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.convolution.emit_utils import Index, between, everywhere, plus, scattered, step, transposed
from volta_fn.targets.cpu.convolution.loop_nest import Operands, TileLoops
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, first_lanes, is_itself, stored_as, write


def store_vector(f: Function, work: ComputeType, dtype: np.dtype, vector: Value, to: Value, stride: int, left: Index | None) -> None:
    """Store a vector's first `left` lanes (None: all) with a stride in elements."""
    mask = None if left is None else first_lanes(left, work.lanes) if isinstance(left, int) else between(f, work.lanes, 0, 0, left)
    if stride == 1 and isinstance(left, Value):

        def some(mask: Value | None) -> list[Value]:
            write(f, work, dtype, vector, work.lanes, to, mask)
            return []

        f.branch(f.compare("icmp sge", left, Value("i64", str(work.lanes))), lambda: some(None), lambda: some(mask))
    elif stride == 1:
        write(f, work, dtype, vector, work.lanes, to, mask)
    elif is_itself(work, dtype):
        scattered(f, vector, to, work.type, work.itemsize, stride, work.lanes, mask or everywhere(work.lanes))
    else:
        _one_by_one(f, work, dtype, vector, to, stride, mask)


def _one_by_one(f: Function, work: ComputeType, dtype: np.dtype, vector: Value, to: Value, stride: int, mask: Value | None) -> None:
    for lane in range(work.lanes):

        def one(lane: int = lane) -> list[Value]:
            number = f.let(work.type, f"extractelement {vector}, i64 {lane}")
            write(f, work, dtype, number, 1, step(f, to, stored_as(dtype), lane * stride))
            return []

        if mask is None:
            one()
        else:
            f.branch(f.let("i1", f"extractelement {mask}, i64 {lane}"), one)


def store_transposed(
    f: Function,
    work: ComputeType,
    dtype: np.dtype,
    rows: Sequence[Value],
    to: Value,
    stride: int,
    left: Index | None,
    remain: Index | None = None,
) -> None:
    """Store the transpose of adjacent vectors, whose lanes have a `stride` in memory.

    Of the lanes `left` are wanted, of the vectors `remain` (None: all).
    """
    lanes = work.lanes
    for start in range(0, len(rows), lanes):
        some = list(rows[start : start + lanes])
        mask = first_lanes(len(some), lanes) if remain is None else between(f, lanes, start, 0, remain)
        some += [work.zero()] * (lanes - len(some))
        for lane, column in enumerate(transposed(f, some)):

            def one(lane: int = lane, column: Value = column, start: int = start, mask: Value | None = mask) -> list[Value]:
                write(f, work, dtype, column, lanes, step(f, to, stored_as(dtype), lane * stride + start), mask)
                return []

            if isinstance(left, Value):
                f.branch(f.compare("icmp sgt", left, Value("i64", str(lane))), one)
            elif left is None or lane < left:
                one()


@dataclass(frozen=True)
class SumTile:
    """The sums of a register tile, between registers and memory."""

    nest: TileLoops
    dtype: np.dtype
    #: How many outputs remain at the start of the panel; None: as many as a panel has.
    left: Index | None

    def result(self, f: Function, at: Operands, counts: Mapping[str, int], sums: list[Value]) -> None:
        """Store sums to the result."""
        nest, work = self.nest, self.nest.work
        along, rows = nest.dims[nest.vector].y, nest.positions(counts)
        last = nest.rows[-1][0]
        adjacent = counts[last] if along != 1 and nest.dims[last].y == 1 else 1
        for v in range(nest.vectors):
            left = None if self.left is None else plus(f, self.left, -v * work.lanes)
            for r in range(0, len(rows), adjacent):
                to = step(f, at.y, nest.y_type, rows[r].y + v * work.lanes * along)
                vectors = [sums[(r + k) * nest.vectors + v] for k in range(adjacent)]
                if adjacent > 1:
                    store_transposed(f, work, self.dtype, vectors, to, along, left)
                else:
                    store_vector(f, work, self.dtype, vectors[0], to, along, left)

    def keep(self, f: Function, at: Operands, counts: Mapping[str, int], sums: list[Value]) -> None:
        """Store sums to the workspace, for `kept`."""
        for k, pointer in enumerate(self._kept_at(f, at.y, [row.y for row in self.nest.positions(counts)])):
            f.store(sums[k], pointer, self.nest.work.itemsize)

    def kept(self, f: Function, at: Value, counts: Mapping[str, int]) -> list[Value]:
        """Load the sums so far."""
        work = self.nest.work
        return [f.load(work.vector, p, work.itemsize) for p in self._kept_at(f, at, [row.y for row in self.nest.positions(counts)])]

    def added(self, f: Function, at: Value, counts: Mapping[str, int], splits: int, stride: int) -> list[Value]:
        """Load and add the splits of sums, which have a `stride` in elements."""
        work, rows = self.nest.work, [row.x for row in self.nest.positions(counts)]
        total = [f.load(work.vector, p, work.itemsize) for p in self._kept_at(f, at, rows)]
        for split in range(1, splits):
            more = self._kept_at(f, step(f, at, work.type, split * stride), rows)
            total = [work.add(f, x, f.load(work.vector, p, work.itemsize)) for x, p in zip(total, more, strict=True)]
        return total

    def _kept_at(self, f: Function, at: Value, rows: Sequence[int]) -> list[Value]:
        work = self.nest.work
        return [step(f, at, work.type, row + v * work.lanes) for row in rows for v in range(self.nest.vectors)]
