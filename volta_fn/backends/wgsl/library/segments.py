"""Rows sorted by their slots, and the rows of each slot combined: a segmented reduction.

Sorted rows are cut into pieces. The part of a slot's rows in a piece is combined by one invocation (for each element of a row), in the
order of the rows. If that is not all of them it is kept: in the piece's *tail* if more rows follow in the next piece, else, or if all of
the piece is in between, in its *head*. Then tails are combined with the heads that follow them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.library.numbers import summing
from volta_fn.backends.wgsl.library.radix import Sorting, Word, sort_rows
from volta_fn.backends.wgsl.library.scattering import Rows
from volta_fn.backends.wgsl.library.spaces import Spaces
from volta_fn.backends.wgsl.library.units import INVOCATIONS, for_each
from volta_fn.backends.wgsl.library.whole import plus, quotient, remainder, times
from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.backends.wgsl.scalars import Number, Shader, combine, convert
from volta_fn.core.aval import ShapedArray

_INDICES, _UPDATES, _RESULT, _SPACES = 1, 2, 3, 4
_UINT32 = np.dtype(np.uint32)
_SHORTEST = 64


def combine_sorted(avals: tuple[ShapedArray, ...], rows: Rows, op: str, facts: Facts) -> tuple[list[Dispatch], tuple[int, ...]]:
    """The shaders that combine all rows into the result, and the workspaces that they take."""
    spaces = Spaces(_SPACES)
    segments = _Segments(avals, rows, op, facts, spaces)
    sorting = Sorting(1, rows.number, (Word(segments.key, rows.slots.bit_length()),), segments.emit)
    dispatches = [*sort_rows(sorting, facts, spaces), segments.combine_pieces()]
    if segments.pieces > 1:
        dispatches.append(segments.combine_tails())
    return dispatches, spaces.sizes


class _Segments:
    def __init__(self, avals: tuple[ShapedArray, ...], rows: Rows, op: str, facts: Facts, spaces: Spaces) -> None:
        self.rows, self.op, self.facts = rows, op, facts
        self.stored = avals[0].dtype
        self.dtype = summing(self.stored)
        self.slots, self.order = spaces.words(rows.number), spaces.words(rows.number)
        # As many pieces as rows in a piece, or so. Products are not cut: parts might overflow where the whole does not.
        length = max(_SHORTEST, 1 << (rows.number.bit_length() + 1) // 2)
        self.length = rows.number if op == "reduce_prod" else min(rows.number, length)
        self.pieces = -(-rows.number // self.length)
        self.parts = spaces.words(2 * self.pieces * rows.elements * self.dtype.itemsize // 4) if self.pieces > 1 else 0

    def key(self, shader: Shader) -> Any:
        """Slots; rows that go nowhere come last."""
        indices = self.rows.indices(shader, _INDICES)

        def read(_: str, number: str) -> str:
            row = self.rows.row(shader, indices, number)
            slot = quotient(row.target, self.rows.spacing)
            return f"select({self.rows.slots}u, {slot}, {row.valid})" if row.valid else slot

        return read

    def emit(self, shader: Shader) -> Any:
        """Sorted slots and the rows' numbers."""
        slots, order = (shader.buffer(n, _UINT32, written=True) for n in (self.slots, self.order))

        def write(_: str, place: str, slot: str, number: str) -> None:
            shader.line(f"{slots.name}[{place}] = {slot};")
            shader.line(f"{order.name}[{place}] = {number};")

        return write

    def _number(self, shader: Shader, value: Number) -> Number:
        return Number(self.dtype, shader.var(value.type, value.text))

    def _add(self, shader: Shader, total: Number, value: Number) -> None:
        shader.line(f"{total.text} = {combine(shader, self.op, total, value).text};")

    def combine_pieces(self) -> Dispatch:
        """The rows of each slot in each piece."""
        shader, rows = Shader(self.facts, INVOCATIONS), self.rows
        slots, order = shader.buffer(self.slots, _UINT32), shader.buffer(self.order, _UINT32)
        source, target = shader.buffer(_UPDATES, self.stored), shader.buffer(_RESULT, self.stored, written=True)
        parts = shader.buffer(self.parts, self.dtype, written=True) if self.pieces > 1 else None

        def reduce(index: str) -> None:
            first = shader.let("u32", quotient(index, rows.elements))
            element = shader.let("u32", remainder(index, rows.elements))
            slot = slots.load(first).text
            begins = shader.let("bool", f"{first} == 0u || {slots.name}[max({first}, 1u) - 1u] != {slot}")
            cut = f" || {first} % {self.length}u == 0u" if parts else ""
            with shader.block(f"if ({slot} < {rows.slots}u && ({begins}{cut}))"):
                here, there = rows.within(shader, element)
                at = shader.let("u32", plus(times(slot, rows.spacing), there))

                def update(number: str) -> Number:
                    begin = rows.source(shader, order.load(number).text)
                    return convert(shader, source.load(shader.let("u32", plus(begin, here))), self.dtype)

                total = self._number(shader, update(first))
                with shader.block(f"if ({begins})"):
                    before = convert(shader, target.load(at), self.dtype)
                    shader.line(f"{total.text} = {combine(shader, self.op, before, total).text};")
                end = shader.let("u32", f"min(({first} / {self.length}u + 1u) * {self.length}u, {rows.number}u)")
                next_ = shader.var("u32", f"{first} + 1u")
                with shader.block(f"while ({next_} < {end})"):
                    shader.line(f"if ({slots.name}[{next_}] != {slot}) {{ break; }}")
                    self._add(shader, total, update(next_))
                    shader.line(f"{next_} += 1u;")
                if not parts:
                    return target.store(at, convert(shader, total, self.stored))
                behind = f"{slots.name}[min({end}, {rows.number - 1}u)] == {slot}"
                goes_on = shader.let("bool", f"{next_} == {end} && {end} < {rows.number}u && {behind}")
                with shader.block(f"if ({begins} && !{goes_on})"):
                    target.store(at, convert(shader, total, self.stored))
                with shader.block("else"):
                    number = f"({first} / {self.length}u) * 2u + select(0u, 1u, {begins})"
                    parts.store(shader.let("u32", f"({number}) * {rows.elements}u + {element}"), total)
            return None

        return for_each(shader, rows.number * rows.elements, reduce)

    def combine_tails(self) -> Dispatch:
        """What began in each piece and went on in others."""
        shader, rows = Shader(self.facts, INVOCATIONS), self.rows
        slots, parts = shader.buffer(self.slots, _UINT32), shader.buffer(self.parts, self.dtype)
        target = shader.buffer(_RESULT, self.stored, written=True)

        def reduce(index: str) -> None:
            piece = shader.let("u32", quotient(index, rows.elements))
            element = shader.let("u32", remainder(index, rows.elements))
            behind = shader.let("u32", f"({piece} + 1u) * {self.length}u")
            slot = slots.load(f"{behind} - 1u").text
            goes_on = f"{slots.name}[{behind}] == {slot}"
            began = f"({piece} == 0u || {slots.name}[max({piece} * {self.length}u, 1u) - 1u] != {slot})"
            with shader.block(f"if ({slot} < {rows.slots}u && {goes_on} && {began})"):
                _, there = rows.within(shader, element)
                total = self._number(shader, parts.load(f"({piece} * 2u + 1u) * {rows.elements}u + {element}"))
                next_ = shader.var("u32", f"{piece} + 1u")
                with shader.block(f"while ({next_} < {self.pieces}u)"):
                    shader.line(f"if ({slots.name}[{next_} * {self.length}u] != {slot}) {{ break; }}")
                    self._add(shader, total, parts.load(f"{next_} * {2 * rows.elements}u + {element}"))
                    shader.line(f"{next_} += 1u;")
                at = shader.let("u32", plus(times(slot, rows.spacing), there))
                target.store(at, convert(shader, total, self.stored))

        return for_each(shader, (self.pieces - 1) * rows.elements, reduce)
