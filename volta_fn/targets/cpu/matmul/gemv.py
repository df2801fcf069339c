"""A vector times a matrix that is contiguous along columns: sums of scaled rows.

The time goes into reading the matrix, so that this is done in long runs: a task keeps sums of many columns, and adds a few rows at a time.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.contractions.matmul_problem import Problem
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, first_lanes, read
from volta_fn.targets.cpu.matmul.epilogues import Epilogue
from volta_fn.targets.cpu.matmul.micro_kernel import ResultTile
from volta_fn.targets.cpu.matmul.task_loops import each, offset_of, origin
from volta_fn.targets.cpu.routine import Launch, Routine

_NARROW = 256  # least columns; with fewer, tiles are faster
_RUN = 512  # columns of a task, about
_TOGETHER = 8  # rows that are added at a time
_STEP = 1.0  # nanoseconds for a vector of the matrix


def suits(problem: Problem) -> bool:
    """Return True if a product is of that kind."""
    return problem.m == 1 and problem.rhs.outer.stride == 1 and problem.n >= _NARROW and problem.batch * problem.k > 0


def gemv(work: ComputeType, problem: Problem, epilogue: Epilogue, operands: tuple[int, int], name: str) -> Routine:
    """Generate the routine; `operands` are the vector's and the matrix's buffers."""
    module = Module()
    writer = _Gemv(module, work, problem, epilogue, operands, name)
    writer.write()
    tasks = problem.batch * writer.chunks
    return Routine(str(module), (Launch(name, tasks, tasks * problem.k * (writer.run // work.lanes) * _STEP),))


class _Gemv:
    """Writes the function of the tasks, each of which has `run` columns."""

    def __init__(
        self, module: Module, work: ComputeType, problem: Problem, epilogue: Epilogue, operands: tuple[int, int], name: str
    ) -> None:
        self.work, self.problem, self.epilogue = work, problem, epilogue
        run = -(-problem.n // max(1, round(problem.n / _RUN)))
        self.run = run + -run % work.lanes
        self.chunks = -(-problem.n // self.run)
        self.f = f = Function(module, name, [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")])
        self.buffers, self.begin, self.end = f.parameters
        self.sums = f.alloca(work.type, self.run)
        self.vector, self.matrix = [f.load("ptr", f.at(self.buffers, "ptr", i64(number)), 8) for number in operands]

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
