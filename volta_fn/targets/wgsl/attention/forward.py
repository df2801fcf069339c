"""Attention in blocks of keys, without storing all weights.

As in FlashAttention (Dao et al. 2022), each query keeps the largest logit so far and the sum of weights relative to it; sums are scaled
when that maximum grows.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.attention import Attention
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.attention.blocks import (
    BARRIER,
    FLOAT,
    LOWEST,
    AttentionShader,
    BlockPosition,
    Matrix,
    Patch,
    logit_arrays,
    logits,
    sum_of,
)
from volta_fn.targets.wgsl.attention.problem import forward_schedule
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars.number import Number
from volta_fn.targets.wgsl.shader import Function


def forward(a: Attention, capabilities: TargetCapabilities) -> Routine:
    """Return the routine of attention.

    Operands are q, k, v, the bias and the masks; results are attention's, and statistics of each query.
    """
    first = a.operands
    b = AttentionShader(a, forward_schedule(a, capabilities), capabilities)
    f, schedule = b.f, b.schedule
    tiles = -(-a.queries // schedule.rows)
    position, head = f.digits(f.group, (tiles, a.stack))
    tile = f.let("u32", f"{tiles - 1}u - {position}")  # those with most visible keys come first
    q, k, v = (Matrix.of(f, i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
    out = Matrix.of(f, first, a.out, head, written=True)
    statistics = f.buffer(first + 1, FLOAT, True)
    arrays = logit_arrays(b, head)
    begin = f.let("u32", f"{tile} * {schedule.rows}u")
    sums = b.zeros(schedule.vectors(a.v.width))
    maxima = [f.var("f32", LOWEST) for _ in sums]
    partial_totals = [f.var("f32", "0.0f") for _ in sums]
    start, end = b.seen_range(begin, schedule.rows, a.window, a.keys, schedule.columns)
    stream = b.stream(q, k)

    def attend(start: str, end: str) -> None:
        b.load(stream, begin, start)
        with f.loop(end, start, schedule.columns) as key:
            products = b.products(stream, begin, key)
            b.load(stream, begin, f.let("u32", f"{key} + {schedule.columns}u"))
            values = b.load_rows(v, key)
            weights = logits(b, products, BlockPosition(True, begin, key, b.row_numbers(begin), b.column_numbers(key), arrays))
            _exponentiate(b, weights, maxima, partial_totals, sums)
            b.add_products(sums, weights, v, key, values)

    if b.may_hide_weights:
        # A second time over all keys, if hidden ones count for a query.
        with f.block("for (var turn = 0u; turn < 2u; turn++)"):
            attend(f.let("u32", f"select(0u, {start}, turn == 0u)"), f.let("u32", f"select({a.keys}u, {end}, turn == 0u)"))
            rows = zip(b.row_numbers(begin), maxima, strict=True)
            blind = b.any(" || ".join([f"({row} < {a.queries}u && {b.is_blind(maximum)})" for row, maximum in rows]))
            with f.block(f"if (turn == 1u || !{blind})"):
                f.emit("break;")
            _forget(b, maxima, partial_totals, sums)
    else:
        attend(start, end)
    b.exchange(partial_totals)
    totals = [f.let("f32", sum_of(f, b.exchanged(row))) for row in b.row_numbers("0u")]
    b.store(out, begin, [[f.let("vec4<f32>", f"{x} / {total}") for x in row] for row, total in zip(sums, totals, strict=True)])
    for row, maximum, total in zip(b.row_numbers(begin), maxima, totals, strict=True):
        with f.block(f"if ({b.x} == 0u && {row} < {a.queries}u)"):
            offset = f.let("u32", f"({head} * {a.queries}u + {row}) * 2u")
            statistics.store(offset, Number(FLOAT, maximum))
            statistics.store(f.let("u32", f"{offset} + 1u"), Number(FLOAT, total))
    return Routine((f.dispatch(a.stack * tiles, a.products),))


def _forget(b: AttentionShader, maxima: list[str], partial_totals: list[str], sums: Patch) -> None:
    """Set the statistics and sums of an invocation's rows to those of no keys."""
    for maximum, partial, total in zip(maxima, partial_totals, sums, strict=True):
        b.f.emit(f"{maximum} = {LOWEST};")
        b.f.emit(f"{partial} = 0.0f;")
        for vector in total:
            b.f.emit(f"{vector} = vec4<f32>();")


def _exponentiate(b: AttentionShader, patch: Patch, maxima: list[str], partial_totals: list[str], sums: Patch) -> None:
    """Replace logits by weights relative to the largest so far of their rows.

    Earlier sums are scaled by how much that has grown.
    """
    f = b.f
    b.exchange([f.let("f32", _maximum(f, row_values)) for row_values in patch])
    for row, row_values, maximum, partial, total in zip(b.row_numbers("0u"), patch, maxima, partial_totals, sums, strict=True):
        new = f.let("f32", f"max({maximum}, {_maximum(f, b.exchanged(row))})")
        factor = f.let("f32", f"exp({maximum} - {new})")
        f.emit(f"{maximum} = {new};")
        for x in row_values:
            f.emit(f"{x} = exp({x} - vec4<f32>({new}));")
        f.emit(f"{partial} = fma({partial}, {factor}, {sum_of(f, row_values)});")
        for vector in total:
            f.emit(f"{vector} *= {factor};")
    f.emit(BARRIER)


def _maximum(f: Function, vectors: Sequence[str]) -> str:
    """Return the largest of all elements of vectors."""
    vector = f.let("vec4<f32>", vectors[0])
    for other in vectors[1:]:
        vector = f.let("vec4<f32>", f"max({vector}, {other})")
    return f"max(max({vector}.x, {vector}.y), max({vector}.z, {vector}.w))"
