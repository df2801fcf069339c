"""Attention in blocks of keys, without storing all weights, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import product
from math import gcd
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.primitives.call import Window
from volta_fn.targets.wgsl.attention.problem import AttentionSchedule, PaddedRows, backward_schedule, chunks, forward_schedule
from volta_fn.targets.wgsl.matmul.results import Working, digits, strided_offset, times
from volta_fn.targets.wgsl.matmul.tiles import patch
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars.number import Number, literal
from volta_fn.targets.wgsl.scalars.shader import Shader, ShaderArray
from volta_fn.targets.wgsl.shader import Function

# The building blocks of attention: rows, logits, and products of blocks of rows.

# Load and store rows of operands and results, in vectors of four elements.

FLOAT = np.dtype(np.float32)

_WORK = Working(FLOAT)


class Matrix(NamedTuple):
    """The rows of one head in a buffer, as an invocation of a shader accesses them."""

    f: Shader
    array: ShaderArray
    rows: Rows
    base: str

    @classmethod
    def of(cls, f: Shader, number: int, rows: Rows, head: str, *, written: bool = False) -> Matrix:
        """Return the rows of a head in the buffer `number`."""
        array = f.buffer(number, rows.dtype, written, rows.elements if rows.by_vectors else 0)
        return cls(f, array, rows, strided_offset(f, digits(f, head, rows.heads.sizes), rows.heads.strides))

    def vector(self, row: str, column: str, block: int, depth: int) -> str:
        """Load four neighbours in a row as a vector, with zeros beyond the matrix.

        Blocks of `block` rows and `depth` columns are read: edges are only checked where these do not divide the matrix.
        """
        f, rows = self.f, self.rows
        at = f.let("u32", f"{self.base} + min({row}, {rows.count - 1}u) * {rows.step}u")
        inside = [f"{row} < {rows.count}u"] if rows.count % block else []
        if rows.by_vectors:
            ok = " && ".join([*inside, *([f"{column} < {rows.width}u"] if rows.width % depth else [])])
            vector_index = f.let("u32", f"({at} + min({column}, {rows.width - 4}u)) / 4u")
            loaded = f"vec4<f32>({', '.join(_WORK.convert_operand(f, x) for x in self.array.load4(vector_index))})"
            return f.let("vec4<f32>", f"select(vec4<f32>(), {loaded}, {ok})" if ok else loaded)
        texts = []
        for e in range(4):
            ok = " && ".join([*inside, f"{column} + {e}u < {rows.width}u"])
            x = _WORK.convert_operand(f, self.array.load(f.let("u32", f"{at} + min({column} + {e}u, {rows.width - 1}u)")))
            texts.append(f"select(0.0f, {x}, {ok})")
        return f.let("vec4<f32>", f"vec4<f32>({', '.join(texts)})")

    def store(self, row: str, column: str, value: str) -> None:
        """Store a vector to four neighbours in a row, but nothing beyond the matrix."""
        f, rows = self.f, self.rows
        with f.block(f"if ({row} < {rows.count}u)"):
            at = f.let("u32", f"{self.base} + {row} * {rows.step}u + {column}")
            numbers = [_WORK.convert_sum(f, f"{value}.{c}", rows.dtype) for c in "xyzw"]
            if rows.by_vectors:
                with f.block(f"if ({column} < {rows.width}u)"):
                    self.array.store4(f.let("u32", f"{at} / 4u"), numbers)
                return
            for e, number in enumerate(numbers):
                with f.block(f"if ({column} + {e}u < {rows.width}u)"):
                    self.array.store(f.let("u32", f"{at} + {e}u"), number)


# Emit logits: scaled products, masked where a query does not see a key.

#: Less than any logit, including those of keys that are not seen.
LOWEST = literal("f32", -float(np.finfo(np.float32).max))


class LogitArray(NamedTuple):
    """A mask or bias of one head, and its strides by query and key."""

    array: ShaderArray
    base: str
    query: int
    key: int

    def at(self, b: AttentionShader, query: str, key: str) -> Number:
        """Load the element of a logit; of one beyond the last query or key, another."""
        by_query = times(f"min({query}, {b.a.queries - 1}u)", self.query)
        by_key = times(f"min({key}, {b.a.keys - 1}u)", self.key)
        return self.array.load(b.f.let("u32", f"{self.base} + {by_query} + {by_key}"))


def logit_arrays(b: AttentionShader, head: str) -> list[LogitArray]:
    """Return the bias and the masks of a head, in the buffers after q, k and v."""
    arrays = []
    for k, walk in enumerate([*([] if b.a.bias is None else [b.a.bias]), *b.a.masks]):
        array = b.f.buffer(3 + k, walk.dtype)
        base = strided_offset(b.f, digits(b.f, head, walk.heads.sizes), walk.heads.strides)
        arrays.append(LogitArray(array, base, walk.query, walk.key))
    return arrays


class BlockPosition(NamedTuple):
    """The position of a block of logits and of an invocation in it.

    It has the first query and key, and an invocation's rows (queries if `by_queries`, else keys) and columns.
    """

    by_queries: bool
    query: str
    key: str
    rows: list[str]
    columns: list[str]
    #: The bias, if there is one, and the masks.
    arrays: Sequence[LogitArray]

    def at(self, row: int, column: int) -> tuple[str, str]:
        """Return the query and the key of a row and a column."""
        pair = self.rows[row], self.columns[column]
        return pair if self.by_queries else pair[::-1]


def component(patch: Patch, row: int, column: int) -> str:
    """Return an element of an invocation's patch, as an expression."""
    return f"{patch[row][column // 4]}.{'xyzw'[column % 4]}"


