"""Attention by blocks of keys, with a running softmax.

As in FlashAttention-2 (Dao 2023), each query keeps the largest logit so far and the sum of weights relative to it. Earlier sums are scaled
when the largest logit grows, and the result is divided once. A task has a block of queries of a head; keys and values are packed ahead.

Products of bfloat16 are those of pairs, where the CPU has an instruction for them: of features, and of keys. Logits and sums are float32.
Weights are rounded to bfloat16 for the second product.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.attention import Attention
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
    reserve,
    rounded_up,
    write,
)
from volta_fn.targets.cpu.routine import Routine, RoutineWriter
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


class _State(NamedTuple):
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
        state = _State(*[f.alloca(work.type, size) for size in sizes])
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
        _store(f, block, state, pointers[out : out + 2], head)

    writer.launch(a.stack * blocks, a.products / b.work.lanes * STEP, task)
    return writer.routine(starts[-1])


def _attend(
    f: Function, block: LogitBlock, state: _State, packed: tuple[Packed, Packed], bases: tuple[Value, Value], skips: Value
) -> Value:
    """Emit the sums of a block of queries over keys.

    Return whether hidden keys count for a query. If it `skips`, keys are those that some of the queries see, or else all of them.
    """
    a, b = block.a, block.b
    fill(f, b.work, state.sums, b.queries * b.padded(a.v.width))
    fill(f, b.work, state.totals, b.queries * b.work.lanes)
    lowest = largest_number(b.work, -1.0)  # from which a logit of -inf still differs by -inf
    f.loop(i64(0), i64(b.queries), 1, [], lambda row, _: f.store(lowest, f.at(state.largest, b.work.type, row), b.work.itemsize))
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
            _exponentiate(f, here, state)
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
    rows = least(f, i64(b.queries), f.minus(i64(a.queries), block.query))

    def check(row: Value, carried: list[Value]) -> list[Value]:
        largest = f.load(b.work.type, f.at(state.largest, b.work.type, row), b.work.itemsize)
        return [f.binary("or", carried[0], may_be_blind(f, a, b, largest))]

    return f.loop(i64(0), rows, 1, [Value("i1", "false")], check, nonempty=True)[0] if a.may_be_blind else Value("i1", "false")


def _exponentiate(f: Function, block: LogitBlock, state: _State) -> None:
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


def _scale_logits(f: Function, block: LogitBlock, state: _State) -> None:
    """Emit the scaling of products of pairs, whose factors are as in memory."""
    b = block.b
    factor = f.splat(number(b.work, block.a.scale), b.work.lanes)

    def vector(offset: Value, _: Value, values: list[Value]) -> list[Value]:
        _scale(f, b, f.at(state.logits, b.work.type, offset), factor)
        return values

    f.loop(i64(0), i64(b.queries), 1, [], lambda row, _: block.each_vector(f, row, [], vector), nonempty=True)


def _scale(f: Function, b: BlockSizes, address: Value, factor: Value) -> None:
    f.store(f.binary("fmul", f.load(b.work.vector, address, b.work.itemsize), factor), address, b.work.itemsize)


def _store(f: Function, block: LogitBlock, state: _State, results: list[Value], head: Value) -> None:
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
