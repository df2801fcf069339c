"""Attention by `wgmma`: the forward pass.

The next tile's keys are multiplied together with the values of a tile, and their weights are computed meanwhile. The rest is as in
`forward`.
"""

from __future__ import annotations

from volta_fn.compiler.attention import Attention
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.forward import exponentiate, finish, scale_rows
from volta_fn.targets.nvidia.attention.groups import GroupKernel, GroupSchedule
from volta_fn.targets.nvidia.attention.queries import key_tiles, masked, query_block
from volta_fn.targets.nvidia.attention.tiles import first_maximum
from volta_fn.targets.nvidia.function import ZERO, i32
from volta_fn.targets.wgsl.routine import Dispatch


def group_dispatch(a: Attention, schedule: GroupSchedule) -> Dispatch:
    """Return the dispatch of `forward.forward_dispatch` by this kernel."""
    kernel = _GroupForward(a, schedule)
    return kernel.dispatch(range(5), 2, -(-a.queries // schedule.rows) * a.stack)


class _GroupForward(GroupKernel):
    """The kernel under construction."""

    is_second_later = True

    def __init__(self, a: Attention, schedule: GroupSchedule) -> None:
        super().__init__(a, schedule, 5, [(0, a.q)], [(1, a.k), (2, a.v)])
        self.head, self.first = query_block(self.f, a, schedule.rows)
        self.count = key_tiles(self.f, a, self.first, schedule.rows, schedule.tile)

    def compute(self) -> None:
        """Append what a warp group computes."""
        f, a, tile = self.f, self.a, self.schedule.tile
        (queries,), (keys, values) = self.row_arrays, self.column_arrays
        query = f.plus(self.first, self.first_row)

        def weigh(logits: list[Value], tile_number: Value, state: list[Value]) -> tuple[list[Value], list[Value], list[Value]]:
            """Return weights, the statistics of rows, and what earlier sums are scaled by.

            The statistics are the largest products, and the sums of weights.
            """
            nested = masked(self, a, self.nested(logits), query, f.times(tile_number, tile))
            maxima, totals, growths = exponentiate(self, self.factor, nested, state[:2], state[2:4])
            return self.flat(nested), [*maxima, *totals], growths

        def weights_of(words: list[Value]) -> list[list[list[Value]]]:
            return [[words[k : k + 4] for k in range(0, len(words), 4)]]

        def words_of(weights: list[Value]) -> list[Value]:
            return [word for fragment in self.fragments(self.nested(weights))[0] for word in fragment]

        def multiply_tile(tile_number: Value, state: list[Value]) -> list[Value]:
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
            weights, statistics, growths = weigh(logits, tile_number, statistics)
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
        weights, statistics, _ = weigh(logits, i32(0), [*[first_maximum(a)] * 2, ZERO, ZERO])
        begin = [
            *self.pipelines[0].next(i32(0), i32(0)),
            i32(0),
            i32(0),
            *statistics,
            *self.flat(self.zeros(self.width)),
            *words_of(weights),
        ]
        more = f.compare("icmp ugt", self.count, i32(1))
        state = f.branch(more, lambda: f.repeat(i32(1), self.count, i32(1), begin, multiply_tile), lambda: begin)
        last, last_parity, *rest = state[2:]
        self.pipelines[1].wait(last, last_parity)
        sums = self.await_products(self.begin_adding(rest[4 : 4 + self.width // 2], weights_of(rest[4 + self.width // 2 :]), values, last))
        finish(self, a, self.head, self.first, self.results, [*rest[:4], *sums])
