"""Products of few rows, which read the other operand once, at the speed of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Problem
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, least, vector_of
from volta_fn.targets.cpu.matmul.blocking import Blocking, each, offset_of, origin, unpacked_blocking
from volta_fn.targets.cpu.matmul.epilogues import Epilogue, PartialSums, combine
from volta_fn.targets.cpu.matmul.micro_kernel import (
    CACHE_LINE,
    ComputeType,
    ResultTile,
    bias_of,
    compute_type,
    first_lanes,
    is_itself,
    load,
    prefetch,
    read,
    stored_as,
    with_bias,
)
from volta_fn.targets.cpu.matmul.packing import across_rows, joined
from volta_fn.targets.cpu.routine import BUFFERS, Launch, Routine, buffer_pointer, entry_point, even_count
from volta_fn.targets.cpu.scalars.number import lanes_below

# A task reads the large operand, the *matrix*, in the order in which it lies in memory, and prefetches what comes some kilobytes later: a
# single stream comes at the full bandwidth of memory, where rows that are read side by side come at two thirds of it. Where a line takes
# one instruction, the processor has so many lines underway that rows side by side come at the full bandwidth, and prefetches delay other
# misses.

_FEW = 8  # most rows of the smaller operand
_AHEAD = 16 << 10  # bytes by which the matrix is prefetched
_TASK_STEPS = 2_500
_DOT_STEP, _FAR_STEP = 0.3, 1.5  # nanoseconds for each, and where operands come from memory (64 bytes at 42 GB/s)
_NEAR = 1 << 20  # bytes that a core's caches hold


# Products of few rows with many, all contiguous along k, as dot products.
#
# Nothing is packed: vectors along k of some rows of the matrix are multiplied with those of each of the few rows. The vectors of sums of
# more rows of the matrix wait on the stack, so that their lanes are added up together, and the epilogue has full vectors.

_SHORT = 48  # least terms; with fewer, adding up lanes takes too long
_LONG = 16_384  # most terms of a sum that is not split
_ACCUMULATORS = 8  # independent sums that break the dependency chain
_SIDE_BY_SIDE = 16  # rows of the matrix that are read side by side where they take few instructions
_LARGE = 1 << 18  # bytes of a matrix that is read so; of smaller ones, the hardware would prefetch little of the next one in time
_COLLIDING = 2048  # bytes between rows, or a multiple, that leave so many no room in a level-1 cache: their lines share two sets


def suits_dot_products(problem: Problem) -> bool:
    """Return True if dot products compute a product fastest."""
    return can_use_dot_products(problem) and problem.k >= _SHORT


def can_use_dot_products(problem: Problem) -> bool:
    """Return True if dot products can compute a product."""
    lhs, rhs = problem.lhs.inner.stride, problem.rhs.inner.stride
    return lhs == rhs == 1 and min(problem.m, problem.n) <= _FEW and problem.batch * problem.m * problem.n * problem.k > 0


class _Row(NamedTuple):
    """A row's address: a pointer, and constant bytes that addressing modes add."""

    pointer: Value
    offset: int


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
        self.module, self.sides = Module(), (problem.lhs, problem.rhs)
        m, n, k = problem.m, problem.n, problem.k
        #: Whether the right operand is the matrix, whose rows are the result's columns.
        self.by_columns = m <= n
        self.few, many = min(m, n), max(m, n)
        #: Rows of the matrix whose sums are finished together.
        self.rows = min(many, work.lanes if self.by_columns else _FEW)
        self.groups = -(-many // self.rows)
        #: Rows of the matrix whose products are summed together, so that the few rows are loaded for several.
        self.together = min(4 if self.few <= 4 else 3, max(1, host().vector_registers // (self.few + 2)), self.rows)
        steps = self.few * self.rows * -(-k // (work.lanes * work.group))
        if splits is None:
            splits = -(-k // _LONG) if problem.batch * self.groups < 16 else 1
        self.split_depth = -(-k // splits)
        self.split_depth += -self.split_depth % (64 * work.group) if splits > 1 else 0
        self.blocking: Blocking = unpacked_blocking(problem.batch, m, n, k, splits=-(-k // self.split_depth), width=work.lanes)
        self.each = max(1, min(self.groups, _TASK_STEPS // max(1, steps // self.blocking.splits)))
        self.each = -(-self.groups // even_count(-(-self.groups // self.each)))
        self.partial = PartialSums(buffers, 0, self.blocking)
        matrix = self.sides[int(self.by_columns)]
        #: Whether rows of the matrix are one stream: contiguous, and read in order.
        self.is_stream = matrix.outer.stride == k and self.blocking.splits == 1
        itemsize = matrix.dtype.itemsize
        #: Whether the matrix has numbers of 16 bits, which are weights and come from memory.
        self.reads_weights = self.few == 1 and not work.biased and itemsize == 2
        # Wider matrices that are read again and again take up to 1.25 of the time.
        is_single = self.reads_weights and work.lanes * work.group * itemsize == CACHE_LINE
        #: Whether a line of a long stream takes one instruction, so that the hardware prefetches most by itself.
        self.is_light = self.is_stream and is_single and many * k * itemsize >= _LARGE and k * itemsize % _COLLIDING != 0
        if self.is_light:
            self.together = min(_SIDE_BY_SIDE, self.rows)

    def routine(self) -> Routine:
        """Write the code."""
        blocking, problem = self.blocking, self.problem
        tasks = problem.batch * blocking.splits * -(-self.groups // self.each)
        vectors = problem.batch * problem.m * problem.n * -(-problem.k // (self.work.lanes * self.work.group))
        self._write(-(-self.groups // self.each))
        matrix = problem.rhs if self.by_columns else problem.lhs
        read_once = problem.batch * max(problem.m, problem.n) * problem.k * matrix.dtype.itemsize
        step = _DOT_STEP if read_once <= _NEAR and not self.reads_weights else _FAR_STEP
        return _with_combination(self, Launch(self.name, tasks, vectors * step))

    def _write(self, chunks: int) -> None:
        blocking = self.blocking
        f = entry_point(self.module, self.name)
        buffers, begin, end = f.parameters
        size, rest = self.rows, max(self.problem.m, self.problem.n) % self.rows

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

    def _tile(self, count: int) -> str:
        """Return the function of a tile of `count` rows of the matrix."""
        name = f"{self.name}_tile{count}"

        def write() -> None:
            parameters = [BUFFERS, *(Value("i64", f"%{x}") for x in ("batch", "split", "start", "inner", "depth"))]
            f = Function(self.module, name, parameters, "internal void")
            buffers, batch, split, start, inner, depth = f.parameters
            row, column = (i64(0), start) if self.by_columns else (start, i64(0))
            few_side, matrix_side = (0, 1) if self.by_columns else (1, 0)
            few = self._rows(f, few_side, buffers, batch, i64(0), self.few, inner)
            lanes = f.alloca(self.work.vector, self.few * count)

            def rows_of_matrix(first: Value, together: int) -> None:
                numbers = [f.plus(first, i64(n)) for n in range(together)]
                rows = self._rows(f, matrix_side, buffers, batch, f.plus(start, first), together, inner)
                for n, totals in zip(numbers, self._sums(f, few, rows, depth), strict=True):
                    for i, total in enumerate(totals):
                        place = f.plus(n, i64(i * count)) if self.by_columns else f.plus(f.times(n, self.few), i64(i))
                        f.store(total, f.at(lanes, self.work.vector, place), self.work.itemsize)

            together = min(self.together, count)
            whole = count - count % together
            each(f, i64(0), i64(whole), lambda first: rows_of_matrix(first, together), together)
            each(f, i64(whole), i64(count), lambda first: rows_of_matrix(first, 1))
            rows, columns = (self.few, count) if self.by_columns else (count, self.few)
            vectors = [f.load(self.work.vector, f.at(lanes, self.work.vector, i64(n)), self.work.itemsize) for n in range(rows * columns)]
            sums = [self._as_vectors(f, vectors[i * columns : (i + 1) * columns]) for i in range(rows)]
            tile = ResultTile(self.work, buffers, batch, row, column, sums, columns)
            if self.blocking.splits > 1:
                self.partial.store(f, tile, split)
            else:
                self.epilogue.write(f, tile)
            f.finish()

        self.module.define(name, write)
        return name

    def _rows(self, f: Function, side: int, buffers: Value, batch: Value, first: Value, count: int, inner: Value) -> list[_Row]:
        """Emit the addresses of some rows of an operand, from k = `inner` on."""
        operand = self.sides[side]
        element, stride = f"[{operand.dtype.itemsize} x i8]", operand.outer.stride
        array = buffer_pointer(f, self.operands[side], buffers)
        start = f.at(f.at(array, element, origin(f, operand, batch)), element, inner)
        if stride is None:
            return [_Row(f.at(start, element, offset_of(f, operand.outer, f.plus(first, i64(i)))), 0) for i in range(count)]
        pointer = f.at(start, element, offset_of(f, operand.outer, first))
        return [_Row(pointer, i * stride * operand.dtype.itemsize) for i in range(count)]

    def _sums(self, f: Function, few: list[_Row], rows: list[_Row], depth: Value) -> list[list[Value]]:
        """Emit the sums of some rows of the matrix with each of the few rows.

        They are vectors, whose lanes have yet to be added up.
        """
        work, matrix_side = self.work, int(self.by_columns)
        # Of a biased type, what the bias adds follows from the row of the right operand: of the matrix, or of each of the few.
        biases = 0 if not work.biased else len(rows) if self.by_columns else len(few)
        products = len(few) * len(rows)
        tiles = products + biases
        copies = max(1, min(4, _ACCUMULATORS // tiles))
        lanes = work.lanes * work.group

        def iteration(k: Value, totals: list[Value], copy: int, mask: Value | None) -> None:
            y = [self._read(f, matrix_side, pointer, k, copy, mask) for pointer in rows]
            for i, pointer in enumerate(few):
                x = self._read(f, 1 - matrix_side, pointer, k, copy, mask)
                for j, number in enumerate(y):
                    index = copy * tiles + j * len(few) + i
                    totals[index] = work.multiply_add(f, *((x, number) if self.by_columns else (number, x)), totals[index])
                if biases and not self.by_columns:
                    index = copy * tiles + products + i
                    totals[index] = bias_of(f, work, x, totals[index])
            for j, number in enumerate(y if biases and self.by_columns else ()):
                index = copy * tiles + products + j
                totals[index] = bias_of(f, work, number, totals[index])

        def unmasked(k: Value, carried: list[Value]) -> list[Value]:
            totals = list(carried)
            for copy in range(copies):
                self._prefetch(f, rows, k, copy)
                iteration(k, totals, copy, None)
            return totals

        def masked(k: Value, carried: list[Value]) -> list[Value]:
            totals = list(carried)
            iteration(k, totals, 0, lanes_below(f, f.binary("sub", depth, k), lanes))
            return totals

        step = copies * lanes
        end = f.binary("sub", depth, f.binary("urem", depth, i64(step)))
        totals = f.loop(i64(0), end, step, [work.zero()] * (tiles * copies), unmasked)
        totals = f.loop(end, depth, lanes, totals, masked)
        for copy in range(1, copies):
            for index in range(tiles):
                totals[index] = work.add(f, totals[index], totals[copy * tiles + index])
        for index in range(products if biases else 0):
            bias = totals[products + (index // len(few) if self.by_columns else index % len(few))]
            totals[index] = f.binary("sub", totals[index], bias)
        return [totals[j * len(few) : (j + 1) * len(few)] for j in range(len(rows))]

    def _prefetch(self, f: Function, rows: list[_Row], k: Value, copy: int) -> None:
        """Prefetch later rows of the matrix: as one stream, if they are contiguous.

        Where the hardware prefetches most by itself, a line of each iteration tells it in time which pages come next.
        """
        matrix = self.sides[int(self.by_columns)]
        itemsize, stride, lanes = matrix.dtype.itemsize, matrix.outer.stride or 0, self.work.lanes * self.work.group
        size = lanes * itemsize  # bytes of a vector; lines of several vectors are prefetched by the first one
        if (copy * size % CACHE_LINE and size < CACHE_LINE) or (self.is_light and copy):
            return
        later = stride * itemsize * len(rows) * max(1, round(_AHEAD / (self.problem.k * itemsize * len(rows))))
        offset = f.times(f.plus(k, i64(copy * lanes)), itemsize)
        if self.is_stream:
            block = f.at(rows[0].pointer, "i8", f.times(offset, len(rows)))
            pointers = [f.at(block, "i8", i64(later + n * CACHE_LINE)) for n in range(1 if self.is_light else len(rows))]
        else:
            pointers = [f.at(f.at(row.pointer, "i8", offset), "i8", i64(later + row.offset)) for row in rows]
        for pointer in pointers:
            prefetch(f, pointer)

    def _at(self, f: Function, side: int, row: _Row, k: Value, copy: int) -> Value:
        itemsize = self.sides[side].dtype.itemsize
        address = f.at(row.pointer, f"[{itemsize} x i8]", k)
        return f.at(address, "i8", i64(row.offset + copy * self.work.lanes * self.work.group * itemsize))

    def _read(self, f: Function, side: int, row: _Row, k: Value, copy: int, mask: Value | None) -> Value:
        """Emit a vector of a row from k on; zeros where masked out."""
        dtype, work, pointer = self.sides[side].dtype, self.work.packed(side), self._at(f, side, row, k, copy)
        if work.group == 1 or mask is None:
            return read(f, self.work if work.group == 1 else work, dtype, pointer, work.lanes, mask)
        numbers = load(f, stored_as(dtype), dtype.itemsize, pointer, work.lanes * work.group, mask)
        return with_bias(f, work, f.cast("bitcast", numbers, vector_of(work.type, work.lanes)))

    def _as_vectors(self, f: Function, numbers: list[Value]) -> list[Value]:
        """Emit the sums of vectors' lanes as lanes, with zeros after the last one."""
        lanes, zero = self.work.lanes, self.work.zero()
        chunks = [numbers[start : start + lanes] for start in range(0, len(numbers), lanes)]
        return [sums_across(f, self.work, [*chunk, *[zero] * (lanes - len(chunk))]) for chunk in chunks]


class LaneSums:
    """The sums of the lanes of vectors, one lane for each vector.

    There are as many vectors as a vector has lanes. Halves are added, then halves of these, each time of two vectors in one addition, as
    soon as there are two: few vectors wait.
    """

    def __init__(self, f: Function, work: ComputeType) -> None:
        self._f, self._work = f, work
        #: Vectors that wait, with the number of lanes that each sum still has there.
        self._waiting: list[tuple[int, Value]] = []

    def add(self, vector: Value, size: int = 0) -> None:
        """Emit what the next vector makes possible.

        `size` of its lanes (0: all) belong to one sum.
        """
        size, both = size or self._work.lanes, 2 * self._work.lanes
        while self._waiting and self._waiting[-1][0] == size:
            _, other = self._waiting.pop()
            starts, size = range(0, both, size), size // 2
            low, high = [[lane for s in starts for lane in range(s + shift, s + shift + size)] for shift in (0, size)]
            vector = self._work.add(self._f, self._f.shuffle(other, low, vector), self._f.shuffle(other, high, vector))
        self._waiting.append((size, vector))

    @property
    def total(self) -> Value:
        """The vector of sums."""
        ((_, vector),) = self._waiting
        return vector


def sums_across(f: Function, work: ComputeType, vectors: Sequence[Value]) -> Value:
    """Emit a vector of sums, of the lanes of one vector each.

    There are as many vectors as a vector has lanes, or another power of two that is less.
    """
    sums = LaneSums(f, work)
    for vector in vectors:
        sums.add(vector)
    total, size = sums.total, work.lanes // len(vectors)
    while size > 1:
        size //= 2
        low, high = [[2 * size * number + shift + lane for number in range(len(vectors)) for lane in range(size)] for shift in (0, size)]
        total = work.add(f, f.shuffle(total, low), f.shuffle(total, high))
    return total


# Few rows times a matrix that is contiguous along columns, as sums of scaled rows.
#
# A task has sums of many columns on the stack, and adds some rows of the matrix at a time, each scaled by an element of each of the few
# rows. Its columns are whole rows of the matrix, if these are short enough; what makes several tasks are splits of the sum then.

_NARROW = 64  # least columns; with fewer, tiles are faster
_SMALL, _FEWER = 128 << 10, 4  # bytes of a matrix that more rows than so many read in tiles
_STACK = 32 << 10  # most bytes of sums on the stack
_PIECE_COLUMNS, _PIECE_ROWS = 2048, 4  # columns of a task where whole rows do not fit, and rows of which it adds them at a time
_BLOCK = 16 << 10  # most bytes of rows that are added at a time, while as many are prefetched: both fit into a level-1 cache
_SCALES = 16  # most numbers by which rows are scaled at a time, which have registers
_TOGETHER = 8  # most steps of k at a time
_SPLIT_BYTES, _MOST_SPLITS = 256 << 10, 16  # bytes of the matrix in a split of the sum, and most splits
_ROW_STEP = 1.0  # nanoseconds for a vector of the matrix


def suits_scaled_rows(problem: Problem) -> bool:
    """Return True if sums of scaled rows compute a product fastest.

    Tiles keep the sums of more rows in registers, and read a small matrix from the cache, if its numbers need no conversion.
    """
    work = compute_type(problem.dtype)
    is_small = problem.k * problem.n * problem.rhs.dtype.itemsize <= _SMALL and work is not None and is_itself(work, problem.rhs.dtype)
    return can_scale_rows(problem) and problem.n >= _NARROW and not (is_small and problem.m > _FEWER)


def can_scale_rows(problem: Problem) -> bool:
    """Return True if sums of scaled rows can compute a product."""
    is_contiguous = problem.rhs.outer.stride == 1 and problem.rhs.inner.stride is not None
    return problem.m <= _FEW and is_contiguous and problem.batch * problem.m * problem.n * problem.k > 0


def _with_combination(writer: DotProducts | ScaledRows, launch: Launch) -> Routine:
    """Return the routine of a launch, and of one that adds its partial sums."""
    blocking, problem = writer.blocking, writer.problem
    if blocking.splits == 1:
        return Routine.of(writer.module, [launch])
    combination = combine(writer.module, f"{writer.name}_combine", writer.work, blocking, writer.partial, writer.epilogue)
    size = blocking.splits * problem.batch * problem.m * problem.n * writer.work.itemsize
    return Routine.of(writer.module, [launch, combination], size)


class ScaledRows:
    """The writer of a routine of scaled rows; `operands` are the buffers' numbers."""

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
        self.work, self.problem, self.epilogue, self.operands, self.name = work, problem, epilogue, operands, name
        itemsize = problem.rhs.dtype.itemsize
        longest = max(work.lanes, _STACK // (problem.m * work.itemsize))
        is_cut = problem.n > longest
        self.chunks = -(-problem.n // (min(longest, _PIECE_COLUMNS) if is_cut else longest))
        run = -(-problem.n // self.chunks)
        #: Columns of a task: a multiple of a cache line's.
        self.run = run + -run % max(work.lanes, CACHE_LINE // itemsize)
        self.chunks = -(-problem.n // self.run)
        #: Steps along k, of a group of terms each.
        self.steps = -(-problem.k // work.group)
        rows = _PIECE_ROWS if is_cut else _BLOCK // (self.run * itemsize * work.group)
        self.together = max(1, min(_TOGETHER, _SCALES // problem.m, rows, self.steps))
        if splits is None:
            size = problem.batch * problem.n * problem.k * itemsize
            splits = min(_MOST_SPLITS // min(_MOST_SPLITS, problem.batch * self.chunks), -(-size // _SPLIT_BYTES))
        depth = -(-self.steps // max(1, splits))
        self.split_steps = depth + -depth % self.together
        self.blocking = unpacked_blocking(
            problem.batch, problem.m, problem.n, problem.k, splits=-(-self.steps // self.split_steps), width=work.lanes
        )
        self.partial = PartialSums(buffers, 0, self.blocking)
        self.module = Module()
        self.f = entry_point(self.module, name)
        self.buffers, self.begin, self.end = self.f.parameters
        #: Rows of sums are some lines more apart, since addresses a power of two apart delay one another.
        self.pitch = self.run + 3 * work.lanes
        self.sums = self.f.alloca(work.type, (problem.m + work.biased) * self.pitch)
        self.left, self.matrix = [buffer_pointer(self.f, number) for number in operands]
        inner = problem.rhs.inner.stride
        #: Whether rows follow one another in memory, so that all are one stream.
        self.is_stream = self.chunks == 1 and inner == problem.n and self.run == problem.n

    def routine(self) -> Routine:
        """Write the code."""
        problem, blocking = self.problem, self.blocking
        each(self.f, self.begin, self.end, self._task)
        self.f.finish()
        tasks = problem.batch * blocking.splits * self.chunks
        vectors = tasks * self.split_steps * (self.run // self.work.lanes)
        return _with_combination(self, Launch(self.name, tasks, vectors * _ROW_STEP))

    def _task(self, number: Value) -> None:
        f, problem, run = self.f, self.problem, self.run
        chunk, number = f.binary("urem", number, i64(self.chunks)), f.binary("udiv", number, i64(self.chunks))
        split, batch = f.binary("urem", number, i64(self.blocking.splits)), f.binary("udiv", number, i64(self.blocking.splits))
        column = f.binary("mul", chunk, i64(run))
        last = problem.n - (self.chunks - 1) * run
        if last == run or self.chunks == 1:
            self._chunk(batch, split, column, last)
            return
        whole = f.compare("icmp slt", chunk, i64(self.chunks - 1))
        f.branch(whole, lambda: self._chunk(batch, split, column, run), lambda: self._chunk(batch, split, column, last))

    def _chunk(self, batch: Value, split: Value, column: Value, count: int) -> None:
        """Emit the sums of `count` columns, and their epilogue."""
        f, problem, work = self.f, self.problem, self.work
        left = self._element(self.left, problem.lhs.dtype, origin(f, problem.lhs, batch))
        matrix = self._element(self.matrix, problem.rhs.dtype, f.binary("add", origin(f, problem.rhs, batch), column))
        rows = problem.m + work.biased
        padded = -(-count // work.lanes) * work.lanes

        def clear(j: Value) -> None:
            for i in range(rows):
                f.store(work.zero(), self._sum(i, j), work.itemsize)

        each(f, i64(0), i64(padded), clear, work.lanes)
        whole = problem.k // work.group  # steps that lack no terms
        first = f.binary("mul", split, i64(self.split_steps))
        end = least(f, f.binary("add", first, i64(self.split_steps)), i64(whole))
        middle = f.binary("sub", end, f.binary("urem", f.binary("sub", end, first), i64(self.together)))
        if self.together > 1:
            each(f, first, middle, lambda k: self._add_rows(left, matrix, k, self.together, work.group, count), self.together)
        else:
            middle = first
        each(f, middle, end, lambda k: self._add_rows(left, matrix, k, 1, work.group, count))
        if problem.k % work.group:
            is_last = f.compare("icmp eq", split, i64(self.blocking.splits - 1))
            f.branch(is_last, lambda: self._add_rows(left, matrix, i64(whole), 1, problem.k % work.group, count))
        full_vectors = count - count % work.lanes
        each(f, i64(0), i64(full_vectors), lambda j: self._finish(batch, split, column, j, work.lanes), work.lanes)
        if full_vectors < count:
            self._finish(batch, split, column, i64(full_vectors), count - full_vectors)

    def _add_rows(self, left: Value, matrix: Value, step: Value, together: int, terms: int, count: int) -> None:
        """Emit the addition of scaled rows to the sums of `count` columns.

        They are those of `together` steps, of `terms` terms each.
        """
        f, work, rhs = self.f, self.work, self.problem.rhs
        first = f.times(step, work.group)
        ks = [[f.plus(first, i64(i * work.group + term)) for term in range(terms)] for i in range(together)]
        scales = [[self._scale(left, i, numbers) for numbers in ks] for i in range(self.problem.m)]
        rows = [[self._element(matrix, rhs.dtype, offset_of(f, rhs.inner, k)) for k in numbers] for numbers in ks]
        full_vectors = count - count % work.lanes
        line, itemsize = max(work.lanes, CACHE_LINE // rhs.dtype.itemsize), rhs.dtype.itemsize
        row_bytes, stride = self.run * itemsize, (rhs.inner.stride or 0) * itemsize
        later = max(1, round(_AHEAD / (row_bytes * together * terms))) * together * work.group * stride
        following = f.at(rows[0][0], "i8", i64(later))

        def several(j: Value) -> None:
            for start in range(0, line, work.lanes):
                self._add(rows, scales, f.plus(j, i64(start)), None)
            if self.is_stream:
                block = f.at(following, "i8", f.times(j, itemsize * together * terms))
                for n in range(line * itemsize * together * terms // CACHE_LINE):
                    prefetch(f, f.at(block, "i8", i64(n * CACHE_LINE)))
            else:
                for pointer in [p for group in rows for p in group]:
                    address = f.at(f.at(pointer, "i8", i64(later)), "i8", f.times(j, itemsize))
                    for n in range(line * itemsize // CACHE_LINE):
                        prefetch(f, f.at(address, "i8", i64(n * CACHE_LINE)))

        lines = full_vectors - full_vectors % line
        each(f, i64(0), i64(lines), several, line)
        each(f, i64(lines), i64(full_vectors), lambda j: self._add(rows, scales, j, None), work.lanes)
        if full_vectors < count:
            self._add(rows, scales, i64(full_vectors), first_lanes(count - full_vectors, work.lanes))

    def _scale(self, left: Value, row: int, ks: list[Value]) -> Value:
        """Emit an element, or a group of elements, of one of the few rows, in all lanes."""
        f, work, lhs = self.f, self.work, self.problem.lhs
        start = self._element(left, lhs.dtype, offset_of(f, lhs.outer, i64(row)))
        pointers = [self._element(start, lhs.dtype, offset_of(f, lhs.inner, k)) for k in ks]
        if work.group == 1:
            return f.splat(read(f, work, lhs.dtype, pointers[0], 1), work.lanes)
        narrow = stored_as(lhs.dtype)
        numbers = [f.load(narrow, pointer, lhs.dtype.itemsize) for pointer in pointers]
        return f.splat(joined(f, work.packed(0), numbers), work.lanes)

    def _add(self, rows: list[list[Value]], scales: list[list[Value]], j: Value, mask: Value | None) -> None:
        """Emit the addition of rows for the columns of one vector."""
        f, work, dtype = self.f, self.work, self.problem.rhs.dtype
        vectors = [
            across_rows(f, work if work.group == 1 else work.packed(1), dtype, [self._element(p, dtype, j) for p in group], mask)
            for group in rows
        ]
        for i, numbers in enumerate(scales):
            total = f.load(work.vector, self._sum(i, j), work.itemsize)
            for vector, scale in zip(vectors, numbers, strict=True):
                total = work.multiply_add(f, scale, vector, total)
            f.store(total, self._sum(i, j), work.itemsize)
        if work.biased:
            total = f.load(work.vector, self._sum(len(scales), j), work.itemsize)
            for vector in vectors:
                total = bias_of(f, work, vector, total)
            f.store(total, self._sum(len(scales), j), work.itemsize)

    def _finish(self, batch: Value, split: Value, column: Value, j: Value, valid: int) -> None:
        """Emit the epilogue of one vector of columns, `valid` of which exist."""
        f, work, m = self.f, self.work, self.problem.m
        totals = [f.load(work.vector, self._sum(i, j), work.itemsize) for i in range(m + work.biased)]
        if work.biased:
            totals = [f.binary("sub", total, totals[m]) for total in totals[:m]]
        tile = ResultTile(work, self.buffers, batch, i64(0), f.binary("add", column, j), [[total] for total in totals], valid)
        if self.blocking.splits > 1:
            self.partial.store(f, tile, split)
        else:
            self.epilogue.write(f, tile)

    def _sum(self, row: int, j: Value) -> Value:
        """Emit the address of a row's sum of a column."""
        return self.f.at(self.sums, self.work.type, self.f.plus(j, i64(row * self.pitch)))

    def _element(self, array: Value, dtype: np.dtype, index: Value) -> Value:
        return self.f.at(array, f"[{dtype.itemsize} x i8]", index)
