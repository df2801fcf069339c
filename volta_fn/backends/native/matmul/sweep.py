"""A vector times a matrix whose rows lie in memory one after another: sums of scaled rows.

The time goes into reading the matrix, so that this is done in long runs: a task keeps sums of many columns, and adds a few rows at a time.
"""

from __future__ import annotations

from volta_fn.backends.native.llvm.text import Function, Module, Value, i64
from volta_fn.backends.native.matmul.epilogues import Epilogue
from volta_fn.backends.native.matmul.loops import each, when
from volta_fn.backends.native.matmul.numbers import Working, first_lanes, read
from volta_fn.backends.native.matmul.tile import Tile
from volta_fn.backends.native.matmul.walks import origin, walked
from volta_fn.backends.native.routine import Phase, Routine
from volta_fn.compiler.contractions.problem import Problem

_NARROW = 256  # columns, below which tiles do better
_RUN = 512  # columns that a task has about
_TOGETHER = 8  # rows that are added at a time
_STEP = 1.0  # nanoseconds for a vector of the matrix


def suits(problem: Problem) -> bool:
    """Whether a product is of that kind."""
    return problem.m == 1 and problem.rhs.outer.stride == 1 and problem.n >= _NARROW and problem.batch * problem.k > 0


def sweep(work: Working, problem: Problem, epilogue: Epilogue, operands: tuple[int, int], name: str) -> Routine:
    """The routine of such a product; `operands` are the numbers of the buffers of the vector and of the matrix."""
    module = Module()
    f = Function(module, name, [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")])
    buffers, begin, end = f.parameters
    lanes, (left, right) = work.lanes, (problem.lhs, problem.rhs)
    pieces = max(1, round(problem.n / _RUN))
    run = -(-problem.n // pieces)
    run += -run % lanes
    pieces = -(-problem.n // run)
    sums = f.alloca(work.type, run)
    arrays = [f.load("ptr", f.at(buffers, "ptr", i64(number)), 8) for number in operands]

    def part(batch: Value, column: Value, count: int) -> None:
        x = f.at(arrays[0], f"[{left.dtype.itemsize} x i8]", origin(f, left, batch))
        start = f.binary("add", origin(f, right, batch), column)
        matrix = f.at(arrays[1], f"[{right.dtype.itemsize} x i8]", start)
        whole = count - count % lanes

        def at(j: Value) -> Value:
            return f.at(sums, work.type, j)

        def add(rows: list[Value], scales: list[Value], j: Value, mask: Value | None) -> None:
            total = f.load(work.vector, at(j), work.itemsize)
            for row, scale in zip(rows, scales, strict=True):
                place = f.at(row, f"[{right.dtype.itemsize} x i8]", j)
                total = work.multiply_add(f, scale, read(f, work, right.dtype, place, lanes, mask), total)
            f.store(total, at(j), work.itemsize)

        def rows(k: Value, together: int) -> None:
            steps = [f.binary("add", k, i64(i)) for i in range(together)]
            scales = [
                f.splat(read(f, work, left.dtype, f.at(x, f"[{left.dtype.itemsize} x i8]", walked(f, left.inner, s)), 1), lanes)
                for s in steps
            ]
            lines = [f.at(matrix, f"[{right.dtype.itemsize} x i8]", walked(f, right.inner, s)) for s in steps]
            each(f, i64(0), i64(whole), lambda j: add(lines, scales, j, None), lanes)
            if whole < count:
                add(lines, scales, i64(whole), first_lanes(count - whole, lanes))

        def finish(j: Value, valid: int) -> None:
            total = f.load(work.vector, at(j), work.itemsize)
            epilogue.write(f, Tile(work, buffers, batch, i64(0), f.binary("add", column, j), [[total]], valid))

        each(f, i64(0), i64(-(-count // lanes) * lanes), lambda j: f.store(work.zero(), at(j), work.itemsize), lanes)
        grouped = problem.k - problem.k % _TOGETHER
        each(f, i64(0), i64(grouped), lambda k: rows(k, _TOGETHER), _TOGETHER)
        if grouped < problem.k:
            rows(i64(grouped), problem.k - grouped)
        each(f, i64(0), i64(whole), lambda j: finish(j, lanes), lanes)
        if whole < count:
            finish(i64(whole), count - whole)

    def task(number: Value) -> None:
        batch, piece = f.binary("udiv", number, i64(pieces)), f.binary("urem", number, i64(pieces))
        column = f.binary("mul", piece, i64(run))
        last = problem.n - (pieces - 1) * run
        if last == run:
            part(batch, column, run)
        elif pieces == 1:
            part(batch, i64(0), last)
        else:
            whole = f.compare("icmp slt", piece, i64(pieces - 1))
            when(f, whole, lambda: part(batch, column, run), lambda: part(batch, column, last))

    each(f, begin, end, task)
    f.finish()
    tasks = problem.batch * pieces
    return Routine(str(module), (Phase(name, tasks, tasks * problem.k * (run // lanes) * _STEP),))
