"""Attention by blocks of keys, with a running softmax, and its gradients.

As in FlashAttention-2 (Dao 2023), each query keeps the largest logit so far and the sum of weights relative to it. Earlier sums are scaled
when the largest logit grows, and the result is divided once. A task has a block of queries of a head; keys and values are packed ahead.

Products of bfloat16 are those of pairs, where the CPU has an instruction for them: of features, and of keys. Logits and sums are float32.
Weights are rounded to bfloat16 for the second product.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from volta_fn.compiler.attention import Attention, LogitWalk, Rows
from volta_fn.core.primitive import reduction_of
from volta_fn.dtypes import accumulator
from volta_fn.primitives.formulas.exponential import exp
from volta_fn.runtime.llvm.text import Function, Value, greatest, i64, least
from volta_fn.targets.cpu.attention.blocks import (
    BFLOAT16,
    BlockSizes,
    Left,
    LogitBlock,
    Packed,
    PanelOperand,
    Product,
    RowBlock,
    at,
    block_sizes,
    copy_rows,
    each_vector,
    fill,
    has_pairs,
    head_address,
    in_pairs,
    largest_number,
    logit_arrays,
    may_be_blind,
    multiply,
    number,
    read,
    reserve,
    rounded_up,
    write,
)
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, chunk_count, task_range
from volta_fn.targets.cpu.scalars import Number, horizontal
from volta_fn.targets.cpu.scalars.values import Lanes

#: Estimated nanoseconds of a multiplication of vectors, and of packing an element.
STEP, PACKING = 0.2, 0.4
#: Rows of keys or values that a task packs.
_PACKED_ROWS = 512


def pack_ahead(writer: RoutineWriter, b: BlockSizes, packed: list[tuple[int, Packed]], groups: int, workspace: int) -> None:
    """Add the launch that packs operands, each by the number of its buffer."""
    keys = packed[0][1].rows.count
    panels = b.panels(keys)
    each = max(1, _PACKED_ROWS // b.panel)
    tasks = -(-panels // each)
    elements = groups * sum(p.rows.count * p.rows.width for _, p in packed)

    def task(f: Function, pointers: list[Value], number_: Value) -> None:
        group, part = f.divided(number_, tasks)
        head = f.times(group, _shared(packed[0][1]))
        for buffer, p in packed:
            source, base = head_address(f, pointers[buffer], p.rows, head), p.base(f, b, pointers[workspace], group)
            begin = f.times(part, each * b.panel)
            end = least(f, f.plus(begin, i64(each * b.panel)), i64(keys))
            f.loop(begin, end, b.panel, [], lambda first, _, p=p, source=source, base=base: p.pack(f, b, source, base, first))  # type: ignore[misc]

    writer.launch(groups * tasks, elements * PACKING, task)


def _shared(p: Packed) -> int:
    """Return how many heads share one of a matrix."""
    *_, last = p.rows.heads.strides
    return p.rows.heads.sizes[-1] if last == 0 and len(p.rows.heads.sizes) > 1 else 1


class State(NamedTuple):
    """A task's matrices on the stack.

    They are a block's queries, logits and sums, and each row's largest logit and partial totals.
    """

    queries: Value
    logits: Value
    sums: Value
    largest: Value
    totals: Value


def forward(a: Attention) -> Routine:
    """Return the routine of attention.

    Operands are q, k, v, the bias and the masks; results are attention's, and statistics of each query.
    """
    b, pairs = block_sizes(a), has_pairs(a)
    if pairs:
        b = b._replace(work=b.work._replace(group=2))
    q, keys = (in_pairs(a.q), in_pairs(a.k)) if pairs else (a.q, a.k)
    k, v = Packed(keys, 0, transposed=True), Packed(a.v, 0, transposed=False)
    starts = reserve([a.groups * p.elements(b) * b.work.itemsize for p in (k, v)])
    v = v._replace(start=starts[1])
    out, workspace = a.operands, a.operands + 2
    writer = RoutineWriter("attention", workspace + 1)
    pack_ahead(writer, b, [(1, k), (2, v)], a.groups, workspace)
    blocks = -(-a.queries // b.queries)

    def task(f: Function, pointers: list[Value], task_number: Value) -> None:
        head, position = f.divided(task_number, blocks)
        first = f.times(f.minus(i64(blocks - 1), position), b.queries)  # those that see most keys come first
        work = b.work
        sizes = (b.queries * b.padded(a.q.width), b.queries * b.pitch, b.queries * b.padded(a.v.width), b.queries, b.queries * work.lanes)
        state = State(*[f.alloca(work.type, size) for size in sizes])
        copy_rows(f, b, RowBlock(q, head_address(f, pointers[0], q, head), first), state.queries, 1.0 if pairs else a.scale)
        group = f.quotient(head, a.shared)
        bases = k.base(f, b, pointers[workspace], group), v.base(f, b, pointers[workspace], group)
        extra = logit_arrays(f, a, pointers, head)
        block = LogitBlock(a, b, *extra, first, i64(0), i64(0))

        def attend(turn: Value, goes_on: list[Value]) -> list[Value]:
            is_first = f.compare("icmp eq", turn, i64(0))
            return f.branch(goes_on[0], lambda: [_attend(f, block, state, (k, v), bases, is_first)], lambda: [Value("i1", "false")])

        # A second time over all keys, if hidden ones count for a query.
        f.loop(i64(0), i64(2 if a.may_be_blind else 1), 1, [Value("i1", "true")], attend, nonempty=True)
        store_results(f, block, state, pointers[out : out + 2], head)

    writer.launch(a.stack * blocks, a.products / b.work.lanes * STEP, task)
    return writer.routine(starts[-1])


def _attend(f: Function, block: LogitBlock, state: State, packed: tuple[Packed, Packed], bases: tuple[Value, Value], skips: Value) -> Value:
    """Emit the sums of a block of queries over keys.

    Return whether hidden keys count for a query. If it `skips`, keys are those that some of the queries see, or else all of them.
    """
    a, b = block.a, block.b
    clear(f, block, state)
    begin, end = i64(0), i64(a.keys)
    if a.window.before is not None:
        first = f.times(f.quotient(least(f, greatest(f, f.plus(block.query, i64(-a.window.before)), i64(0)), end), b.panel), b.panel)
        begin = f.select(skips, first, begin)
    if a.window.after is not None:
        end = f.select(skips, least(f, f.plus(block.query, i64(b.queries + a.window.after)), end), end)

    def keys_from(key: Value, _: list[Value]) -> None:
        here = block._replace(key=key, width=least(f, f.minus(end, key), i64(b.keys)))

        def accumulate() -> None:
            here.multiply(f, state.queries, packed[0], bases[0], state.logits)
            if b.work.group > 1:
                _scale_logits(f, here, state)
            here.finish(f, state.logits)
            exponentiate(f, here, state)
            rows = i64(b.queries // b.tile)
            right = packed[1].panels_from(f, b, bases[1], key)
            depth = rounded_up(f, here.width, b.work.group)
            multiply(f, b, Left(state.logits, b.pitch, 1), right, depth, Product(state.sums, b.padded(a.v.width), rows), add=True)

        if a.masks:
            seen = f.branch(skips, lambda: [here.is_seen(f)], lambda: [Value("i1", "true")])
            f.branch(seen[0], accumulate)
        else:
            accumulate()

    f.loop(begin, end, b.keys, [], keys_from)
    return is_blind(f, block, state)


def clear(f: Function, block: LogitBlock, state: State) -> None:
    """Emit the state before the first key."""
    a, b = block.a, block.b
    fill(f, b.work, state.sums, b.queries * b.padded(a.v.width))
    fill(f, b.work, state.totals, b.queries * b.work.lanes)
    lowest = largest_number(b.work, -1.0)  # from which a logit of -inf still differs by -inf
    f.loop(i64(0), i64(b.queries), 1, [], lambda row, _: f.store(lowest, f.at(state.largest, b.work.type, row), b.work.itemsize))


def is_blind(f: Function, block: LogitBlock, state: State) -> Value:
    """Emit whether hidden keys count for a query of a block."""
    a, b = block.a, block.b
    if not a.may_be_blind:
        return Value("i1", "false")

    def check(row: Value, carried: list[Value]) -> list[Value]:
        largest = f.load(b.work.type, f.at(state.largest, b.work.type, row), b.work.itemsize)
        return [f.binary("or", carried[0], may_be_blind(f, a, b, largest))]

    rows = least(f, i64(b.queries), f.minus(i64(a.queries), block.query))
    return f.loop(i64(0), rows, 1, [Value("i1", "false")], check, nonempty=True)[0]


def exponentiate(f: Function, block: LogitBlock, state: State) -> None:
    """Emit weights, relative to the largest logits so far, in place of logits.

    Earlier sums are scaled by how much these have grown.
    """
    b = block.b
    work = b.work
    lanes, type_ = work.lanes, work.type

    def row_of(row: Value, _: list[Value]) -> None:
        at_largest = f.at(state.largest, type_, row)
        old = f.load(type_, at_largest, work.itemsize)

        def maximum(offset: Value, column: Value, values: list[Value]) -> list[Value]:
            x = f.load(work.vector, f.at(state.logits, type_, offset), work.itemsize)
            return [*values[1:], f.select(f.compare("fcmp ogt", x, values[0]), x, values[0])]

        start = f.splat(old, lanes)
        one, other = block.each_vector(f, row, [start, start], maximum)
        new = Lanes(f, f.select(f.compare("fcmp ogt", one, other), one, other)).greatest()
        at_totals = f.at(state.totals, type_, f.times(row, lanes))

        def scale() -> None:
            f.store(new, at_largest, work.itemsize)
            factor = f.splat(exp(Lanes(f, f.binary("fsub", old, new))).value, lanes)
            addresses = [(at_totals, i64(0))]
            for address, column in addresses:
                _scale(f, b, f.at(address, type_, column), factor)
            sums = f.at(state.sums, type_, f.times(row, b.padded(block.a.v.width)))
            each_vector(f, b.padded(block.a.v.width), lanes, lambda column, _: _scale(f, b, f.at(sums, type_, column), factor))

        f.branch(f.compare("fcmp ogt", new, old), scale)
        shift = Lanes(f, f.splat(new, lanes))

        def weights(offset: Value, column: Value, values: list[Value]) -> list[Value]:
            address = f.at(state.logits, type_, offset)
            weight = exp(Lanes(f, f.load(work.vector, address, work.itemsize)) - shift).value
            if work.group == 1:
                f.store(weight, address, work.itemsize)
            else:  # pairs take the first half of the row, whose logits are read before
                pairs = f.at(f.at(state.logits, type_, f.times(row, b.pitch)), "bfloat", column)
                write(f, BFLOAT16, weight, pairs)
            return [*values[1:], f.binary("fadd", values[0], weight)]

        totals = block.each_vector(f, row, [f.load(work.vector, at_totals, work.itemsize), work.zero()], weights)
        f.store(f.binary("fadd", *totals), at_totals, work.itemsize)

    f.loop(i64(0), i64(b.queries), 1, [], row_of, nonempty=True)


def _scale_logits(f: Function, block: LogitBlock, state: State) -> None:
    """Emit the scaling of products of pairs, whose factors are as in memory."""
    b = block.b
    factor = f.splat(number(b.work, block.a.scale), b.work.lanes)

    def vector(offset: Value, _: Value, values: list[Value]) -> list[Value]:
        _scale(f, b, f.at(state.logits, b.work.type, offset), factor)
        return values

    f.loop(i64(0), i64(b.queries), 1, [], lambda row, _: block.each_vector(f, row, [], vector), nonempty=True)


def _scale(f: Function, b: BlockSizes, address: Value, factor: Value) -> None:
    f.store(f.binary("fmul", f.load(b.work.vector, address, b.work.itemsize), factor), address, b.work.itemsize)


def store_results(f: Function, block: LogitBlock, state: State, results: list[Value], head: Value) -> None:
    """Emit the division by totals, and the stores of results and statistics."""
    a, b = block.a, block.b
    work = b.work
    out = RowBlock(a.out, head_address(f, results[0], a.out, head), block.query)
    begin = f.plus(f.times(head, a.queries), block.query)

    def row_of(row: Value, _: list[Value]) -> None:
        parts = f.load(work.vector, f.at(state.totals, work.type, f.times(row, work.lanes)), work.itemsize)
        total = horizontal(f, reduction_of("reduce_sum"), Number(accumulator(a.q.dtype), (parts,))).value
        factor = f.splat(f.binary("fdiv", number(work, 1.0), total), work.lanes)
        target, sums = out.row(f, row), f.at(state.sums, work.type, f.times(row, b.padded(a.v.width)))

        def vector(column: Value, count: Value | None) -> None:
            x = f.binary("fmul", f.load(work.vector, f.at(sums, work.type, column), work.itemsize), factor)
            write(f, a.out.dtype, x, at(f, target, a.out.dtype.itemsize, column), count)

        each_vector(f, a.v.width, work.lanes, vector)
        largest = f.load(work.type, f.at(state.largest, work.type, row), work.itemsize)
        statistics = f.at(results[1], work.type, f.times(f.plus(begin, row), 2))
        f.store(largest, statistics, work.itemsize)
        f.store(total, f.at(statistics, work.type, i64(1)), work.itemsize)

    f.loop(i64(0), least(f, i64(b.queries), f.minus(i64(a.queries), block.query)), 1, [], row_of, nonempty=True)


# Gradients, which compute weights again block by block.
#
# With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
# logits is P (D Vᵀ - δ), from which those of Q, K and the bias follow. P follows from each query's largest logit and total. A task goes
# over some blocks of keys of a group of heads: it adds up the gradients of a block's keys and values, and to a partial gradient of Q of
# its own, of which a further launch takes the sum. So the result does not depend on threads. A bias has a launch of its own, in which a
# task has those of its elements that a block of keys determines.


#: Tasks that keep the threads of a large CPU busy, and rows of Q's gradient that a task sums.
_ENOUGH, _SUMMED_ROWS = 16, 64
#: Numbers of a query in the workspace: its largest logit, the inverse of its total, and δ.
_STATISTICS = 3
#: Nanoseconds of a vector of sums.
_SUM = 0.5


class _Layout(NamedTuple):
    """The workspace: packed operands, and where the other parts begin, in bytes."""

    k_columns: Packed
    v_columns: Packed
    k_rows: Packed
    partial: int
    statistics: int
    to_bias: int
    bytes: int


class _Scratch(NamedTuple):
    """A task's matrices on the stack.

    They are a block's queries and cotangents, its weights, the cotangents of its logits, the derivatives of bounded ones, and the sums of
    the gradients of keys and values.
    """

    queries: Value
    cotangents: Value
    weights: Value
    slopes: Value
    bends: Value
    to_k: Value
    to_v: Value


class _Operands(NamedTuple):
    """What a task reads: buffers, and the bases of a group's packed operands."""

    pointers: list[Value]
    workspace: Value
    k_columns: Value
    v_columns: Value
    k_rows: Value


