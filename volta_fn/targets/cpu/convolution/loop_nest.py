"""Loop nests around a register tile: the sums of products of every algorithm here.

The operands are *prepared*: every index steps through x, w and y by a known stride. *Rows* are unrolled indices, and one index is the
*vector* whose neighbours share a register: rows times vectors are the sums that a tile keeps in registers. *Depth* is what is summed over,
from outermost to innermost, the innermost unrolled. The other indices are plain loops.

If w has *panels*, its elements are ordered by panel (a tile of one index), then depth, then the index in the panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.convolution.emit_utils import Index, each_even_chunk, repeat, step, times, value
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType

#: About how many steps of the summation are unrolled.
_UNROLLED = 8


class LoopIndex(NamedTuple):
    """An index: how many values it takes, and its stride in each operand."""

    size: Index
    x: int = 0
    w: int = 0
    y: int = 0


class Operands(NamedTuple):
    """Addresses in the three operands."""

    x: Value
    w: Value
    y: Value

    def moved(self, f: Function, work: ComputeType, y_type: str, dim: LoopIndex, by: Index) -> Operands:
        """Emit the addresses after an index has grown by `by`."""
        types = (work.type, work.type, y_type)
        return Operands(*[step(f, p, t, times(f, by, stride)) for p, t, stride in zip(self, types, dim[1:], strict=True)])


#: A function of a tile's addresses, its counts of each unrolled index, and its sums by row and vector.
Store = Callable[[Operands, Mapping[str, int], list[Value]], None]

#: A function of a tile's addresses and counts that returns its initial sums.
Load = Callable[[Operands, Mapping[str, int]], list[Value]]


@dataclass(frozen=True)
class TileLoops:
    """A loop nest."""

    work: ComputeType
    #: The type of y's elements in memory; x and w are prepared, and of the compute type.
    y_type: str
    dims: Mapping[str, LoopIndex]
    #: Plain loops, outermost first.
    loops: tuple[str, ...]
    #: Unrolled indices with the most of each that a tile takes. The first vary slowest.
    rows: tuple[tuple[str, int], ...]
    #: The index along vectors, and how many vectors a tile has.
    vector: str
    vectors: int
    #: Indices that are summed over, outermost first.
    depth: tuple[str, ...]

    def run(self, f: Function, operands: Operands, store: Store, load: Load | None = None) -> None:
        """Emit the loops. Sums start from what `load` gives, or else from zero."""

        def loops(names: Sequence[str], at: Operands) -> None:
            if not names:
                rows(self.rows, at, {})
                return
            dim = self.dims[names[0]]
            repeat(f, dim.size, lambda index: loops(names[1:], at.moved(f, self.work, self.y_type, dim, index)))

        def rows(names: Sequence[tuple[str, int]], at: Operands, counts: dict[str, int]) -> None:
            if not names:
                first = load(at, counts) if load else [self.work.zero()] * self.sums(counts)
                store(at, counts, _Sum(f, self, counts).total(at.x, at.w, first))
                return
            (name, at_most), *rest = names
            dim = self.dims[name]
            assert isinstance(dim.size, int)
            each_even_chunk(
                f,
                dim.size,
                at_most,
                lambda start, size: rows(rest, at.moved(f, self.work, self.y_type, dim, start), {**counts, name: size}),
            )

        loops(self.loops, operands)

    def sums(self, counts: Mapping[str, int]) -> int:
        """Return how many registers of sums a tile has."""
        total = self.vectors
        for name, _ in self.rows:
            total *= counts[name]
        return total

    def positions(self, counts: Mapping[str, int]) -> list[LoopIndex]:
        """Return the offsets of each row of a tile from the first, in the operands."""
        found = [LoopIndex(1)]
        for name, _ in self.rows:
            dim = self.dims[name]
            found = [LoopIndex(1, at.x + k * dim.x, at.w + k * dim.w, at.y + k * dim.y) for at in found for k in range(counts[name])]
        return found


class _Sum:
    """One tile's sums."""

    def __init__(self, f: Function, nest: TileLoops, counts: Mapping[str, int]) -> None:
        self.f, self.nest = f, nest
        self.rows = nest.positions(counts)
        self.along = nest.dims[nest.vector]

    def total(self, x: Value, w: Value, first: list[Value]) -> list[Value]:
        """Emit the sums over the depth, added to `first`."""
        dims = [self.nest.dims[name] for name in self.nest.depth]
        if not dims:
            return first
        unrolled: list[tuple[int, int]] = [(0, 0)]
        while dims and isinstance(size := dims[-1].size, int) and size * len(unrolled) <= _UNROLLED + 1:
            more = self._repeated(dims[-1], size, unrolled)
            if self._shared(more):
                break
            dims.pop()
            unrolled = more
        unroll = max(1, _UNROLLED // 2 // len(unrolled))
        if dims and self._shared(self._repeated(dims[-1], unroll, unrolled)):
            unroll = 1
        return self._loops(dims, unroll, unrolled, x, w, first)

    def _repeated(self, dim: LoopIndex, count: int, steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(k * dim.x + a, k * dim.w + b) for k in range(count) for a, b in steps]

    def _shared(self, steps: Sequence[tuple[int, int]]) -> bool:
        """Return True if rows meet the same elements of x in several steps.

        These would wait for them in registers that there are not.
        """
        met = [a + row.x for a, _ in steps for row in self.rows]
        return self.along.x == 0 and len(set(met)) < len(met)

    def _loops(
        self, dims: list[LoopIndex], unroll: int, unrolled: list[tuple[int, int]], x: Value, w: Value, sums: list[Value]
    ) -> list[Value]:
        if not dims:
            return self._steps(unrolled, x, w, sums)
        f, dim, inner = self.f, dims[0], dims[1:]
        type_ = self.nest.work.type

        def iteration(count: int) -> Callable[[Value, list[Value]], list[Value]]:
            steps = self._repeated(dim, count, unrolled) if not inner else unrolled

            def body(index: Value, carried: list[Value]) -> list[Value]:
                there = step(f, x, type_, times(f, index, dim.x)), step(f, w, type_, times(f, index, dim.w))
                return self._loops(inner, unroll, steps, *there, carried)

            return body

        if inner or unroll == 1:
            return f.loop(i64(0), value(dim.size), 1, sums, iteration(1), once=isinstance(dim.size, int))
        if isinstance(dim.size, int):
            unrolled_end = dim.size // unroll * unroll
            if unrolled_end:
                sums = f.loop(i64(0), i64(unrolled_end), unroll, sums, iteration(unroll), once=True)
            return iteration(dim.size - unrolled_end)(i64(unrolled_end), sums) if dim.size > unrolled_end else sums
        last_unrolled = f.binary("mul nsw", f.binary("udiv", dim.size, i64(unroll)), i64(unroll))
        sums = f.loop(i64(0), last_unrolled, unroll, sums, iteration(unroll))
        return f.loop(last_unrolled, dim.size, 1, sums, iteration(1))

    def _steps(self, steps: Sequence[tuple[int, int]], x: Value, w: Value, sums: list[Value]) -> list[Value]:
        """Emit straight code for some steps of the summation, every element loaded once."""
        work, along, vectors = self.nest.work, self.along, self.nest.vectors
        seen: dict[tuple[str, int], Value] = {}

        def operand(which: str, base: Value, offset: int, stride: int) -> Value:
            if (which, offset) not in seen:
                at = step(self.f, base, work.type, offset)
                if stride:
                    seen[which, offset] = self.f.load(work.vector, at, work.itemsize)
                else:
                    seen[which, offset] = self.f.splat(self.f.load(work.type, at, work.itemsize), work.lanes)
            return seen[which, offset]

        sums = list(sums)
        for a, b in steps:
            for r, row in enumerate(self.rows):
                for v in range(vectors):
                    far = v * work.lanes
                    left = operand("x", x, a + row.x + far * along.x, along.x)
                    right = operand("w", w, b + row.w + far * along.w, along.w)
                    k = r * vectors + v
                    sums[k] = work.multiply_add(self.f, left, right, sums[k])
        return sums


def dense(sizes: Sequence[int], innermost: int = 1) -> list[int]:
    """Return the strides of a dense array, whose last index has stride `innermost`."""
    strides: list[int] = []
    for size in reversed(sizes):
        strides.insert(0, innermost)
        innermost *= size
    return strides
