"""The gradients of attention on matrix units, with recomputed weights.

With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
products is P (D Vᵀ - δ), from which those of Q and K follow. Three dispatches: one number for each query from which its weights follow, and
δ; the gradient of Q by blocks of queries; those of K and V by blocks of keys. The last ones compute the weights each for itself, so that no
two blocks add to the same sums.
"""

from __future__ import annotations

import math

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.queries import LOWEST, QueryKernel, masked
from volta_fn.targets.nvidia.attention.tiles import ELEMENTS, FRAGMENT, ZERO, AttentionKernel, AttentionSchedule, Sums, number
from volta_fn.targets.nvidia.kernel import KernelHeader, kernel_module
from volta_fn.targets.nvidia.matmul.function import KernelFunction, i32
from volta_fn.targets.nvidia.matmul.problem import UNIT
from volta_fn.targets.wgsl.routine import Dispatch

# The buffers of the routine.
_Q, _K, _V, _OUT, _STATISTICS, _COTANGENT, _TO_Q, _TO_K, _TO_V, _WORK = range(10)

#: Bytes of a query's numbers in the workspace: the logarithm to base 2 of the sum of its weights' numerators, and δ, both negated.
PAIR = 8

#: Threads of a block of the first dispatch.
_THREADS = 128


def _padded(a: Attention) -> int:
    """Return the pairs of a head in the workspace.

    Their number is even, so that each head's begin at a multiple of 16 bytes.
    """
    return -(-a.queries // 2) * 2


def workspace(a: Attention) -> int:
    """Return the bytes of the workspace."""
    return PAIR * a.stack * _padded(a)


# The numbers of each query.


def statistics_dispatch(a: Attention, cotangent: Rows) -> Dispatch:
    """Return the dispatch that writes the numbers of each query to the workspace."""
    f = KernelFunction(0, 4, _THREADS)
    units = a.out.width // ELEMENTS
    line, unit = f.divided(f.thread, units)
    row = f.plus(f.times(f.special("ctaid.x"), _THREADS // units), line)
    count = a.stack * a.queries
    head, query = f.divided(f.intrinsic("llvm.umin.i32", "i32", row, i32(count - 1)), a.queries)
    results, cotangents = (_unit(f, f.bindings[binding], rows, head, query, unit) for binding, rows in ((0, a.out), (2, cotangent)))
    total = ZERO
    for x, y in zip(results, cotangents, strict=True):
        total = f.intrinsic("llvm.fma.f32", "float", x, y, total)
    bit = units // 2
    while bit:
        total = f.binary("fadd", total, f.intrinsic("llvm.nvvm.shfl.sync.bfly.f32", "float", i32(-1), total, i32(bit), i32(31)))
        bit //= 2
    with f.only_if(f.binary("and", f.equals(unit, 0), f.below(row, count))):
        at = f.further(f.bindings[1], f.widened_index(f.times(row, 8)))
        largest, weights = f.load("float", at, 8), f.load("float", f.further(at, Value("i64", "4")), 4)
        exponent = f.intrinsic("llvm.nvvm.lg2.approx.f", "float", weights)
        exponent = f.intrinsic("llvm.fma.f32", "float", largest, number(math.log2(math.e)), exponent)
        to = f.further(f.bindings[3], f.widened_index(f.times(f.plus(f.times(head, _padded(a)), query), PAIR)))
        f.store(f.let("float", f"fneg {exponent}"), to, 8)
        f.store(f.let("float", f"fneg {total}"), f.further(to, Value("i64", "4")), 4)
    module = kernel_module(KernelHeader(_THREADS, 0), 4, (3,), f.text())
    groups = -(-count * units // _THREADS)
    return Dispatch(module, (_OUT, _STATISTICS, _COTANGENT, _WORK), (groups, 1, 1))


def _unit(f: KernelFunction, base: Value, rows: Rows, head: Value, row: Value, unit: Value) -> list[Value]:
    """Load eight neighbours of a row, as float32."""
    offset = f.binary("mul", f.widened_index(row), Value("i64", str(rows.step)))
    total = f.binary("add", f.offset(head, rows.heads), f.binary("add", offset, f.widened_index(f.times(unit, ELEMENTS))))
    words = f.load("<4 x i32>", f.further(base, f.binary("mul", total, Value("i64", "2"))), 16)
    numbers = []
    for k in range(4):
        word = f.let("i32", f"extractelement {words}, i64 {k}")
        if rows.dtype.name == "bfloat16":
            halves = [f.binary("shl", word, i32(16)), f.binary("and", word, i32(-(1 << 16)))]
            numbers += [f.cast("bitcast", half, "float") for half in halves]
        else:
            pair = f.cast("bitcast", word, "<2 x half>")
            numbers += [f.cast("fpext", f.let("half", f"extractelement {pair}, i64 {e}"), "float") for e in range(2)]
    return numbers


# The gradient of Q.


def query_dispatch(a: Attention, cotangent: Rows, schedule: AttentionSchedule) -> Dispatch:
    """Return the dispatch that computes the gradient of Q."""
    kernel = _ByQueries(a, cotangent, schedule)
    module = kernel_module(KernelHeader(schedule.threads, kernel.shared), 6, (5,), kernel.text())
    buffers = _Q, _K, _V, _COTANGENT, _WORK, _TO_Q
    return Dispatch(module, buffers, (kernel.blocks * a.stack, 1, 1))


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
        pairs = [self._pair(self.head, f.plus(query, self.g, i32(8 * k))) for k in range(2 * s.fragments)]

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
                            weight = self.exp2(self.fma(x[k], self.factor, pairs[2 * i + k // 2][0]))
                            slopes[i][n][k] = self.multiply(weight, slopes[i][n][k])
                self.add_products(sums, self.fragments(slopes), keys, product_pointers, start)
            return self.flat(sums)

        state = self.over_keys(begin, self.flat(self.zeros(self.width)), body, query)
        sums = self.nested([self.multiply(x, number(a.scale)) for x in state])
        self.store(self.row_tiles[0].rows, self.row_tiles[0].offset, 5, self.head, self.first, sums)
        return f.text()

    def _pair(self, head: Value, query: Value) -> list[Value]:
        """Load the numbers of a query; those beyond the last get its own."""
        f, a = self.f, self.a
        query = f.intrinsic("llvm.umin.i32", "i32", query, i32(a.queries - 1))
        at = f.further(f.bindings[4], f.widened_index(f.times(f.plus(f.times(head, _padded(a)), query), PAIR)))
        return [f.load("float", at, 8), f.load("float", f.further(at, Value("i64", "4")), 4)]


# The gradients of K and V.


def key_dispatch(a: Attention, cotangent: Rows, schedule: AttentionSchedule) -> Dispatch:
    """Return the dispatch that computes the gradients of K and V."""
    kernel = _ByKeys(a, cotangent, schedule)
    module = kernel_module(KernelHeader(schedule.threads, kernel.shared), 7, (5, 6), kernel.text())
    buffers = _Q, _K, _V, _COTANGENT, _WORK, _TO_K, _TO_V
    return Dispatch(module, buffers, (kernel.blocks * a.groups, 1, 1))


class _ByKeys(AttentionKernel):
    """The kernel: a block has keys of one head of K and V.

    Products are transposed: their rows are keys. Sums go over the queries of all heads that share it.
    """

    def __init__(self, a: Attention, cotangent: Rows, schedule: AttentionSchedule) -> None:
        super().__init__(schedule, 7, [(1, a.k), (2, a.v)], [(0, a.q), (3, cotangent)], PAIR)
        self.a = a
        self.blocks = -(-a.keys // schedule.rows)
        self.factor = number(a.scale * math.log2(math.e))

    def text(self) -> str:
        """Return the module."""
        f, a, s = self.f, self.a, self.schedule
        position, group = f.divided(f.special("ctaid.x"), a.groups)  # the first keys are seen by most queries
        first, self.head = f.times(position, s.rows), f.times(group, a.shared)
        self.copy_rows(self.head, first)
        queries, cotangents = self.column_tiles
        crossed = [tile.addresses(i32(0), crossed=True) for tile in self.column_tiles]
        plain = [tile.addresses(i32(0), crossed=False) for tile in self.column_tiles]
        key = f.plus(first, self.first_row)
        tiles = -(-a.queries // s.tile)
        self.first_tile = f.quotient(first, s.tile) if a.causal else i32(0)
        # Of a head none of whose queries sees these keys, one tile is read that has no rows.
        self.each = f.intrinsic("llvm.smax.i32", "i32", f.minus(i32(tiles), self.first_tile), i32(1)) if a.causal else i32(tiles)
        self.sources = [tile.source(self.head) for tile in self.column_tiles]

        def begin() -> None:
            self.keys, self.values = [self.rows_of(tile) for tile in self.row_tiles]

        def body(tile_number: Value, stage: Value, state: list[Value]) -> list[Value]:
            to_k, to_v = self.nested(state[: len(state) // 2]), self.nested(state[len(state) // 2 :])
            by_rows = [tile.pointers(addresses, stage) for tile, addresses in zip(self.column_tiles, crossed, strict=True)]
            for_sums = [tile.pointers(addresses, stage) for tile, addresses in zip(self.column_tiles, plain, strict=True)]
            _, first_query = self._position(tile_number)
            for start in range(0, s.tile, s.step):
                pairs = self._pairs(stage, start)
                logits = self.products(self.keys, queries, by_rows[0], start)
                weights = self._masked(logits, key, f.plus(first_query, i32(start)))
                for columns in weights:
                    for n, x in enumerate(columns):
                        columns[n] = [self.exp2(self.fma(x[k], self.factor, pairs[n][k % 2][0])) for k in range(4)]
                self.add_products(to_v, self.fragments(weights), cotangents, for_sums[1], start)
                slopes = [[[pairs[n][k % 2][1] for k in range(4)] for n in range(len(columns))] for columns in weights]
                slopes = self.products(self.values, cotangents, by_rows[1], start, slopes)
                for columns, others in zip(slopes, weights, strict=True):
                    for n, x in enumerate(columns):
                        columns[n] = [self.multiply(one, other) for one, other in zip(x, others[n], strict=True)]
                self.add_products(to_k, self.fragments(slopes), queries, for_sums[0], start)
            return [*self.flat(to_k), *self.flat(to_v)]

        def is_seen(tile_number: Value) -> Value:
            """Emit whether the tile's last query sees the warp's first key."""
            return f.compare("icmp uge", f.plus(self._position(tile_number)[1], i32(s.tile - 1)), key)

        count = i32(a.shared * tiles) if not a.causal else f.times(self.each, a.shared)
        state = 2 * self.flat(self.zeros(self.width))
        sums = self.iterate(count, self._copy, begin, state, body, is_seen if a.causal else None)
        half = len(sums) // 2
        to_k = self.nested([self.multiply(x, number(a.scale)) for x in sums[:half]])
        for tile, binding, gradient in zip(self.row_tiles, (5, 6), (to_k, self.nested(sums[half:])), strict=True):
            self.store(tile.rows, tile.offset, binding, self.head, first, gradient)
        return f.text()

    def _position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile and its first query.

        Heads are counted from the first that shares these keys.
        """
        f, head = self.f, i32(0)
        if self.a.shared > 1:
            head = f.binary("udiv", tile_number, self.each)
            tile_number = f.minus(tile_number, f.binary("mul", head, self.each))
        return head, f.times(f.plus(self.first_tile, tile_number), self.schedule.tile)

    def _copy(self, tile_number: Value, stage: Value) -> None:
        """Begin to copy a tile of queries and of cotangents, and their pairs of numbers."""
        f, a = self.f, self.a
        further_head, first_query = self._position(tile_number)
        head = f.plus(self.head, further_head)
        sources = self.sources if a.shared == 1 else [tile.source(head) for tile in self.column_tiles]
        for tile, source in zip(self.column_tiles, sources, strict=True):
            tile.copy(source, first_query, stage)
        pairs = UNIT // PAIR
        with f.only_if(f.below(f.thread, self.schedule.tile // pairs)):
            query = f.plus(first_query, f.times(f.thread, pairs))
            remaining = f.intrinsic("llvm.smax.i32", "i32", f.minus(i32(a.queries), query), i32(0))
            size = f.times(f.intrinsic("llvm.umin.i32", "i32", remaining, i32(pairs)), PAIR)
            at = f.further(f.bindings[4], f.widened_index(f.times(f.plus(f.times(head, _padded(a)), query), PAIR)))
            f.copy_unit(f.plus(stage, f.times(f.thread, UNIT), i32(self.extra)), at, size)

    def _pairs(self, stage: Value, start: int) -> list[list[list[Value]]]:
        """Load the pairs of the lane's two queries of each eight."""
        f = self.f
        base = f.plus(stage, f.times(self.t, UNIT), i32(self.extra + PAIR * start))
        result = []
        for n in range(self.schedule.step // 8):
            four = f.load("<4 x float>", f.shared(f.plus(base, i32(8 * PAIR * n))), 16)
            numbers = [f.let("float", f"extractelement {four}, i64 {k}") for k in range(4)]
            result.append([numbers[:2], numbers[2:]])
        return result

    def _masked(self, values: Sums, key: Value, query: Value) -> Sums:
        """Replace values where a query does not see a key by the least number."""
        f = self.f
        if not self.a.causal:
            return values

        def mask() -> list[Value]:
            column = f.plus(query, f.times(self.t, 2))
            result = []
            for i, fragment in enumerate(values):
                begins = [f.minus(f.plus(key, self.g, i32(FRAGMENT * i + 8 * half)), column) for half in range(2)]
                for n, columns in enumerate(fragment):
                    for k, x in enumerate(columns):
                        result.append(f.select(f.compare("icmp sge", i32(8 * n + k % 2), begins[k // 2]), x, LOWEST))
            return result

        last_key = f.plus(key, i32(self.schedule.warp_rows - 1))
        return self.nested(f.branch(f.compare("icmp ugt", last_key, query), mask, lambda: self.flat(values)))


def gradient_dispatches(
    a: Attention, cotangent: Rows, by_queries: AttentionSchedule, by_keys: AttentionSchedule
) -> tuple[Dispatch, Dispatch, Dispatch]:
    """Return all dispatches.

    Operands are q, k, v, the result, its statistics (see `forward_dispatch`) and cotangent; results are the gradients of q, k and v. There
    is a workspace.
    """
    return statistics_dispatch(a, cotangent), query_dispatch(a, cotangent, by_queries), key_dispatch(a, cotangent, by_keys)