def backward(a: Attention, *, to_bias: bool) -> Routine:
    """Return the routine of the gradients.

    Operands are q, k, v, the bias, the masks, the result, its statistics (see `forward`) and cotangent.
    """
    assert a.cotangent is not None
    return _Writer(a, a.cotangent, to_bias=to_bias).routine()


class _Writer:
    """Writes the launches."""

    def __init__(self, a: Attention, cotangent: Rows, *, to_bias: bool) -> None:
        self.a, self.cotangent, self.b = a, cotangent, block_sizes(a)
        self.bias = a.bias if to_bias else None
        self.out, self.gradients = a.operands, a.operands + 3
        self.workspace = self.gradients + 3 + to_bias
        self.key_blocks, self.query_blocks = -(-a.keys // self.b.keys), -(-a.queries // self.b.queries)
        #: Tasks of a group, each with every so many-th block of keys, and a partial gradient of Q.
        self.chunks = min(self.key_blocks, -(-_ENOUGH // a.groups))
        self.rows = self.query_blocks * self.b.queries
        self.layout = self._layout()
        self.writer = RoutineWriter("attention_gradient", self.workspace + 1)

    def _layout(self) -> _Layout:
        a, b = self.a, self.b
        packed = [Packed(a.k, 0, transposed=True), Packed(a.v, 0, transposed=True), Packed(a.k, 0, transposed=False)]
        numbers = [a.groups * p.elements(b) for p in packed]
        numbers += [self.chunks * a.stack * self.rows * b.padded(a.q.width), a.stack * self.rows * _STATISTICS]
        numbers += [prod(self._bias_sizes()) if self.bias else 0]
        starts = reserve([n * b.work.itemsize for n in numbers])
        k_columns, v_columns, k_rows = (p._replace(start=start) for p, start in zip(packed, starts, strict=False))
        return _Layout(k_columns, v_columns, k_rows, *starts[3:])

    def routine(self) -> Routine:
        """Write the code."""
        a, b, layout = self.a, self.b, self.layout
        packed = [(1, layout.k_columns), (2, layout.v_columns), (1, layout.k_rows)]
        pack_ahead(self.writer, b, packed, a.groups, self.workspace)
        self.writer.launch(a.stack * self.query_blocks, a.stack * a.queries * a.v.width * _SUM / b.work.lanes * 4, self._statistics_task)
        cost = 2.5 * a.products / b.work.lanes * STEP
        self.writer.launch(a.groups * self.chunks, cost, self._keys_task)
        tasks = -(-self.rows // _SUMMED_ROWS)
        elements = a.stack * a.queries * a.q.width / b.work.lanes
        self.writer.launch(a.stack * tasks, elements * (self.chunks + 1) * _SUM, self._sum_task)
        if self.bias is not None:
            self._write_bias(self.bias, cost / 2)
        return self.writer.routine(layout.bytes)

    def _part(self, f: Function, workspace: Value, start: int, offset: Value) -> Value:
        return f.at(f.at(workspace, "i8", i64(start)), self.b.work.type, offset)

    # statistics

    def _statistics_task(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the `_STATISTICS` of a block of queries."""
        a, b, work = self.a, self.b, self.b.work
        head, block = f.divided(task, self.query_blocks)
        first = f.times(block, b.queries)
        out = RowBlock(a.out, head_address(f, pointers[self.out], a.out, head), first)
        cotangent = RowBlock(self.cotangent, head_address(f, pointers[self.out + 2], self.cotangent, head), first)
        target = self._statistics(f, pointers[self.workspace], head, first)

        def row_of(row: Value, _: list[Value]) -> None:
            of_result, of_cotangent = out.row(f, row), cotangent.row(f, row)
            total = f.alloca(work.vector)
            f.store(work.zero(), total, work.itemsize)

            def vector(column: Value, count: Value | None) -> None:
                x = read(f, a.out.dtype, at(f, of_result, a.out.dtype.itemsize, column), work.lanes, count)
                y = read(f, self.cotangent.dtype, at(f, of_cotangent, self.cotangent.dtype.itemsize, column), work.lanes, count)
                f.store(work.multiply_add(f, x, y, f.load(work.vector, total, work.itemsize)), total, work.itemsize)

            each_vector(f, a.v.width, work.lanes, vector)
            delta = self._sum(f, f.load(work.vector, total, work.itemsize))
            query = least(f, f.plus(first, row), i64(a.queries - 1))
            source = f.at(pointers[self.out + 1], work.type, f.times(f.plus(f.times(head, a.queries), query), 2))
            largest = f.load(work.type, source, work.itemsize)
            inverse = f.binary("fdiv", number(work, 1.0), f.load(work.type, f.at(source, work.type, i64(1)), work.itemsize))
            exists = out.exists(f, row)
            beyond = (largest_number(work), number(work, 0.0), number(work, 0.0))  # so that rows beyond the last have no weights
            for k, (x, other) in enumerate(zip((largest, inverse, delta), beyond, strict=True)):
                f.store(f.select(exists, x, other), f.at(target, work.type, f.plus(f.times(row, _STATISTICS), i64(k))), work.itemsize)

        f.loop(i64(0), i64(b.queries), 1, [], row_of, nonempty=True)

    def _statistics(self, f: Function, workspace: Value, head: Value, first: Value) -> Value:
        """Emit the address of the statistics of a query."""
        return self._part(f, workspace, self.layout.statistics, f.times(f.plus(f.times(head, self.rows), first), _STATISTICS))

    def _sum(self, f: Function, vector: Value) -> Value:
        return horizontal(f, reduction_of("reduce_sum"), Number(accumulator(self.a.q.dtype), (vector,))).value

    # gradients of keys, values and queries

    def _scratch(self, f: Function) -> _Scratch:
        a, b = self.a, self.b
        widths = b.padded(a.q.width), b.padded(a.v.width)
        logits = b.queries * b.pitch
        bends = logits if a.softcap else 0
        sizes = (b.queries * widths[0], b.queries * widths[1], logits, logits, bends, b.keys * widths[0], b.keys * widths[1])
        return _Scratch(*[f.alloca(b.work.type, size) for size in sizes])

    def _operands(self, f: Function, pointers: list[Value], group: Value) -> _Operands:
        workspace = pointers[self.workspace]
        return _Operands(pointers, workspace, *[p.base(f, self.b, workspace, group) for p in self.layout[:3]])

    def _keys_task(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the gradients of every so many-th block of keys of a group."""
        a, b, work = self.a, self.b, self.b.work
        chunk, group = f.divided(task, a.groups)
        scratch, operands = self._scratch(f), self._operands(f, pointers, group)
        head = f.times(group, a.shared)
        partial = self._partial(f, operands.workspace, chunk, head)
        fill(f, work, partial, a.shared * self.rows * b.padded(a.q.width))

        def keys(number_: Value, _: list[Value]) -> None:
            first = f.times(number_, b.keys)
            count = least(f, f.minus(i64(a.keys), first), i64(b.keys))
            tiles = rounded_up(f, count, b.tile)
            fill(f, work, scratch.to_k, b.keys * b.padded(a.k.width))
            fill(f, work, scratch.to_v, b.keys * b.padded(a.v.width))

            def head_of(index: Value, _: list[Value]) -> None:
                self._head(f, operands, scratch, f.plus(head, index), (first, count, tiles))

            f.loop(i64(0), i64(a.shared), 1, [], head_of, nonempty=True)
            for k, (rows, sums) in enumerate(((a.k, scratch.to_k), (a.v, scratch.to_v))):
                target = RowBlock(rows, head_address(f, pointers[self.gradients + 1 + k], rows, head), first)
                f.loop(i64(0), count, 1, [], lambda row, _, target=target, sums=sums: self._store_row(f, target, sums, row))  # type: ignore[misc]

        f.loop(chunk, i64(self.key_blocks), self.chunks, [], keys)

    def _store_row(self, f: Function, target: RowBlock, sums: Value, row: Value) -> None:
        work, rows = self.b.work, target.rows
        source, address = f.at(sums, work.type, f.times(row, self.b.padded(rows.width))), target.row(f, row)

        def vector(column: Value, count: Value | None) -> None:
            x = f.load(work.vector, f.at(source, work.type, column), work.itemsize)
            write(f, rows.dtype, x, at(f, address, rows.dtype.itemsize, column), count)

        each_vector(f, rows.width, work.lanes, vector)

    def _partial(self, f: Function, workspace: Value, chunk: Value, head: Value) -> Value:
        """Emit the address of a chunk's partial gradient of a head's queries."""
        number_ = f.plus(f.times(chunk, self.a.stack), head)
        return self._part(f, workspace, self.layout.partial, f.times(number_, self.rows * self.b.padded(self.a.q.width)))

    def _head(self, f: Function, operands: _Operands, scratch: _Scratch, head: Value, keys: tuple[Value, Value, Value]) -> None:
        """Emit what a head's queries contribute to the gradients of a block of keys.

        From these, Q's follow.
        """
        a, b = self.a, self.b
        first_key, count, tiles = keys
        chunk = f.remainder(f.quotient(first_key, b.keys), self.chunks)
        partial = self._partial(f, operands.workspace, chunk, head)
        q_pitch, v_pitch = b.padded(a.q.width), b.padded(a.v.width)

        def contribute(block: LogitBlock) -> None:
            self._weights(f, operands, scratch, block, head)
            transposed = Left(scratch.weights, 1, b.pitch)
            queries = i64(b.queries)
            cotangents = PanelOperand(scratch.cotangents, b.panel, v_pitch, a.v.width)
            multiply(f, b, transposed, cotangents, queries, Product(scratch.to_v, v_pitch, tiles), add=True)
            self._slopes(f, operands, scratch, block, head)
            transposed = Left(scratch.slopes, 1, b.pitch)
            rows = PanelOperand(scratch.queries, b.panel, q_pitch, a.q.width)
            multiply(f, b, transposed, rows, queries, Product(scratch.to_k, q_pitch, tiles), add=True)
            target = Product(f.at(partial, b.work.type, f.times(block.query, q_pitch)), q_pitch, i64(b.queries // b.tile))
            right = self.layout.k_rows.panels_from(f, b, operands.k_rows, block.key)
            multiply(f, b, Left(scratch.slopes, b.pitch, 1), right, block.width, target, add=True)

        self._each_block(f, operands, head, (first_key, count), contribute)

    def _each_block(
        self, f: Function, operands: _Operands, head: Value, keys: tuple[Value, Value], body: Callable[[LogitBlock], None]
    ) -> None:
        """Emit ``body(block)`` for the blocks of queries that a block of keys matters to."""
        a, b = self.a, self.b
        extra = logit_arrays(f, a, operands.pointers, head)

        def queries(number_: Value, _: list[Value]) -> None:
            block = LogitBlock(a, b, *extra, f.times(number_, b.queries), *keys)
            seen = block.is_seen(f)
            if a.may_be_blind:
                seen = f.branch(seen, lambda: [Value("i1", "true")], lambda: [self._some_blind(f, operands, head, block)])[0]
            f.branch(seen, lambda: body(block))

        f.loop(i64(0), i64(self.query_blocks), 1, [], queries, nonempty=True)

    def _some_blind(self, f: Function, operands: _Operands, head: Value, block: LogitBlock) -> Value:
        """Emit whether hidden keys matter to a query."""
        b = self.b
        statistics = self._statistics(f, operands.workspace, head, block.query)

        def check(row: Value, carried: list[Value]) -> list[Value]:
            largest = f.load(b.work.type, f.at(statistics, b.work.type, f.times(row, _STATISTICS)), b.work.itemsize)
            return [f.binary("or", carried[0], may_be_blind(f, self.a, b, largest))]

        rows = least(f, i64(b.queries), f.minus(i64(self.a.queries), block.query))
        return f.loop(i64(0), rows, 1, [Value("i1", "false")], check, nonempty=True)[0]

    def _weights(self, f: Function, operands: _Operands, scratch: _Scratch, block: LogitBlock, head: Value) -> None:
        """Emit the weights of a block of logits, and the rows that they are multiplied by."""
        a, b, work = self.a, self.b, self.b.work
        copy_rows(f, b, RowBlock(a.q, head_address(f, operands.pointers[0], a.q, head), block.query), scratch.queries, a.scale)
        cotangents = RowBlock(self.cotangent, head_address(f, operands.pointers[self.out + 2], self.cotangent, head), block.query)
        copy_rows(f, b, cotangents, scratch.cotangents)
        block.multiply(f, scratch.queries, self.layout.k_columns, operands.k_columns, scratch.weights)
        block.finish(f, scratch.weights, scratch.bends if a.softcap else None)
        statistics = self._statistics(f, operands.workspace, head, block.query)

        def row_of(row: Value, _: list[Value]) -> None:
            largest, inverse, _delta = self._row_statistics(f, statistics, row)

            def vector(offset: Value, column: Value, values: list[Value]) -> list[Value]:
                address = f.at(scratch.weights, work.type, offset)
                weight = exp(Lanes(f, f.load(work.vector, address, work.itemsize)) - largest) * inverse
                f.store(weight.value, address, work.itemsize)
                return values

            block.each_vector(f, row, [], vector)

        f.loop(i64(0), i64(b.queries), 1, [], row_of, nonempty=True)

    def _row_statistics(self, f: Function, statistics: Value, row: Value) -> list[Lanes]:
        work = self.b.work
        offsets = [f.plus(f.times(row, _STATISTICS), i64(k)) for k in range(_STATISTICS)]
        values = [f.load(work.type, f.at(statistics, work.type, offset), work.itemsize) for offset in offsets]
        return [Lanes(f, f.splat(value, work.lanes)) for value in values]

    def _slopes(
        self, f: Function, operands: _Operands, scratch: _Scratch, block: LogitBlock, head: Value, *, of_products: bool = True
    ) -> None:
        """Emit the cotangents of a block's logits, or of its scaled products."""
        a, b, work = self.a, self.b, self.b.work
        block.multiply(f, scratch.cotangents, self.layout.v_columns, operands.v_columns, scratch.slopes)
        statistics = self._statistics(f, operands.workspace, head, block.query)

        def row_of(row: Value, _: list[Value]) -> None:
            delta = self._row_statistics(f, statistics, row)[2]

            def vector(offset: Value, column: Value, values: list[Value]) -> list[Value]:
                address = f.at(scratch.slopes, work.type, offset)
                weight = Lanes(f, f.load(work.vector, f.at(scratch.weights, work.type, offset), work.itemsize))
                slope = (Lanes(f, f.load(work.vector, address, work.itemsize)) - delta) * weight
                if a.softcap and of_products:
                    slope = slope * Lanes(f, f.load(work.vector, f.at(scratch.bends, work.type, offset), work.itemsize))
                f.store(slope.value, address, work.itemsize)
                return values

            block.each_vector(f, row, [], vector)

        f.loop(i64(0), i64(b.queries), 1, [], row_of, nonempty=True)
        if a.may_be_blind:
            f.branch(block.hides(f), lambda: self._hide(f, scratch, block))

    def _hide(self, f: Function, scratch: _Scratch, block: LogitBlock) -> None:
        """Set the cotangents of logits of hidden keys, which may have weights, to 0."""
        work = self.b.work

        def row_of(row: Value, _: list[Value]) -> None:
            def vector(offset: Value, column: Value, values: list[Value]) -> list[Value]:
                address = f.at(scratch.slopes, work.type, offset)
                seen = block.visible(f, row, column)
                assert seen is not None
                slope = Lanes(f, seen).select(Lanes(f, f.load(work.vector, address, work.itemsize)), 0.0)
                f.store(slope.value, address, work.itemsize)
                return values

            block.each_vector(f, row, [], vector)

        f.loop(i64(0), i64(self.b.queries), 1, [], row_of, nonempty=True)

    def _sum_task(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the sum of the partial gradients of some queries, times the scale."""
        a, b, work = self.a, self.b, self.b.work
        tasks = -(-self.rows // _SUMMED_ROWS)
        head, part = f.divided(task, tasks)
        begin, end = task_range(f, part, a.queries, tasks)
        target = RowBlock(a.q, head_address(f, pointers[self.gradients], a.q, head), i64(0))
        partials = [self._partial(f, pointers[self.workspace], i64(chunk), head) for chunk in range(self.chunks)]
        scale = Lanes(f, f.splat(number(work, a.scale), work.lanes))

        def row_of(row: Value, _: list[Value]) -> None:
            address = target.row(f, row)

            def vector(column: Value, count: Value | None) -> None:
                offset = f.plus(f.times(row, b.padded(a.q.width)), column)
                values = [Lanes(f, f.load(work.vector, f.at(partial, work.type, offset), work.itemsize)) for partial in partials]
                total = values[0]
                for value in values[1:]:
                    total = total + value
                write(f, a.q.dtype, (total * scale).value, at(f, address, a.q.dtype.itemsize, column), count)

            each_vector(f, a.q.width, work.lanes, vector)

        f.loop(begin, end, 1, [], row_of)

    # the gradient of the bias

    def _bias_sizes(self) -> tuple[int, int, int]:
        """Return the sizes of the bias's gradient in the workspace.

        They are those of heads and queries, and whole vectors of keys.
        """
        assert self.a.bias is not None
        walk = self.a.bias
        heads = prod([size for size, stride in zip(walk.heads.sizes, walk.heads.strides, strict=True) if stride])
        return heads, self.a.queries if walk.query else 1, self.b.padded(self.a.keys) + self.b.panel if walk.key else self.b.work.lanes

    def _write_bias(self, walk: LogitWalk, cost: float) -> None:
        """Add the launches that compute the gradient of the bias."""
        heads, _, _ = self._bias_sizes()
        parts = self.key_blocks if walk.key else 1
        self.writer.launch(heads * parts, cost, lambda f, pointers, task: self._bias_task(f, pointers, task, walk))
        tasks = chunk_count(heads * self._bias_sizes()[1], 16)
        elements = heads * self._bias_sizes()[1] * (self.a.keys if walk.key else 1)
        self.writer.launch(tasks, elements * _SUM, lambda f, pointers, task: self._bias_rows_task(f, pointers, task, walk, tasks))

    def _bias_task(self, f: Function, pointers: list[Value], task: Value, walk: LogitWalk) -> None:
        """Emit the sums of logits' cotangents over what shares elements of the bias."""
        a, b, work = self.a, self.b, self.b.work
        _, rows, columns = self._bias_sizes()
        parts = self.key_blocks if walk.key else 1
        bias_head, part = f.divided(task, parts)
        scratch = self._scratch(f)
        target = self._part(f, pointers[self.workspace], self.layout.to_bias, f.times(bias_head, rows * columns))
        distinct = [(size, stride) for size, stride in zip(walk.heads.sizes, walk.heads.strides, strict=True) if stride]
        coordinates = iter(f.coordinates(bias_head, [size for size, _ in distinct]))
        fixed = [next(coordinates) if stride else None for stride in walk.heads.strides]
        shared = [size for size, stride in zip(walk.heads.sizes, walk.heads.strides, strict=True) if not stride]

        def add(address: Value, value: Value) -> None:
            f.store(f.binary("fadd", f.load(work.vector, address, work.itemsize), value), address, work.itemsize)

        def accumulate(block: LogitBlock) -> None:
            def row_of(row: Value, _: list[Value]) -> None:
                to_row = f.at(target, work.type, f.times(f.plus(block.query, row), columns)) if walk.query else target

                def vector(offset: Value, column: Value, values: list[Value]) -> list[Value]:
                    slope = f.load(work.vector, f.at(scratch.slopes, work.type, offset), work.itemsize)
                    if walk.key:
                        add(f.at(to_row, work.type, f.plus(block.key, column)), slope)
                        return values
                    return [f.binary("fadd", values[0], slope)]

                totals = block.each_vector(f, row, [] if walk.key else [work.zero()], vector)
                if totals:
                    add(to_row, totals[0])

            f.loop(i64(0), least(f, i64(b.queries), f.minus(i64(a.queries), block.query)), 1, [], row_of, nonempty=True)

        def head_of(index: Value, _: list[Value]) -> None:
            others = iter(f.coordinates(index, shared))
            coordinates_ = [next(others) if c is None else c for c in fixed]
            sizes = walk.heads.sizes
            head = f.dotted(coordinates_, [prod(sizes[d + 1 :]) for d in range(len(sizes))])
            operands = self._operands(f, pointers, f.quotient(head, a.shared))

            def keys(number_: Value, _: list[Value]) -> None:
                first = f.times(number_, b.keys)

                def contribute(block: LogitBlock) -> None:
                    self._weights(f, operands, scratch, block, head)
                    self._slopes(f, operands, scratch, block, head, of_products=False)
                    accumulate(block)

                self._each_block(f, operands, head, (first, least(f, f.minus(i64(a.keys), first), i64(b.keys))), contribute)

            f.loop(part if walk.key else i64(0), f.plus(part, i64(1)) if walk.key else i64(self.key_blocks), 1, [], keys, nonempty=True)

        self._zero_bias(f, target, part, walk)
        f.loop(i64(0), i64(prod(shared)), 1, [], head_of, nonempty=True)

    def _zero_bias(self, f: Function, target: Value, part: Value, walk: LogitWalk) -> None:
        """Emit zeros where a task adds."""
        b, work = self.b, self.b.work
        _, rows, columns = self._bias_sizes()
        begin = f.times(part, b.keys) if walk.key else i64(0)
        last = f.compare("icmp eq", part, i64(self.key_blocks - 1))
        count = f.select(last, f.minus(i64(columns), begin), i64(b.keys)) if walk.key else i64(columns)
        f.loop(
            i64(0),
            i64(rows),
            1,
            [],
            lambda row, _: fill(f, work, f.at(target, work.type, f.plus(f.times(row, columns), begin)), count),
            nonempty=True,
        )

    def _bias_rows_task(self, f: Function, pointers: list[Value], task: Value, walk: LogitWalk, tasks: int) -> None:
        """Emit the bias's gradient in its own dtype."""
        a, work = self.a, self.b.work
        heads, rows, columns = self._bias_sizes()
        width = a.keys if walk.key else 1
        begin, end = task_range(f, task, heads * rows, tasks)
        source, itemsize = self._part(f, pointers[self.workspace], self.layout.to_bias, i64(0)), walk.dtype.itemsize

        def row_of(row: Value, _: list[Value]) -> None:
            sums, target = (
                f.at(source, work.type, f.times(row, columns)),
                at(f, pointers[self.gradients + 3], itemsize, f.times(row, width)),
            )
            if not walk.key:
                total = self._sum(f, f.load(work.vector, sums, work.itemsize))
                write(f, walk.dtype, self._as(f, total, walk), target)
                return

            def vector(column: Value, count: Value | None) -> None:
                x = self._as(f, f.load(work.vector, f.at(sums, work.type, column), work.itemsize), walk)
                write(f, walk.dtype, x, at(f, target, itemsize, column), count)

            each_vector(f, width, work.lanes, vector)

        f.loop(begin, end, 1, [], row_of)

    def _as(self, f: Function, x: Value, walk: LogitWalk) -> Value:
        """Emit numbers in the dtype that the bias's dtype is computed in."""
        wide = Lanes(f, x)
        return wide.narrowed().value if wide.bits == 64 and accumulator(walk.dtype).itemsize == 4 else x
