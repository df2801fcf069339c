"""Kernels of attention whose blocks have keys of one head of K and V.

A block reads, tile by tile, the queries and cotangents of all heads that share it. Products are transposed: their rows are keys.
"""

from __future__ import annotations

from volta_fn.compiler.attention import Attention
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, FragmentKernel, Sums
from volta_fn.targets.nvidia.function import MINUS_INFINITY, KernelFunction, i32


class KeyBlock:
    """A block of keys and the tiles of queries that see it.

    Of a head none of whose queries does, the last tile is read.
    """

    def __init__(self, f: KernelFunction, a: Attention, rows: int, tile: int) -> None:
        self.f, self.a, self.tile = f, a, tile
        position, group = f.divided(f.special("ctaid.x"), a.groups)  # the first keys are seen by most queries
        #: The first key, and the first of the heads that share it.
        self.first, self.head = f.times(position, rows), f.times(group, a.shared)
        tiles = -(-a.queries // tile)
        self._first_tile, self._each = i32(0), i32(tiles)
        #: The number of tiles of all heads.
        self.count = i32(a.shared * tiles)
        if a.causal:
            self._first_tile = f.umin(f.quotient(self.first, tile), i32(tiles - 1))
            self._each = f.minus(i32(tiles), self._first_tile)
            self.count = f.times(self._each, a.shared)

    def position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile and its first query."""
        f, head = self.f, self.head
        if self.a.shared > 1:
            further = f.binary("udiv", tile_number, self._each)
            tile_number = f.minus(tile_number, f.binary("mul", further, self._each))
            head = f.plus(head, further)
        return head, f.times(f.plus(self._first_tile, tile_number), self.tile)


def masked_by_keys(kernel: FragmentKernel, a: Attention, values: Sums, key: Value, query: Value) -> Sums:
    """Replace values where a query does not see a key by minus infinity.

    Rows are keys from `key` on, columns are queries from `query` on.
    """
    f = kernel.f
    if not a.causal:
        return values

    def mask() -> list[Value]:
        column = f.plus(query, f.times(kernel.t, 2))
        result = []
        for i, fragment in enumerate(values):
            begins = [f.minus(f.plus(key, kernel.g, i32(FRAGMENT * i + 8 * half)), column) for half in range(2)]
            for n, columns in enumerate(fragment):
                for k, x in enumerate(columns):
                    result.append(f.select(f.compare("icmp sge", i32(8 * n + k % 2), begins[k // 2]), x, MINUS_INFINITY))
        return result

    last_key = f.plus(key, i32(kernel.warp_tile.warp_rows - 1))
    return kernel.nested(f.branch(f.compare("icmp ugt", last_key, query), mask, lambda: kernel.flat(values)))
