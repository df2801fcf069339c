"""Kernels of attention on matrix units, and of its gradients.

As in FlashAttention-2 (Dao 2023), each query keeps the largest product so far and the sum of weights relative to it; sums are scaled when
that maximum grows. Weights are rounded to 16 bits for the product with the values, their sums are not.

With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
products is P (D Vᵀ - δ), from which those of Q and K follow. Three dispatches: one number for each query from which its weights follow, and
δ; the gradient of Q by blocks of queries; those of K and V by blocks of keys. The last ones compute the weights each for itself, so that no
two blocks add to the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.attention.groups import GroupKernel, GroupSchedule
from volta_fn.targets.nvidia.attention.tiles import (
    ELEMENTS,
    FRAGMENT,
    AttentionKernel,
    AttentionSchedule,
    FragmentKernel,
    Fragments,
    KeyBlock,
    QueryKernel,
    Sums,
    exponent_factor,
    first_maximum,
    key_block_place,
    key_tiles,
    masked,
    masked_by_keys,
    query_arrays,
    query_block,
)
from volta_fn.targets.nvidia.kernel import ZERO, KernelFunction, KernelHeader, f32, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import UNIT
from volta_fn.targets.nvidia.matrix_units import ROWS
from volta_fn.targets.wgsl.routine import Dispatch

AnySchedule = AttentionSchedule | GroupSchedule

# Attention by `mma.sync`.

#: Chains in which the products of a row are combined.
_CHAINS = 4


def forward_dispatch(a: Attention, schedule: AnySchedule) -> Dispatch:
    """Return the dispatch.

    Its buffers are q, k, v, the result, and statistics of each query: its largest logit and the sum of its weights relative to that.
    """
    kernel = _GroupForward(a, schedule) if isinstance(schedule, GroupSchedule) else _Forward(a, schedule)
    return kernel.dispatch(range(5), 2)


class _Forward(QueryKernel):
    """The kernel."""

    def text(self) -> str:
        """Return the module."""
        f, a, s, keys, values = self.f, self.a, self.schedule, self.keys, self.values
        of_keys, of_values = keys.addresses(i32(0), crossed=True), values.addresses(i32(0), crossed=False)
        query = f.plus(self.first, self.first_row)

        def begin() -> None:
            self.queries = self.rows_of(self.row_tiles[0])

        def body(tile_number: Value, stage: Value, state: list[Value]) -> list[Value]:
            rows = 2 * s.fragments
            maxima, totals, sums = state[:rows], state[rows : 2 * rows], self.nested(state[2 * rows :])
            pointers = keys.pointers(of_keys, stage), values.pointers(of_values, stage)
            for start in range(0, s.tile, s.step):
                logits = self.products(self.queries, keys, pointers[0], start)
                key = f.plus(f.times(tile_number, s.tile), i32(start))
                logits = masked(self, a, logits, query, key)
                maxima, totals, growths = exponentiate(self, self.factor, logits, maxima, totals)
                scale_rows(self, sums, growths)
                self.add_products(sums, self.fragments(logits), values, pointers[1], start)
            return [*maxima, *totals, *self.flat(sums)]

        state = [*[first_maximum(a)] * (2 * s.fragments), *[ZERO] * (2 * s.fragments), *self.flat(self.zeros(self.width))]
        finish(self, a, self.head, self.first, self.row_tiles[0].offset, self.over_keys(begin, state, body, query))
        return f.text()


def exponentiate(
    kernel: FragmentKernel, factor: Value, logits: Sums, maxima: Sequence[Value], totals: Sequence[Value]
) -> tuple[list[Value], list[Value], list[Value]]:
    """Replace products by weights relative to the largest so far of their rows.

    Return the largest products, the sums of weights, and what each row's earlier sums have to be scaled by.
    """
    f = kernel.f
    maxima, totals, growths = list(maxima), list(totals), []
    for row in range(2 * kernel.warp_tile.fragments):
        i, half = divmod(row, 2)
        products = [x for columns in logits[i] for x in columns[2 * half : 2 * half + 2]]
        largest = f.fmax(maxima[row], kernel.across_row(f.fmax, _combined(f.fmax, products)))
        growths.append(f.exp2(f.fmul(f.fsub(maxima[row], largest), factor)))
        shift = f.fmul(f.let("float", f"fneg {largest}"), factor)
        weights = [f.exp2(f.fma(x, factor, shift)) for x in products]
        total = f.fma(totals[row], growths[row], _combined(f.fadd, weights))
        for n, columns in enumerate(logits[i]):
            columns[2 * half : 2 * half + 2] = weights[2 * n : 2 * n + 2]
        maxima[row], totals[row] = largest, total
    return maxima, totals, growths


def scale_rows(kernel: FragmentKernel, sums: Sums, factors: Sequence[Value]) -> None:
    """Multiply the sums of each row by its factor."""
    for row, factor in enumerate(factors):
        i, half = divmod(row, 2)
        for columns in sums[i]:
            columns[2 * half : 2 * half + 2] = [kernel.f.fmul(x, factor) for x in columns[2 * half : 2 * half + 2]]


def _combined(combine: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Combine values in several independent chains, whose latencies hide each other."""
    chains = list(values[:_CHAINS])
    for n, x in enumerate(values[_CHAINS:]):
        chains[n % _CHAINS] = combine(chains[n % _CHAINS], x)
    while len(chains) > 1:
        chains = [combine(*chains[k : k + 2]) if k + 1 < len(chains) else chains[k] for k in range(0, len(chains), 2)]
    return chains[0]


