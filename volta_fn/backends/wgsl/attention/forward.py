"""Attention without a matrix of all weights: each block of queries meets one block of keys after the other.

As in FlashAttention (Dao et al. 2022), the largest logit so far and the sum of weights relative to it are kept for each query, and results
are scaled when it grows.
"""

from __future__ import annotations

from volta_fn.backends.wgsl.attention.blocks import BLOCK, FLOAT, INVOCATIONS, LEAST, UNSEEN, Blocks, Mask
from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits
from volta_fn.backends.wgsl.routine import Routine
from volta_fn.backends.wgsl.scalars.number import Number

#: Invocations that share the weights of a query.
_SHARES = INVOCATIONS // BLOCK


def forward(a: Attention, facts: Facts) -> Routine:
    """The routine: operands q, k, v and the mask if there is one; results are the sums and, for each query, its largest logit and total.

    The last are float32, of the shape (heads, T, 2).
    """
    first = 3 if a.mask is None else 4
    b = Blocks(a, facts)
    f = b.f
    tiles = -(-a.queries // BLOCK)
    head, tile = digits(f, f.group, (a.stack, tiles))
    q, k, v = (b.matrix(i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
    out = b.matrix(first, a.out, head, written=True)
    statistics = f.buffer(first + 1, FLOAT, True)
    mask = b.mask(3, head)
    begin = f.let("u32", f"{tile} * {BLOCK}u")
    shared = f.workgroup("shares", "f32", INVOCATIONS)
    scaling = f.workgroup("scaling", "f32", BLOCK)
    sums = b.sums(a.v.width)
    row, share = f.let("u32", f"local % {BLOCK}u"), f.let("u32", f"local / {BLOCK}u")
    top, mass = f.var("f32", LEAST), f.var("f32", "0.0f")
    end = f"min({begin} + {BLOCK}u, {a.keys}u)" if a.causal and a.mask is None else f"{a.keys}u"
    with f.loop(end, 0, BLOCK) as key:
        b.keep(_masked(b, b.logits(q, begin, k, key), begin, key, mask))
        own = f.let("u32", f"{share} * {BLOCK // _SHARES}u")

        def weight(i: str) -> str:
            return f"{b.weights}[{b.weights_at(f'({own} + {i})')} + {row} / 4u][{row} % 4u]"

        most = f.var("f32", LEAST)
        with f.loop(BLOCK // _SHARES) as i:
            f.line(f"{most} = max({most}, {weight(i)});")
        f.line(f"{shared}[local] = {most};")
        f.line("workgroupBarrier();")
        new = f.var("f32", top)
        for s in range(_SHARES):
            f.line(f"{new} = max({new}, {shared}[{row} + {s * BLOCK}u]);")
        factor = f.let("f32", f"exp({top} - {new})")
        f.line(f"{mass} *= {factor};")
        f.line(f"{top} = {new};")
        with f.loop(BLOCK // _SHARES) as i:
            exponential = f"exp({weight(i)} - {new})"
            if a.keys % BLOCK:
                exponential = f"select(0.0f, {exponential}, {key} + {own} + {i} < {a.keys}u)"
            x = f.let("f32", exponential)
            f.line(f"{mass} += {x};")
            f.line(f"{weight(i)} = {x};")
        with f.block(f"if ({share} == 0u)"):
            f.line(f"{scaling}[{row}] = {factor};")
        f.line("workgroupBarrier();")
        for r in range(4):
            x = f.let("f32", f"{scaling}[{b.y} * 4u + {r}u]")
            for lines in sums:
                f.line(f"{lines[r]} *= {x};")
        b.accumulate(sums, v, key)
    f.line(f"{shared}[local] = {mass};")
    f.line("workgroupBarrier();")
    for r in range(4):
        mine = f.let("u32", f"{b.y} * 4u + {r}u")
        total = f.let("f32", " + ".join(f"{shared}[{mine} + {s * BLOCK}u]" for s in range(_SHARES)))
        for number, lines in enumerate(sums):
            column = f.let("u32", f"{number * BLOCK}u + {b.x} * 4u")
            b.store(out, f.let("u32", f"{begin} + {mine}"), column, f.let("vec4<f32>", f"{lines[r]} / {total}"))
    with f.block(f"if ({share} == 0u && {begin} + {row} < {a.queries}u)"):
        place = f.let("u32", f"({head} * {a.queries}u + {begin} + {row}) * 2u")
        statistics.store(place, Number(FLOAT, top))
        total = f.let("f32", " + ".join(f"{shared}[{row} + {s * BLOCK}u]" for s in range(_SHARES)))
        statistics.store(f.let("u32", f"{place} + 1u"), Number(FLOAT, total))
    return Routine((f.dispatch(a.stack * tiles),))


def _masked(b: Blocks, lines: list[str], query: str, key: str, mask: Mask) -> list[str]:
    """Logits, scaled, where a query may see a key. Rows are queries from `query` on, columns keys from `key` on."""
    f, found = b.f, []
    for r, line in enumerate(lines):
        t = f.let("u32", f"{query} + {b.y} * 4u + {r}u")
        four = []
        for c, component in enumerate("xyzw"):
            s = f.let("u32", f"{key} + {b.x} * 4u + {c}u")
            x = f.let("f32", f"{line}.{component} * {b.scale}")
            seen = b.seen(t, s, mask)
            x = f.let("f32", f"select({UNSEEN}, {x}, {seen})") if seen else x
            four.append(f"select({LEAST}, {x}, {s} < {b.a.keys}u)" if b.a.keys % BLOCK else x)
        found.append(f.let("vec4<f32>", f"vec4<f32>({', '.join(four)})"))
    return found
