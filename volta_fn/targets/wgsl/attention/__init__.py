"""Attention in WGSL, forward and backward, without storing all weights.

`blocks` has the division of work, rows in memory, their products, and masks. Here follow the kernels: forward, the gradient by the bias,
and the other gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from volta_fn.compiler.attention import Attention, LogitWalk, Rows, attention_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import Form, Window
from volta_fn.targets.wgsl.attention.blocks import (
    BARRIER,
    FLOAT,
    LOWEST,
    AttentionShader,
    BlockPosition,
    Matrix,
    Patch,
    backward_schedule,
    bounded,
    chunks,
    component,
    crossings,
    forward_schedule,
    logit_arrays,
    logits,
    seen,
    sum_of,
)
from volta_fn.targets.wgsl.matmul.results import Working, strided_offset
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.scalars.number import Number, literal
from volta_fn.targets.wgsl.shader import Function, times

# Forward.
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
    position, head = f.digits(f.group, (tiles, a.stack))
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

    def attend(start: str, end: str) -> None:
        b.load(stream, begin, start)
        with f.loop(end, start, schedule.columns) as key:
            products = b.products(stream, begin, key)
            b.load(stream, begin, f.let("u32", f"{key} + {schedule.columns}u"))
            values = b.load_rows(v, key)
            weights = logits(b, products, BlockPosition(True, begin, key, b.row_numbers(begin), b.column_numbers(key), arrays))
            _exponentiate(b, weights, maxima, partial_totals, sums)
            b.add_products(sums, weights, v, key, values)

    if b.may_hide_weights:
        # A second time over all keys, if hidden ones count for a query.
        with f.block("for (var turn = 0u; turn < 2u; turn++)"):
            attend(f.let("u32", f"select(0u, {start}, turn == 0u)"), f.let("u32", f"select({a.keys}u, {end}, turn == 0u)"))
            rows = zip(b.row_numbers(begin), maxima, strict=True)
            blind = b.any(" || ".join([f"({row} < {a.queries}u && {b.is_blind(maximum)})" for row, maximum in rows]))
            with f.block(f"if (turn == 1u || !{blind})"):
                f.emit("break;")
            _forget(b, maxima, partial_totals, sums)
    else:
        attend(start, end)
    b.exchange(partial_totals)
    totals = [f.let("f32", sum_of(f, b.exchanged(row))) for row in b.row_numbers("0u")]
    b.store(out, begin, [[f.let("vec4<f32>", f"{x} / {total}") for x in row] for row, total in zip(sums, totals, strict=True)])
    for row, maximum, total in zip(b.row_numbers(begin), maxima, totals, strict=True):
        with f.block(f"if ({b.x} == 0u && {row} < {a.queries}u)"):
            offset = f.let("u32", f"({head} * {a.queries}u + {row}) * 2u")
            statistics.store(offset, Number(FLOAT, maximum))
            statistics.store(f.let("u32", f"{offset} + 1u"), Number(FLOAT, total))
    return Routine((f.dispatch(a.stack * tiles, a.products),))


def _forget(b: AttentionShader, maxima: list[str], partial_totals: list[str], sums: Patch) -> None:
    """Set the statistics and sums of an invocation's rows to those of no keys."""
    for maximum, partial, total in zip(maxima, partial_totals, sums, strict=True):
        b.f.emit(f"{maximum} = {LOWEST};")
        b.f.emit(f"{partial} = 0.0f;")
        for vector in total:
            b.f.emit(f"{vector} = vec4<f32>();")


def _exponentiate(b: AttentionShader, patch: Patch, maxima: list[str], partial_totals: list[str], sums: Patch) -> None:
    """Replace logits by weights relative to the largest so far of their rows.

    Earlier sums are scaled by how much that has grown.
    """
    f = b.f
    b.exchange([f.let("f32", _maximum(f, row_values)) for row_values in patch])
    for row, row_values, maximum, partial, total in zip(b.row_numbers("0u"), patch, maxima, partial_totals, sums, strict=True):
        new = f.let("f32", f"max({maximum}, {_maximum(f, b.exchanged(row))})")
        factor = f.let("f32", f"exp({maximum} - {new})")
        f.emit(f"{maximum} = {new};")
        for x in row_values:
            f.emit(f"{x} = exp({x} - vec4<f32>({new}));")
        f.emit(f"{partial} = fma({partial}, {factor}, {sum_of(f, row_values)});")
        for vector in total:
            f.emit(f"{vector} *= {factor};")
    f.emit(BARRIER)


