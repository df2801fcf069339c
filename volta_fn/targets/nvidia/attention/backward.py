"""The gradients of attention on matrix units, with recomputed weights.

With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
products is P (D Vᵀ - δ), from which those of Q and K follow. Three dispatches: one number for each query from which its weights follow, and
δ; the gradient of Q by blocks of queries; those of K and V by blocks of keys. The last ones compute the weights each for itself, so that no
two blocks add to the same sums.
"""

from __future__ import annotations

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.group_backward import group_key_dispatch, group_query_dispatch
from volta_fn.targets.nvidia.attention.groups import GroupSchedule
from volta_fn.targets.nvidia.attention.keys import KeyBlock, masked_by_keys
from volta_fn.targets.nvidia.attention.queries import QueryKernel, masked
from volta_fn.targets.nvidia.attention.statistics import (
    OPERANDS,
    PAIR,
    TO_K,
    TO_Q,
    TO_V,
    column_pairs,
    pair_pointer,
    row_pair,
    statistics_dispatch,
)
from volta_fn.targets.nvidia.attention.tiles import AttentionKernel, AttentionSchedule, exponent_factor
from volta_fn.targets.nvidia.function import f32, i32
from volta_fn.targets.nvidia.kernel import kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import UNIT
from volta_fn.targets.wgsl.routine import Dispatch

# The gradient of Q.


def query_dispatch(a: Attention, cotangent: Rows, schedule: AttentionSchedule | GroupSchedule) -> Dispatch:
    """Return the dispatch that computes the gradient of Q."""
    if isinstance(schedule, GroupSchedule):
        return group_query_dispatch(a, cotangent, schedule)
    kernel = _ByQueries(a, cotangent, schedule)
    return kernel_dispatch(kernel.header, (*OPERANDS, TO_Q), 1, kernel.text(), kernel.blocks * a.stack)


class _ByQueries(QueryKernel):
    """The kernel."""

    def __init__(self, a: Attention, cotangent: Rows, schedule: AttentionSchedule) -> None:
        super().__init__(a, schedule, 6, [(3, cotangent)])

    def text(self) -> str:
        """Return the module."""
        f, a, s, keys, values = self.f, self.a, self.schedule, self.keys, self.values
        of_keys, of_values = keys.addresses(i32(0), crossed=True), values.addresses(i32(0), crossed=True)
        of_products = keys.addresses(i32(0), crossed=False)
        query = f.plus(self.first, self.first_row)
        pairs = [row_pair(f, a, 4, self.head, f.plus(query, self.g, i32(8 * k))) for k in range(2 * s.fragments)]

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


# The gradients of K and V.


def key_dispatch(a: Attention, cotangent: Rows, schedule: AttentionSchedule | GroupSchedule) -> Dispatch:
    """Return the dispatch that computes the gradients of K and V."""
    if isinstance(schedule, GroupSchedule):
        return group_key_dispatch(a, cotangent, schedule)
    kernel = _ByKeys(a, cotangent, schedule)
    return kernel_dispatch(kernel.header, (*OPERANDS, TO_K, TO_V), 2, kernel.text(), kernel.blocks * a.groups)


class _ByKeys(AttentionKernel):
    """The kernel: a block has keys of one head of K and V.

    Products are transposed: their rows are keys. Sums go over the queries of all heads that share it.
    """

    def __init__(self, a: Attention, cotangent: Rows, schedule: AttentionSchedule) -> None:
        super().__init__(schedule, 7, [(1, a.k), (2, a.v)], [(0, a.q), (3, cotangent)], PAIR)
        self.a = a
        self.blocks = -(-a.keys // schedule.rows)
        self.factor = exponent_factor(a)

    def text(self) -> str:
        """Return the module."""
        f, a, s = self.f, self.a, self.schedule
        self.block = KeyBlock(f, a, s.rows, s.tile)
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


def gradient_dispatches(
    a: Attention, cotangent: Rows, by_queries: AttentionSchedule | GroupSchedule, by_keys: AttentionSchedule | GroupSchedule
) -> tuple[Dispatch, Dispatch, Dispatch]:
    """Return all dispatches.

    Operands are q, k, v, the result, its statistics (see `forward_dispatch`) and cotangent; results are the gradients of q, k and v. There
    is a workspace.
    """
    return statistics_dispatch(a, cotangent), query_dispatch(a, cotangent, by_queries), key_dispatch(a, cotangent, by_keys)
