"""Tiled contractions: slices of both operands are staged in workgroup memory, sums are kept in registers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from volta_fn.compiler.contractions.index_maps import Contraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue
from volta_fn.targets.wgsl.matmul.indices import digits, times, total
from volta_fn.targets.wgsl.matmul.results import part, results
from volta_fn.targets.wgsl.matmul.schedule import Schedule
from volta_fn.targets.wgsl.matmul.slices import Slice
from volta_fn.targets.wgsl.matmul.split_k_combine import combine
from volta_fn.targets.wgsl.matmul.subgroup_patches import patch
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars.shader import Shader


class BufferNumbers(NamedTuple):
    """The numbers of the buffers: operands, results, and the workspace for the parts of split sums."""

    lhs: int = 0
    rhs: int = 1
    result: int = 2
    workspace: int = 3

    def swapped(self) -> BufferNumbers:
        """The operands the other way round."""
        return self._replace(lhs=self.rhs, rhs=self.lhs)


def tiled(
    c: Contraction,
    work: Working,
    schedule: Schedule,
    facts: TargetCapabilities,
    epilogue: Epilogue,
    buffers: BufferNumbers,
    *,
    alone: bool = False,
) -> Routine:
    """The routine of a contraction by a schedule. If a program consists of it `alone`, it begins with a short shader in any case."""
    if c.k == 0:
        return Routine((combine(c, work, 0, facts, epilogue, buffers.workspace, buffers.result),))
    schedule = schedule.fitted(c)
    first = _dispatch(c, work, schedule, facts, epilogue, buffers, alone)
    if schedule.splits == 1:
        return Routine((first,))
    size = schedule.splits * c.batch * c.m * c.n * work.dtype.itemsize
    return Routine((first, combine(c, work, schedule.splits, facts, epilogue, buffers.workspace, buffers.result)), (size,))


def _dispatch(
    c: Contraction, work: Working, schedule: Schedule, facts: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers, alone: bool
) -> Dispatch:
    """The dispatch of a schedule, which begins with a shader that compiles faster if the schedule's own is long, or it is `alone`."""

    def written(by: Schedule) -> Dispatch:
        return Tiles(c, work, by, facts, epilogue, buffers).dispatch()

    short = schedule.short(work, facts, always=alone)
    if short is None:
        return written(schedule)
    return replace(written(short), better=cache(lambda: written(schedule).shader))


