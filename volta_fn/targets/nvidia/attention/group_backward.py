"""The gradients of attention by `wgmma`.

They are computed as in `backward`. The products of queries and keys, and those of cotangents and values, are begun together; the weights
follow from the first while the second are computed. Rows of the further products' left operands stay in registers.
"""

from __future__ import annotations

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.groups import GroupKernel, GroupSchedule
from volta_fn.targets.nvidia.attention.keys import KeyBlock, masked_by_keys
from volta_fn.targets.nvidia.attention.queries import key_tiles, masked, query_block
from volta_fn.targets.nvidia.attention.statistics import (
    OPERANDS,
    PAIR,
    TO_K,
    TO_Q,
    TO_V,
    column_pairs,
    pair_pointer,
    row_pair,
)
from volta_fn.targets.nvidia.function import f32, i32
from volta_fn.targets.wgsl.routine import Dispatch


def group_query_dispatch(a: Attention, cotangent: Rows, schedule: GroupSchedule) -> Dispatch:
    """Return the dispatch that computes the gradient of Q."""
    return _GroupByQueries(a, cotangent, schedule).dispatch((*OPERANDS, TO_Q), 1, -(-a.queries // schedule.rows) * a.stack)


class _GroupByQueries(GroupKernel):
    """The kernel under construction."""

    def __init__(self, a: Attention, cotangent: Rows, schedule: GroupSchedule) -> None:
        super().__init__(a, schedule, 6, [(0, a.q), (3, cotangent)], [(1, a.k), (2, a.v)])
        self.head, self.first = query_block(self.f, a, schedule.rows)
        self.count = key_tiles(self.f, a, self.first, schedule.rows, schedule.tile)

    def compute(self) -> None:
        """Append what a warp group computes."""
        f, a, tile = self.f, self.a, self.schedule.tile
        (queries, cotangents), (keys, values) = self.row_arrays, self.column_arrays
        query = f.plus(self.first, self.first_row)
        pairs = [row_pair(f, a, 4, self.head, f.plus(query, self.g, i32(8 * k))) for k in range(2)]

        def multiply_tile(tile_number: Value, state: list[Value]) -> list[Value]:
            stage, parity, *sums = state
            self.pipelines[0].wait(stage, parity)
            self.pipelines[1].wait(stage, parity)
            self.take_turn()
            logits = self.begin_products(queries, keys, stage)
            slopes = self.begin_products(cotangents, values, stage)
            self.end_turn()
            weights = masked(self, a, self.nested(self.await_products(logits, 1)), query, f.times(tile_number, tile))
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
        state = f.repeat(i32(0), self.count, i32(1), begin, multiply_tile)[2:]
        sums = self.nested([f.fmul(x, f32(a.scale)) for x in state])
        self.store(queries.rows, self.results, 5, self.head, self.first, sums)


def group_key_dispatch(a: Attention, cotangent: Rows, schedule: GroupSchedule) -> Dispatch:
    """Return the dispatch that computes the gradients of K and V."""
    return _GroupByKeys(a, cotangent, schedule).dispatch((*OPERANDS, TO_K, TO_V), 2, -(-a.keys // schedule.rows) * a.groups)


class _GroupByKeys(GroupKernel):
    """The kernel under construction."""

    def __init__(self, a: Attention, cotangent: Rows, schedule: GroupSchedule) -> None:
        super().__init__(a, schedule, 7, [(1, a.k), (2, a.v)], [(0, a.q), (3, cotangent)], PAIR)
        self.block = KeyBlock(self.f, a, schedule.rows, schedule.tile)
        self.head, self.first, self.count = self.block.head, self.block.first, self.block.count

    def position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile, and its first row."""
        return self.block.position(tile_number)

    def copy_extra(self, head: Value, first: Value, to: Value, barrier: Value) -> None:
        """Begin to copy the pairs of a tile's queries."""
        self.f.copy_bytes(to, pair_pointer(self.f, self.a, 4, head, first), self.extra_bytes, barrier)

    def compute(self) -> None:
        """Append what a warp group computes."""
        f, a, tile = self.f, self.a, self.schedule.tile
        (keys, values), (queries, cotangents) = self.row_arrays, self.column_arrays
        key = f.plus(self.first, self.first_row)

        def multiply_tile(tile_number: Value, state: list[Value]) -> list[Value]:
            stage, parity, *sums = state
            to_k, to_v = sums[: len(sums) // 2], sums[len(sums) // 2 :]
            self.pipelines[0].wait(stage, parity)
            self.pipelines[1].wait(stage, parity)
            self.take_turn()
            logits = self.begin_products(keys, queries, stage)
            slopes = self.begin_products(values, cotangents, stage)
            self.end_turn()
            pairs = column_pairs(self, f.plus(f.times(stage, self.extra_bytes), i32(self.extra)), tile)
            _, query = self.block.position(tile_number)
            weights = masked_by_keys(self, a, self.nested(self.await_products(logits, 1)), key, query)
            for columns, pair in zip(weights[0], pairs, strict=True):
                columns[:] = [f.exp2(f.fma(x, self.factor, pair[k % 2][0])) for k, x in enumerate(columns)]
            to_v = self.begin_adding(to_v, self.fragments(weights), cotangents, stage)
            results = self.nested(self.await_products(slopes, 1))
            for columns, others, pair in zip(results[0], weights[0], pairs, strict=True):
                columns[:] = [f.fmul(others[k], f.fadd(x, pair[k % 2][1])) for k, x in enumerate(columns)]
            to_k = self.begin_adding(to_k, self.fragments(results), queries, stage)
            sums = self.await_products([*to_k, *to_v])
            for pipeline in self.pipelines:
                pipeline.release(stage)
            return [*self.pipelines[0].next(stage, parity), *sums]

        self.begin_turns()
        begin = [i32(0), i32(0), *2 * self.flat(self.zeros(self.width))]
        sums = f.repeat(i32(0), self.count, i32(1), begin, multiply_tile)[2:]
        half = len(sums) // 2
        to_k = [f.fmul(x, f32(a.scale)) for x in sums[:half]]
        for array, binding, gradient in ((keys, 5, to_k), (values, 6, sums[half:])):
            self.store(array.rows, self.results, binding, self.head, self.first, self.nested(gradient))
            f.synchronise_warp()
