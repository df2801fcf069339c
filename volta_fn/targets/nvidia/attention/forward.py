"""Attention on matrix units, in tiles of keys, without storing weights.

As in FlashAttention-2 (Dao 2023), each query keeps the largest product so far and the sum of weights relative to it; sums are scaled when
that maximum grows. Weights are rounded to 16 bits for the product with the values, their sums are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.compiler.attention import Attention
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.attention.groups import GroupKernel, GroupSchedule
from volta_fn.targets.nvidia.attention.tiles import (
    FRAGMENT,
    AttentionSchedule,
    FragmentKernel,
    QueryKernel,
    Sums,
    first_maximum,
    key_tiles,
    masked,
    query_block,
)
from volta_fn.targets.nvidia.kernel import ZERO, f32, i32, kernel_dispatch
from volta_fn.targets.wgsl.routine import Dispatch

# By `mma.sync`.

#: Chains in which the products of a row are combined.
_CHAINS = 4


def forward_dispatch(a: Attention, schedule: AttentionSchedule) -> Dispatch:
    """Return the dispatch.

    Its buffers are q, k, v, the result, and statistics of each query: its largest logit and the sum of its weights relative to that.
    """
    kernel = _Forward(a, schedule)
    return kernel_dispatch(kernel.header, range(5), 2, kernel.text(), kernel.blocks * a.stack)


class _Forward(QueryKernel):
    """The kernel."""

    def __init__(self, a: Attention, schedule: AttentionSchedule) -> None:
        super().__init__(a, schedule, 5)

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


# By `wgmma`, for GPUs of compute capability 9.0.
#
# The next tile's keys are multiplied together with the values of a tile, and their weights are computed meanwhile. The rest is as
# above.


def group_dispatch(a: Attention, schedule: GroupSchedule) -> Dispatch:
    """Return the dispatch of `forward_dispatch` by this kernel."""
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
