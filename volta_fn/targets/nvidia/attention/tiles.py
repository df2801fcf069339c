"""Tiles of rows in shared memory, and blocks of queries or keys over them.

The warps of a block share the rows of one operand or two, which stay in shared memory; rows of the other operands follow tile by tile, in
several stages (`cp.async`). A warp multiplies fragments of its own rows by fragments of the tile. Its products are in registers as rows of
the next product have to be, so that weights never pass through memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.kernel import MINUS_INFINITY, ZERO, KernelFunction, KernelHeader, f32, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import UNIT
from volta_fn.targets.nvidia.matrix_units import SwizzledRows, fragment_addresses
from volta_fn.targets.wgsl.routine import Dispatch

#: Rows of a fragment, and elements of a unit of 16 bytes.
FRAGMENT, ELEMENTS = 16, 8

_BFLOAT16 = np.dtype(dtypes.bfloat16)

#: A warp's sums: four numbers for each fragment of 16 rows and each eight columns. A lane, `g` being its number divided by four and `t` the
#: remainder, has columns 2t and 2t + 1 of row g, then those of row g + 8.
Sums = list[list[list[Value]]]

#: A warp's rows as the left operand of a product: four registers for each fragment of 16 rows and each 16 columns.
Fragments = list[list[list[Value]]]


@dataclass(frozen=True)
class AttentionSchedule:
    """A division of the work of a block of threads."""

    warps: int = 4
    #: Fragments of 16 rows that a warp has.
    fragments: int = 2
    #: Rows of a tile, and those of them that are multiplied at a time.
    tile: int = 64
    step: int = 64
    #: Tiles in shared memory.
    stages: int = 2
    #: Whether fragments of a warp's rows stay in registers.
    retained: bool = True
    #: Blocks that a multiprocessor has room for.
    residents: int = 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.warps * FRAGMENT * self.fragments

    def shared(self, width: int, operands: int, extra: int) -> int:
        """Return the bytes of shared memory.

        The block has rows of `operands` arrays, and tiles have rows of two, and `extra` bytes for each row.
        """
        return operands * self.rows * 2 * width + self.stages * self.tile * (4 * width + extra)


class Tile(SwizzledRows):
    """Consecutive rows of one array in shared memory."""

    def __init__(self, f: KernelFunction, binding: int, rows: Rows, count: int, offset: int) -> None:
        super().__init__(f, count, 2 * rows.width // UNIT, offset)
        self.binding, self.rows = binding, rows

    # copies

    def source(self, head: Value) -> Value:
        """Return where this thread's copies of a head begin."""
        f = self.f
        row = f.wide_times(self.row, self.rows.step)
        total = f.binary("add", f.offset(head, self.rows.heads), f.binary("add", row, f.widened_index(f.times(self.unit, ELEMENTS))))
        return f.element(f.bindings[self.binding], total, 2)

    def copy(self, source: Value, first: Value, stage: Value) -> None:
        """Begin to copy this thread's share of the rows from `first` on.

        Rows beyond the last become zeros.
        """
        f = self.f
        pitch = 2 * self.rows.step
        begin = f.further(source, f.wide_times(first, pitch))
        row = f.plus(first, self.row)
        for number in range(self.passes):
            k = number * self.together
            size = f.select(f.below(f.plus(row, i32(k)), self.rows.count), i32(UNIT), i32(0))
            self.copy_unit(number, f.further(begin, i64(k * pitch)), stage, size)

    # fragments

    def addresses(self, first: Value, *, crossed: bool) -> list[Value]:
        """Return a lane's addresses of fragments of the rows from `first` on.

        There is one for each 16 features. The four matrices of a fragment are listed by rows first, or, `crossed`, by features first.
        """
        f = self.f
        addresses = fragment_addresses(f, self.row_bytes, first, i32(0), self.row_bytes // UNIT, crossed=crossed)
        return [f.plus(address, i32(self.offset)) for address in addresses]

    def pointers(self, addresses: Sequence[Value], stage: Value) -> list[Value]:
        """Return the pointers to fragments of a stage."""
        return [self.f.shared(self.f.plus(address, stage)) for address in addresses]

    def fragment(self, pointer: Value, row: int, *, transposed: bool = False) -> list[Value]:
        """Load the fragment so many rows further, as four registers."""
        return self.f.load_matrices(self.f.further(pointer, i32(row * self.row_bytes)), transposed=transposed)


def exponent_factor(a: Attention) -> Value:
    """Return the number by which products of queries and keys become exponents of two."""
    return f32(a.scale * math.log2(math.e))


def first_maximum(a: Attention) -> Value:
    """Return what maxima of products begin with.

    Its exponent is finite, so that products of minus infinity have the weight 0.
    """
    return f32(-float(np.finfo(np.float32).max) / max(a.scale * math.log2(math.e), 1.0))


class WarpTile(NamedTuple):
    """The rows and columns that a warp multiplies: of its own rows by those of a tile."""

    #: Fragments of 16 rows that a warp has.
    fragments: int
    #: Rows of a tile, and those of them that are multiplied at a time.
    tile: int
    step: int

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return FRAGMENT * self.fragments


class FragmentKernel:
    """A kernel whose warps have sums in fragments of 16 rows.

    `first_row` is the warp's first row in the block.
    """

    def __init__(self, f: KernelFunction, warp_tile: WarpTile, dtype: np.dtype, width: int, first_row: Value) -> None:
        self.f, self.warp_tile, self.dtype, self.width, self.first_row = f, warp_tile, dtype, width, first_row
        #: The lane's row and pair of columns in a fragment.
        self.g, self.t = f.divided(f.lane, 4)

    # sums

    def zeros(self, columns: int) -> Sums:
        """Return sums of so many columns."""
        return [[[ZERO] * 4 for _ in range(columns // 8)] for _ in range(self.warp_tile.fragments)]

    def flat(self, sums: Sums) -> list[Value]:
        """Return sums as a list."""
        return [x for rows in sums for columns in rows for x in columns]

    def nested(self, values: Sequence[Value]) -> Sums:
        """Return a list as sums."""
        each = len(values) // self.warp_tile.fragments
        return [[list(values[k : k + 4]) for k in range(i, i + each, 4)] for i in range(0, len(values), each)]

    # numbers

    def fragments(self, sums: Sums) -> Fragments:
        """Round sums to fragments of the left operand of a product."""
        result: Fragments = []
        for rows in sums:
            pairs = [[self.pack(x[0], x[1]), self.pack(x[2], x[3])] for x in rows]
            result.append([[*pairs[n], *pairs[n + 1]] for n in range(0, len(pairs), 2)])
        return result

    def unpacked(self, fragments: Fragments) -> Sums:
        """Return rounded sums as float32."""
        result: Sums = []
        for rows in fragments:
            words = [word for fragment in rows for word in fragment]
            numbers = [x for word in words for x in self.f.unpacked(word, self.dtype)]
            result.append([numbers[k : k + 4] for k in range(0, len(numbers), 4)])
        return result

    def pack(self, low: Value, high: Value) -> Value:
        """Round two numbers to 16 bits each, in one register."""
        name, type_ = ("bf16x2", "<2 x bfloat>") if self.dtype == _BFLOAT16 else ("f16x2", "<2 x half>")
        return self.f.cast("bitcast", self.f.intrinsic(f"llvm.nvvm.ff2{name}.rn", type_, high, low), "i32")

    def across_row(self, combine: Callable[[Value, Value], Value], x: Value) -> Value:
        """Combine the numbers of the four lanes that have a row."""
        return self.f.reduce_lanes(combine, x, (1, 2))

    # results

    def store(self, rows: Rows, offset: int, binding: int, head: Value, first: Value, sums: Sums) -> None:
        """Round sums of the warp's rows and store them to an array.

        `first` is the block's first row. The sums pass through shared memory from `offset` on, which has room for the rows of the block.
        """
        f, row_bytes = self.f, 2 * rows.width
        units = row_bytes // UNIT
        base = f.element(f.bindings[binding], f.offset(head, rows.heads), 2)
        line, unit = f.divided(f.lane, units)
        for i, fragment in enumerate(sums):
            start = f.plus(f.times(f.plus(self.first_row, i32(FRAGMENT * i)), row_bytes), i32(offset))
            for n, (a, b, c, d) in enumerate(fragment):
                to = f.plus(start, f.times(self.g, row_bytes), f.times(f.exclusive_or(self.g, n), UNIT), f.times(self.t, 4))
                f.store(self.pack(a, b), f.shared(to), 4)
                f.store(self.pack(c, d), f.shared(f.plus(to, i32(8 * row_bytes))), 4)
        f.synchronise_warp()
        for k in range(0, self.warp_tile.warp_rows, 32 // units):
            row = f.plus(self.first_row, line, i32(k))
            at = f.plus(f.times(row, row_bytes), f.times(f.exclusive_or(unit, f.remainder(row, 8)), UNIT), i32(offset))
            words = f.load("<4 x i32>", f.shared(at), 16)
            number = f.plus(first, row)
            with f.only_if(f.below(number, rows.count)):
                far = f.wide_times(number, 2 * rows.step)
                to = f.further(base, f.binary("add", far, f.widened_index(f.times(unit, UNIT))))
                f.store(words, to, 16)


class AttentionKernel(FragmentKernel, ABC):
    """A kernel under construction.

    `row_arrays` are the bindings and arrays whose rows the warps share, `column_arrays` those that follow tile by tile; a tile has `extra`
    bytes more for each row. All have the same features.
    """

    def __init__(
        self,
        schedule: AttentionSchedule,
        bindings: int,
        row_arrays: Sequence[tuple[int, Rows]],
        column_arrays: Sequence[tuple[int, Rows]],
        extra: int = 0,
    ) -> None:
        f, rows = KernelFunction(0, bindings, schedule.threads, schedule.residents), row_arrays[0][1]
        warp_tile = WarpTile(schedule.fragments, schedule.tile, schedule.step)
        super().__init__(f, warp_tile, rows.dtype, rows.width, f.times(f.warp, warp_tile.warp_rows))
        self.schedule = schedule
        offset = 0
        self.row_tiles: list[Tile] = []
        self.column_tiles: list[Tile] = []
        for tiles, arrays, count in ((self.row_tiles, row_arrays, schedule.rows), (self.column_tiles, column_arrays, schedule.tile)):
            for binding, rows in arrays:
                tiles.append(Tile(f, binding, rows, count, offset))
                offset += tiles[-1].bytes
        #: Where the further bytes of a tile are, and the bytes of a stage.
        self.extra, self.stage = offset, offset + extra * schedule.tile - self.column_tiles[0].offset
        #: How the kernel is launched.
        self.header = KernelHeader(schedule.threads, self.column_tiles[0].offset + schedule.stages * self.stage)

    #: The blocks of the grid.
    blocks: int

    @abstractmethod
    def text(self) -> str:
        """Return the module."""

    def dispatch(self, buffers: Sequence[int], results: int) -> Dispatch:
        """Return the dispatch of the kernel on buffers, the last of which it writes."""
        return kernel_dispatch(self.header, buffers, results, self.text(), self.blocks)

    # tiles

    def copy_rows(self, head: Value, first: Value) -> None:
        """Begin to copy the block's own rows."""
        for tile in self.row_tiles:
            tile.copy(tile.source(head), first, i32(0))
        self.f.commit_copies()

    def iterate(
        self,
        count: Value,
        copy: Callable[[Value, Value], None],
        begin: Callable[[], None],
        state: Sequence[Value],
        body: Callable[[Value, Value, list[Value]], list[Value]],
        is_seen: Callable[[Value], Value] | None = None,
    ) -> list[Value]:
        """Append the loop over `count` tiles, at least one.

        ``copy(number, stage)`` begins to copy a tile; `begin` is called where the block's own rows have arrived, and ``body(number, stage,
        state)`` where a tile has. A stage is given by its offset. With ``is_seen(number)`` warps leave out tiles.
        """
        f, stages = self.f, self.schedule.stages

        def copy_if_any(number: Value, stage: Value) -> None:
            with f.only_if(f.compare("icmp ult", number, count)):
                copy(number, stage)
            f.commit_copies()

        for number in range(stages - 1):
            copy_if_any(i32(number), i32(number * self.stage))
        f.wait_for_copies(stages - 1)
        f.synchronise()
        begin()

        def iteration(number: Value, values: list[Value]) -> list[Value]:
            read, written, *state = values
            f.wait_for_copies(stages - 2)
            f.synchronise()
            copy_if_any(f.plus(number, i32(stages - 1)), written)
            if is_seen is None:
                state = body(number, read, state)
            else:
                before = state
                state = f.branch(is_seen(number), lambda: body(number, read, before), lambda: before)
            following = [f.plus(stage, i32(self.stage)) for stage in (read, written)]
            wrapped = [f.select(f.equals(stage, stages * self.stage), i32(0), stage) for stage in following]
            return [*wrapped, *state]

        return f.repeat(i32(0), count, i32(1), [i32(0), i32((stages - 1) * self.stage), *state], iteration)[2:]

    # products

    def rows_of(self, tile: Tile) -> Callable[[int, int], list[Value]]:
        """Return the function that gives a fragment of the warp's rows.

        Its arguments are the numbers of the fragment and of its 16 features.
        """
        pointers = tile.pointers(tile.addresses(self.first_row, crossed=False), i32(0))
        if not self.schedule.retained:
            return lambda i, u: tile.fragment(pointers[u], FRAGMENT * i)
        loaded = [[tile.fragment(pointer, FRAGMENT * i) for pointer in pointers] for i in range(self.schedule.fragments)]
        return lambda i, u: loaded[i][u]

    def products(
        self, rows: Callable[[int, int], list[Value]], tile: Tile, pointers: Sequence[Value], first: int, sums: Sums | None = None
    ) -> Sums:
        """Multiply the warp's rows by rows of a tile from `first` on.

        The products are added to `sums`, if given. The pointers are to crossed fragments.
        """
        f, count = self.f, self.schedule.fragments
        sums = self.zeros(self.schedule.step) if sums is None else sums
        for u, pointer in enumerate(pointers):
            left = [rows(i, u) for i in range(count)]
            for n in range(self.schedule.step // FRAGMENT):
                right = tile.fragment(pointer, first + FRAGMENT * n)
                for i, half in ((i, half) for i in range(count) for half in range(2)):
                    at = 2 * n + half
                    sums[i][at] = f.multiply_add(self.dtype, left[i], right[2 * half : 2 * half + 2], sums[i][at])
        return sums

    def add_products(self, sums: Sums, weights: Fragments, tile: Tile, pointers: Sequence[Value], first: int) -> None:
        """Multiply weights by rows of a tile from `first` on, and add the products."""
        f = self.f
        for k in range(len(weights[0])):
            for d, pointer in enumerate(pointers):
                right = tile.fragment(pointer, first + FRAGMENT * k, transposed=True)
                for i, half in ((i, half) for i in range(len(sums)) for half in range(2)):
                    at = 2 * d + half
                    sums[i][at] = f.multiply_add(self.dtype, weights[i][k], right[2 * half : 2 * half + 2], sums[i][at])


# Kernels whose blocks have queries of one head.
#
# A block reads the head's keys and values tile by tile. The forward pass is such a kernel, and the gradient of Q is another.


class QueryKernel(AttentionKernel):
    """A kernel by queries under construction.

    Its bindings are q, k, v and two more, or those of the gradient by a cotangent.
    """

    def __init__(self, a: Attention, schedule: AttentionSchedule, cotangent: Rows | None = None) -> None:
        super().__init__(schedule, *query_arrays(a, cotangent))
        self.a = a
        self.blocks = -(-a.queries // schedule.rows) * a.stack
        self.factor = exponent_factor(a)
        self.head, self.first = query_block(self.f, a, schedule.rows)
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


def query_arrays(a: Attention, cotangent: Rows | None) -> tuple[int, list[tuple[int, Rows]], list[tuple[int, Rows]]]:
    """Return the number of bindings, then those of rows and of columns with arrays."""
    rows = [(0, a.q)] if cotangent is None else [(0, a.q), (3, cotangent)]
    return 4 + len(rows), rows, [(1, a.k), (2, a.v)]


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


def masked(kernel: FragmentKernel, a: Attention, values: Sums, query: Value, key: Value, *, branches: bool = True) -> Sums:
    """Replace values where a query does not see a key by minus infinity.

    None sees those beyond the last key. Rows are queries from `query` on, columns are keys from `key` on. With `branches` that is left out
    where all are seen.
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

    return kernel.nested(f.branch(condition, mask, lambda: kernel.flat(values)) if branches else mask())


# Kernels whose blocks have keys of one head of K and V.
#
# A block reads, tile by tile, the queries and cotangents of all heads that share it. Products are transposed: their rows are keys.


class KeyBlock:
    """A block of keys and the tiles of queries that see it.

    Of a head none of whose queries does, the last tile is read.
    """

    def __init__(self, f: KernelFunction, a: Attention, rows: int, tile: int, place: tuple[Value, Value]) -> None:
        self.f, self.a, self.tile = f, a, tile
        #: The number of the block among those of a head of K and V.
        self.number, group = place
        #: The first key, and the first of the heads that share it; the first tile of each head.
        self.first, self.head = f.times(self.number, rows), f.times(group, a.shared)
        tiles = -(-a.queries // tile)
        self.first_tile, self._each = i32(0), i32(tiles)
        #: The number of tiles of all heads.
        self.count = i32(a.shared * tiles)
        if a.causal:
            self.first_tile = f.umin(f.quotient(self.first, tile), i32(tiles - 1))
            self._each = f.minus(i32(tiles), self.first_tile)
            self.count = f.times(self._each, a.shared)

    def position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile and its first query."""
        f, head = self.f, self.head
        if self.a.shared > 1:
            further = f.binary("udiv", tile_number, self._each)
            tile_number = f.minus(tile_number, f.binary("mul", further, self._each))
            head = f.plus(head, further)
        return head, f.times(f.plus(self.first_tile, tile_number), self.tile)


def key_block_place(f: KernelFunction, a: Attention) -> tuple[Value, Value]:
    """Return the number of a block among those of a head of K and V, and the head.

    The first keys are seen by most queries.
    """
    return f.divided(f.special("ctaid.x"), a.groups)


def masked_by_keys(kernel: FragmentKernel, a: Attention, values: Sums, key: Value, query: Value, *, branches: bool = True) -> Sums:
    """Replace values where a query does not see a key by minus infinity.

    Rows are keys from `key` on, columns are queries from `query` on; for `branches` see `masked`.
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
    if not branches:
        return kernel.nested(mask())
    return kernel.nested(f.branch(f.compare("icmp ugt", last_key, query), mask, lambda: kernel.flat(values)))
