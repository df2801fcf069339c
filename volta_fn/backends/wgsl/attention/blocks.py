"""What attention is made of: small products of blocks of 32 by 32, by workgroups of 64, each invocation having 4 by 4.

Rows of operands pass through one place in workgroup memory (`stage`), a few columns at a time; weights are kept in another (`weights`),
transposed. Every step ends with a barrier, so that the next may write to the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.attention.problem import Attention, Rows
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits, walked
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.number import literal
from volta_fn.backends.wgsl.scalars.shader import Shader

#: Rows and columns of a block, and columns of operands that are multiplied at a time.
BLOCK, DEEP = 32, 16

INVOCATIONS = 64
FLOAT = np.dtype(np.float32)

#: Vectors between the lines of `weights`, and of the two parts of the stage.
_LINE = BLOCK // 4 + 1

#: What logits are that a query may not see, as in `nn.attention`; and what is less than any.
UNSEEN, LEAST = (literal("f32", share * float(np.finfo(np.float32).max)) for share in (-0.7, -1.0))

_BARRIER = "workgroupBarrier();"


class Mask(NamedTuple):
    """The mask of one head; without an array, there is none."""

    array: Array | None
    base: str


class Matrix(NamedTuple):
    """The rows of one head."""

    array: Array
    rows: Rows
    base: str


class Blocks:
    """A shader of attention."""

    def __init__(self, a: Attention, facts: Facts) -> None:
        self.a, self.f, self.work = a, Shader(facts, INVOCATIONS), Working(FLOAT)
        f = self.f
        self.stage = f.workgroup("stage", "vec4<f32>", max(2 * DEEP * _LINE, BLOCK * BLOCK // 4))
        self.weights = f.workgroup("weights", "vec4<f32>", BLOCK * _LINE)
        self.y, self.x = f.let("u32", "local / 8u"), f.let("u32", "local % 8u")

    # memory

    def matrix(self, number: int, rows: Rows, head: str, *, written: bool = False) -> Matrix:
        """The rows of a head, in the buffer of a number."""
        array = self.f.buffer(number, rows.dtype, written, rows.elements if rows.fours else 0)
        return Matrix(array, rows, walked(self.f, digits(self.f, head, rows.heads.sizes), rows.heads.strides))

    def four(self, m: Matrix, row: str, column: str) -> str:
        """Four neighbours in a row, as a vector; zeros for what is not there."""
        f, rows = self.f, m.rows
        at = f.let("u32", f"{m.base} + min({row}, {rows.count - 1}u) * {rows.step}u")
        inside = [f"{row} < {rows.count}u"] if rows.count % BLOCK else []
        if rows.fours:
            ok = " && ".join([*inside, f"{column} < {rows.width}u"])
            place = f.let("u32", f"({at} + min({column}, {rows.width - 4}u)) / 4u")
            texts = [self.work.read(f, x) for x in m.array.load4(place)]
            return f.let("vec4<f32>", f"select(vec4<f32>(), vec4<f32>({', '.join(texts)}), {ok})")
        texts = []
        for e in range(4):
            ok = " && ".join([*inside, f"{column} + {e}u < {rows.width}u"])
            x = self.work.read(f, m.array.load(f.let("u32", f"{at} + min({column} + {e}u, {rows.width - 1}u)")))
            texts.append(f"select(0.0f, {x}, {ok})")
        return f.let("vec4<f32>", f"vec4<f32>({', '.join(texts)})")

    def store(self, m: Matrix, row: str, column: str, value: str) -> None:
        """Write four neighbours in a row, those of them that are there."""
        f, rows = self.f, m.rows
        with f.block(f"if ({row} < {rows.count}u)"):
            at = f.let("u32", f"{m.base} + {row} * {rows.step}u + {column}")
            numbers = [self.work.number(f, f"{value}.{c}", rows.dtype) for c in "xyzw"]
            if rows.fours:
                with f.block(f"if ({column} < {rows.width}u)"):
                    m.array.store4(f.let("u32", f"{at} / 4u"), numbers)
                return
            for e, number in enumerate(numbers):
                with f.block(f"if ({column} + {e}u < {rows.width}u)"):
                    m.array.store(f.let("u32", f"{at} + {e}u"), number)

    # products

    def logits(self, left: Matrix, row: str, right: Matrix, column: str) -> list[str]:
        """The products of rows from `row` on with rows from `column` on: an invocation's four lines of four."""
        f = self.f
        sums = [f.var("vec4<f32>", "vec4<f32>()") for _ in range(4)]
        with f.loop(left.rows.width, 0, DEEP) as k:
            for place, (matrix, first) in enumerate(((left, row), (right, column))):
                for turn in range(BLOCK * DEEP // 4 // INVOCATIONS):
                    unit = f.let("u32", f"local + {turn * INVOCATIONS}u")
                    deep, wide = f.let("u32", f"{unit} % {DEEP // 4}u * 4u"), f.let("u32", f"{unit} / {DEEP // 4}u")
                    four = self.four(matrix, f.let("u32", f"{first} + {wide}"), f.let("u32", f"{k} + {deep}"))
                    for e in range(4):
                        at = f"{place * DEEP * _LINE + e * _LINE}u + {deep} * {_LINE}u + {wide} / 4u"
                        f.line(f"{self.stage}[{at}][{wide} % 4u] = {four}.{'xyzw'[e]};")
            f.line(_BARRIER)
            with f.loop(DEEP, 0, 4) as i:
                for step in range(4):
                    line = f"({i} + {step}u) * {_LINE}u"
                    self._add(sums, f"{self.stage}[{line} + {self.y}]", f"{self.stage}[{DEEP * _LINE}u + {line} + {self.x}]")
            f.line(_BARRIER)
        return sums

    def keep(self, lines: Sequence[str]) -> None:
        """Put an invocation's four lines of four into `weights`, of which a line has what belongs to a column."""
        for c, component in enumerate("xyzw"):
            column = ", ".join(f"{line}.{component}" for line in lines)
            self.f.line(f"{self.weights}[({self.x} * 4u + {c}u) * {_LINE}u + {self.y}] = vec4<f32>({column});")
        self.f.line(_BARRIER)

    def sums(self, width: int) -> list[list[str]]:
        """Variables for a block of rows of so many columns: four lines for every 32 columns."""
        return [[self.f.var("vec4<f32>", "vec4<f32>()") for _ in range(4)] for _ in range(-(-width // BLOCK))]

    def accumulate(self, sums: Sequence[Sequence[str]], m: Matrix, first: str) -> None:
        """Add the products of `weights` with rows from `first` on."""
        f = self.f
        for number, lines in enumerate(sums):
            for turn in range(BLOCK * BLOCK // 4 // INVOCATIONS):
                unit = f.let("u32", f"local + {turn * INVOCATIONS}u")
                row, column = f.let("u32", f"{first} + {unit} / 8u"), f.let("u32", f"{unit} % 8u * 4u + {number * BLOCK}u")
                f.line(f"{self.stage}[{unit}] = {self.four(m, row, column)};")
            f.line(_BARRIER)
            with f.loop(BLOCK, 0, 4) as i:
                for step in range(4):
                    line = f"({i} + {step}u)"
                    self._add(lines, f"{self.weights}[{line} * {_LINE}u + {self.y}]", f"{self.stage}[{line} * 8u + {self.x}]")
            f.line(_BARRIER)

    def _add(self, lines: Sequence[str], left: str, right: str) -> None:
        f = self.f
        with f.block(""):
            f.line(f"let l = {left};")
            f.line(f"let r = {right};")
            for line, component in zip(lines, "xyzw", strict=True):
                f.line(f"{line} = fma(vec4<f32>(l.{component}), r, {line});")

    # logits

    def mask(self, number: int, head: str) -> Mask:
        """The mask, in the buffer of a number, and where a head's begins."""
        if self.a.mask is None:
            return Mask(None, "0u")
        array = self.f.buffer(number, np.dtype(np.bool_))
        return Mask(array, walked(self.f, digits(self.f, head, self.a.mask.sizes), self.a.mask.strides))

    def seen(self, query: str, key: str, mask: Mask) -> str:
        """Whether a query may see a key, as an expression; of those that there are not, anything. Empty: all see all."""
        f, a = self.f, self.a
        conditions = [f"{key} <= {query}"] if a.causal else []
        array, base = mask
        if array is not None:
            place = f"{base} + min({query}, {a.queries - 1}u) * {a.keys}u + min({key}, {a.keys - 1}u)"
            conditions.append(array.load(f.let("u32", place)).text)
        return f.let("bool", " && ".join(conditions)) if conditions else ""

    def weights_at(self, column: str) -> str:
        """Where in `weights` the line of a column begins."""
        return f"{column} * {_LINE}u"

    @property
    def scale(self) -> str:
        """The factor of logits."""
        return literal("f32", self.a.scale)
