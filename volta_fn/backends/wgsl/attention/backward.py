"""The gradients of attention: weights are computed again, block by block, from each query's largest logit and total.

With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
logits is P (D Vᵀ - δ), from which those of Q and K follow. Three dispatches: δ; Q's, by blocks of queries; K's and V's, by blocks of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.wgsl.attention.blocks import BLOCK, FLOAT, UNSEEN, Blocks, Mask, Matrix
from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits, walked
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.number import Number
from volta_fn.backends.wgsl.scalars.shader import Shader

_INVOCATIONS = 64


def backward(a: Attention, facts: Facts) -> Routine:
    """The routine: operands q, k, v, the mask if there is one, the result, its statistics (see `forward`) and cotangent.

    Results are the gradients of q, k and v.
    """
    shift = 0 if a.mask is None else 1
    numbers = _Numbers(3 + shift, 4 + shift, 5 + shift, 6 + shift, 9 + shift)
    dispatches = _differences(a, facts, numbers), _by_queries(a, facts, numbers), _by_keys(a, facts, numbers)
    return Routine(dispatches, (a.stack * a.queries * 12,))


class _Numbers(NamedTuple):
    """Of buffers: `gradients` is the first of three; `known` has each query's statistics and δ."""

    out: int
    statistics: int
    cotangent: int
    gradients: int
    known: int