def _maximum(f: Function, vectors: Sequence[str]) -> str:
    """Return the largest of all elements of vectors."""
    vector = f.let("vec4<f32>", vectors[0])
    for other in vectors[1:]:
        vector = f.let("vec4<f32>", f"max({vector}, {other})")
    return f"max(max({vector}.x, {vector}.y), max({vector}.z, {vector}.w))"


# The gradient by the bias.
#
# It is the cotangent of the logits, P (D Vᵀ - δ), summed over all that share an element of the bias: heads, queries or keys along which it
# is broadcast. A workgroup computes the elements of a block of keys and a block of queries of one of the bias's heads, of which there are
# one where the bias is broadcast. It recomputes the blocks of weights that share its elements, and adds up their cotangents in registers.
# So no block is stored, and no two workgroups add to the same element.

#: ``body(head, query, key, sums)`` adds the cotangents of a head's block of logits to sums.
AddBlock = Callable[[str, str, str, Patch], None]


def bias_gradient(b: AttentionShader, bias: LogitWalk, result: int, add_block: AddBlock) -> Dispatch:
    """Return the dispatch of the gradient by a bias, which is the buffer `result`.

    Rows of blocks are keys, columns are queries.
    """
    a, f, s = b.a, b.f, b.schedule
    tiles, blocks = -(-a.keys // s.rows), -(-a.queries // s.columns)
    heads = [*zip(bias.heads.sizes, bias.heads.strides, strict=True)]
    distinct = [size for size, stride in heads if stride]
    shared = [size for size, stride in heads if not stride]
    sizes = (prod(distinct), tiles if bias.key else 1, blocks if bias.query else 1)
    bias_head, tile, block = f.digits(f.group, sizes)
    fixed = f.digits(bias_head, distinct)
    sums = b.zeros(s.across)

    with f.loop(prod(shared)) as index:
        coordinates = {True: iter(fixed), False: iter(f.digits(index, shared))}
        head = "0u"
        for size, stride in heads:
            head = f.let("u32", f"{head} * {size}u + {next(coordinates[stride != 0])}")
        with f.loop(1 if bias.key else tiles) as i, f.loop(1 if bias.query else blocks) as j:
            key, query = f.let("u32", f"({tile} + {i}) * {s.rows}u"), f.let("u32", f"({block} + {j}) * {s.columns}u")
            start, end = b.seen_range(key, s.rows, Window(a.window.after, a.window.before), a.queries, s.columns)
            with f.block(f"if ({query} >= {start} && {query} < {end})"):
                add_block(head, query, key, sums)
    array = f.buffer(result, bias.dtype, True)
    at = strided_offset(f, fixed, [stride for stride in bias.heads.strides if stride])
    keys, queries = b.row_numbers(f"{tile} * {s.rows}u"), b.column_numbers(f"{block} * {s.columns}u")

    def store(key: str, query: str, value: str, *conditions: str) -> None:
        exists = [f"{key} < {a.keys}u"] if bias.key else []
        exists += [f"{query} < {a.queries}u"] if bias.query else []
        with f.block(f"if ({' && '.join([*conditions, *exists]) or 'true'})"):
            index = f.let("u32", f"{at} + {times(key, bias.key)} + {times(query, bias.query)}")
            array.store(index, Working(FLOAT).convert_sum(f, value, bias.dtype))

    if bias.key and bias.query:
        for (r, key), (c, query) in product(enumerate(keys), enumerate(queries)):
            store(key, query, component(sums, r, c))
    elif bias.key:
        for key, total in zip(keys, _over_columns(b, sums), strict=True):
            store(key, "0u", total, f"{b.x} == 0u")
    elif bias.query:
        for query, total in zip(queries, _over_rows(b, sums), strict=True):
            store("0u", query, total, f"{b.y} == 0u")
    else:
        store("0u", "0u", _over_all(b, sums), f"{b.x} == 0u", f"{b.y} == 0u")
    return f.dispatch(prod(sizes), a.products)


def _over_columns(b: AttentionShader, sums: Patch) -> list[str]:
    """Emit the sums over the columns of a block, for each of an invocation's rows."""
    b.exchange([b.f.let("f32", sum_of(b.f, vectors)) for vectors in sums])
    return [b.f.let("f32", sum_of(b.f, b.exchanged(row))) for row in b.row_numbers("0u")]


def _over_rows(b: AttentionShader, sums: Patch) -> list[str]:
    """Emit the sums over the rows of a block, for each of an invocation's columns."""
    f, s = b.f, b.schedule
    assert s.across <= s.down, "there is memory for a number of each invocation's rows"
    width = s.x * s.across
    for n, vectors in enumerate(zip(*sums, strict=True)):
        f.emit(f"{b.memory}[{b.after_weights}u + {b.y} * {width}u + {b.x} + {n * s.x}u] = {' + '.join(vectors)};")
    f.emit(BARRIER)
    totals = [f.var("vec4<f32>", "vec4<f32>()") for _ in range(s.across)]
    with f.loop(s.y) as y:
        for n, total in enumerate(totals):
            f.emit(f"{total} += {b.memory}[{b.after_weights}u + {y} * {width}u + {b.x} + {n * s.x}u];")
    return [f"{total}.{c}" for total in totals for c in "xyzw"]


def _over_all(b: AttentionShader, sums: Patch) -> str:
    """Emit the sum over a block."""
    f, s = b.f, b.schedule
    b.exchange([f.let("f32", sum_of(f, vectors)) for vectors in sums])
    total = f.var("vec4<f32>", "vec4<f32>()")
    with f.loop(s.rows * s.x // 4) as n:
        f.emit(f"{total} += {b.memory}[{b.after_weights}u + {n}];")
    return sum_of(f, [total])


# Gradients.
#
# With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
# logits is P (D Vᵀ - δ), from which those of Q and K follow. P follows from each query's largest logit and total. Three dispatches: δ; the
# gradients of K and V by blocks of keys, with each workgroup's contribution to Q's; the sum of these. A workgroup iterates over several
# blocks of keys and accumulates their contributions. The gradient of a bias takes a further dispatch (`bias_gradient`).

#: Invocations of a workgroup that has no blocks.
_INVOCATIONS = 64


def backward(a: Attention, capabilities: TargetCapabilities, *, to_bias: bool) -> Routine:
    """Return the routine of the gradients, with that of the bias if `to_bias`.

    Operands are q, k, v, the bias, the masks, the result, its statistics (see `forward`) and cotangent.
    """
    assert a.cotangent is not None
    writer = _Writer(a, a.cotangent, capabilities, to_bias=to_bias)
    dispatches = [writer.statistics(), writer.by_keys(), writer.sum_partial_gradients(), *([writer.by_bias()] if to_bias else [])]
    return Routine(tuple(dispatches), (4 * writer.floats,))


class _Statistics(NamedTuple):
    """A query's statistics: its largest logit, the inverse of its weights' sum, and δ."""

    maximum: str
    inverse_total: str
    delta: str


class _Writer:
    """Writes the dispatches.

    Their workspace holds the partial gradients of Q, followed by a vector for each query: `_Statistics`.
    """

    def __init__(self, a: Attention, cotangent: Rows, capabilities: TargetCapabilities, *, to_bias: bool) -> None:
        self.a, self.cotangent, self.capabilities = a, cotangent, capabilities
        shift = a.operands - 3
        self.number_of_out, self.number_of_statistics, self.number_of_cotangent = 3 + shift, 4 + shift, 5 + shift
        self.gradients, self.work = 6 + shift, 9 + shift + to_bias
        self.schedule = backward_schedule(a, capabilities)
        self.tiles = -(-a.keys // self.schedule.rows)
        #: Vectors of a row of Q's gradient, and of a partial gradient.
        self.vectors = -(-a.q.width // 4)
        self.partial = a.stack * a.queries * self.vectors
        self.chunks = chunks(a, self.schedule, capabilities)
        self.floats = 4 * (self.chunks * self.partial + a.stack * a.queries)
        #: Whether later blocks of keys of a chunk are seen by queries that do not see its first one.
        self.zeroes = a.window.before is not None

    def statistics(self) -> Dispatch:
        """Write each query's `_Statistics`."""
        a = self.a
        f, work = Shader(self.capabilities, _INVOCATIONS), Working(FLOAT)
        pair = (self.number_of_out, a.out), (self.number_of_cotangent, self.cotangent)
        step = 4 if all(rows.by_vectors for _, rows in pair) else 1
        x, y = (f.buffer(number, rows.dtype, False, rows.elements if step == 4 else 0) for number, rows in pair)
        statistics, result = f.buffer(self.number_of_statistics, FLOAT), f.buffer(self.work, FLOAT, True, self.floats)

        def write(number: str) -> None:
            head, query = f.digits(number, (a.stack, a.queries))
            starts = [
                f.let("u32", f"{strided_offset(f, f.digits(head, rows.heads.sizes), rows.heads.strides)} + {query} * {rows.step}u")
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

        return f.for_each(a.stack * a.queries, write)

    def by_keys(self) -> Dispatch:
        """Write the gradients of K and V, and partial gradients of Q.

        Those of K and V are summed over the heads that share them.
        """
        a = self.a
        b = AttentionShader(a, self.schedule, self.capabilities, transposed=True)
        f, s = b.f, b.schedule
        chunk, group = f.digits(f.group, (self.chunks, a.groups))
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
        if b.may_hide_weights:
            blind = b.any(self._find_blind(b, head, start, end))
            start, end = f.let("u32", f"select({start}, 0u, {blind})"), f.let("u32", f"select({end}, {a.queries}u, {blind})")
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
            slopes = _slopes(b, weights, products, position, statistics)
            _scale(b, slopes, bends)
            b.add_products(sums[0], slopes, q, query, queries)
            keys = b.load_rows(k, begin)
            b.load(for_weights, begin, f.let("u32", f"{query} + {s.columns}u"))
            down = s.columns // (4 * s.y)
            contribution = b.zeros(s.vectors(a.q.width), down)
            b.add_products(contribution, slopes, k, begin, keys, transposed=True)
            self._accumulate(b, head, b.row_numbers(query, down), contribution, chunk_iteration)

    def _find_blind(self, b: AttentionShader, head: str, start: str, end: str) -> str:
        """Emit a search for a query that weighs hidden keys, outside of a range."""
        f = b.f
        blind = f.var("bool", "false")
        with f.loop(self.a.queries, "local", self.schedule.invocations) as query:
            largest = self._load_statistics(b, head, [query])[query].maximum
            f.emit(f"{blind} = {blind} || (({query} < {start} || {query} >= {end}) && {b.is_blind(largest)});")
        return blind

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

        def add(number: str) -> None:
            head, row, vector = f.digits(number, (a.stack, a.queries, self.vectors))
            sum_ = f.var("vec4<f32>", "vec4<f32>()")
            for chunk in range(self.chunks):
                first = self._first_query(chunk)
                with f.block(f"if ({row} >= {first}u)" if first else ""):
                    f.emit(f"{sum_} += {partial.name}[{number} + {chunk * self.partial}u];")
            Matrix.of(f, self.gradients, a.q, head, written=True).store(row, f.let("u32", f"{vector} * 4u"), sum_)

        return f.for_each(self.partial, add)

    def _first_query(self, chunk: int) -> int:
        """Return the first query to whose gradient a chunk contributes."""
        a, s = self.a, self.schedule
        if self.zeroes or a.window.after is None:
            return 0
        return max(chunk * s.rows - a.window.after, 0) // s.columns * s.columns

    def by_bias(self) -> Dispatch:
        """Write the gradient of the bias."""
        a = self.a
        assert a.bias is not None
        b = AttentionShader(a, self.schedule, self.capabilities, transposed=True)

        def add_block(head: str, query: str, key: str, sums: Patch) -> None:
            q, k, v = (Matrix.of(b.f, number, rows, head) for number, rows in enumerate((a.q, a.k, a.v)))
            cotangent = Matrix.of(b.f, self.number_of_cotangent, self.cotangent, head)
            position = BlockPosition(False, query, key, b.row_numbers(key), b.column_numbers(query), logit_arrays(b, head))
            statistics = self._load_statistics(b, head, position.columns)
            weights = _weights(b, logits(b, self._products(b, k, q, key, query), position), position, statistics)
            slopes = _slopes(b, weights, self._products(b, v, cotangent, key, query), position, statistics)
            for totals, vectors in zip(sums, slopes, strict=True):
                for total, vector in zip(totals, vectors, strict=True):
                    b.f.emit(f"{total} += {vector};")

        return bias_gradient(b, a.bias, self.gradients + 3, add_block)

    def _products(self, b: AttentionShader, left: Matrix, right: Matrix, row: str, column: str) -> Patch:
        stream = b.stream(left, right)
        b.load(stream, row, column)
        return b.products(stream, row, column)

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
    tangents = [[bounded(f, a, x) for x in row] for row in products]
    return [[f.let("vec4<f32>", f"vec4<f32>(1.0f) - {x} * {x}") for x in row] for row in tangents]


def _slopes(b: AttentionShader, weights: Patch, products: Patch, position: BlockPosition, statistics: dict[str, _Statistics]) -> Patch:
    """Replace the weights by the cotangents of logits, 0 for hidden keys."""
    f, a = b.f, b.a
    elements = [(component(weights, r, c), r, c) for r, c in product(range(len(weights)), range(len(position.columns)))]
    for x, r, c in elements:
        f.emit(f"{x} *= {component(products, r, c)} - {statistics[position.at(r, c)[0]].delta};")
    if a.may_be_blind:
        with f.block("" if a.masks else f"if ({' || '.join(crossings(b, position))})"):
            for x, r, c in elements:
                f.emit(f"{x} = select(0.0f, {x}, {seen(b, *position.at(r, c), position.arrays)});")
    return weights


def _scale(b: AttentionShader, slopes: Patch, bends: Patch) -> None:
    """Replace the cotangents of logits by those of products."""
    scale = literal("f32", b.a.scale)
    for r, vectors in enumerate(slopes):
        for n, vector in enumerate(vectors):
            b.f.emit(f"{vector} *= {f'{bends[r][n]} * {scale}' if bends else scale};")


# The routines of equations, and when they are worth it.

#: The widest rows that fit an invocation's registers, and the shortest columns for which blocks are not mostly empty.
_WIDEST, _SHORTEST = 128, 16
#: The most masks and biases that a shader binds.
_MOST_EXTRA = 2


def attention(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine:
    """Return the routine of the equation."""
    return forward(attention_of(avals, params["form"]), capabilities)


def attention_gradient(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine:
    """Return the routine of the equation."""
    return backward(attention_of(avals, params["form"]), capabilities, to_bias=params["form"].to_bias)


#: Makers of routines by the name of the instruction.
ROUTINES = {"attention_routine": attention, "attention_gradient_routine": attention_gradient}


def worthwhile(avals: tuple[ShapedArray, ...], form: Form, capabilities: TargetCapabilities) -> bool:
    """Return whether the routines serve these operands with mostly full blocks."""
    axes = [form.q, form.k, form.v, *([] if form.cotangent is None else [form.cotangent])]
    if form.biased + form.masks > _MOST_EXTRA or avals[0].dtype.itemsize > 4 or any(a.features != len(a.order) - 1 for a in axes):
        return False
    a = attention_of(avals, form._replace(cotangent=None))
    elements = [*[x.elements for x in (a.q, a.k, a.v, a.out)], *([] if a.bias is None else [a.bias.elements])]
    largest = max(4 * max(elements), 16 * a.stack * a.queries * (1 + -(-a.q.width // 4)))
    return max(a.q.width, a.v.width) <= _WIDEST and min(a.queries, a.keys) >= _SHORTEST and largest <= capabilities.binding
