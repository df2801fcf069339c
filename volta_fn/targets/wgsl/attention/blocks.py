"""The building blocks of attention: division of work, rows, logits, products."""

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
from volta_fn.targets.wgsl.matmul.results import Working, strided_offset
from volta_fn.targets.wgsl.matmul.tiles import patch
from volta_fn.targets.wgsl.routine import Shader, ShaderArray
from volta_fn.targets.wgsl.scalars.number import Number, literal
from volta_fn.targets.wgsl.scalars.operations import apply
from volta_fn.targets.wgsl.shader import Function, times

# The division of blocks among workgroups, and of a block among invocations, as a schedule says.
#
# A *vector* is a ``vec4<f32>``. Workgroup memory is an array of vectors.


class PaddedRows(NamedTuple):
    """A layout of lines of `length` vectors in workgroup memory.

    It has `padding` vectors after each group of four lines. The padding keeps what eight neighbouring invocations write in different banks,
    whether each writes an element of every line of a group or a vector of every group.
    """

    length: int
    padding: int = 2

    @property
    def group(self) -> int:
        """Vectors from one group of four lines to the next."""
        return 4 * self.length + self.padding

    def size(self, count: int) -> int:
        """Return the vectors that `count` lines, a multiple of four, occupy."""
        return count // 4 * self.group

    def offset(self, count: int) -> int:
        """Return the vectors from the first line of a group to a later one."""
        return count // 4 * self.group + count % 4 * self.length