class Tiles:
    """The shader of a tiled contraction, while it is written."""

    def __init__(
        self, c: Contraction, work: Working, schedule: Schedule, facts: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers
    ) -> None:
        self.c, self.work, self.schedule = c, work, schedule
        #: Which of the two buffers in workgroup memory is being read, if there are two.
        self.turn = ""
        #: A zero that compilers cannot see through, if they are not to know where loops end (and so not to unroll them).
        self.nothing = ""
        self.f = f = Shader(facts, schedule.invocations)
        sizes = schedule.rows, schedule.columns
        self.sides = [
            Slice(f, work, name, number, map_, schedule, size)
            for name, number, map_, size in zip("ab", (buffers.lhs, buffers.rhs), (c.lhs, c.rhs), sizes, strict=True)
        ]
        if schedule.splits == 1:
            self.put = results(f, work, c, buffers.result, epilogue, work.lanes)
        else:
            self.put = part(f, work, c, buffers.workspace, schedule.splits, work.lanes)

    def dispatch(self) -> Dispatch:
        """The finished dispatch."""
        f, schedule, work = self.f, self.schedule, self.work
        stack, row, column, split = self._position()
        begin, end, terms = "0u", f"{self.c.k}u", schedule.part(self.c)
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
                f.line(f"var c{r}_{j} = {work.vector if schedule.brief else work.type}();")
        self._sum(begin, end)
        self._finish(stack, row, column, split)
        return f.dispatch(schedule.groups(self.c), self.c.products)

    def _position(self) -> tuple[str, str, str, str]:
        """The product, the first row and column, and the part of the sum that a workgroup has."""
        f, schedule = self.f, self.schedule
        down, across = schedule.tiles(self.c)
        band = next(b for b in range(min(schedule.band, down), 0, -1) if down % b == 0)
        split, stack, strip, j, i = digits(f, f.group, (schedule.splits, self.c.batch, down // band, across, band))
        row = f.let("u32", f"({strip} * {band}u + {i}) * {schedule.rows}u")
        return stack, row, f.let("u32", f"{j} * {schedule.columns}u"), split

    def _lanes(self) -> None:
        """Compute the first vector of rows, and of columns, that an invocation has; its next ones are `lane_rows`, `lane_columns` away."""
        f, s, lanes = self.f, self.schedule, self.work.lanes
        self.lane_rows = min(s.lane_rows, s.rows // s.thread_rows)
        self.lane_columns = min(s.lane_columns, s.columns // s.thread_columns)
        down, right, y, x = patch(f, self.lane_rows, self.lane_columns, s.columns // (self.lane_columns * s.thread_columns))
        self.top = f.let("u32", f"{down} * {self.lane_rows * s.thread_rows // lanes}u + {y}")
        self.left = f.let("u32", f"{right} * {self.lane_columns * s.thread_columns // lanes}u + {x}")

    def _sum(self, begin: str, end: str) -> None:
        """Sum over the terms from `begin` to `end`, one slice after the other."""
        f, depth, schedule = self.f, self.schedule.depth, self.schedule
        if not schedule.ahead:
            with f.loop(end, begin, depth) as k:
                self._load(k)
                self._stage()
                self._multiply()
                f.line("workgroupBarrier();")
            return
        if schedule.once and not schedule.twice:
            self._sum_in_one_loop(begin, end)
            return
        with f.block(""):
            self._load(begin)
            self._stage()
        if schedule.twice:
            self._sum_by_turns(begin, end)
            return
        with f.loop(end, f"{begin} + {depth}u", depth) as k:
            self._load(k)
            self._multiply()
            f.line("workgroupBarrier();")
            self._stage()
        self._multiply()

    def _sum_in_one_loop(self, begin: str, end: str) -> None:
        """The same with one copy of the multiplications, and the next slice prefetched if there is one."""
        f, depth = self.f, self.schedule.depth
        with f.block(""):
            self._load(begin)
        with f.loop(end, begin, depth) as k:
            self._stage()
            following = f.let("u32", f"{k} + {depth}u")
            with f.block(f"if ({following} < {end})"):
                self._load(following)
            self._multiply()
            f.line("workgroupBarrier();")

    def _sum_by_turns(self, begin: str, end: str) -> None:
        """The same with slices in two buffers of workgroup memory in turn."""
        f, depth = self.f, self.schedule.depth
        self.turn = f.var("u32", "0u")
        with f.loop(end, f"{begin} + {depth}u", depth) as k:
            self._load(k)
            self._multiply()
            f.line(f"{self.turn} = 1u - {self.turn};")
            self._stage()
        self._multiply()

    def _load(self, k: str) -> None:
        for side in self.sides:
            side.load(k)

    def _stage(self) -> None:
        """Store the slice that has been loaded to workgroup memory."""
        for side in self.sides:
            side.store(self.turn)
        self.f.line("workgroupBarrier();")

    def _multiply(self) -> None:
        """Add the products of a slice."""
        f, depth, unroll = self.f, self.schedule.depth, self.schedule.unroll
        self.firsts = [self.top, self.left]
        if self.turn:
            self.firsts = [total(f, times(self.turn, side.size), x) for side, x in zip(self.sides, self.firsts, strict=True)]
        if not unroll or unroll >= depth:
            for number in range(depth):
                self._step(f"{number}u")
            return
        with f.loop(self._unknown(f"{depth}u"), 0, unroll) as k:
            for more in range(unroll):
                self._step(f"({k} + {more}u)")

    def _unknown(self, end: str) -> str:
        """The end of a loop, which compilers cannot see if there is a `nothing`."""
        return f"{end} + {self.nothing}" if self.nothing else end

    def _step(self, k: str) -> None:
        """Add the outer product of line `k` of both slices."""
        with self.f.block(""):
            rows = self._factors("a", self.sides[0], k, self.firsts[0], self.schedule.thread_rows, self.lane_rows)
            columns = self._factors("b", self.sides[1], k, self.firsts[1], self.schedule.thread_columns, self.lane_columns)
            self._add_products(rows, columns)

    def _factors(self, name: str, side: Slice, k: str, first: str, count: int, apart: int) -> list[str]:
        """Load `count` numbers of line `k` of a slice, by vectors that are `apart` lanes apart, into variables called after `name`."""
        f, work, found = self.f, self.work, []
        for i in range(count // work.lanes):
            f.line(f"let {name}{i}: {work.vector} = {side.tile}[{k} * {side.line}u + {first} + {i * apart}u];")
            numbers = [f"{name}{i}.{c}" for c in "xyzw"] if work.lanes == 4 else [f"{name}{i}"]
            found += numbers if self.schedule.brief or work.lanes == 1 else [f.let(work.type, x) for x in numbers]
        return found

    def _add_products(self, rows: list[str], columns: list[str]) -> None:
        """Add each product of two numbers to its sum; by vectors in a brief shader, whose text is shorter so."""
        f, work = self.f, self.work
        for r, x in enumerate(rows):
            if self.schedule.brief:
                for v in range(len(columns) // work.lanes):
                    f.line(f"c{r}_{v} = {work.multiply_add(x, f'b{v}', f'c{r}_{v}')};")
                continue
            # Back and forth, so that consecutive products have a factor in common, which then stays in its register.
            for j, y in [*enumerate(columns)][:: -1 if r % 2 else 1]:
                f.line(f"c{r}_{j} = {work.fused(x, y, f'c{r}_{j}')};")

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
                place = f"{top} + {block * self.lane_rows * lanes + element}u, {left} + {v * self.lane_columns * lanes}u"
                sums = ", ".join(f"c{r}_{v * lanes + e}" for e in range(lanes))
                f.line(f"{self.put}({stack}, {place}, {self.work.vector}({sums}));")

    def _finish_in_a_loop(self, stack: str, top: str, left: str) -> None:
        """The same with the sums, which are vectors, in an array that a loop goes over, so that the epilogue is in the text once."""
        f, s, lanes = self.f, self.schedule, self.work.lanes
        across = s.thread_columns // lanes
        vectors = [f"c{r}_{v}" for r in range(s.thread_rows) for v in range(across)]
        f.line(f"var sums = array<{self.work.vector}, {len(vectors)}>({', '.join(vectors)});")
        with f.loop(self._unknown(f"{len(vectors)}u")) as n:
            r, v = digits(f, n, (0, across))
            y = f"{r} / {lanes}u * {self.lane_rows * lanes}u + {r} % {lanes}u"
            f.line(f"{self.put}({stack}, {top} + {y}, {left} + {times(v, self.lane_columns * lanes)}, sums[{n}]);")
