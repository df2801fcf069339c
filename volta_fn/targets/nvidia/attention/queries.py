"""Kernels of attention whose blocks have queries of one head.

A block reads the head's keys and values tile by tile. The forward pass is such a kernel, and the gradient of Q is another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, AttentionKernel, AttentionSchedule, FragmentKernel, Sums, exponent_factor
from volta_fn.targets.nvidia.function import MINUS_INFINITY, KernelFunction, i32


class QueryKernel(AttentionKernel):
    """A kernel by queries under construction.

    Its first bindings are q, k and v. `more_rows` are the bindings and arrays that have rows of queries, too.
    """

    def __init__(self, a: Attention, schedule: AttentionSchedule, bindings: int, more_rows: Sequence[tuple[int, Rows]] = ()) -> None:
        super().__init__(schedule, bindings, [(0, a.q), *more_rows], [(1, a.k), (2, a.v)])
        self.a = a
        self.blocks = -(-a.queries // schedule.rows)
        self.factor = exponent_factor(a)
        self._begin_block()

    def _begin_block(self) -> None:
        """Find the block's queries, and begin to copy them."""
        f, a, s = self.f, self.a, self.schedule
        self.head, self.first = query_block(f, a, s.rows)
        self.copy_rows(self.head, self.first)
        self.sources = [tile.source(self.head) for tile in self.column_tiles]
        self.keys, self.values = self.column_tiles

    def over_keys(
        self, begin: Callable[[], None], state: Sequence[Value], body: Callable[[Value, Value, list[Value]], list[Value]], query: Value
    ) -> list[Value]:
        """Append the loop over the tiles of keys and values that the block sees.

        The warp's first query is `query`; for the other arguments see `iterate`.
        """
        f, a, s = self.f, self.a, self.schedule

        def copy(tile_number: Value, stage: Value) -> None:
            for tile, source in zip(self.column_tiles, self.sources, strict=True):
                tile.copy(source, f.times(tile_number, s.tile), stage)

        def is_seen(tile_number: Value) -> Value:
            """Emit whether the warp's last query sees the tile's first key."""
            return f.compare("icmp ule", f.times(tile_number, s.tile), last)

        count = key_tiles(f, a, self.first, s.rows, s.tile)
        last = f.plus(query, i32(self.warp_tile.warp_rows - 1))
        return self.iterate(count, copy, begin, state, body, is_seen if a.causal else None)


def query_block(f: KernelFunction, a: Attention, rows: int) -> tuple[Value, Value]:
    """Return the head of a block of so many queries, and the first of them."""
    position, head = f.divided(f.special("ctaid.x"), a.stack)
    return head, f.times(f.minus(i32(-(-a.queries // rows) - 1), position), rows)  # those with most visible keys come first


def key_tiles(f: KernelFunction, a: Attention, first: Value, rows: int, tile: int) -> Value:
    """Return how many tiles of keys a block sees.

    It has so many queries from `first` on.
    """
    count = i32(-(-a.keys // tile))
    if not a.causal:
        return count
    return f.umin(count, f.quotient(f.plus(first, i32(rows + tile - 1)), tile))


def masked(kernel: FragmentKernel, a: Attention, values: Sums, query: Value, key: Value) -> Sums:
    """Replace values where a query does not see a key by minus infinity.

    None sees those beyond the last key. Rows are queries from `query` on, columns are keys from `key` on.
    """
    f, step = kernel.f, kernel.warp_tile.step
    is_ragged = a.keys % kernel.warp_tile.tile != 0
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
                    result.append(f.select(f.compare("icmp slt", i32(8 * n + k % 2), ends[k // 2]), x, MINUS_INFINITY))
        return result

    return kernel.nested(f.branch(condition, mask, lambda: kernel.flat(values)))
