"""Compute tiled contractions: slices in workgroup memory, sums in registers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue
from volta_fn.targets.wgsl.matmul.indices import digits, times, total
from volta_fn.targets.wgsl.matmul.results import partial, results
from volta_fn.targets.wgsl.matmul.schedule import Schedule
from volta_fn.targets.wgsl.matmul.slices import Slice
from volta_fn.targets.wgsl.matmul.split_k_combine import combine
from volta_fn.targets.wgsl.matmul.subgroup_patches import patch
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars.shader import Shader


class BufferNumbers(NamedTuple):
    """The numbers of the buffers: operands, results, and workspace for partial sums."""

    lhs: int = 0
    rhs: int = 1
    result: int = 2
    workspace: int = 3

    def swapped(self) -> BufferNumbers:
        """Return the numbers with the operands exchanged."""
        return self._replace(lhs=self.rhs, rhs=self.lhs)


def tiled(
    c: IndexedContraction,
    work: Working,
    schedule: Schedule,
    device: TargetCapabilities,
    epilogue: Epilogue,
    buffers: BufferNumbers,
    *,
    alone: bool = False,
) -> Routine:
    """Return the routine of a contraction by a schedule.

    If a program consists of it `alone`, it always starts with a short shader.
    """
    if c.k == 0:
        return Routine((combine(c, work, 0, device, epilogue, buffers.workspace, buffers.result),))
    schedule = schedule.fitted(c)
    first = _dispatch(c, work, schedule, device, epilogue, buffers, alone)
    if schedule.splits == 1:
        return Routine((first,))
    size = schedule.splits * c.batch * c.m * c.n * work.dtype.itemsize
    return Routine((first, combine(c, work, schedule.splits, device, epilogue, buffers.workspace, buffers.result)), (size,))


def _dispatch(
    c: IndexedContraction,
    work: Working,
    schedule: Schedule,
    device: TargetCapabilities,
    epilogue: Epilogue,
    buffers: BufferNumbers,
    alone: bool,
) -> Dispatch:
    """Return the dispatch of a schedule.

    It starts with a shader that compiles faster if the schedule's own is long, or it is `alone`.
    """

    def written(by: Schedule) -> Dispatch:
        return Tiles(c, work, by, device, epilogue, buffers).dispatch()

    short = schedule.short(work, device, always=alone)
    if short is None:
        return written(schedule)
    return replace(written(short), better=cache(lambda: written(schedule).shader))


class Tiles:
    """The shader of a tiled contraction under construction."""

    def __init__(
        self,
        c: IndexedContraction,
        work: Working,
        schedule: Schedule,
        device: TargetCapabilities,
        epilogue: Epilogue,
        buffers: BufferNumbers,
    ) -> None:
        self.c, self.work, self.schedule = c, work, schedule
        #: The variable that tells which of two buffers in workgroup memory is read.
        self.second = ""
        #: A zero that compilers cannot fold, which keeps them from unrolling loops; empty if they may.
        self.nothing = ""
        self.f = f = Shader(device, schedule.invocations)
        sizes = schedule.rows, schedule.columns
        self.sides = [
            Slice(f, work, name, number, map_, schedule, size)
            for name, number, map_, size in zip("ab", (buffers.lhs, buffers.rhs), (c.lhs, c.rhs), sizes, strict=True)
        ]
        if schedule.splits == 1:
            self.put = results(f, work, c, buffers.result, epilogue, work.lanes)
        else:
            self.put = partial(f, work, c, buffers.workspace, schedule.splits, work.lanes)

    def dispatch(self) -> Dispatch:
        """Return the finished dispatch."""
        f, schedule, work = self.f, self.schedule, self.work
        stack, row, column, split = self._position()
        begin, end, terms = "0u", f"{self.c.k}u", schedule.chunk(self.c)
        if schedule.splits > 1:
            begin = f.let("u32", f"{split} * {terms}u")
            end = f.let("u32", f"min({begin} + {terms}u, {self.c.k}u)")
        if schedule.brief:
            self.nothing = f.let("u32", "_workgroup_id.z")
            end = f.let("u32", self._unknown(end))
        exact = self.c.k % schedule.depth == 0
        for side, first in zip(self.sides, (row, column), strict=True):
            side.prepare(stack, first, end, exact=exact)
        self._lanes()
        for r in range(schedule.thread_rows):
            for j in range(schedule.thread_columns // (work.lanes if schedule.brief else 1)):
                f.emit(f"var c{r}_{j} = {work.vector if schedule.brief else work.type}();")
        self._sum(begin, end)
        self._finish(stack, row, column, split)
        return f.dispatch(schedule.groups(self.c), self.c.products)

    def _position(self) -> tuple[str, str, str, str]:
        """Compute the product, the first row and column, and the chunk of a workgroup."""
        f, schedule = self.f, self.schedule
        down, across = schedule.tiles(self.c)
        band = next(b for b in range(min(schedule.band, down), 0, -1) if down % b == 0)
        split, stack, strip, j, i = digits(f, f.group, (schedule.splits, self.c.batch, down // band, across, band))
        row = f.let("u32", f"({strip} * {band}u + {i}) * {schedule.rows}u")
        return stack, row, f.let("u32", f"{j} * {schedule.columns}u"), split

    def _lanes(self) -> None:
        """Compute the first vector of rows, and of columns, of an invocation.

        Its next ones are `lane_rows` and `lane_columns` spacing.
        """
        f, s, lanes = self.f, self.schedule, self.work.lanes
        self.lane_rows = min(s.lane_rows, s.rows // s.thread_rows)
        self.lane_columns = min(s.lane_columns, s.columns // s.thread_columns)
        down, right, y, x = patch(f, self.lane_rows, self.lane_columns, s.columns // (self.lane_columns * s.thread_columns))
        self.top = f.let("u32", f"{down} * {self.lane_rows * s.thread_rows // lanes}u + {y}")
        self.left = f.let("u32", f"{right} * {self.lane_columns * s.thread_columns // lanes}u + {x}")

    def _sum(self, begin: str, end: str) -> None:
        """Sum the terms from `begin` to `end`, slice by slice."""
        f, depth, schedule = self.f, self.schedule.depth, self.schedule
        if not schedule.ahead:
            with f.loop(end, begin, depth) as k:
                self._load(k)
                self._stage()
                self._multiply()
                f.emit("workgroupBarrier();")
            return
        if schedule.once and not schedule.twice:
            self._sum_in_one_loop(begin, end)
            return
        with f.block(""):
            self._load(begin)
            self._stage()
        if schedule.twice:
            self._sum_double_buffered(begin, end)
            return
        with f.loop(end, f"{begin} + {depth}u", depth) as k:
            self._load(k)
            self._multiply()
            f.emit("workgroupBarrier();")
            self._stage()
        self._multiply()

    def _sum_in_one_loop(self, begin: str, end: str) -> None:
        """Sum with one copy of the multiplications, prefetching the next slice if any."""
        f, depth = self.f, self.schedule.depth
        with f.block(""):
            self._load(begin)
        with f.loop(end, begin, depth) as k:
            self._stage()
            following = f.let("u32", f"{k} + {depth}u")
            with f.block(f"if ({following} < {end})"):
                self._load(following)
            self._multiply()
            f.emit("workgroupBarrier();")

    def _sum_double_buffered(self, begin: str, end: str) -> None:
        """Sum with slices that alternate between two buffers of workgroup memory."""
        f, depth = self.f, self.schedule.depth
        self.second = f.var("u32", "0u")
        with f.loop(end, f"{begin} + {depth}u", depth) as k:
            self._load(k)
            self._multiply()
            f.emit(f"{self.second} = 1u - {self.second};")
            self._stage()
        self._multiply()

    def _load(self, k: str) -> None:
        for side in self.sides:
            side.load(k)

    def _stage(self) -> None:
        """Store the loaded slice to workgroup memory."""
        for side in self.sides:
            side.store(self.second)
        self.f.emit("workgroupBarrier();")

    def _multiply(self) -> None:
        """Add the products of a slice."""
        f, depth, unroll = self.f, self.schedule.depth, self.schedule.unroll
        self.firsts = [self.top, self.left]
        if self.second:
            self.firsts = [total(f, times(self.second, side.size), x) for side, x in zip(self.sides, self.firsts, strict=True)]
        if not unroll or unroll >= depth:
            for number in range(depth):
                self._step(f"{number}u")
            return
        with f.loop(self._unknown(f"{depth}u"), 0, unroll) as k:
            for more in range(unroll):
                self._step(f"({k} + {more}u)")

    def _unknown(self, end: str) -> str:
        """Hide the end of a loop from compilers, if `nothing` is set."""
        return f"{end} + {self.nothing}" if self.nothing else end

    def _step(self, k: str) -> None:
        """Add the outer product of line `k` of both slices."""
        with self.f.block(""):
            rows = self._factors("a", self.sides[0], k, self.firsts[0], self.schedule.thread_rows, self.lane_rows)
            columns = self._factors("b", self.sides[1], k, self.firsts[1], self.schedule.thread_columns, self.lane_columns)
            self._add_products(rows, columns)

    def _factors(self, name: str, side: Slice, k: str, first: str, count: int, spacing: int) -> list[str]:
        """Load `count` numbers of line `k` of a slice into variables named after `name`.

        Consecutive vectors are `spacing` lanes spacing.
        """
        f, work, found = self.f, self.work, []
        for i in range(count // work.lanes):
            f.emit(f"let {name}{i}: {work.vector} = {side.tile}[{k} * {side.pitch}u + {first} + {i * spacing}u];")
            numbers = [f"{name}{i}.{c}" for c in "xyzw"] if work.lanes == 4 else [f"{name}{i}"]
            found += numbers if self.schedule.brief or work.lanes == 1 else [f.let(work.type, x) for x in numbers]
        return found

    def _add_products(self, rows: list[str], columns: list[str]) -> None:
        """Add each product of two numbers to its sum; by vectors in a brief shader."""
        f, work = self.f, self.work
        for r, x in enumerate(rows):
            if self.schedule.brief:
                for v in range(len(columns) // work.lanes):
                    f.emit(f"c{r}_{v} = {work.multiply_add(x, f'b{v}', f'c{r}_{v}')};")
                continue
            # In alternating order, so that consecutive products share a factor, which then stays in its register.
            for j, y in [*enumerate(columns)][:: -1 if r % 2 else 1]:
                f.emit(f"c{r}_{j} = {work.fused(x, y, f'c{r}_{j}')};")

    def _finish(self, stack: str, row: str, column: str, split: str) -> None:
        f, s, lanes = self.f, self.schedule, self.work.lanes
        if s.splits > 1:
            stack = total(f, times(split, self.c.batch), stack)
        top, left = f.let("u32", f"{row} + {self.top} * {lanes}u"), f.let("u32", f"{column} + {self.left} * {lanes}u")
        if s.brief:
            self._finish_in_a_loop(stack, top, left)
            return
        for r in range(s.thread_rows):
            block, element = divmod(r, lanes)
            for v in range(s.thread_columns // lanes):
                position = f"{top} + {block * self.lane_rows * lanes + element}u, {left} + {v * self.lane_columns * lanes}u"
                sums = ", ".join(f"c{r}_{v * lanes + e}" for e in range(lanes))
                f.emit(f"{self.put}({stack}, {position}, {self.work.vector}({sums}));")

    def _finish_in_a_loop(self, stack: str, top: str, left: str) -> None:
        """Store the sums by a loop over vectors, so that the epilogue occurs once."""
        f, s, lanes = self.f, self.schedule, self.work.lanes
        across = s.thread_columns // lanes
        vectors = [f"c{r}_{v}" for r in range(s.thread_rows) for v in range(across)]
        f.emit(f"var sums = array<{self.work.vector}, {len(vectors)}>({', '.join(vectors)});")
        with f.loop(self._unknown(f"{len(vectors)}u")) as n:
            r, v = digits(f, n, (0, across))
            y = f"{r} / {lanes}u * {self.lane_rows * lanes}u + {r} % {lanes}u"
            f.emit(f"{self.put}({stack}, {top} + {y}, {left} + {times(v, self.lane_columns * lanes)}, sums[{n}]);")
