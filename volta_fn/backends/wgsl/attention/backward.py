"""The gradients of attention: weights are computed again, block by block, from each query's largest logit and total.

With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
logits is P (D Vᵀ - δ), from which those of Q and K follow. Three dispatches: δ; Q's, by blocks of queries; K's and V's, by blocks of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.wgsl.attention.blocks import FLOAT, Blocks, Lines, Mask
from volta_fn.backends.wgsl.attention.problem import Attention, Rows
from volta_fn.backends.wgsl.attention.shape import shape_for
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits, walked
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.number import Number, literal
from volta_fn.backends.wgsl.scalars.shader import Shader

_INVOCATIONS = 64


def backward(a: Attention, facts: Facts) -> Routine:
    """The routine: operands q, k, v, the mask if there is one, the result, its statistics (see `forward`) and cotangent.

    Results are the gradients of q, k and v.
    """
    assert a.cotangent is not None
    shift = 0 if a.mask is None else 1
    numbers = _Numbers(3 + shift, 4 + shift, 5 + shift, 6 + shift, 9 + shift)
    writer = _Writer(a, a.cotangent, facts, numbers)
    return Routine((writer.differences(), writer.by_queries(), writer.by_keys()), (a.stack * a.queries * 12,))


class _Numbers(NamedTuple):
    """Of buffers: `gradients` is the first of three; `known` has each query's largest logit, the inverse of its total, and δ."""

    out: int
    statistics: int
    cotangent: int
    gradients: int
    known: int


class _Query(NamedTuple):
    """Of a query: its largest logit, the inverse of its total, and δ."""

    top: str
    share: str
    difference: str