def logits(b: AttentionShader, products: Patch, position: BlockPosition) -> Patch:
    """Declare the scaled products as variables.

    They are `a.unseen` where a query does not see a key, and `LOWEST` beyond the last query or key.
    """
    f, s, a = b.f, b.schedule, b.a
    patch = [[f.var("vec4<f32>", _scaled(a, vector)) for vector in row_values] for row_values in products]
    sides = (position.query, a.queries), (position.key, a.keys)
    (first_row, all_rows), (first_column, all_columns) = sides if position.by_queries else sides[::-1]
    ragged = all_rows % s.rows, all_columns % s.columns
    conditions = [f"{first_row} + {s.rows}u > {all_rows}u"] if ragged[0] else []
    conditions += [f"{first_column} + {s.columns}u > {all_columns}u"] if ragged[1] else []
    queries, keys = (s.rows, s.columns) if position.by_queries else (s.columns, s.rows)
    if a.window.after is not None:
        conditions.append(f"i32({position.key}) + {keys - 1 - a.window.after} > i32({position.query})")
    if a.window.before is not None:
        conditions.append(f"i32({position.key}) + {a.window.before} < i32({position.query}) + {queries - 1}")
    if not conditions and not position.arrays:
        return patch
    with f.block("" if position.arrays else f"if ({' || '.join(conditions)})"):
        for (r, row), (c, column) in product(enumerate(position.rows), enumerate(position.columns)):
            x = component(patch, r, c)
            if a.bias is not None:
                f.emit(f"{x} += {_WORK.convert_operand(f, position.arrays[0].at(b, *position.at(r, c)))};")
            is_seen = seen(b, *position.at(r, c), position.arrays)
            exists = [f"{row} < {all_rows}u"] if ragged[0] else []
            exists += [f"{column} < {all_columns}u"] if ragged[1] else []
            if is_seen:
                f.emit(f"{x} = select({literal('f32', a.unseen)}, {x}, {is_seen});")
            if exists:
                f.emit(f"{x} = select({LOWEST}, {x}, {' && '.join(exists)});")
    return patch


def _scaled(a: Attention, products: str) -> str:
    """Return scaled products, bounded if the problem says so, as an expression."""
    if not a.softcap:
        return f"{products} * {literal('f32', a.scale)}"
    return f"tanh({products} * {literal('f32', a.scale / a.softcap)}) * {literal('f32', a.softcap)}"


def seen(b: AttentionShader, query: str, key: str, arrays: Sequence[LogitArray]) -> str:
    """Return the condition that a query sees a key, as an expression.

    It is empty if every query sees every key, and arbitrary beyond the last query or key.
    """
    f, a = b.f, b.a
    conditions = []
    if a.window.after is not None:
        conditions.append(f"i32({key}) <= i32({query}) + {a.window.after}")
    if a.window.before is not None:
        conditions.append(f"i32({key}) + {a.window.before} >= i32({query})")
    conditions += [mask.at(b, query, key).text for mask in arrays[a.bias is not None :]]
    return f.let("bool", " && ".join(conditions)) if conditions else ""


# Emit the building blocks of attention: products of blocks of rows.
#
# Each invocation of a workgroup computes a patch of a block: some vectors (``vec4<f32>``) of rows by some vectors of columns. Operands
# pass through workgroup memory slice by slice, and so do weights, transposed. Slices and weights alternate in the same memory: the less
# each workgroup needs, the more of them are resident. Every step ends with a barrier, so that the next one may overwrite that memory.

BARRIER = "workgroupBarrier();"

#: An invocation's patch of a block: for each of its rows, its vectors of columns.
Patch = list[list[str]]


class _Load(NamedTuple):
    """A vector that an invocation loads of each slice of a matrix.

    The matrix is read in blocks of `block` rows. The vector holds four features of one row, from `column` on; they are stored from
    `start` on in lines of `length` vectors.
    """

    matrix: Matrix
    block: int
    length: int
    column: str
    row: str
    start: str


class Stream(NamedTuple):
    """The loads of an invocation from two operands, and variables for the last slice."""

    left: list[_Load]
    right: list[_Load]
    loaded: list[str]


class _Factor(NamedTuple):
    """One factor of a product in workgroup memory: its offset and layout."""

    start: str
    layout: PaddedRows


