"""The gradients of attention: weights are computed again, block by block, from each query's largest logit and total.

With P the weights, D the cotangent of the result, and δ the sums of D times the result along rows: V's cotangent is Pᵀ D; that of the
logits is P (D Vᵀ - δ), from which those of Q and K follow. Three dispatches: δ; the gradients of K and V by blocks of keys, and what each
block gives to Q's; that, added up. A workgroup has some blocks of keys, one after the other, and adds up what they give to Q's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.wgsl.attention.blocks import Blocks, Lines
from volta_fn.backends.wgsl.attention.logits import Place, component, logits, mask_of, seen
from volta_fn.backends.wgsl.attention.operands import FLOAT, Matrix
from volta_fn.backends.wgsl.attention.problem import Attention, Rows
from volta_fn.backends.wgsl.attention.shape import backward_shape, chunks
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits, walked
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars.number import Number, literal
from volta_fn.backends.wgsl.scalars.shader import Shader

_INVOCATIONS = 64


def backward(a: Attention, facts: Facts) -> Routine:
    """The routine: operands q, k, v, the mask if there is one, the result, its statistics (see `forward`) and cotangent.

    Results are the gradients of q, k and v.
    """
    assert a.cotangent is not None
    writer = _Writer(a, a.cotangent, facts)
    return Routine((writer.differences(), writer.by_keys(), writer.add()), (4 * writer.floats,))


class _Query(NamedTuple):
    """Of a query: its largest logit, the inverse of its total, and δ."""

    top: str
    share: str
    difference: str


class _Writer:
    """Writes the dispatches. Their workspace has parts of Q's gradient, and behind them four numbers of each query: a `_Query`."""

    def __init__(self, a: Attention, cotangent: Rows, facts: Facts) -> None:
        self.a, self.cotangent, self.facts = a, cotangent, facts
        shift = 0 if a.mask is None else 1
        self.number_of_out, self.number_of_statistics, self.number_of_cotangent = 3 + shift, 4 + shift, 5 + shift
        self.gradients, self.work = 6 + shift, 9 + shift
        self.shape = backward_shape(a, facts)
        self.tiles = -(-a.keys // self.shape.rows)
        #: Fours in a row of Q's gradient, and in a part of it.
        self.fours = -(-a.q.width // 4)
        self.part = a.stack * a.queries * self.fours
        self.chunks = chunks(a, self.shape, facts)
        self.floats = 4 * (self.chunks * self.part + a.stack * a.queries)
        self.causal = a.causal and a.mask is None

    def differences(self) -> Dispatch:
        """What is known of every query."""
        a = self.a
        f, work = Shader(self.facts, _INVOCATIONS), Working(FLOAT)
        pair = (self.number_of_out, a.out), (self.number_of_cotangent, self.cotangent)
        step = 4 if all(rows.fours for _, rows in pair) else 1
        x, y = (f.buffer(number, rows.dtype, False, rows.elements if step == 4 else 0) for number, rows in pair)
        statistics, result = f.buffer(self.number_of_statistics, FLOAT), f.buffer(self.work, FLOAT, True, self.floats)
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
            values = top, f"1.0f / {total}", sum_, "0.0f"
            result.store4(f.let("u32", f"{self.chunks * self.part}u + {number}"), [Number(FLOAT, value) for value in values])
        return f.dispatch(-(-count // _INVOCATIONS))

    def by_keys(self) -> Dispatch:
        """K's and V's gradients, of heads that share them the sums; and parts of Q's."""
        a = self.a
        b = Blocks(a, self.shape, self.facts, turned=True)
        f, s = b.f, b.shape
        chunk, group = digits(f, f.group, (self.chunks, a.groups))
        first = f.let("u32", f"{group} * {a.shared}u")
        k, v = Matrix.of(f, 1, a.k, first), Matrix.of(f, 2, a.v, first)
        to_k, to_v = (Matrix.of(f, self.gradients + 1 + i, rows, first, written=True) for i, rows in enumerate((a.k, a.v)))
        with f.loop(-(-self.tiles // self.chunks)) as turn:
            # there and back, as the first blocks of keys are seen by most queries
            tile = f.let("u32", f"{turn} * {self.chunks}u + select({chunk}, {self.chunks - 1}u - {chunk}, {turn} % 2u == 1u)")
            with f.block(f"if ({tile} < {self.tiles}u)"):
                begin = f.let("u32", f"{tile} * {s.rows}u")
                k_sums, v_sums = b.zeros(s.fours(a.k.width)), b.zeros(s.fours(a.v.width))
                with f.loop(a.shared) as i:
                    self._head(b, f.let("u32", f"{first} + {i}"), k, v, begin, (k_sums, v_sums), (chunk, turn))
                b.store(to_k, begin, k_sums)
                b.store(to_v, begin, v_sums)
        return f.dispatch(a.groups * self.chunks, 5 * a.products // 2)

    def _head(self, b: Blocks, head: str, k: Matrix, v: Matrix, begin: str, sums: tuple[Lines, Lines], part: tuple[str, str]) -> None:
        """Add what a head's queries give to a block of keys, and what that gives to them."""
        a, f, s = self.a, b.f, b.shape
        q, cotangent = Matrix.of(f, 0, a.q, head), Matrix.of(f, self.number_of_cotangent, self.cotangent, head)
        mask = mask_of(b, 3, head)
        start = f.let("u32", f"{begin} / {s.columns}u * {s.columns}u" if self.causal else "0u")
        for_logits, for_slopes = b.stream(k, q), b.stream(v, cotangent)
        b.begin(for_logits, begin, start)
        with f.loop(a.queries, start, s.columns) as query:
            place = Place(False, query, begin, b.row_numbers(begin), b.column_numbers(query), mask)
            found = b.products(for_logits, begin, query)
            cotangents = b.first_rows(cotangent, query)
            known = self._queries(b, head, place.columns)
            weights = _weights(b, logits(b, found, place), place, known)
            b.begin(for_slopes, begin, query)
            b.add_products(sums[1], weights, cotangent, query, cotangents)
            found = b.products(for_slopes, begin, query)
            queries = b.first_rows(q, query)
            slopes = _slopes(b, weights, found, place, known)
            b.add_products(sums[0], slopes, q, query, queries)
            keys = b.first_rows(k, begin)
            b.begin(for_logits, begin, f.let("u32", f"{query} + {s.columns}u"))
            down = s.columns // (4 * s.y)
            given = b.zeros(s.fours(a.q.width), down)
            b.add_turned(given, slopes, k, begin, keys)
            self._give(b, head, b.row_numbers(query, down), given, part)

    def _give(self, b: Blocks, head: str, rows: Sequence[str], lines: Lines, part: tuple[str, str]) -> None:
        """Add something to a workgroup's part of Q's gradient, which nothing is in at first."""
        a, f = self.a, b.f
        chunk, turn = part
        parts = f.buffer(self.work, FLOAT, True, self.floats).name
        columns = b.features(len(lines[0]))
        for row, line in zip(rows, lines, strict=True):
            for column, four in zip(columns, line, strict=True):
                with f.block(f"if ({row} < {a.queries}u && {column} < {a.q.width}u)"):
                    at = f.let("u32", f"{chunk} * {self.part}u + ({head} * {a.queries}u + {row}) * {self.fours}u + {column} / 4u")
                    with f.block(f"if ({turn} > 0u)"):
                        f.line(f"{four} += {parts}[{at}];")
                    f.line(f"{parts}[{at}] = {four};")

    def add(self) -> Dispatch:
        """Q's gradient: the sums of its parts."""
        a = self.a
        f = Shader(self.facts, _INVOCATIONS)
        parts = f.buffer(self.work, FLOAT, False, self.floats)
        number = f.let("u32", f"group * {_INVOCATIONS}u + local")
        with f.block(f"if ({number} < {self.part}u)"):
            head, row, four = digits(f, number, (a.stack, a.queries, self.fours))
            sum_ = f.var("vec4<f32>", "vec4<f32>()")
            for chunk in range(self.chunks):
                s = self.shape
                first = chunk * s.rows // s.columns * s.columns if self.causal else 0
                with f.block(f"if ({row} >= {first}u)" if first else ""):
                    f.line(f"{sum_} += {parts.name}[{number} + {chunk * self.part}u];")
            Matrix.of(f, self.gradients, a.q, head, written=True).store(row, f.let("u32", f"{four} * 4u"), sum_)
        return f.dispatch(-(-self.part // _INVOCATIONS))

    def _queries(self, b: Blocks, head: str, numbers: Sequence[str]) -> dict[str, _Query]:
        """What is known of some queries of a head; of those that there are not, anything."""
        f, a = b.f, self.a
        parts = f.buffer(self.work, FLOAT, True, self.floats)
        found = {}
        for number in numbers:
            at = f.let("u32", f"{self.chunks * self.part}u + {head} * {a.queries}u + min({number}, {a.queries - 1}u)")
            found[number] = _Query(*[x.text for x in parts.load4(at)[:3]])
        return found


def _weights(b: Blocks, lines: Lines, place: Place, known: dict[str, _Query]) -> Lines:
    """The weights of an invocation's part of a block, in place of its logits."""
    for r in range(len(lines)):
        for c in range(len(place.columns)):
            x, query = component(lines, r, c), known[place.at(r, c)[0]]
            b.f.line(f"{x} = exp({x} - {query.top}) * {query.share};")
    return lines


def _slopes(b: Blocks, weights: Lines, products: Lines, place: Place, known: dict[str, _Query]) -> Lines:
    """The cotangents of logits (times the scale), in place of the weights."""
    f, scale = b.f, literal("f32", b.a.scale)
    for r in range(len(weights)):
        for c in range(len(place.columns)):
            x, (query, key) = component(weights, r, c), place.at(r, c)
            slope = f"{x} * ({component(products, r, c)} - {known[query].difference}) * {scale}"
            if b.a.mask is not None:
                slope = f"select(0.0f, {slope}, {seen(b, query, key, place.mask)})"
            f.line(f"{x} = {slope};")
    return weights