class _Writer:
    def __init__(self, a: Attention, cotangent: Rows, facts: Facts, numbers: _Numbers) -> None:
        self.a, self.cotangent, self.facts, self.numbers = a, cotangent, facts, numbers

    def differences(self) -> Dispatch:
        """What is known of every query."""
        a, numbers = self.a, self.numbers
        f, work = Shader(self.facts, _INVOCATIONS), Working(FLOAT)
        pair = (numbers.out, a.out), (numbers.cotangent, self.cotangent)
        step = 4 if all(rows.fours for _, rows in pair) else 1
        x, y = (f.buffer(number, rows.dtype, False, rows.elements if step == 4 else 0) for number, rows in pair)
        statistics, result = f.buffer(numbers.statistics, FLOAT), f.buffer(numbers.known, FLOAT, True)
        count = a.stack * a.queries
        number = f.let("u32", f"group * {_INVOCATIONS}u + local")
        with f.block(f"if ({number} < {count}u)"):
            head, query = digits(f, number, (a.stack, a.queries))
            starts = [
                f.let("u32", f"{walked(f, digits(f, head, rows.heads.sizes), rows.heads.strides)} + {query} * {rows.step}u")
                for rows in (a.out, self.cotangent)
            ]
            sum_ = f.var("f32", "0.0f")
            with f.loop(a.out.width, 0, step) as i:
                places = [f.let("u32", f"({start} + {i}) / {step}u") for start in starts]
                ones, others = ([v.load(at)] if step == 1 else v.load4(at) for v, at in zip((x, y), places, strict=True))
                for one, other in zip(ones, others, strict=True):
                    f.line(f"{sum_} = fma({work.read(f, one)}, {work.read(f, other)}, {sum_});")
            top, total = (statistics.load(f.let("u32", f"{number} * 2u + {place}u")).text for place in range(2))
            for place, value in enumerate((top, f"1.0f / {total}", sum_)):
                result.store(f.let("u32", f"{number} * 3u + {place}u"), Number(FLOAT, value))
        return f.dispatch(-(-count // _INVOCATIONS))

    def by_queries(self) -> Dispatch:
        """Q's gradient."""
        a, numbers = self.a, self.numbers
        b = Blocks(a, shape_for(a, a.stack, a.queries, self.facts), self.facts)
        f, shape = b.f, b.shape
        tiles = -(-a.queries // shape.rows)
        head, tile = digits(f, f.group, (a.stack, tiles))
        q, k, v = (b.matrix(i, rows, head) for i, rows in enumerate((a.q, a.k, a.v)))
        cotangent = b.matrix(numbers.cotangent, self.cotangent, head)
        gradient = b.matrix(numbers.gradients, a.q, head, written=True)
        mask = b.mask(3, head)
        begin = f.let("u32", f"{tile} * {shape.rows}u")
        sums = b.zeros(shape.fours(a.q.width))
        rows = b.row_numbers(begin)
        known = self.queries(b, head, rows)
        end = f"min({begin} + {shape.rows}u, {a.keys}u)" if a.causal and a.mask is None else f"{a.keys}u"
        streams = b.stream(q, begin, k, "0u"), b.stream(cotangent, begin, v, "0u")
        with f.loop(end, 0, shape.columns) as key:
            logits, products = [b.logits(stream, begin, key) for stream in streams]
            coming = b.first_rows(k, key)
            columns = b.column_numbers(key)
            places = [[(t, s) for s in columns] for t in rows]
            _, slopes = _weights(b, logits, products, places, known, mask)
            b.keep(slopes)
            b.accumulate(sums, k, key, coming)
        b.store_block(gradient, begin, sums)
        return f.dispatch(a.stack * tiles, 2 * a.products)

    def by_keys(self) -> Dispatch:
        """K's and V's gradients: of heads that share them, the sums."""
        a, numbers = self.a, self.numbers
        b = Blocks(a, shape_for(a, a.groups, a.keys, self.facts), self.facts)
        f, shape = b.f, b.shape
        tiles = -(-a.keys // shape.rows)
        group, tile = digits(f, f.group, (a.groups, tiles))
        begin = f.let("u32", f"{tile} * {shape.rows}u")
        first = f.let("u32", f"{group} * {a.shared}u")
        k, v = b.matrix(1, a.k, first), b.matrix(2, a.v, first)
        to_k, to_v = (b.matrix(numbers.gradients + 1 + i, rows, first, written=True) for i, rows in enumerate((a.k, a.v)))
        k_sums, v_sums = b.zeros(shape.fours(a.k.width)), b.zeros(shape.fours(a.v.width))
        rows = b.row_numbers(begin)
        with f.loop(a.shared) as i:
            head = f.let("u32", f"{first} + {i}")
            q, cotangent = b.matrix(0, a.q, head), b.matrix(numbers.cotangent, self.cotangent, head)
            mask = b.mask(3, head)
            start = f.let("u32", f"{begin} / {shape.columns}u * {shape.columns}u" if a.causal and a.mask is None else "0u")
            streams = b.stream(k, begin, q, start), b.stream(v, begin, cotangent, start)
            with f.loop(a.queries, start, shape.columns) as query:
                logits, products = [b.logits(stream, begin, query) for stream in streams]
                cotangents = b.first_rows(cotangent, query)
                columns = b.column_numbers(query)
                known = self.queries(b, head, columns)
                places = [[(t, s) for t in columns] for s in rows]
                weights, slopes = _weights(b, logits, products, places, known, mask)
                b.keep(weights)
                b.accumulate(v_sums, cotangent, query, cotangents)
                queries = b.first_rows(q, query)
                b.keep(slopes)
                b.accumulate(k_sums, q, query, queries)
        b.store_block(to_k, begin, k_sums)
        b.store_block(to_v, begin, v_sums)
        return f.dispatch(a.groups * tiles, 2 * a.products)

    def queries(self, b: Blocks, head: str, numbers: Sequence[str]) -> dict[str, _Query]:
        """What is known of some queries of a head; of those that there are not, anything."""
        f = b.f
        known: Array = f.buffer(self.numbers.known, FLOAT)
        found = {}
        for number in numbers:
            at = f.let("u32", f"({head} * {self.a.queries}u + min({number}, {self.a.queries - 1}u)) * 3u")
            found[number] = _Query(*[known.load(f.let("u32", f"{at} + {place}u")).text for place in range(3)])
        return found


def _weights(
    b: Blocks, logits: Lines, products: Lines, places: Sequence[Sequence[tuple[str, str]]], known: dict[str, _Query], mask: Mask
) -> tuple[Lines, Lines]:
    """The weights and the logits' cotangents (times the scale) of an invocation's part of a block, at (query, key)."""
    f, a = b.f, b.a
    scale = literal("f32", a.scale)
    weights: Lines = []
    slopes: Lines = []
    ragged = a.queries % b.shape.rows or a.queries % b.shape.columns, a.keys % b.shape.rows or a.keys % b.shape.columns
    for (x,), (y,), four in zip(logits, products, places, strict=True):
        some, more = [], []
        for (query, key), component in zip(four, "xyzw", strict=True):
            top, share, difference = known[query]
            seen = b.seen(query, key, mask)
            p = f"exp({b.logit(f'{x}.{component}', seen)} - {top}) * {share}"
            there = [f"{n} < {size}u" for n, size, cut in ((query, a.queries, ragged[0]), (key, a.keys, ragged[1])) if cut]
            p = f.let("f32", f"select(0.0f, {p}, {' && '.join(there)})" if there else p)
            d = f"{p} * ({y}.{component} - {difference}) * {scale}"
            ok = " && ".join([*there, *([seen] if seen else [])])
            some.append(p)
            more.append(f"select(0.0f, {d}, {ok})" if ok else d)
        weights.append([f.let("vec4<f32>", f"vec4<f32>({', '.join(some)})")])
        slopes.append([f.let("vec4<f32>", f"vec4<f32>({', '.join(more)})")])
    return weights, slopes
