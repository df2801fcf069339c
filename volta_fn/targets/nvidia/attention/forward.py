"""Attention on matrix units, in tiles of keys, without storing weights.

As in FlashAttention-2 (Dao 2023), each query keeps the largest product so far and the sum of weights relative to it; sums are scaled when
that maximum grows. Weights are rounded to 16 bits for the product with the values, their sums are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from volta_fn.compiler.attention import Attention
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, ZERO, AttentionKernel, AttentionSchedule, Sums, number
from volta_fn.targets.nvidia.kernel import KernelHeader, kernel_module
from volta_fn.targets.nvidia.matmul.function import KernelFunction, i32
from volta_fn.targets.wgsl.routine import Dispatch

#: Less than any product, including those of keys that are not seen.
LOWEST = number(-float(np.finfo(np.float32).max))


def forward_dispatch(a: Attention, schedule: AttentionSchedule) -> Dispatch:
    """Return the dispatch.

    Its buffers are q, k, v, the result, and statistics of each query: its largest logit and the sum of its weights relative to that.
    """
    kernel = _Forward(a, schedule)
    module = kernel_module(KernelHeader(schedule.threads, kernel.shared), 5, (3, 4), kernel.text())
    return Dispatch(module, (0, 1, 2, 3, 4), (kernel.blocks * a.stack, 1, 1))


class _Forward(AttentionKernel):
    """The kernel: a block has queries of one head."""

    def __init__(self, a: Attention, schedule: AttentionSchedule) -> None:
        super().__init__(schedule, 5, [(0, a.q)], [(1, a.k), (2, a.v)])
        self.a = a
        self.blocks = -(-a.queries // schedule.rows)
        #: By this, products become exponents of two.
        self.factor = number(a.scale * math.log2(math.e))

    def text(self) -> str:
        """Return the module."""
        f, a, s = self.f, self.a, self.schedule
        position, head = f.divided(f.special("ctaid.x"), a.stack)
        first = f.times(f.minus(i32(self.blocks - 1), position), s.rows)  # those with most visible keys come first
        self.copy_rows(head, first)
        sources = [tile.source(head) for tile in self.column_tiles]
        keys, values = self.column_tiles
        of_keys, of_values = keys.addresses(i32(0), crossed=True), values.addresses(i32(0), crossed=False)
        query = f.plus(first, self.first_row)

        def copy(tile_number: Value, stage: Value) -> None:
            for tile, source in zip(self.column_tiles, sources, strict=True):
                tile.copy(source, f.times(tile_number, s.tile), stage)

        def begin() -> None:
            self.queries = self.rows_of(self.row_tiles[0])

        def body(tile_number: Value, stage: Value, state: list[Value]) -> list[Value]:
            rows = 2 * s.fragments
            maxima, totals, sums = state[:rows], state[rows : 2 * rows], self.nested(state[2 * rows :])
            pointers = keys.pointers(of_keys, stage), values.pointers(of_values, stage)
            for start in range(0, s.tile, s.step):
                logits = self.products(self.queries, keys, pointers[0], start)
                key = f.plus(f.times(tile_number, s.tile), i32(start))
                logits = masked(self, a, logits, query, key, LOWEST)
                maxima, totals = self._exponentiate(logits, maxima, totals, sums)
                self.add_products(sums, self.fragments(logits), values, pointers[1], start)
            return [*maxima, *totals, *self.flat(sums)]

        state = [*[LOWEST] * (2 * s.fragments), *[ZERO] * (2 * s.fragments), *self.flat(self.zeros(self.width))]
        state = self.iterate(key_tiles(f, a, s, first), copy, begin, state, body, seen_tile(self, a, query))
        self._finish(head, first, state)
        return f.text()

    def _exponentiate(self, logits: Sums, maxima: list[Value], totals: list[Value], sums: Sums) -> tuple[list[Value], list[Value]]:
        """Replace products by weights relative to the largest so far of their rows.

        Earlier sums are scaled by how much that has grown. Return the largest products and the sums of weights.
        """
        f = self.f
        maxima, totals = list(maxima), list(totals)
        for row in range(2 * self.schedule.fragments):
            i, half = divmod(row, 2)
            largest = logits[i][0][2 * half]
            for columns in logits[i]:
                for x in columns[2 * half : 2 * half + 2]:
                    largest = self.maximum(largest, x)
            largest = self.maximum(maxima[row], self.across(self.maximum, largest))
            growth = self.exp2(self.multiply(f.binary("fsub", maxima[row], largest), self.factor))
            shift = self.multiply(f.let("float", f"fneg {largest}"), self.factor)
            total = self.multiply(totals[row], growth)
            for columns in logits[i]:
                for k in range(2 * half, 2 * half + 2):
                    columns[k] = self.exp2(self.fma(columns[k], self.factor, shift))
                    total = self.add(total, columns[k])
            for columns in sums[i]:
                columns[2 * half : 2 * half + 2] = [self.multiply(x, growth) for x in columns[2 * half : 2 * half + 2]]
            maxima[row], totals[row] = largest, total
        return maxima, totals

    def _finish(self, head: Value, first: Value, state: list[Value]) -> None:
        """Divide by the sums of weights, and store the result and the statistics."""
        f, a, rows = self.f, self.a, 2 * self.schedule.fragments
        totals = [self.across(self.add, total) for total in state[rows : 2 * rows]]
        sums = self.nested(state[2 * rows :])
        for row, (largest, total) in enumerate(zip(state[:rows], totals, strict=True)):
            i, half = divmod(row, 2)
            inverse = f.binary("fdiv", Value("float", "1.0"), total)
            for columns in sums[i]:
                columns[2 * half : 2 * half + 2] = [self.multiply(x, inverse) for x in columns[2 * half : 2 * half + 2]]
            query = f.plus(first, self.first_row, self.g, i32(FRAGMENT * i + 8 * half))
            with f.only_if(f.binary("and", f.equals(self.t, 0), f.below(query, a.queries))):
                at = f.widened_index(f.times(f.plus(f.binary("mul", head, i32(a.queries)), query), 8))
                to = f.further(f.bindings[4], at)
                f.store(self.multiply(largest, number(a.scale)), to, 8)
                f.store(total, f.further(to, Value("i64", "4")), 4)
        self.store(self.row_tiles[0], 3, head, first, sums)


def key_tiles(f: KernelFunction, a: Attention, schedule: AttentionSchedule, first: Value) -> Value:
    """Emit how many tiles of keys the block of queries from `first` on sees."""
    tiles = -(-a.keys // schedule.tile)
    if not a.causal:
        return i32(tiles)
    return f.intrinsic("llvm.umin.i32", "i32", i32(tiles), f.quotient(f.plus(first, i32(schedule.rows + schedule.tile - 1)), schedule.tile))


def seen_tile(kernel: AttentionKernel, a: Attention, query: Value) -> Callable[[Value], Value] | None:
    """Return the condition that a warp's queries see a tile of keys.

    Its first query is `query`. None if all queries see all keys.
    """
    f, s = kernel.f, kernel.schedule
    last = f.plus(query, i32(s.warp_rows - 1))
    return (lambda tile: f.compare("icmp ule", f.times(tile, s.tile), last)) if a.causal else None


def masked(kernel: AttentionKernel, a: Attention, values: Sums, query: Value, key: Value, unseen: Value) -> Sums:
    """Replace values where a query does not see a key by `unseen`.

    None sees those beyond the last key. Rows are queries from `query` on, columns are keys from `key` on.
    """
    f, step = kernel.f, kernel.schedule.step
    is_ragged = a.keys % kernel.schedule.tile != 0
    if not a.causal and not is_ragged:
        return values
    last = f.plus(key, i32(step - 1))
    conditions = [f.compare("icmp ugt", last, query)] if a.causal else []
    conditions += [f.compare("icmp uge", last, i32(a.keys))] if is_ragged else []
    condition = conditions[0] if len(conditions) == 1 else f.binary("or", *conditions)

    def mask() -> list[Value]:
        column = f.plus(key, f.times(kernel.t, 2))
        beyond = f.minus(i32(a.keys), column)
        result = []
        for i, fragment in enumerate(values):
            ends = []
            for half in range(2):
                after = f.minus(f.plus(query, kernel.g, i32(FRAGMENT * i + 8 * half + 1)), column)
                end = after if a.causal else beyond
                ends.append(f.intrinsic("llvm.smin.i32", "i32", after, beyond) if a.causal and is_ragged else end)
            for n, columns in enumerate(fragment):
                for k, x in enumerate(columns):
                    result.append(f.select(f.compare("icmp slt", i32(8 * n + k % 2), ends[k // 2]), x, unseen))
        return result

    return kernel.nested(f.branch(condition, mask, lambda: kernel.flat(values)))