def finish(kernel: FragmentKernel, a: Attention, head: Value, first: Value, offset: int, state: list[Value]) -> None:
    """Divide by the sums of weights, and store the result and the statistics.

    `state` has the largest products, the sums of weights, and the sums of the block's rows from `first` on; for `offset` see `store`.
    """
    f, rows = kernel.f, 2 * kernel.warp_tile.fragments
    totals = [kernel.across_row(f.fadd, total) for total in state[rows : 2 * rows]]
    sums = kernel.nested(state[2 * rows :])
    scale_rows(kernel, sums, [f.intrinsic("llvm.nvvm.rcp.approx.ftz.f", "float", total) for total in totals])
    for row, (largest, total) in enumerate(zip(state[:rows], totals, strict=True)):
        i, half = divmod(row, 2)
        query = f.plus(first, kernel.first_row, kernel.g, i32(FRAGMENT * i + 8 * half))
        with f.only_if(f.binary("and", f.equals(kernel.t, 0), f.below(query, a.queries))):
            at = f.widened_index(f.times(f.plus(f.binary("mul", head, i32(a.queries)), query), 8))
            to = f.further(f.bindings[4], at)
            f.store(f.fmul(largest, f32(a.scale)), to, 8)
            f.store(total, f.further(to, i64(4)), 4)
    kernel.store(a.out, offset, 3, head, first, sums)


# Attention by `wgmma`, for GPUs of compute capability 9.0.
#
# The next tile's keys are multiplied together with the values of a tile, and their weights are computed meanwhile. The rest is as
# above.


