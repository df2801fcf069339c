"""Products of few rows: a vector times a matrix, and dot products along k."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Operand, Problem
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, least
from volta_fn.targets.cpu.matmul.blocking import Blocking, each, offset_of, origin, unpacked_blocking
from volta_fn.targets.cpu.matmul.epilogues import Epilogue, PartialSums, combine
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, ResultTile, first_lanes, lanes_below, read
from volta_fn.targets.cpu.routine import BUFFERS, Launch, Routine, buffer_pointer, entry_point

# Products of few rows with many, all contiguous along k, as dot products.
#
# Nothing is packed: vectors along k of a few rows of either operand are multiplied with each other, and lanes are added up at the end.

_FEW = 8  # most rows of the smaller operand
_SHORT = 48  # least terms; with fewer, adding up lanes takes too long
_SUMS = 24  # vectors of sums that fit into the registers
_LONG = 16_384  # most terms of a sum that is not split
_TASK_STEPS = 10_000  # vectors multiplied in a task
_DOT_STEP, _FAR_STEP = 0.3, 0.6  # nanoseconds for each, and where operands are not in a core's caches
_NEAR = 1 << 20  # bytes that a core's caches hold


def suits_dot_products(problem: Problem) -> bool:
    """Return True if dot products compute a product fastest."""
    return is_possible(problem) and problem.k >= _SHORT


def is_possible(problem: Problem) -> bool:
    """Return True if dot products can compute a product."""
    lhs, rhs = problem.lhs.inner.stride, problem.rhs.inner.stride
    return lhs == rhs == 1 and min(problem.m, problem.n) <= _FEW and problem.batch * problem.m * problem.n * problem.k > 0


class _TileSize(NamedTuple):
    """A tile of the result: rows of A and of B."""

    left: int
    right: int


class DotProducts:
    """The writer of a routine of dot products; `operands` are the buffers' numbers."""

    def __init__(
        self,
        work: ComputeType,
        problem: Problem,
        epilogue: Epilogue,
        buffers: int,
        name: str,
        operands: tuple[int, int] = (0, 1),
        splits: int | None = None,
    ) -> None:
        self.operands = operands
        self.work, self.problem, self.epilogue, self.buffers, self.name = work, problem, epilogue, buffers, name
        self.module = Module()
        m, n, k = problem.m, problem.n, problem.k
        few = min(m, n)
        many = max(1, min(max(m, n), _FEW, _SUMS // few))
        self.full = _TileSize(few, many) if m <= n else _TileSize(many, few)
        self.groups = -(-max(m, n) // many)
        steps = few * many * -(-k // work.lanes)
        if splits is None:
            splits = -(-k // _LONG) if problem.batch * self.groups < 16 else 1
        self.split_depth = -(-k // splits)
        self.split_depth += -self.split_depth % 64 if splits > 1 else 0
        self.blocking: Blocking = unpacked_blocking(problem.batch, m, n, k, splits=-(-k // self.split_depth), width=work.lanes)
        self.each = max(1, min(self.groups, _TASK_STEPS // max(1, steps // self.blocking.splits)))
        self.partial = PartialSums(buffers, 0, self.blocking)

    def routine(self) -> Routine:
        """Write the code."""
        blocking, problem = self.blocking, self.problem
        tasks = problem.batch * blocking.splits * -(-self.groups // self.each)
        vectors = problem.batch * problem.m * problem.n * -(-problem.k // self.work.lanes)
        self._write(-(-self.groups // self.each))
        read_once = problem.batch * max(problem.m, problem.n) * problem.k * self.work.itemsize
        launches = [Launch(self.name, tasks, vectors * (_DOT_STEP if read_once <= _NEAR else _FAR_STEP))]
        if blocking.splits == 1:
            return Routine(str(self.module), tuple(launches))
        launches.append(combine(self.module, f"{self.name}_combine", self.work, blocking, self.partial, self.epilogue))
        size = blocking.splits * problem.batch * problem.m * problem.n * self.work.itemsize
        return Routine(str(self.module), tuple(launches), size)

    def _write(self, chunks: int) -> None:
        blocking = self.blocking
        f = entry_point(self.module, self.name)
        buffers, begin, end = f.parameters
        largest = max(self.problem.m, self.problem.n)
        size = self.full.right if self.problem.m <= self.problem.n else self.full.left
        rest = largest % size

        def task(number: Value) -> None:
            chunk, number = f.binary("urem", number, i64(chunks)), f.binary("udiv", number, i64(chunks))
            split, batch = f.binary("urem", number, i64(blocking.splits)), f.binary("udiv", number, i64(blocking.splits))
            first = f.binary("mul", chunk, i64(self.each))
            last = least(f, f.binary("add", first, i64(self.each)), i64(self.groups))
            inner = f.binary("mul", split, i64(self.split_depth))
            depth = least(f, i64(self.split_depth), f.binary("sub", i64(self.problem.k), inner))

            def group(index: Value) -> None:
                values = (buffers, batch, split, f.binary("mul", index, i64(size)), inner, depth)
                unmasked = f.compare("icmp slt", index, i64(self.groups - 1))
                if rest:
                    f.branch(unmasked, lambda: f.run(self._tile(size), *values), lambda: f.run(self._tile(rest), *values))
                else:
                    f.run(self._tile(size), *values)

            each(f, first, last, group)

        each(f, begin, end, task)
        f.finish()

    def _tile(self, many: int) -> str:
        """Return the function of a tile with `many` rows of the larger operand."""
        name = f"{self.name}_tile{many}"
        by_columns = self.problem.m <= self.problem.n
        size = _TileSize(self.full.left, many) if by_columns else _TileSize(many, self.full.right)

        def write() -> None:
            parameters = [BUFFERS, *(Value("i64", f"%{x}") for x in ("batch", "split", "start", "inner", "depth"))]
            f = Function(self.module, name, parameters, "internal void")
            buffers, batch, split, start, inner, depth = f.parameters
            row, column = (i64(0), start) if by_columns else (start, i64(0))
            left = self._rows(f, self.problem.lhs, buffers, self.operands[0], batch, row, size.left, inner)
            right = self._rows(f, self.problem.rhs, buffers, self.operands[1], batch, column, size.right, inner)
            sums = self._sums(f, left, right, depth)
            rows = [self._as_vectors(f, sums[i * size.right : (i + 1) * size.right]) for i in range(size.left)]
            tile = ResultTile(self.work, buffers, batch, row, column, rows, size.right)
            if self.blocking.splits > 1:
                self.partial.store(f, tile, split)
            else:
                self.epilogue.write(f, tile)
            f.finish()

        self.module.define(name, write)
        return name

    def _rows(
        self, f: Function, operand: Operand, buffers: Value, number: int, batch: Value, first: Value, count: int, inner: Value
    ) -> list[Value]:
        """Emit the addresses of `count` rows, from k = `inner` on."""
        element = f"[{operand.dtype.itemsize} x i8]"
        array = buffer_pointer(f, number, buffers)
        start = f.at(f.at(array, element, origin(f, operand, batch)), element, inner)
        return [f.at(start, element, offset_of(f, operand.outer, f.binary("add", first, i64(i)))) for i in range(count)]

    def _sums(self, f: Function, left: list[Value], right: list[Value], depth: Value) -> list[Value]:
        """Emit the dot products of each row of `left` with each of `right`."""
        work, lhs, rhs = self.work, self.problem.lhs.dtype, self.problem.rhs.dtype
        tiles = len(left) * len(right)
        copies = max(1, min(4, 8 // tiles))  # independent accumulators, which break the dependency chain

        def at(row: Value, size: int, k: Value, further: int) -> Value:
            return f.at(f.at(row, f"[{size} x i8]", k), f"[{size} x i8]", i64(further * work.lanes))

        def iteration(k: Value, totals: list[Value], copy: int, mask: Value | None) -> None:
            x = [read(f, work, lhs, at(row, lhs.itemsize, k, copy), work.lanes, mask) for row in left]
            y = [read(f, work, rhs, at(row, rhs.itemsize, k, copy), work.lanes, mask) for row in right]
            for i, a in enumerate(x):
                for j, b in enumerate(y):
                    index = copy * tiles + i * len(right) + j
                    totals[index] = work.multiply_add(f, a, b, totals[index])

        def unmasked(k: Value, carried: list[Value]) -> list[Value]:
            totals = list(carried)
            for copy in range(copies):
                iteration(k, totals, copy, None)
            return totals

        def masked(k: Value, carried: list[Value]) -> list[Value]:
            totals = list(carried)
            iteration(k, totals, 0, lanes_below(f, f.binary("sub", depth, k), work.lanes))
            return totals

        step = copies * work.lanes
        end = f.binary("and", depth, i64(-step))
        totals = f.loop(i64(0), end, step, [work.zero()] * (tiles * copies), unmasked)
        totals = f.loop(end, depth, work.lanes, totals, masked)
        for copy in range(1, copies):
            for index in range(tiles):
                totals[index] = work.add(f, totals[index], totals[copy * tiles + index])
        return [self._across(f, x) for x in totals[:tiles]]

    def _across(self, f: Function, x: Value) -> Value:
        """Emit the sum of the lanes: lower half plus upper half, and so on."""
        lanes = self.work.lanes
        while lanes > 1:
            lanes //= 2
            halves = [f.shuffle(x, range(start, start + lanes), x) for start in (0, lanes)] if lanes > 1 else []
            if lanes == 1:
                halves = [f.let(self.work.type, f"extractelement {x}, i64 {lane}") for lane in (0, 1)]
            x = self.work.add(f, *halves)
        return x

    def _as_vectors(self, f: Function, numbers: list[Value]) -> list[Value]:
        """Emit numbers as lanes of vectors, with zeros after the last one."""
        lanes, vectors = self.work.lanes, []
        for start in range(0, len(numbers), lanes):
            vector = self.work.zero()
            for lane, number in enumerate(numbers[start : start + lanes]):
                vector = f.let(vector.type, f"insertelement {vector}, {number}, i64 {lane}")
            vectors.append(vector)
        return vectors


# A vector times a matrix that is contiguous along columns: sums of scaled rows.
#
# The time goes into reading the matrix, so that this is done in long runs: a task keeps sums of many columns, and adds a few rows at a
# time.

_NARROW = 256  # least columns; with fewer, tiles are faster
_RUN = 512  # columns of a task, about
_TOGETHER = 8  # rows that are added at a time
_GEMV_STEP = 1.0  # nanoseconds for a vector of the matrix


def suits_gemv(problem: Problem) -> bool:
    """Return True if a product is a row times a matrix contiguous along columns."""
    return problem.m == 1 and problem.rhs.outer.stride == 1 and problem.n >= _NARROW and problem.batch * problem.k > 0


def gemv(work: ComputeType, problem: Problem, epilogue: Epilogue, operands: tuple[int, int], name: str) -> Routine:
    """Generate the routine; `operands` are the vector's and the matrix's buffers."""
    module = Module()
    writer = _Gemv(module, work, problem, epilogue, operands, name)
    writer.write()
    tasks = problem.batch * writer.chunks
    return Routine(str(module), (Launch(name, tasks, tasks * problem.k * (writer.run // work.lanes) * _GEMV_STEP),))


class _Gemv:
    """Writes the function of the tasks, each of which has `run` columns."""

    def __init__(
        self, module: Module, work: ComputeType, problem: Problem, epilogue: Epilogue, operands: tuple[int, int], name: str
    ) -> None:
        self.work, self.problem, self.epilogue = work, problem, epilogue
        run = -(-problem.n // max(1, round(problem.n / _RUN)))
        self.run = run + -run % work.lanes
        self.chunks = -(-problem.n // self.run)
        self.f = f = entry_point(module, name)
        self.buffers, self.begin, self.end = f.parameters
        self.sums = f.alloca(work.type, self.run)
        self.vector, self.matrix = [buffer_pointer(f, number) for number in operands]

    def write(self) -> None:
        """Write the code."""
        each(self.f, self.begin, self.end, self._task)
        self.f.finish()

    def _task(self, number: Value) -> None:
        f, problem, run = self.f, self.problem, self.run
        batch, chunk = f.binary("udiv", number, i64(self.chunks)), f.binary("urem", number, i64(self.chunks))
        column = f.binary("mul", chunk, i64(run))
        last = problem.n - (self.chunks - 1) * run
        if last == run:
            self._chunk(batch, column, run)
        elif self.chunks == 1:
            self._chunk(batch, i64(0), last)
        else:
            full_vectors = f.compare("icmp slt", chunk, i64(self.chunks - 1))
            f.branch(full_vectors, lambda: self._chunk(batch, column, run), lambda: self._chunk(batch, column, last))

    def _chunk(self, batch: Value, column: Value, count: int) -> None:
        """Emit the sums of `count` columns, and their epilogue."""
        f, problem, lanes = self.f, self.problem, self.work.lanes
        x = self._element(self.vector, problem.lhs.dtype, origin(f, problem.lhs, batch))
        start = f.binary("add", origin(f, problem.rhs, batch), column)
        matrix = self._element(self.matrix, problem.rhs.dtype, start)
        zeros = -(-count // lanes) * lanes
        each(f, i64(0), i64(zeros), lambda j: f.store(self.work.zero(), self._sum(j), self.work.itemsize), lanes)
        grouped = problem.k - problem.k % _TOGETHER
        each(f, i64(0), i64(grouped), lambda k: self._rows(x, matrix, k, _TOGETHER, count), _TOGETHER)
        if grouped < problem.k:
            self._rows(x, matrix, i64(grouped), problem.k - grouped, count)
        full_vectors = count - count % lanes
        each(f, i64(0), i64(full_vectors), lambda j: self._finish(batch, column, j, lanes), lanes)
        if full_vectors < count:
            self._finish(batch, column, i64(full_vectors), count - full_vectors)

    def _rows(self, x: Value, matrix: Value, k: Value, together: int, count: int) -> None:
        """Emit the addition of a few scaled rows to the sums of `count` columns."""
        f, work, (left, right) = self.f, self.work, self.problem[:2]
        steps = [f.binary("add", k, i64(i)) for i in range(together)]
        scales = [
            f.splat(read(f, work, left.dtype, self._element(x, left.dtype, offset_of(f, left.inner, s)), 1), work.lanes) for s in steps
        ]
        rows = [self._element(matrix, right.dtype, offset_of(f, right.inner, s)) for s in steps]
        full_vectors = count - count % work.lanes
        each(f, i64(0), i64(full_vectors), lambda j: self._add(rows, scales, j, None), work.lanes)
        if full_vectors < count:
            self._add(rows, scales, i64(full_vectors), first_lanes(count - full_vectors, work.lanes))

    def _add(self, rows: list[Value], scales: list[Value], j: Value, mask: Value | None) -> None:
        """Emit the addition of rows for the columns of one vector."""
        f, work, dtype = self.f, self.work, self.problem.rhs.dtype
        total = f.load(work.vector, self._sum(j), work.itemsize)
        for row, scale in zip(rows, scales, strict=True):
            total = work.multiply_add(f, scale, read(f, work, dtype, self._element(row, dtype, j), work.lanes, mask), total)
        f.store(total, self._sum(j), work.itemsize)

    def _finish(self, batch: Value, column: Value, j: Value, valid: int) -> None:
        """Emit the epilogue of one vector of columns, `valid` of which exist."""
        f, work = self.f, self.work
        total = f.load(work.vector, self._sum(j), work.itemsize)
        self.epilogue.write(f, ResultTile(work, self.buffers, batch, i64(0), f.binary("add", column, j), [[total]], valid))

    def _sum(self, j: Value) -> Value:
        return self.f.at(self.sums, self.work.type, j)

    def _element(self, array: Value, dtype: np.dtype, index: Value) -> Value:
        return self.f.at(array, f"[{dtype.itemsize} x i8]", index)
