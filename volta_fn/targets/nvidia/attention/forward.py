"""Attention on matrix units, in tiles of keys, without storing weights.

As in FlashAttention-2 (Dao 2023), each query keeps the largest product so far and the sum of weights relative to it; sums are scaled when
that maximum grows. Weights are rounded to 16 bits for the product with the values, their sums are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.compiler.attention import Attention
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.attention.queries import QueryKernel, masked
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, AttentionSchedule, FragmentKernel, Sums, first_maximum
from volta_fn.targets.nvidia.function import ZERO, f32, i32
from volta_fn.targets.nvidia.kernel import kernel_dispatch
from volta_fn.targets.wgsl.routine import Dispatch

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