class _Axis(NamedTuple):
    """The rows or columns of a block: `lanes` invocations with `vectors` vectors each."""

    lane: str
    lanes: int
    vectors: int
    #: The layout of offsets across this axis in workgroup memory.
    layout: PaddedRows


class AttentionShader:
    """A shader of attention under construction."""

    def __init__(self, a: Attention, schedule: AttentionSchedule, capabilities: TargetCapabilities, *, transposed: bool = False) -> None:
        self.a, self.schedule, self.f = a, schedule, Shader(capabilities, schedule.invocations)
        self.memory = self.f.workgroup("memory", "vec4<f32>", schedule.memory(max(a.q.width, a.v.width), transposed=transposed))
        #: The offset of the memory after the weights.
        self.after_weights = schedule.weights(transposed=transposed)
        self._locate_invocation()

    def _locate_invocation(self) -> None:
        """Compute the first vector of rows, and of columns, of an invocation."""
        f, s = self.f, self.schedule
        down, across = min(s.y, 4), min(s.x, 8)
        below, right, y, x = patch(f, down, across, s.x // across)
        self.y, self.x = f.let("u32", f"{below} * {down}u + {y}"), f.let("u32", f"{right} * {across}u + {x}")

    # an invocation's patch

    def row_numbers(self, begin: str, vectors: int = 0) -> list[str]:
        """Return the indices of an invocation's rows in a block that begins at `begin`.

        They are those of `vectors` vectors, or of the rows of logits.
        """
        s = self.schedule
        return [self.f.let("u32", f"{begin} + ({self.y} + {i * s.y}u) * 4u + {e}u") for i in range(vectors or s.down) for e in range(4)]

    def column_numbers(self, begin: str) -> list[str]:
        """Return the indices of an invocation's columns in a block of logits."""
        s = self.schedule
        return [self.f.let("u32", f"{begin} + ({self.x} + {j * s.x}u) * 4u + {e}u") for j in range(s.across) for e in range(4)]

    def seen_range(self, begin: str, size: int, window: Window, count: int, step: int) -> tuple[str, str]:
        """Return the range that a block from `begin` on sees.

        It begins at a multiple of `step`. These are keys, seen by queries, or queries, for which `window` is reversed. If a query may be
        blind, they are all.
        """
        f, a = self.f, self.a
        start, end = "0u", f"{count}u"
        if not a.may_be_blind and window.before is not None:
            start = f.let("u32", f"({begin} - min({begin}, {window.before}u)) / {step}u * {step}u")
        if not a.may_be_blind and window.after is not None:
            end = f.let("u32", f"min({begin} + {size + window.after}u, {count}u)")
        return start, end

    def features(self, vectors: int) -> list[str]:
        """Return the index of the first feature of each vector of a row of an invocation."""
        return [self.f.let("u32", f"({self.x} + {j * self.schedule.x}u) * 4u") for j in range(vectors)]

    def zeros(self, vectors: int, down: int = 0) -> Patch:
        """Declare variables for `vectors` vectors of each of an invocation's rows.

        There are `down` vectors of rows, or as many as of logits.
        """
        return [[self.f.var("vec4<f32>", "vec4<f32>()") for _ in range(vectors)] for _ in range(4 * (down or self.schedule.down))]

    def store(self, m: Matrix, begin: str, patch: Patch) -> None:
        """Store an invocation's patch of a block of rows that begins at `begin`."""
        columns = self.features(len(patch[0]))
        for row, values in zip(self.row_numbers(begin), patch, strict=True):
            for column, value in zip(columns, values, strict=True):
                m.store(row, column, value)

    # logits: products of rows with rows

    def stream(self, left: Matrix, right: Matrix) -> Stream:
        """Return the loads for products of rows of two matrices."""
        s = self.schedule
        loads = self._loads(left, s.rows, s.by_column, 0), self._loads(right, s.columns, s.by_row, s.by_column.size(s.depth))
        return Stream(*loads, [self.f.var("vec4<f32>", "vec4<f32>()") for _ in [*loads[0], *loads[1]]])

    def load(self, stream: Stream, row: str, column: str, k: str = "0u") -> None:
        """Load the slices of features from `k` on, of the rows from `row` and `column` on."""
        f, s = self.f, self.schedule
        loads = [*[(load, row) for load in stream.left], *[(load, column) for load in stream.right]]
        for (load, first), vector in zip(loads, stream.loaded, strict=True):
            indices = f.let("u32", f"{first} + {load.row}"), f.let("u32", f"{k} + {load.column}")
            f.emit(f"{vector} = {load.matrix.vector(*indices, load.block, s.depth)};")

    def products(self, stream: Stream, row: str, column: str) -> Patch:
        """Compute products of rows whose first slices are loaded; prefetch the next ones."""
        f, s = self.f, self.schedule
        sums = self.zeros(s.across)
        width = stream.left[0].matrix.rows.width
        with f.loop(width, 0, s.depth) as k:
            for load, vector in zip([*stream.left, *stream.right], stream.loaded, strict=True):
                for e, c in enumerate("xyzw"):
                    f.emit(f"{self.memory}[{load.start} + {e * load.length}u][{load.row} % 4u] = {vector}.{c};")
            f.emit(BARRIER)
            following = f.let("u32", f"{k} + {s.depth}u")
            with f.block(f"if ({following} < {width}u)"):
                self.load(stream, row, column, following)
            self._multiply(sums, s.depth, _Factor("0u", s.by_column), _Factor(f"{s.by_column.size(s.depth)}u", s.by_row))
            f.emit(BARRIER)
        return sums

    def _loads(self, m: Matrix, size: int, layout: PaddedRows, start: int) -> list[_Load]:
        """Return an invocation's loads of a slice of `size` rows, stored from `start` on."""
        f, s = self.f, self.schedule
        loads = []
        for n in range(size * s.depth // 4 // s.invocations):
            number = f.let("u32", f"local + {n * s.invocations}u")
            group, row = f.let("u32", f"{number} % {s.depth // 4}u"), f.let("u32", f"{number} / {s.depth // 4}u")
            stored = f.let("u32", f"{start}u + {group} * {layout.group}u + {row} / 4u")
            loads.append(_Load(m, size, layout.length, f.let("u32", f"{group} * 4u"), row, stored))
        return loads

    def _multiply(self, sums: Patch, count: int, left: _Factor, right: _Factor) -> None:
        """Add the outer products of `count` pairs of lines."""
        f, unroll = self.f, min(self.schedule.unroll, count)
        with f.loop(count // unroll) as i:
            starts = [
                f.let("u32", f"{factor.start} + {i} * {factor.layout.offset(unroll)}u + {lane}")
                for factor, lane in ((left, self.y), (right, self.x))
            ]
            for step in range(unroll):
                offsets = [(start, factor.layout.offset(step)) for start, factor in zip(starts, (left, right), strict=True)]
                with f.block(""):
                    self._add_outer_product(sums, *offsets)

    def _add_outer_product(self, sums: Patch, left: tuple[str, int], right: tuple[str, int]) -> None:
        """Add the products of two lines, each given by an offset and a constant one."""
        f = self.f
        for n in range(len(sums) // 4):
            f.emit(f"let l{n} = {self.memory}[{left[0]} + {left[1] + n * self.schedule.y}u];")
        for n in range(len(sums[0])):
            f.emit(f"let r{n} = {self.memory}[{right[0]} + {right[1] + n * self.schedule.x}u];")
        for r, totals in enumerate(sums):
            for n, total in enumerate(totals):
                f.emit(f"{total} = fma(vec4<f32>(l{r // 4}.{'xyzw'[r % 4]}), r{n}, {total});")

    # results and gradients: products of weights with rows

    def load_rows(self, m: Matrix, first: str) -> list[str]:
        """Load the first rows to be multiplied by weights into variables."""
        return [self.f.var("vec4<f32>", x) for x in self._rows_from(m, first)]

    def add_products(self, sums: Patch, weights: Patch, m: Matrix, first: str, loaded: list[str], *, transposed: bool = False) -> None:
        """Add the products of a block of weights, or of its transpose, with rows of `m`.

        The rows begin at `first`; the first of them are `loaded`.
        """
        s = self.schedule
        summed, free = _Axis(self.x, s.x, s.across, s.by_column), _Axis(self.y, s.y, s.down, s.by_row)
        if transposed:
            summed, free = free, summed
        count = summed.lanes // s.passes
        for block in range(summed.vectors):
            vectors = [*self._weight_vectors(weights, block, free.vectors, transposed=transposed)]
            with self.f.loop(s.passes) as step:
                with self._lanes_of_pass(summed.lane, count, step):
                    self._store_weights(vectors, summed, free, count)
                start = self.f.let("u32", f"{first} + ({block * summed.lanes}u + {step} * {count}u) * 4u")
                self._multiply_rows(sums, m, start, loaded, 4 * count, summed.layout)

    def _store_weights(self, vectors: Sequence[tuple[int, int, str]], summed: _Axis, free: _Axis, count: int) -> None:
        """Store an invocation's vectors of weights.

        They belong to one of `count` lanes of the axis that is summed.
        """
        for number, vector, weight in vectors:
            offset = number * summed.layout.length + vector * free.lanes
            target = f"{summed.lane} % {count}u * {summed.layout.group}u + {free.lane} + {offset}u"
            self.f.emit(f"{self.memory}[{target}] = {weight};")

    def _weight_vectors(self, weights: Patch, block: int, vectors: int, *, transposed: bool) -> Iterator[tuple[int, int, str]]:
        """Yield four lines of weights across the summed axis: line, vector and value."""
        for number, vector in product(range(4), range(vectors)):
            if transposed:
                yield number, vector, weights[4 * block + number][vector]
            else:
                column = ", ".join(f"{weights[4 * vector + r][block]}.{'xyzw'[number]}" for r in range(4))
                yield number, vector, f"vec4<f32>({column})"

    def _lanes_of_pass(self, lane: str, count: int, step: str) -> AbstractContextManager[None]:
        """Open a block of statements for the invocations whose weights belong to a pass.

        A pass has the weights of `count` lanes.
        """
        return self.f.block(f"if ({lane} / {count}u == {step})" if self.schedule.passes > 1 else "")

    def _rows_from(self, m: Matrix, first: str) -> list[str]:
        """Return an invocation's vectors of the rows from `first` on, as expressions."""
        f, s = self.f, self.schedule
        vectors = s.x * s.vectors(m.rows.width)
        loads = []
        for n in range(s.value_rows * vectors // s.invocations):
            number = f.let("u32", f"local + {n * s.invocations}u")
            row = f.let("u32", f"{first} + {number} / {vectors}u")
            loads.append(m.vector(row, f.let("u32", f"{number} % {vectors}u * 4u"), gcd(s.rows, s.columns), 4 * vectors))
        return loads

    def _multiply_rows(self, sums: Patch, m: Matrix, first: str, loaded: list[str], count: int, layout: PaddedRows) -> None:
        """Add the products of weights in memory with the rows from `first` on.

        There are `count` lines of weights. The following rows are prefetched.
        """
        f, s = self.f, self.schedule
        vectors = s.x * len(sums[0])
        with f.loop(count, 0, s.value_rows) as start:
            for n, vector in enumerate(loaded):
                f.emit(f"{self.memory}[{self.after_weights}u + local + {n * s.invocations}u] = {vector};")
            f.emit(BARRIER)
            for vector, value in zip(loaded, self._rows_from(m, f.let("u32", f"{first} + {start} + {s.value_rows}u")), strict=True):
                f.emit(f"{vector} = {value};")
            begin = f.let("u32", f"{start} / 4u * {layout.group}u")
            self._multiply(sums, s.value_rows, _Factor(begin, layout), _Factor(f"{self.after_weights}u", PaddedRows(vectors, 0)))
            f.emit(BARRIER)


# Attention in blocks of keys, without storing all weights, and its gradients.

# Compute attention in blocks of keys, without storing all weights.
#
# As in FlashAttention (Dao et al. 2022), each query keeps the largest logit so far and the sum of weights relative to it; sums are scaled
# when that maximum grows.


def forward(a: Attention, capabilities: TargetCapabilities) -> Routine:
    """Return the routine of attention.

    Operands are q, k, v, the bias and the masks; results are attention's, and statistics of each query.
    """
    first = a.operands
    b = AttentionShader(a, forward_schedule(a, capabilities), capabilities)
    f, schedule = b.f, b.schedule
    tiles = -(-a.queries // schedule.rows)
    position, head = digits(f, f.group, (tiles, a.stack))
    tile = f.let("u32", f"{tiles - 1}u - {position}")  # those with most visible keys come first
    q, k, v = (Matrix.of(f, i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
    out = Matrix.of(f, first, a.out, head, written=True)
    statistics = f.buffer(first + 1, FLOAT, True)
    arrays = logit_arrays(b, head)
    begin = f.let("u32", f"{tile} * {schedule.rows}u")
    sums = b.zeros(schedule.vectors(a.v.width))
    maxima = [f.var("f32", LOWEST) for _ in sums]
    partial_totals = [f.var("f32", "0.0f") for _ in sums]
    start, end = b.seen_range(begin, schedule.rows, a.window, a.keys, schedule.columns)
    stream = b.stream(q, k)
    b.load(stream, begin, start)
    with f.loop(end, start, schedule.columns) as key:
        products = b.products(stream, begin, key)
        b.load(stream, begin, f.let("u32", f"{key} + {schedule.columns}u"))
        values = b.load_rows(v, key)
        weights = logits(b, products, BlockPosition(True, begin, key, b.row_numbers(begin), b.column_numbers(key), arrays))
        _exponentiate(b, weights, maxima, partial_totals, sums)
        b.add_products(sums, weights, v, key, values)
    _exchange(b, partial_totals)
    totals = [f.let("f32", _sum(f, _exchanged(b, row))) for row in b.row_numbers("0u")]
    b.store(out, begin, [[f.let("vec4<f32>", f"{x} / {total}") for x in row] for row, total in zip(sums, totals, strict=True)])
    for row, maximum, total in zip(b.row_numbers(begin), maxima, totals, strict=True):
        with f.block(f"if ({b.x} == 0u && {row} < {a.queries}u)"):
            offset = f.let("u32", f"({head} * {a.queries}u + {row}) * 2u")
            statistics.store(offset, Number(FLOAT, maximum))
            statistics.store(f.let("u32", f"{offset} + 1u"), Number(FLOAT, total))
    return Routine((f.dispatch(a.stack * tiles, a.products),))


def _exponentiate(b: AttentionShader, patch: Patch, maxima: list[str], partial_totals: list[str], sums: Patch) -> None:
    """Replace logits by weights relative to the largest so far of their rows.

    Earlier sums are scaled by how much that has grown.
    """
    f = b.f
    _exchange(b, [f.let("f32", _maximum(f, row_values)) for row_values in patch])
    for row, row_values, maximum, partial, total in zip(b.row_numbers("0u"), patch, maxima, partial_totals, sums, strict=True):
        new = f.let("f32", f"max({maximum}, {_maximum(f, _exchanged(b, row))})")
        factor = f.let("f32", f"exp({maximum} - {new})")
        f.emit(f"{maximum} = {new};")
        for x in row_values:
            f.emit(f"{x} = exp({x} - vec4<f32>({new}));")
        f.emit(f"{partial} = fma({partial}, {factor}, {_sum(f, row_values)});")
        for vector in total:
            f.emit(f"{vector} *= {factor};")
    f.emit(BARRIER)


def _exchange(b: AttentionShader, values: Sequence[str]) -> None:
    """Store a number for each of an invocation's rows in workgroup memory."""
    across = b.schedule.x // 4
    for row, value in zip(b.row_numbers("0u"), values, strict=True):
        b.f.emit(f"{b.memory}[{b.after_weights}u + {row} * {across}u + {b.x} / 4u][{b.x} % 4u] = {value};")
    b.f.emit(BARRIER)


def _exchanged(b: AttentionShader, row: str) -> list[str]:
    """Return the numbers that all invocations stored for a row, as vectors."""
    across = b.schedule.x // 4
    return [f"{b.memory}[{b.after_weights}u + {row} * {across}u + {n}u]" for n in range(across)]


def _sum(f: Function, vectors: Sequence[str]) -> str:
    """Sum all elements of vectors."""
    vector = f.let("vec4<f32>", " + ".join(vectors))
    return f"(({vector}.x + {vector}.y) + ({vector}.z + {vector}.w))"


def _maximum(f: Function, vectors: Sequence[str]) -> str:
    """Return the largest of all elements of vectors."""
    vector = f.let("vec4<f32>", vectors[0])
    for other in vectors[1:]:
        vector = f.let("vec4<f32>", f"max({vector}, {other})")
    return f"max(max({vector}.x, {vector}.y), max({vector}.z, {vector}.w))"


# Compute the gradients of attention, recomputing weights block by block.
#
# With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
# logits is P (D Vᵀ - δ), from which those of Q and K follow. P follows from each query's largest logit and total. Three dispatches: δ;
# the gradients of K and V by blocks of keys, with each workgroup's contribution to Q's; the sum of these. A workgroup iterates over
# several blocks of keys and accumulates their contributions.

_INVOCATIONS = 64


def backward(a: Attention, capabilities: TargetCapabilities) -> Routine:
    """Return the routine of the gradients.

    Operands are q, k, v, the bias, the masks, the result, its statistics (see `forward`) and cotangent.
    """
    assert a.cotangent is not None
    writer = _Writer(a, a.cotangent, capabilities)
    return Routine((writer.statistics(), writer.by_keys(), writer.sum_partial_gradients()), (4 * writer.floats,))


class _Statistics(NamedTuple):
    """A query's statistics: its largest logit, the inverse of its weights' sum, and δ."""

    maximum: str
    inverse_total: str
    delta: str


class _Writer:
    """Writes the dispatches.

    Their workspace holds the partial gradients of Q, followed by a vector for each query: `_Statistics`.
    """

    def __init__(self, a: Attention, cotangent: Rows, capabilities: TargetCapabilities) -> None:
        self.a, self.cotangent, self.capabilities = a, cotangent, capabilities
        shift = a.operands - 3
        self.number_of_out, self.number_of_statistics, self.number_of_cotangent = 3 + shift, 4 + shift, 5 + shift
        self.gradients, self.work = 6 + shift, 9 + shift
        self.schedule = backward_schedule(a, capabilities)
        self.tiles = -(-a.keys // self.schedule.rows)
        #: Vectors of a row of Q's gradient, and of a partial gradient.
        self.vectors = -(-a.q.width // 4)
        self.partial = a.stack * a.queries * self.vectors
        self.chunks = chunks(a, self.schedule, capabilities)
        self.floats = 4 * (self.chunks * self.partial + a.stack * a.queries)
        #: Whether later blocks of keys of a chunk are seen by queries that do not see its first one.
        self.zeroes = not a.may_be_blind and a.window.before is not None

    def statistics(self) -> Dispatch:
        """Write each query's `_Statistics`."""
        a = self.a
        f, work = Shader(self.capabilities, _INVOCATIONS), Working(FLOAT)
        pair = (self.number_of_out, a.out), (self.number_of_cotangent, self.cotangent)
        step = 4 if all(rows.by_vectors for _, rows in pair) else 1
        x, y = (f.buffer(number, rows.dtype, False, rows.elements if step == 4 else 0) for number, rows in pair)
        statistics, result = f.buffer(self.number_of_statistics, FLOAT), f.buffer(self.work, FLOAT, True, self.floats)
        count = a.stack * a.queries
        number = f.let("u32", f"group * {_INVOCATIONS}u + local")
        with f.block(f"if ({number} < {count}u)"):
            head, query = digits(f, number, (a.stack, a.queries))
            starts = [
                f.let("u32", f"{strided_offset(f, digits(f, head, rows.heads.sizes), rows.heads.strides)} + {query} * {rows.step}u")
                for rows in (a.out, self.cotangent)
            ]
            sum_ = f.var("f32", "0.0f")
            with f.loop(a.out.width, 0, step) as i:
                indices = [f.let("u32", f"({start} + {i}) / {step}u") for start in starts]
                ones, others = ([v.load(at)] if step == 1 else v.load4(at) for v, at in zip((x, y), indices, strict=True))
                for one, other in zip(ones, others, strict=True):
                    f.emit(f"{sum_} = fma({work.convert_operand(f, one)}, {work.convert_operand(f, other)}, {sum_});")
            top, total = (statistics.load(f.let("u32", f"{number} * 2u + {k}u")).text for k in range(2))
            values = top, f"1.0f / {total}", sum_, "0.0f"
            result.store4(f.let("u32", f"{self.chunks * self.partial}u + {number}"), [Number(FLOAT, value) for value in values])
        return f.dispatch(-(-count // _INVOCATIONS))

    def by_keys(self) -> Dispatch:
        """Write the gradients of K and V, and partial gradients of Q.

        Those of K and V are summed over the heads that share them.
        """
        a = self.a
        b = AttentionShader(a, self.schedule, self.capabilities, transposed=True)
        f, s = b.f, b.schedule
        chunk, group = digits(f, f.group, (self.chunks, a.groups))
        first = f.let("u32", f"{group} * {a.shared}u")
        k, v = Matrix.of(f, 1, a.k, first), Matrix.of(f, 2, a.v, first)
        to_k, to_v = (Matrix.of(f, self.gradients + 1 + i, rows, first, written=True) for i, rows in enumerate((a.k, a.v)))
        if self.zeroes:
            self._zero(f, chunk, first)
        with f.loop(-(-self.tiles // self.chunks)) as iteration:
            # Alternately from both ends, to balance the load: the first blocks of keys are seen by most queries.
            tile = f.let("u32", f"{iteration} * {self.chunks}u + select({chunk}, {self.chunks - 1}u - {chunk}, {iteration} % 2u == 1u)")
            with f.block(f"if ({tile} < {self.tiles}u)"):
                begin = f.let("u32", f"{tile} * {s.rows}u")
                k_sums, v_sums = b.zeros(s.vectors(a.k.width)), b.zeros(s.vectors(a.v.width))
                with f.loop(a.shared) as i:
                    self._head(b, f.let("u32", f"{first} + {i}"), k, v, begin, (k_sums, v_sums), (chunk, iteration))
                b.store(to_k, begin, k_sums)
                b.store(to_v, begin, v_sums)
        return f.dispatch(a.groups * self.chunks, 5 * a.products // 2)

    def _zero(self, f: Shader, chunk: str, first: str) -> None:
        """Set the partial gradients of a workgroup's heads to zero."""
        count = self.a.shared * self.a.queries * self.vectors
        partial = f.buffer(self.work, FLOAT, True, self.floats).name
        begin = f.let("u32", f"{chunk} * {self.partial}u + {first} * {self.a.queries * self.vectors}u")
        with f.loop(count, 0, self.schedule.invocations) as i, f.block(f"if ({i} + local < {count}u)"):
            f.emit(f"{partial}[{begin} + {i} + local] = vec4<f32>();")
        f.emit("storageBarrier();")

    def _head(
        self, b: AttentionShader, head: str, k: Matrix, v: Matrix, begin: str, sums: tuple[Patch, Patch], chunk_iteration: tuple[str, str]
    ) -> None:
        """Add the contributions of a head's queries to the gradients of a block of keys.

        They go to the gradients of keys and values, and, from these, to Q's.
        """
        a, f, s = self.a, b.f, b.schedule
        q, cotangent = Matrix.of(f, 0, a.q, head), Matrix.of(f, self.number_of_cotangent, self.cotangent, head)
        arrays = logit_arrays(b, head)
        start, end = b.seen_range(begin, s.rows, Window(a.window.after, a.window.before), a.queries, s.columns)
        for_weights, for_slopes = b.stream(k, q), b.stream(v, cotangent)
        b.load(for_weights, begin, start)
        with f.loop(end, start, s.columns) as query:
            position = BlockPosition(False, query, begin, b.row_numbers(begin), b.column_numbers(query), arrays)
            products = b.products(for_weights, begin, query)
            bends = _bends(a, f, products)
            cotangents = b.load_rows(cotangent, query)
            statistics = self._load_statistics(b, head, position.columns)
            weights = _weights(b, logits(b, products, position), position, statistics)
            b.load(for_slopes, begin, query)
            b.add_products(sums[1], weights, cotangent, query, cotangents)
            products = b.products(for_slopes, begin, query)
            queries = b.load_rows(q, query)
            slopes = _slopes(b, weights, products, position, (statistics, bends))
            b.add_products(sums[0], slopes, q, query, queries)
            keys = b.load_rows(k, begin)
            b.load(for_weights, begin, f.let("u32", f"{query} + {s.columns}u"))
            down = s.columns // (4 * s.y)
            contribution = b.zeros(s.vectors(a.q.width), down)
            b.add_products(contribution, slopes, k, begin, keys, transposed=True)
            self._accumulate(b, head, b.row_numbers(query, down), contribution, chunk_iteration)

    def _accumulate(
        self, b: AttentionShader, head: str, rows: Sequence[str], contribution: Patch, chunk_iteration: tuple[str, str]
    ) -> None:
        """Add a contribution to a partial gradient of Q, or store the first one."""
        a, f = self.a, b.f
        chunk, iteration = chunk_iteration
        partial = f.buffer(self.work, FLOAT, True, self.floats).name
        columns = b.features(len(contribution[0]))
        for (row, sums), (n, column) in product(zip(rows, contribution, strict=True), enumerate(columns)):
            with f.block(f"if ({row} < {a.queries}u && {column} < {a.q.width}u)"):
                at = f.let("u32", f"{chunk} * {self.partial}u + ({head} * {a.queries}u + {row}) * {self.vectors}u + {column} / 4u")
                with f.block("" if self.zeroes else f"if ({iteration} > 0u)"):
                    f.emit(f"{sums[n]} += {partial}[{at}];")
                f.emit(f"{partial}[{at}] = {sums[n]};")

    def sum_partial_gradients(self) -> Dispatch:
        """Sum Q's gradient over all chunks' partial gradients."""
        a = self.a
        f = Shader(self.capabilities, _INVOCATIONS)
        partial = f.buffer(self.work, FLOAT, False, self.floats)
        number = f.let("u32", f"group * {_INVOCATIONS}u + local")
        with f.block(f"if ({number} < {self.partial}u)"):
            head, row, vector = digits(f, number, (a.stack, a.queries, self.vectors))
            sum_ = f.var("vec4<f32>", "vec4<f32>()")
            for chunk in range(self.chunks):
                first = self._first_query(chunk)
                with f.block(f"if ({row} >= {first}u)" if first else ""):
                    f.emit(f"{sum_} += {partial.name}[{number} + {chunk * self.partial}u];")
            Matrix.of(f, self.gradients, a.q, head, written=True).store(row, f.let("u32", f"{vector} * 4u"), sum_)
        return f.dispatch(-(-self.partial // _INVOCATIONS))

    def _first_query(self, chunk: int) -> int:
        """Return the first query to whose gradient a chunk contributes."""
        a, s = self.a, self.schedule
        if self.zeroes or a.may_be_blind or a.window.after is None:
            return 0
        return max(chunk * s.rows - a.window.after, 0) // s.columns * s.columns

    def _load_statistics(self, b: AttentionShader, head: str, queries: Sequence[str]) -> dict[str, _Statistics]:
        """Load the statistics of a head's queries; those beyond the last get its own."""
        f, a = b.f, self.a
        partial = f.buffer(self.work, FLOAT, True, self.floats)
        statistics = {}
        for query in queries:
            at = f.let("u32", f"{self.chunks * self.partial}u + {head} * {a.queries}u + min({query}, {a.queries - 1}u)")
            statistics[query] = _Statistics(*[x.text for x in partial.load4(at)[:3]])
        return statistics


def _weights(b: AttentionShader, patch: Patch, position: BlockPosition, statistics: dict[str, _Statistics]) -> Patch:
    """Replace the logits of an invocation's patch by weights."""
    for r, c in product(range(len(patch)), range(len(position.columns))):
        x, query = component(patch, r, c), statistics[position.at(r, c)[0]]
        b.f.emit(f"{x} = exp({x} - {query.maximum}) * {query.inverse_total};")
    return patch


def _bends(a: Attention, f: Function, products: Patch) -> Patch:
    """Declare the derivatives of logits by scaled products, if these are bounded."""
    if not a.softcap:
        return []
    bounded = [[f.let("vec4<f32>", f"tanh({x} * {literal('f32', a.scale / a.softcap)})") for x in row] for row in products]
    return [[f.let("vec4<f32>", f"vec4<f32>(1.0f) - {x} * {x}") for x in row] for row in bounded]


def _slopes(
    b: AttentionShader, weights: Patch, products: Patch, position: BlockPosition, derivatives: tuple[dict[str, _Statistics], Patch]
) -> Patch:
    """Replace the weights by the cotangents of logits (times the scale)."""
    f, scale = b.f, literal("f32", b.a.scale)
    statistics, bends = derivatives
    for r, c in product(range(len(weights)), range(len(position.columns))):
        x, (query, key) = component(weights, r, c), position.at(r, c)
        slope = f"{x} * ({component(products, r, c)} - {statistics[query].delta}) * {scale}"
        if bends:
            slope = f"{slope} * {component(bends, r, c)}"
        if b.a.may_be_blind:
            slope = f"select(0.0f, {slope}, {seen(b, query, key, position.arrays)})"
        f.emit(f"{x} = {slope};")
    return weights