class _GroupQueryKernel(GroupKernel):
    """A kernel whose blocks have queries of one head, as `QueryKernel`s have."""

    def __init__(self, a: Attention, schedule: GroupSchedule, cotangent: Rows | None = None) -> None:
        super().__init__(a, schedule, *query_arrays(a, cotangent))
        self.blocks = -(-a.queries // schedule.rows) * a.stack
        self.head, self.first = query_block(self.f, a, schedule.rows)
        self.count = key_tiles(self.f, a, self.first, schedule.rows, schedule.tile)


class _GroupForward(_GroupQueryKernel):
    """The kernel under construction."""

    is_second_later = True

    def compute(self) -> None:
        """Append what a warp group computes."""
        f, a, tile = self.f, self.a, self.schedule.tile
        (queries,), (keys, values) = self.row_arrays, self.column_arrays
        query = f.plus(self.first, self.first_row)

        def weigh(
            logits: list[Value], tile_number: Value, state: list[Value], is_masked: bool | None
        ) -> tuple[list[Value], list[Value], list[Value]]:
            """Return weights, the statistics of rows, and what earlier sums are scaled by.

            The statistics are the largest products, and the sums of weights.
            """
            nested = self.nested(logits)
            if is_masked is not False:
                nested = masked(self, a, nested, query, f.times(tile_number, tile), branches=is_masked is None)
            maxima, totals, growths = exponentiate(self, self.factor, nested, state[:2], state[2:4])
            return self.flat(nested), [*maxima, *totals], growths

        def weights_of(words: list[Value]) -> list[list[list[Value]]]:
            return [[words[k : k + 4] for k in range(0, len(words), 4)]]

        def words_of(weights: list[Value]) -> list[Value]:
            return [word for fragment in self.fragments(self.nested(weights))[0] for word in fragment]

        def multiply_tile(tile_number: Value, state: list[Value], is_masked: bool | None) -> list[Value]:
            stage, parity, last, last_parity, *rest = state
            statistics, sums, words = rest[:4], rest[4 : 4 + self.width // 2], rest[4 + self.width // 2 :]
            self.pipelines[0].wait(stage, parity)
            self.take_turn()
            logits = self.begin_products(queries, keys, stage)
            self.pipelines[1].wait(last, last_parity)
            sums = self.begin_adding(sums, weights_of(words), values, last)
            self.end_turn()
            logits = self.await_products(logits, 1)
            self.pipelines[0].release(stage)
            weights, statistics, growths = weigh(logits, tile_number, statistics, is_masked)
            self.settle(statistics[2:4])
            sums = self.await_products(sums)
            self.pipelines[1].release(last)
            scaled = self.nested(sums)
            scale_rows(self, scaled, growths)
            return [*self.pipelines[0].next(stage, parity), stage, parity, *statistics, *self.flat(scaled), *words_of(weights)]

        self.begin_turns()
        self.pipelines[0].wait(i32(0), i32(0))
        logits = self.await_products(self.begin_products(queries, keys, i32(0)))
        self.pipelines[0].release(i32(0))
        weights, statistics, _ = weigh(logits, i32(0), [*[first_maximum(a)] * 2, ZERO, ZERO], None)
        begin = [
            *self.pipelines[0].next(i32(0), i32(0)),
            i32(0),
            i32(0),
            *statistics,
            *self.flat(self.zeros(self.width)),
            *words_of(weights),
        ]
        last, last_parity, *rest = self.over_tiles(1, self.first_masked(), False, begin, multiply_tile)[2:]
        self.pipelines[1].wait(last, last_parity)
        sums = self.await_products(self.begin_adding(rest[4 : 4 + self.width // 2], weights_of(rest[4 + self.width // 2 :]), values, last))
        finish(self, a, self.head, self.first, self.begin_results(), [*rest[:4], *sums])


# Statistics of queries.
#
# A first dispatch writes them to a workspace.

# The buffers of the routine.
_Q, _K, _V, _OUT, _STATISTICS, _COTANGENT, TO_Q, TO_K, TO_V, WORK = range(10)

#: The first bindings of the kernels of gradients, which follow.
OPERANDS = _Q, _K, _V, _COTANGENT, WORK

#: Bytes of a query's numbers in the workspace: the logarithm to base 2 of the sum of its weights' numerators, and δ, both negated.
PAIR = 8

#: Threads of a block of the first dispatch.
_THREADS = 128


#: What the number of a head's pairs is a multiple of: the queries of the largest tile. Those beyond the last query are zeros.
MOST_QUERIES = 64


def padded(a: Attention) -> int:
    """Return the pairs of a head in the workspace."""
    return -(-a.queries // MOST_QUERIES) * MOST_QUERIES


def workspace(a: Attention) -> int:
    """Return the bytes of the workspace."""
    return PAIR * a.stack * padded(a)


# The numbers of each query.


def statistics_dispatch(a: Attention, cotangent: Rows, zeros: tuple[int, int] | None = None) -> Dispatch:
    """Return the dispatch that writes the numbers of each query to the workspace.

    It sets words to zero, too: `zeros` are the byte of the first one and their count.
    """
    f = KernelFunction(0, 4, _THREADS)
    units = a.out.width // ELEMENTS
    line, unit = f.divided(f.thread, units)
    row = f.plus(f.times(f.special("ctaid.x"), _THREADS // units), line)
    count = a.stack * padded(a)
    if zeros is not None:
        start, words = zeros
        number = f.plus(f.times(f.special("ctaid.x"), _THREADS), f.thread)
        with f.only_if(f.below(number, words)):
            f.store(i32(0), f.element(f.further(f.bindings[3], i64(start)), f.widened_index(number), 4), 4)
    head, position = f.divided(f.umin(row, i32(count - 1)), padded(a))
    query = f.umin(position, i32(a.queries - 1))
    results, cotangents = (_unit(f, f.bindings[binding], rows, head, query, unit) for binding, rows in ((0, a.out), (2, cotangent)))
    total = ZERO
    for x, y in zip(results, cotangents, strict=True):
        total = f.fma(x, y, total)
    total = f.reduce_lanes(f.fadd, total, [units >> k for k in range(1, units.bit_length())])
    with f.only_if(f.binary("and", f.equals(unit, 0), f.below(row, count))):
        at = f.further(f.bindings[1], f.times(f.plus(f.times(head, a.queries), query), 8))
        largest, weights = f.load("float", at, 8), f.load("float", f.further(at, i64(4)), 4)
        exponent = f.intrinsic("llvm.nvvm.lg2.approx.f", "float", weights)
        exponent = f.fma(largest, f32(math.log2(math.e)), exponent)
        to = pair_pointer(f, a, 3, head, position)
        exists = f.below(position, a.queries)
        for k, x in enumerate((exponent, total)):
            f.store(f.select(exists, f.let("float", f"fneg {x}"), ZERO), f.further(to, i64(4 * k)), 8 - 4 * k)
    buffers, blocks = (_OUT, _STATISTICS, _COTANGENT, WORK), -(-count * units // _THREADS)
    return kernel_dispatch(KernelHeader(_THREADS, 0), buffers, 1, f.text(), blocks)


def _unit(f: KernelFunction, base: Value, rows: Rows, head: Value, row: Value, unit: Value) -> list[Value]:
    """Load eight neighbours of a row, as float32."""
    offset = f.wide_times(row, rows.step)
    total = f.binary("add", f.offset(head, rows.heads), f.binary("add", offset, f.widened_index(f.times(unit, ELEMENTS))))
    words = f.load("<4 x i32>", f.element(base, total, 2), 16)
    if rows.dtype == np.float16:
        return [f.cast("fpext", half, "float") for half in f.elements(f.cast("bitcast", words, "<8 x half>"))]
    return [number for word in f.elements(words) for number in f.unpacked(word, rows.dtype)]


# What other kernels read.


def pair_pointer(f: KernelFunction, a: Attention, binding: int, head: Value, query: Value) -> Value:
    """Return the pointer to the numbers of a query in the workspace."""
    return f.further(f.bindings[binding], f.times(f.plus(f.times(head, padded(a)), query), PAIR))


def row_pair(f: KernelFunction, a: Attention, head: Value, query: Value) -> list[Value]:
    """Load the numbers of a query; those beyond the last get its own."""
    at = pair_pointer(f, a, 4, head, f.umin(query, i32(a.queries - 1)))
    return [f.load("float", at, 8), f.load("float", f.further(at, i64(4)), 4)]


def column_pairs(kernel: FragmentKernel, offset: Value, columns: int) -> list[list[list[Value]]]:
    """Load the pairs of the lane's two queries of each eight, from shared memory."""
    f = kernel.f
    base = f.plus(offset, f.times(kernel.t, UNIT))
    result = []
    for n in range(columns // 8):
        numbers = f.elements(f.load("<4 x float>", f.shared(f.plus(base, i32(8 * PAIR * n))), 16))
        result.append([numbers[:2], numbers[2:]])
    return result


# The gradient of Q by `mma.sync`.


def query_dispatch(a: Attention, cotangent: Rows, schedule: AnySchedule) -> Dispatch:
    """Return the dispatch that computes the gradient of Q."""
    kernel = _GroupByQueries(a, schedule, cotangent) if isinstance(schedule, GroupSchedule) else _ByQueries(a, schedule, cotangent)
    return kernel.dispatch((*OPERANDS, TO_Q), 1)


class _ByQueries(QueryKernel):
    """The kernel."""

    def text(self) -> str:
        """Return the module."""
        f, a, s, keys, values = self.f, self.a, self.schedule, self.keys, self.values
        of_keys, of_values = keys.addresses(i32(0), crossed=True), values.addresses(i32(0), crossed=True)
        of_products = keys.addresses(i32(0), crossed=False)
        query = f.plus(self.first, self.first_row)
        pairs = [row_pair(f, a, self.head, f.plus(query, self.g, i32(8 * k))) for k in range(2 * s.fragments)]

        def begin() -> None:
            self.queries, self.cotangents = [self.rows_of(tile) for tile in self.row_tiles]

        def body(tile_number: Value, stage: Value, state: list[Value]) -> list[Value]:
            sums = self.nested(state)
            key_pointers, value_pointers = keys.pointers(of_keys, stage), values.pointers(of_values, stage)
            product_pointers = keys.pointers(of_products, stage)
            for start in range(0, s.tile, s.step):
                logits = self.products(self.queries, keys, key_pointers, start)
                key = f.plus(f.times(tile_number, s.tile), i32(start))
                weights = masked(self, self.a, logits, query, key)
                slopes = [[[pairs[2 * i + k // 2][1] for k in range(4)] for _ in columns] for i, columns in enumerate(weights)]
                slopes = self.products(self.cotangents, values, value_pointers, start, slopes)
                for i, columns in enumerate(weights):
                    for n, x in enumerate(columns):
                        for k in range(4):
                            weight = f.exp2(f.fma(x[k], self.factor, pairs[2 * i + k // 2][0]))
                            slopes[i][n][k] = f.fmul(weight, slopes[i][n][k])
                self.add_products(sums, self.fragments(slopes), keys, product_pointers, start)
            return self.flat(sums)

        state = self.over_keys(begin, self.flat(self.zeros(self.width)), body, query)
        sums = self.nested([f.fmul(x, f32(a.scale)) for x in state])
        self.store(self.row_tiles[0].rows, self.row_tiles[0].offset, 5, self.head, self.first, sums)
        return f.text()


# The gradients of K and V by `mma.sync`.


def key_dispatch(a: Attention, cotangent: Rows, schedule: AnySchedule) -> Dispatch:
    """Return the dispatch that computes the gradients of K and V."""
    kernel = GroupByKeys(a, cotangent, schedule) if isinstance(schedule, GroupSchedule) else _ByKeys(a, cotangent, schedule)
    return kernel.dispatch((*OPERANDS, TO_K, TO_V), 2)


class _ByKeys(AttentionKernel):
    """The kernel: a block has keys of one head of K and V.

    Products are transposed: their rows are keys. Sums go over the queries of all heads that share it.
    """

    def __init__(self, a: Attention, cotangent: Rows, schedule: AttentionSchedule) -> None:
        super().__init__(schedule, 7, [(1, a.k), (2, a.v)], [(0, a.q), (3, cotangent)], PAIR)
        self.a = a
        self.blocks = -(-a.keys // schedule.rows) * a.groups
        self.factor = exponent_factor(a)

    def text(self) -> str:
        """Return the module."""
        f, a, s = self.f, self.a, self.schedule
        self.block = KeyBlock(f, a, s.rows, s.tile, key_block_place(f, a))
        first, self.head = self.block.first, self.block.head
        self.copy_rows(self.head, first)
        queries, cotangents = self.column_tiles
        crossed = [tile.addresses(i32(0), crossed=True) for tile in self.column_tiles]
        plain = [tile.addresses(i32(0), crossed=False) for tile in self.column_tiles]
        key = f.plus(first, self.first_row)
        self.sources = [tile.source(self.head) for tile in self.column_tiles]

        def begin() -> None:
            self.keys, self.values = [self.rows_of(tile) for tile in self.row_tiles]

        def body(tile_number: Value, stage: Value, state: list[Value]) -> list[Value]:
            to_k, to_v = self.nested(state[: len(state) // 2]), self.nested(state[len(state) // 2 :])
            by_rows = [tile.pointers(addresses, stage) for tile, addresses in zip(self.column_tiles, crossed, strict=True)]
            for_sums = [tile.pointers(addresses, stage) for tile, addresses in zip(self.column_tiles, plain, strict=True)]
            _, first_query = self.block.position(tile_number)
            for start in range(0, s.tile, s.step):
                pairs = column_pairs(self, f.plus(stage, i32(self.extra + PAIR * start)), s.step)
                logits = self.products(self.keys, queries, by_rows[0], start)
                weights = masked_by_keys(self, a, logits, key, f.plus(first_query, i32(start)))
                for columns in weights:
                    for n, x in enumerate(columns):
                        columns[n] = [f.exp2(f.fma(x[k], self.factor, pairs[n][k % 2][0])) for k in range(4)]
                self.add_products(to_v, self.fragments(weights), cotangents, for_sums[1], start)
                slopes = [[[pairs[n][k % 2][1] for k in range(4)] for n in range(len(columns))] for columns in weights]
                slopes = self.products(self.values, cotangents, by_rows[1], start, slopes)
                for columns, others in zip(slopes, weights, strict=True):
                    for n, x in enumerate(columns):
                        columns[n] = [f.fmul(one, other) for one, other in zip(x, others[n], strict=True)]
                self.add_products(to_k, self.fragments(slopes), queries, for_sums[0], start)
            return [*self.flat(to_k), *self.flat(to_v)]

        def is_seen(tile_number: Value) -> Value:
            """Emit whether the tile's last query sees the warp's first key."""
            return f.compare("icmp uge", f.plus(self.block.position(tile_number)[1], i32(s.tile - 1)), key)

        state = 2 * self.flat(self.zeros(self.width))
        sums = self.iterate(self.block.count, self._copy, begin, state, body, is_seen if a.causal else None)
        half = len(sums) // 2
        to_k = self.nested([f.fmul(x, f32(a.scale)) for x in sums[:half]])
        for tile, binding, gradient in zip(self.row_tiles, (5, 6), (to_k, self.nested(sums[half:])), strict=True):
            self.store(tile.rows, tile.offset, binding, self.head, first, gradient)
        return f.text()

    def _copy(self, tile_number: Value, stage: Value) -> None:
        """Begin to copy a tile of queries and of cotangents, and their pairs of numbers."""
        f, a = self.f, self.a
        head, first_query = self.block.position(tile_number)
        sources = self.sources if a.shared == 1 else [tile.source(head) for tile in self.column_tiles]
        for tile, source in zip(self.column_tiles, sources, strict=True):
            tile.copy(source, first_query, stage)
        pairs = UNIT // PAIR
        with f.only_if(f.below(f.thread, self.schedule.tile // pairs)):
            query = f.plus(first_query, f.times(f.thread, pairs))
            at = pair_pointer(f, a, 4, head, query)
            f.copy_unit(f.plus(stage, f.times(f.thread, UNIT), i32(self.extra)), at, i32(UNIT))


# The gradients by `wgmma`, for GPUs of compute capability 9.0.
#
# They are computed as above. The products of queries and keys, and those of cotangents and values, are begun together; the weights
# follow from the first while the second are computed. Rows of the further products' left operands stay in registers.


class _GroupByQueries(_GroupQueryKernel):
    """The kernel under construction."""

    def compute(self) -> None:
        """Append what a warp group computes."""
        f, a, tile = self.f, self.a, self.schedule.tile
        (queries, cotangents), (keys, values) = self.row_arrays, self.column_arrays
        query = f.plus(self.first, self.first_row)
        pairs = [row_pair(f, a, self.head, f.plus(query, self.g, i32(8 * k))) for k in range(2)]

        def multiply_tile(tile_number: Value, state: list[Value], is_masked: bool | None) -> list[Value]:
            stage, parity, *sums = state
            self.pipelines[0].wait(stage, parity)
            self.pipelines[1].wait(stage, parity)
            self.take_turn()
            logits = self.begin_products(queries, keys, stage)
            slopes = self.begin_products(cotangents, values, stage)
            self.end_turn()
            weights = self.nested(self.await_products(logits, 1))
            if is_masked is not False:
                weights = masked(self, a, weights, query, f.times(tile_number, tile), branches=is_masked is None)
            for columns in weights[0]:
                columns[:] = [f.exp2(f.fma(x, self.factor, pairs[k // 2][0])) for k, x in enumerate(columns)]
            results = self.nested(self.await_products(slopes))
            self.pipelines[1].release(stage)
            for columns, others in zip(results[0], weights[0], strict=True):
                columns[:] = [f.fmul(others[k], f.fadd(x, pairs[k // 2][1])) for k, x in enumerate(columns)]
            sums = self.await_products(self.begin_adding(sums, self.fragments(results), keys, stage))
            self.pipelines[0].release(stage)
            return [*self.pipelines[0].next(stage, parity), *sums]

        self.begin_turns()
        begin = [i32(0), i32(0), *self.flat(self.zeros(self.width))]
        state = self.over_tiles(0, self.first_masked(), False, begin, multiply_tile)[2:]
        sums = self.nested([f.fmul(x, f32(a.scale)) for x in state])
        self.store(queries.rows, self.begin_results(), 5, self.head, self.first, sums)


class GroupByKeys(GroupKernel):
    """The kernel under construction."""

    def __init__(self, a: Attention, cotangent: Rows, schedule: GroupSchedule) -> None:
        super().__init__(a, schedule, 7, [(1, a.k), (2, a.v)], [(0, a.q), (3, cotangent)], PAIR)
        self.blocks = -(-a.keys // schedule.rows) * a.groups
        self.block = KeyBlock(self.f, a, schedule.rows, schedule.tile, self.place())
        self.head, self.first, self.count = self.block.head, self.block.first, self.block.count

    def place(self) -> tuple[Value, Value]:
        """Return the block's number among those of a head of K and V, and the head."""
        return key_block_place(self.f, self.a)

    def position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile, and its first row."""
        return self.block.position(tile_number)

    def begin_tile(self, tile_number: Value) -> None:
        """Append what comes before the products with a tile."""

    def visible(self, weights: Sums) -> Sums:
        """Return products of the block's keys, or minus infinity where there is no key.

        The gradients of such keys are not stored, so that their weights do not matter.
        """
        return weights

    def share(self, tile_number: Value, slopes: Fragments) -> None:
        """Let others have the cotangents of a tile's logits."""

    def copy_extra(self, head: Value, first: Value, to: Value, barrier: Value) -> None:
        """Begin to copy the pairs of a tile's queries."""
        self.f.copy_bytes(to, pair_pointer(self.f, self.a, 4, head, first), self.extra_bytes, barrier)

    def compute(self) -> None:
        """Append what a warp group computes."""
        f, a, tile = self.f, self.a, self.schedule.tile
        (keys, values), (queries, cotangents) = self.row_arrays, self.column_arrays
        key, late = f.plus(self.first, self.first_row), self.schedule.late

        def multiply_tile(tile_number: Value, state: list[Value], is_masked: bool | None) -> list[Value]:
            stage, parity, *sums = state
            to_k, to_v = sums[: len(sums) // 2], sums[len(sums) // 2 :]
            self.begin_tile(tile_number)
            self.pipelines[0].wait(stage, parity)
            self.pipelines[1].wait(stage, parity)
            self.take_turn()
            logits = self.begin_products(keys, queries, stage)
            slopes = [] if late else self.begin_products(values, cotangents, stage)
            self.end_turn()
            pairs = column_pairs(self, f.plus(f.times(stage, self.extra_bytes), i32(self.extra)), tile)
            _, query = self.position(tile_number)
            weights = self.nested(self.await_products(logits, 0 if late else 1))
            if is_masked is not False:
                weights = masked_by_keys(self, a, weights, key, query, branches=is_masked is None)
            weights = self.visible(weights)
            for columns, pair in zip(weights[0], pairs, strict=True):
                columns[:] = [f.exp2(f.fma(x, self.factor, pair[k % 2][0])) for k, x in enumerate(columns)]
            rounded = self.fragments(weights)
            if late:
                slopes, weights = self.begin_products(values, cotangents, stage), self.unpacked(rounded)
            to_v = self.begin_adding(to_v, rounded, cotangents, stage)
            results = self.nested(self.await_products(slopes, 1))
            for columns, others, pair in zip(results[0], weights[0], pairs, strict=True):
                columns[:] = [f.fmul(others[k], f.fadd(x, pair[k % 2][1])) for k, x in enumerate(columns)]
            cotangents_of_logits = self.fragments(results)
            self.share(tile_number, cotangents_of_logits)
            to_k = self.begin_adding(to_k, cotangents_of_logits, queries, stage)
            sums = self.await_products([*to_k, *to_v])
            for pipeline in self.pipelines:
                pipeline.release(stage)
            return [*self.pipelines[0].next(stage, parity), *sums]

        self.begin_turns()
        begin = [i32(0), i32(0), *2 * self.flat(self.zeros(self.width))]
        sums = self.over_tiles(0, *self.middle(), begin, multiply_tile)[2:]
        half, place = len(sums) // 2, self.begin_results()
        to_k = [f.fmul(x, f32(a.scale)) for x in sums[:half]]
        for array, binding, gradient in ((keys, 5, to_k), (values, 6, sums[half:])):
            self.store(array.rows, place, binding, self.head, self.first, self.nested(gradient))
            f.synchronise_warp()

    def middle(self) -> tuple[Value | None, bool]:
        """Return the tile at which masks end or begin, and whether they end.

        Queries see all keys of the warp group from a tile on, unless heads share keys: then the middle is the end.
        """
        if not self.a.causal:
            return None, True
        return self.count if self.a.shared > 1 else self.f.minus(self.first_tile_seen_whole(), self.block.first_tile), True

    def first_tile_seen_whole(self) -> Value:
        """Return the first tile of a head whose queries see all keys of the warp group."""
        f, tile = self.f, self.schedule.tile
        last = f.plus(self.first, f.times(self.group, ROWS), i32(ROWS - 1))
        return f.quotient(f.plus(last, i32(tile - 1)), tile)
