"""Attention without a matrix of all weights: each block of queries meets one block of keys after the other.

As in FlashAttention (Dao et al. 2022), the largest logit so far and the sum of weights relative to it are kept for each query, and results
are scaled when it grows.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.backends.wgsl.attention.blocks import BARRIER, Blocks, Lines
from volta_fn.backends.wgsl.attention.logits import LEAST, Place, logits, mask_of
from volta_fn.backends.wgsl.attention.operands import FLOAT, Matrix
from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.attention.shape import forward_shape
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits
from volta_fn.backends.wgsl.routine import Routine
from volta_fn.backends.wgsl.scalars.number import Number
from volta_fn.backends.wgsl.text import Function


def forward(a: Attention, facts: Facts) -> Routine:
    """The routine: operands q, k, v and the mask if there is one; results are the sums and, for each query, its largest logit and total.

    The last are float32, of the shape (heads, T, 2).
    """
    first = 3 if a.mask is None else 4
    b = Blocks(a, forward_shape(a, facts), facts)
    f, shape = b.f, b.shape
    tiles = -(-a.queries // shape.rows)
    turn, head = digits(f, f.group, (tiles, a.stack))
    tile = f.let("u32", f"{tiles - 1}u - {turn}")  # those with most keys to see come first
    q, k, v = (Matrix.of(f, i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
    out = Matrix.of(f, first, a.out, head, written=True)
    statistics = f.buffer(first + 1, FLOAT, True)
    mask = mask_of(b, 3, head)
    begin = f.let("u32", f"{tile} * {shape.rows}u")
    sums = b.zeros(shape.fours(a.v.width))
    tops = [f.var("f32", LEAST) for _ in sums]
    masses = [f.var("f32", "0.0f") for _ in sums]
    end = f"min({begin} + {shape.rows}u, {a.keys}u)" if a.causal and a.mask is None else f"{a.keys}u"
    stream = b.stream(q, k)
    b.begin(stream, begin, "0u")
    with f.loop(end, 0, shape.columns) as key:
        found = b.products(stream, begin, key)
        b.begin(stream, begin, f.let("u32", f"{key} + {shape.columns}u"))
        values = b.first_rows(v, key)
        lines = logits(b, found, Place(True, begin, key, b.row_numbers(begin), b.column_numbers(key), mask))
        _grow(b, lines, tops, masses, sums)
        b.add_products(sums, lines, v, key, values)
    _share(b, masses)
    totals = [f.let("f32", _sum(f, _shared(b, row))) for row in b.row_numbers("0u")]
    b.store(out, begin, [[f.let("vec4<f32>", f"{x} / {total}") for x in line] for line, total in zip(sums, totals, strict=True)])
    for row, top, total in zip(b.row_numbers(begin), tops, totals, strict=True):
        with f.block(f"if ({b.x} == 0u && {row} < {a.queries}u)"):
            place = f.let("u32", f"({head} * {a.queries}u + {row}) * 2u")
            statistics.store(place, Number(FLOAT, top))
            statistics.store(f.let("u32", f"{place} + 1u"), Number(FLOAT, total))
    return Routine((f.dispatch(a.stack * tiles, a.products),))


def _grow(b: Blocks, lines: Lines, tops: list[str], masses: list[str], sums: Lines) -> None:
    """Make weights of logits, relative to the largest so far of their rows; scale what was summed before by how much that grew."""
    f = b.f
    _share(b, [f.let("f32", _most(f, line)) for line in lines])
    for row, line, top, mass, total in zip(b.row_numbers("0u"), lines, tops, masses, sums, strict=True):
        new = f.let("f32", f"max({top}, {_most(f, _shared(b, row))})")
        factor = f.let("f32", f"exp({top} - {new})")
        f.line(f"{top} = {new};")
        for x in line:
            f.line(f"{x} = exp({x} - vec4<f32>({new}));")
        f.line(f"{mass} = fma({mass}, {factor}, {_sum(f, line)});")
        for four in total:
            f.line(f"{four} *= {factor};")
    f.line(BARRIER)


def _share(b: Blocks, values: Sequence[str]) -> None:
    """Put a number for each of an invocation's rows into memory, one beside those of the others that have the same rows."""
    across = b.shape.x // 4
    for row, value in zip(b.row_numbers("0u"), values, strict=True):
        b.f.line(f"{b.memory}[{b.behind}u + {row} * {across}u + {b.x} / 4u][{b.x} % 4u] = {value};")
    b.f.line(BARRIER)


def _shared(b: Blocks, row: str) -> list[str]:
    """What all invocations put there for a row, as vectors."""
    across = b.shape.x // 4
    return [f"{b.memory}[{b.behind}u + {row} * {across}u + {n}u]" for n in range(across)]


def _sum(f: Function, fours: Sequence[str]) -> str:
    """The sum of all numbers in vectors."""
    four = f.let("vec4<f32>", " + ".join(fours))
    return f"(({four}.x + {four}.y) + ({four}.z + {four}.w))"


def _most(f: Function, fours: Sequence[str]) -> str:
    """The largest of all numbers in vectors."""
    four = f.let("vec4<f32>", fours[0])
    for other in fours[1:]:
        four = f.let("vec4<f32>", f"max({four}, {other})")
    return f"max(max({four}.x, {four}.y), max({four}.z, {four}.w))"
