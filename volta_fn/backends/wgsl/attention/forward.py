"""Attention without a matrix of all weights: each block of queries meets one block of keys after the other.

As in FlashAttention (Dao et al. 2022), the largest logit so far and the sum of weights relative to it are kept for each query, and results
are scaled when it grows.
"""

from __future__ import annotations

from volta_fn.backends.wgsl.attention.blocks import BARRIER, FLOAT, LEAST, Blocks, Lines, Mask
from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.attention.shape import shape_for
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits
from volta_fn.backends.wgsl.routine import Routine
from volta_fn.backends.wgsl.scalars.number import Number


def forward(a: Attention, facts: Facts) -> Routine:
    """The routine: operands q, k, v and the mask if there is one; results are the sums and, for each query, its largest logit and total.

    The last are float32, of the shape (heads, T, 2).
    """
    first = 3 if a.mask is None else 4
    b = Blocks(a, shape_for(a, a.stack, a.queries, facts), facts)
    f, shape = b.f, b.shape
    tiles = -(-a.queries // shape.rows)
    head, tile = digits(f, f.group, (a.stack, tiles))
    q, k, v = (b.matrix(i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
    out = b.matrix(first, a.out, head, written=True)
    statistics = f.buffer(first + 1, FLOAT, True)
    mask = b.mask(3, head)
    begin = f.let("u32", f"{tile} * {shape.rows}u")
    sums = b.zeros(shape.fours(a.v.width))
    tops = [f.var("f32", LEAST) for _ in sums]
    masses = [f.var("f32", "0.0f") for _ in sums]
    end = f"min({begin} + {shape.rows}u, {a.keys}u)" if a.causal and a.mask is None else f"{a.keys}u"
    stream = b.stream(q, begin, k, "0u")
    with f.loop(end, 0, shape.columns) as key:
        lines = _masked(b, b.logits(stream, begin, key), begin, key, mask)
        values = b.first_rows(v, key)
        _grow(b, lines, tops, masses, sums)
        b.keep(lines)
        b.accumulate(sums, v, key, values)
    b.slices_of_rows(masses)
    numbers = b.row_numbers("0u")
    totals = []
    for row in numbers:
        whole = f.let("vec4<f32>", " + ".join(b.rows_slices(row)))
        totals.append(f.let("f32", f"({whole}.x + {whole}.y) + ({whole}.z + {whole}.w)"))
    b.store_block(out, begin, [[f.let("vec4<f32>", f"{x} / {total}") for x in line] for line, total in zip(sums, totals, strict=True)])
    for row, top, total in zip(numbers, tops, totals, strict=True):
        with f.block(f"if ({b.x} == 0u && {begin} + {row} < {a.queries}u)"):
            place = f.let("u32", f"({head} * {a.queries}u + {begin} + {row}) * 2u")
            statistics.store(place, Number(FLOAT, top))
            statistics.store(f.let("u32", f"{place} + 1u"), Number(FLOAT, total))
    return Routine((f.dispatch(a.stack * tiles, a.products),))


def _masked(b: Blocks, lines: Lines, query: str, key: str, mask: Mask) -> Lines:
    """Logits, scaled, where a query may see a key, as variables."""
    f, found = b.f, []
    columns = b.column_numbers(key)
    for t, (four,) in zip(b.row_numbers(query), lines, strict=True):
        texts = []
        for s, component in zip(columns, "xyzw", strict=True):
            x = b.logit(f"{four}.{component}", b.seen(t, s, mask))
            texts.append(f"select({LEAST}, {x}, {s} < {b.a.keys}u)" if b.a.keys % b.shape.columns else x)
        found.append([f.var("vec4<f32>", f"vec4<f32>({', '.join(texts)})")])
    return found


def _grow(b: Blocks, lines: Lines, tops: list[str], masses: list[str], sums: Lines) -> None:
    """Make weights of logits, relative to the largest so far of their rows; scale what was summed before by how much that grew."""
    f = b.f
    most = [f.let("f32", f"max(max({x}.x, {x}.y), max({x}.z, {x}.w))") for (x,) in lines]
    b.slices_of_rows(most)
    for row, (x,), top, mass, total in zip(b.row_numbers("0u"), lines, tops, masses, sums, strict=True):
        first, *rest = b.rows_slices(row)
        largest = f.let("vec4<f32>", first)
        for other in rest:
            largest = f.let("vec4<f32>", f"max({largest}, {other})")
        new = f.let("f32", f"max({top}, max(max({largest}.x, {largest}.y), max({largest}.z, {largest}.w)))")
        factor = f.let("f32", f"exp({top} - {new})")
        f.line(f"{top} = {new};")
        f.line(f"{mass} *= {factor};")
        f.line(f"{x} = exp({x} - vec4<f32>({new}));")
        f.line(f"{mass} += ({x}.x + {x}.y) + ({x}.z + {x}.w);")
        for four in total:
            f.line(f"{four} *= {factor};")
    f.line(BARRIER)