def _differences(a: Attention, facts: Facts, numbers: _Numbers) -> Dispatch:
    """δ for every query, beside its statistics."""
    f, work, rows = Shader(facts, _INVOCATIONS), Working(FLOAT), a.out
    x, y = f.buffer(numbers.out, rows.dtype), f.buffer(numbers.cotangent, rows.dtype)
    statistics, result = f.buffer(numbers.statistics, FLOAT), f.buffer(numbers.known, FLOAT, True)
    count = a.stack * a.queries
    number = f.let("u32", f"group * {_INVOCATIONS}u + local")
    with f.block(f"if ({number} < {count}u)"):
        head, query = digits(f, number, (a.stack, a.queries))
        base = f.let("u32", f"{walked(f, digits(f, head, rows.heads.sizes), rows.heads.strides)} + {query} * {rows.step}u")
        sum_ = f.var("f32", "0.0f")
        with f.loop(rows.width) as i:
            at = f.let("u32", f"{base} + {i}")
            f.line(f"{sum_} = fma({work.read(f, x.load(at))}, {work.read(f, y.load(at))}, {sum_});")
        for place in range(2):
            result.store(f.let("u32", f"{number} * 3u + {place}u"), statistics.load(f.let("u32", f"{number} * 2u + {place}u")))
        result.store(f.let("u32", f"{number} * 3u + 2u"), Number(FLOAT, sum_))
    return f.dispatch(-(-count // _INVOCATIONS))


class _Queries(NamedTuple):
    """What is known of a head's queries, and the number of the first of them."""

    known: Array
    base: str


def _queries(b: Blocks, numbers: _Numbers, head: str) -> _Queries:
    return _Queries(b.f.buffer(numbers.known, FLOAT), b.f.let("u32", f"{head} * {b.a.queries}u"))


class _Query(NamedTuple):
    """Of a query: its largest logit, total and δ."""

    top: str
    total: str
    difference: str


def _query(b: Blocks, queries: _Queries, number: str) -> _Query:
    f = b.f
    at = f.let("u32", f"({queries.base} + min({number}, {b.a.queries - 1}u)) * 3u")
    return _Query(*[queries.known.load(f.let("u32", f"{at} + {place}u")).text for place in range(3)])


def _weights(
    b: Blocks, logits: Sequence[str], products: Sequence[str], places: Sequence[Sequence[tuple[str, str]]], queries: _Queries, mask: Mask
) -> tuple[list[str], list[str]]:
    """The weights and the logits' cotangents (times the scale) of an invocation's four lines of four, at (query, key)."""
    f, a = b.f, b.a
    found: dict[str, _Query] = {}
    weights, slopes = [], []
    for line, product, row in zip(logits, products, places, strict=True):
        some, more = [], []
        for (query, key), component in zip(row, "xyzw", strict=True):
            if query not in found:
                found[query] = _query(b, queries, query)
            top, total, difference = found[query]
            x, seen = f"{line}.{component} * {b.scale}", b.seen(query, key, mask)
            if seen:
                x = f"select({UNSEEN}, {x}, {seen})"
            p = f.let("f32", f"exp({x} - {top}) / {total}")
            there = [f"{query} < {a.queries}u"] if a.queries % BLOCK else []
            there += [f"{key} < {a.keys}u"] if a.keys % BLOCK else []
            if there:
                p = f.let("f32", f"select(0.0f, {p}, {' && '.join(there)})")
            d = f"{p} * ({product}.{component} - {difference}) * {b.scale}"
            ok = " && ".join([*there, *([seen] if seen else [])])
            some.append(p)
            more.append(f.let("f32", f"select(0.0f, {d}, {ok})" if ok else d))
        weights.append(f.let("vec4<f32>", f"vec4<f32>({', '.join(some)})"))
        slopes.append(f.let("vec4<f32>", f"vec4<f32>({', '.join(more)})"))
    return weights, slopes


def _numbered(b: Blocks, row: str, column: str) -> tuple[list[str], list[str]]:
    """The numbers of an invocation's four rows and four columns."""
    f = b.f
    rows = [f.let("u32", f"{row} + {b.y} * 4u + {i}u") for i in range(4)]
    return rows, [f.let("u32", f"{column} + {b.x} * 4u + {i}u") for i in range(4)]


def _write(b: Blocks, m: Matrix, begin: str, sums: Sequence[Sequence[str]]) -> None:
    f = b.f
    for number, lines in enumerate(sums):
        for r, line in enumerate(lines):
            b.store(m, f.let("u32", f"{begin} + {b.y} * 4u + {r}u"), f.let("u32", f"{number * BLOCK}u + {b.x} * 4u"), line)


def _by_queries(a: Attention, facts: Facts, numbers: _Numbers) -> Dispatch:
    """Q's gradient."""
    b = Blocks(a, facts)
    f = b.f
    tiles = -(-a.queries // BLOCK)
    head, tile = digits(f, f.group, (a.stack, tiles))
    q, k, v = (b.matrix(i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
    cotangent = b.matrix(numbers.cotangent, a.out, head)
    gradient = b.matrix(numbers.gradients, a.q, head, written=True)
    queries, mask = _queries(b, numbers, head), b.mask(3, head)
    begin = f.let("u32", f"{tile} * {BLOCK}u")
    sums = b.sums(a.q.width)
    end = f"min({begin} + {BLOCK}u, {a.keys}u)" if a.causal and a.mask is None else f"{a.keys}u"
    with f.loop(end, 0, BLOCK) as key:
        logits, products = b.logits(q, begin, k, key), b.logits(cotangent, begin, v, key)
        rows, columns = _numbered(b, begin, key)
        _, slopes = _weights(b, logits, products, [[(t, s) for s in columns] for t in rows], queries, mask)
        b.keep(slopes)
        b.accumulate(sums, k, key)
    _write(b, gradient, begin, sums)
    return f.dispatch(a.stack * tiles)


def _by_keys(a: Attention, facts: Facts, numbers: _Numbers) -> Dispatch:
    """K's and V's gradients: of heads that share them, the sums."""
    b = Blocks(a, facts)
    f = b.f
    tiles = -(-a.keys // BLOCK)
    group, tile = digits(f, f.group, (a.groups, tiles))
    begin = f.let("u32", f"{tile} * {BLOCK}u")
    first = f.let("u32", f"{group} * {a.shared}u")
    k, v = b.matrix(1, a.k, first), b.matrix(2, a.v, first)
    to_k, to_v = (b.matrix(numbers.gradients + 1 + i, rows, first, written=True) for i, rows in enumerate((a.k, a.v)))
    k_sums, v_sums = b.sums(a.k.width), b.sums(a.v.width)
    with f.loop(a.shared) as i:
        head = f.let("u32", f"{first} + {i}")
        q, cotangent = b.matrix(0, a.q, head), b.matrix(numbers.cotangent, a.out, head)
        queries, mask = _queries(b, numbers, head), b.mask(3, head)
        start = begin if a.causal and a.mask is None else 0
        with f.loop(a.queries, start, BLOCK) as query:
            logits, products = b.logits(k, begin, q, query), b.logits(v, begin, cotangent, query)
            rows, columns = _numbered(b, begin, query)
            weights, slopes = _weights(b, logits, products, [[(t, s) for t in columns] for s in rows], queries, mask)
            b.keep(weights)
            b.accumulate(v_sums, cotangent, query)
            b.keep(slopes)
            b.accumulate(k_sums, q, query)
    _write(b, to_k, begin, k_sums)
    _write(b, to_v, begin, v_sums)
    return f.dispatch(a.groups * tiles)