class AttentionSchedule(NamedTuple):
    """Workgroups of y by x invocations.

    Each has `down` vectors of rows and `across` vectors of columns of a block of logits.
    """

    y: int
    x: int
    down: int = 1
    across: int = 1
    #: Iterations of a product that are unrolled.
    unroll: int = 4
    #: Passes in which a block of weights goes through workgroup memory, to take less of it.
    passes: int = 1
    #: Features of both operands of logits that are in workgroup memory at a time.
    depth: int = 16
    #: Rows of the matrix that weights are multiplied by which are in workgroup memory at a time. Every invocation loads at least one
    #: vector of them: there are no fewer than y.
    value_rows: int = 16

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.y * self.x

    @property
    def rows(self) -> int:
        """Rows of a block of logits."""
        return 4 * self.y * self.down

    @property
    def columns(self) -> int:
        """Columns of a block of logits."""
        return 4 * self.x * self.across

    @property
    def by_column(self) -> PaddedRows:
        """Lines that have an element for every row of the block."""
        return PaddedRows(self.y * self.down)

    @property
    def by_row(self) -> PaddedRows:
        """Lines that have an element for every column of the block."""
        return PaddedRows(self.x * self.across)

    def vectors(self, width: int) -> int:
        """Return how many vectors of a row of `width` features an invocation has."""
        return -(-width // (4 * self.x))

    def slices(self) -> int:
        """Return the vectors of workgroup memory for slices of both operands of logits."""
        return self.by_column.size(self.depth) + self.by_row.size(self.depth)

    def weights(self, *, transposed: bool) -> int:
        """Return the vectors of workgroup memory for a pass over a block of weights.

        If its transpose is multiplied, too, both must fit.
        """
        plain = self.by_column.size(4 * self.x // self.passes)
        return max(plain, self.by_row.size(4 * self.y // self.passes)) if transposed else plain

    def memory(self, width: int, *, transposed: bool) -> int:
        """Return the vectors of workgroup memory in total.

        They hold slices; or weights, followed by the rows that these are multiplied by or a number for each row of each invocation.
        """
        after_weights = max(self.value_rows * self.x * self.vectors(width), self.rows * self.x // 4)
        return max(self.slices(), self.weights(transposed=transposed) + after_weights)

    def fitted(self, width: int, capabilities: TargetCapabilities, *, transposed: bool) -> AttentionSchedule | None:
        """Return the schedule with as few more passes as fit a device; None if none fits."""
        if self.invocations > capabilities.invocations:
            return None
        passes = range(self.passes, 4 * min(self.x, self.y) // self.value_rows + 1)  # each has enough rows for a product
        fitting = (self._replace(passes=n) for n in passes if self.x % n == 0)
        room = capabilities.workgroup_memory // 16 - 1  # vectors, besides the votes of invocations
        return next((s for s in fitting if s.memory(width, transposed=transposed) <= room), None)


#: Schedules for little work, and for much of it: forward, backward, and backward for wide rows. Every device has room for the first three.
_USUAL, _FORWARD, _BACKWARD = AttentionSchedule(8, 16), AttentionSchedule(16, 8, across=2, unroll=16), AttentionSchedule(16, 16)
_WIDE = AttentionSchedule(16, 16, 2, unroll=16, passes=2)

#: Blocks that keep a GPU busy; workgroups enough that the last ones, which leave it partly idle, take a small part of the time (on an
#: H200 some 260 are resident at once); bytes that partial gradients may take.
_MANY, _ENOUGH, _MOST_BYTES = 256, 1536, 1 << 29


def forward_schedule(a: Attention, capabilities: TargetCapabilities) -> AttentionSchedule:
    """Divide the queries of each head into blocks."""
    return _first((_FORWARD,), a, a.stack * a.queries, capabilities, transposed=False)


def backward_schedule(a: Attention, capabilities: TargetCapabilities) -> AttentionSchedule:
    """Divide the keys of each head into blocks."""
    wide = max(a.q.width, a.v.width) > 4 * _BACKWARD.x
    return _first((_WIDE, _BACKWARD) if wide else (_BACKWARD,), a, a.groups * a.keys, capabilities, transposed=True)


def _first(
    schedules: tuple[AttentionSchedule, ...], a: Attention, rows: int, capabilities: TargetCapabilities, *, transposed: bool
) -> AttentionSchedule:
    """Return the first schedule that gives many blocks, or else the usual one."""
    width = max(a.q.width, a.v.width)
    fitting = [s.fitted(width, capabilities, transposed=transposed) for s in schedules if rows >= _MANY * s.rows]
    schedule = next((s for s in fitting if s is not None), None) or _USUAL.fitted(width, capabilities, transposed=transposed)
    assert schedule is not None, "the usual schedule fits all devices"
    return schedule


def chunks(a: Attention, schedule: AttentionSchedule, capabilities: TargetCapabilities) -> int:
    """Return the number of workgroups that share the blocks of keys of a head evenly.

    Each accumulates a gradient of all of Q.
    """
    each = 16 * a.stack * a.queries * (1 + -(-a.q.width // 4))
    room = min(capabilities.binding, _MOST_BYTES) // each
    tiles = -(-a.keys // schedule.rows)
    rounds = -(-tiles // max(1, min(-(-_ENOUGH // a.groups), room)))
    return -(-tiles // rounds)


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
        return cls(f, array, rows, strided_offset(f, f.digits(head, rows.heads.sizes), rows.heads.strides))

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


# Logits: scaled products, masked where a query does not see a key.

#: No more than any finite logit, including those of keys that are not seen; a logit of -inf still differs from it by -inf.
LOWEST = literal("f32", -float(np.finfo(np.float32).max))

#: How much greater than the logits of hidden keys a query's largest one is if their weights are 0.
HIDDEN = 110.0


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
        base = strided_offset(b.f, b.f.digits(head, walk.heads.sizes), walk.heads.strides)
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

    They are `a.unseen` where a query does not see a key, and -inf beyond the last query or key.
    """
    f, s, a = b.f, b.schedule, b.a
    patch = [[f.var("vec4<f32>", _scaled(f, a, vector)) for vector in row_values] for row_values in products]
    sides = (position.query, a.queries), (position.key, a.keys)
    (first_row, all_rows), (first_column, all_columns) = sides if position.by_queries else sides[::-1]
    ragged = all_rows % s.rows, all_columns % s.columns
    conditions = [f"{first_row} + {s.rows}u > {all_rows}u"] if ragged[0] else []
    conditions += [f"{first_column} + {s.columns}u > {all_columns}u"] if ragged[1] else []
    conditions += crossings(b, position)
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
                f.emit(f"{x} = select({literal('f32', -np.inf)}, {x}, {' && '.join(exists)});")
    return patch


def crossings(b: AttentionShader, position: BlockPosition) -> list[str]:
    """Return conditions, of which one holds if the window hides keys in a block."""
    window, rows, columns = b.a.window, b.schedule.rows, b.schedule.columns
    queries, keys = (rows, columns) if position.by_queries else (columns, rows)
    conditions = []
    if window.after is not None:
        conditions.append(f"i32({position.key}) + {keys - 1 - window.after} > i32({position.query})")
    if window.before is not None:
        conditions.append(f"i32({position.key}) + {window.before} < i32({position.query}) + {queries - 1}")
    return conditions


def _scaled(f: Function, a: Attention, products: str) -> str:
    """Return scaled products, bounded if the problem says so, as an expression."""
    if not a.softcap:
        return f"{products} * {literal('f32', a.scale)}"
    return f"{bounded(f, a, products)} * {literal('f32', a.softcap)}"


def bounded(f: Function, a: Attention, products: str) -> str:
    """Declare the hyperbolic tangents of scaled products over their bound.

    WGSL promises no more of its own `tanh` than a small absolute error, which the bound multiplies.
    """

    def body(inner: Function) -> tuple[str, str]:
        lanes = [apply(inner, "tanh", [Number(FLOAT, f"a0.{c}")], FLOAT, {}).text for c in "xyzw"]
        return "vec4<f32>", f"vec4<f32>({', '.join(lanes)})"

    name = f.function("tanh_of_vector", ["vec4<f32>"], body)
    return f.let("vec4<f32>", f"{name}({products} * {literal('f32', a.scale / a.softcap)})")


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


# Multiply blocks of rows.
#
# Each invocation of a workgroup computes a patch of a block: some vectors (``vec4<f32>``) of rows by some vectors of columns. Operands
# pass through workgroup memory slice by slice, and so do weights, transposed. Slices and weights alternate in the same memory: the less
# each workgroup needs, the more of them are resident. Every step ends with a barrier, so that the next one may overwrite that memory.

BARRIER = "workgroupBarrier();"

#: An invocation's patch of a block: for each of its rows, its vectors of columns.
Patch = list[list[str]]


def sum_of(f: Function, vectors: Sequence[str]) -> str:
    """Return the sum of all elements of vectors, as an expression."""
    vector = f.let("vec4<f32>", " + ".join(vectors))
    return f"(({vector}.x + {vector}.y) + ({vector}.z + {vector}.w))"


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
        """Return the range that a block from `begin` on sees by the window.

        It begins at a multiple of `step`. These are keys, seen by queries, or queries, for which `window` is reversed.
        """
        f = self.f
        start, end = "0u", f"{count}u"
        if window.before is not None:
            start = f.let("u32", f"{self._moved(begin, -window.before)} / {step}u * {step}u")
        if window.after is not None:
            end = f.let("u32", f"min({self._moved(f'({begin} + {size}u)', window.after)}, {count}u)")
        return start, end

    @staticmethod
    def _moved(x: str, by: int) -> str:
        """Return x + by, or 0 if that is less, as an expression."""
        return f"({x} + {by}u)" if by >= 0 else f"({x} - min({x}, {-by}u))"

    @property
    def may_hide_weights(self) -> bool:
        """Whether hidden keys may have weights in blocks that the window hides."""
        return self.a.may_be_blind and self.a.window != Window()

    def is_blind(self, maximum: str) -> str:
        """Return the condition that hidden keys may have weights beside a maximum."""
        return f"{maximum} <= {literal('f32', self.a.unseen + HIDDEN)}"

    def any(self, condition: str) -> str:
        """Emit whether a condition holds for some invocation: all get the same answer."""
        f = self.f
        f.workgroup("votes", "atomic<u32>")
        f.workgroup("outcome", "u32")
        f.emit(f"if (local == 0u) {{ atomicStore(&votes, 0u); }} {BARRIER}")
        f.emit(f"if ({condition}) {{ atomicStore(&votes, 1u); }} {BARRIER}")
        f.emit("if (local == 0u) { outcome = atomicLoad(&votes); }")
        return f.let("bool", "workgroupUniformLoad(&outcome) == 1u")

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

    # numbers of rows, exchanged between invocations

    def exchange(self, values: Sequence[str]) -> None:
        """Store a number for each of an invocation's rows in workgroup memory."""
        across = self.schedule.x // 4
        for row, value in zip(self.row_numbers("0u"), values, strict=True):
            self.f.emit(f"{self.memory}[{self.after_weights}u + {row} * {across}u + {self.x} / 4u][{self.x} % 4u] = {value};")
        self.f.emit(BARRIER)

    def exchanged(self, row: str) -> list[str]:
        """Return the numbers that all invocations stored for a row, as vectors."""
        across = self.schedule.x // 4
        return [f"{self.memory}[{self.after_weights}u + {row} * {across}u + {n}u]" for n in range(across)]

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
