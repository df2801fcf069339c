"""What attention is made of: products of blocks of rows by a workgroup, each invocation having some fours of rows and of columns.

Rows of operands pass through one place in workgroup memory (`stage`), a few columns at a time; weights are kept in another (`weights`),
transposed. Every step ends with a barrier, so that the next may write to the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.attention.problem import Attention, Rows
from volta_fn.backends.wgsl.attention.shape import DEEP, Shape
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.indices import digits, times, walked
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.number import literal
from volta_fn.backends.wgsl.scalars.shader import Shader

FLOAT = np.dtype(np.float32)

#: What is less than any logit, and than what stands for those that are not seen.
LEAST = literal("f32", -float(np.finfo(np.float32).max))

#: Steps of a product that are written out in a turn of the loop.
UNROLL = 4

BARRIER = "workgroupBarrier();"

#: An invocation's part of a block: of each of its rows, its fours of columns.
Lines = list[list[str]]


class Mask(NamedTuple):
    """The mask of one head; without an array, there is none."""

    array: Array | None
    base: str


class Matrix(NamedTuple):
    """The rows of one head."""

    array: Array
    rows: Rows
    base: str


class _Unit(NamedTuple):
    """Four columns of a row that an invocation loads: of rows in blocks of so many, and where they go, a line after the other."""

    matrix: Matrix
    block: int
    line: int
    deep: str
    wide: str
    place: str


class Stream(NamedTuple):
    """Two operands of products whose slices come one after the other, and variables for what comes next."""

    left: list[_Unit]
    right: list[_Unit]
    coming: list[str]


class Blocks:
    """A shader of attention."""

    def __init__(self, a: Attention, shape: Shape, facts: Facts) -> None:
        self.a, self.shape, self.f, self.work = a, shape, Shader(facts, shape.invocations), Working(FLOAT)
        f = self.f
        self.stage = f.workgroup("stage", "vec4<f32>", shape.stage(max(a.q.width, a.v.width)))
        self.weights = f.workgroup("weights", "vec4<f32>", shape.columns * shape.row_line)
        self.y, self.x = f.let("u32", f"local / {shape.x}u"), f.let("u32", f"local % {shape.x}u")

    # memory

    def matrix(self, number: int, rows: Rows, head: str, *, written: bool = False) -> Matrix:
        """The rows of a head, in the buffer of a number."""
        array = self.f.buffer(number, rows.dtype, written, rows.elements if rows.fours else 0)
        return Matrix(array, rows, walked(self.f, digits(self.f, head, rows.heads.sizes), rows.heads.strides))

    def four(self, m: Matrix, row: str, column: str, block: int) -> str:
        """Four neighbours in a row, as a vector; zeros for what is not there. Rows are asked for in blocks of so many."""
        f, rows = self.f, m.rows
        at = f.let("u32", f"{m.base} + min({row}, {rows.count - 1}u) * {rows.step}u")
        inside = [f"{row} < {rows.count}u"] if rows.count % block else []
        if rows.fours:
            ok = " && ".join([*inside, *([f"{column} < {rows.width}u"] if rows.width % DEEP else [])])
            place = f.let("u32", f"({at} + min({column}, {rows.width - 4}u)) / 4u")
            whole = f"vec4<f32>({', '.join(self.work.read(f, x) for x in m.array.load4(place))})"
            return f.let("vec4<f32>", f"select(vec4<f32>(), {whole}, {ok})" if ok else whole)
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

    def store_block(self, m: Matrix, begin: str, lines: Lines) -> None:
        """Write an invocation's part of a block of rows."""
        f = self.f
        for row, line in zip(self.row_numbers(begin), lines, strict=True):
            for j, value in enumerate(line):
                self.store(m, row, f.let("u32", f"({self.x} + {j * self.shape.x}u) * 4u"), value)

    # an invocation's part

    def row_numbers(self, begin: str) -> list[str]:
        """The numbers of its rows, of a block that begins somewhere."""
        s = self.shape
        return [self.f.let("u32", f"{begin} + ({self.y} + {i * s.y}u) * 4u + {e}u") for i in range(s.down) for e in range(4)]

    def column_numbers(self, begin: str) -> list[str]:
        """The numbers of its columns of logits."""
        return [self.f.let("u32", f"{begin} + {self.x} * 4u + {e}u") for e in range(4)]

    def zeros(self, fours: int) -> Lines:
        """Variables for so many fours of each of its rows."""
        return [[self.f.var("vec4<f32>", "vec4<f32>()") for _ in range(fours)] for _ in range(4 * self.shape.down)]

    # products

    def stream(self, left: Matrix, row: str, right: Matrix, column: str) -> Stream:
        """The rows of `left` from `row` on, and those of `right`, first the ones from `column` on; their first slices are loaded."""
        s = self.shape
        behind = DEEP * s.row_line
        units = self._units(left, s.rows, s.row_line, 0), self._units(right, s.columns, s.column_line, behind)
        coming = [self.f.var("vec4<f32>", self._slice(unit, row, "0u")) for unit in units[0]]
        coming += [self.f.var("vec4<f32>", self._slice(unit, column, "0u")) for unit in units[1]]
        return Stream(*units, coming)

    def logits(self, stream: Stream, row: str, column: str) -> Lines:
        """The products of rows from `row` on with rows from `column` on. What comes next is loaded while something is multiplied."""
        f, s = self.f, self.shape
        sums = self.zeros(1)
        behind = DEEP * s.row_line
        units, coming = [*stream.left, *stream.right], stream.coming
        width = stream.left[0].matrix.rows.width
        with f.loop(width, 0, DEEP) as k:
            for unit, four in zip(units, coming, strict=True):
                for e, component in enumerate("xyzw"):
                    f.line(f"{self.stage}[{unit.place} + {e * unit.line}u][{unit.wide} % 4u] = {four}.{component};")
            f.line(BARRIER)
            more = f.let("bool", f"{k} + {DEEP}u < {width}u")
            following = f.let("u32", f"select(0u, {k} + {DEEP}u, {more})")
            next_column = f.let("u32", f"select({column} + {s.columns}u, {column}, {more})")
            for number, (unit, four) in enumerate(zip(units, coming, strict=True)):
                f.line(f"{four} = {self._slice(unit, row if number < len(stream.left) else next_column, following)};")
            with f.loop(DEEP, 0, UNROLL) as i:
                for step in range(UNROLL):
                    at = f"({i} + {step}u)"
                    self._add(sums, self._line(self.stage, at), f"{self.stage}[{behind}u + {at} * {s.column_line}u")
            f.line(BARRIER)
        return sums

    def _units(self, m: Matrix, size: int, line: int, start: int) -> list[_Unit]:
        """What an invocation loads of a slice of so many rows."""
        f, s = self.f, self.shape
        found = []
        for turn in range(size * DEEP // 4 // s.invocations):
            number = f.let("u32", f"local + {turn * s.invocations}u")
            deep, wide = f.let("u32", f"{number} % {DEEP // 4}u * 4u"), f.let("u32", f"{number} / {DEEP // 4}u")
            place = f.let("u32", f"{start}u + {deep} * {line}u + {wide} / 4u")
            found.append(_Unit(m, size, line, deep, wide, place))
        return found

    def _slice(self, unit: _Unit, first: str, k: str) -> str:
        """What an invocation loads, of rows from `first` and columns from k on."""
        f = self.f
        return self.four(unit.matrix, f.let("u32", f"{first} + {unit.wide}"), f.let("u32", f"{k} + {unit.deep}"), unit.block)

    def _line(self, name: str, line: str) -> str:
        """The beginning of an element of an array that has lines with an element for every row."""
        return f"{name}[{line} * {self.shape.row_line}u"

    def keep(self, lines: Lines) -> None:
        """Put an invocation's part of a block into `weights`, of which a line has what belongs to a column."""
        f, s = self.f, self.shape
        for e, component in enumerate("xyzw"):
            place = f.let("u32", f"({self.x} * 4u + {e}u) * {s.row_line}u + {self.y}")
            for i in range(s.down):
                column = ", ".join(f"{lines[4 * i + r][0]}.{component}" for r in range(4))
                f.line(f"{self.weights}[{place} + {i * s.y}u] = vec4<f32>({column});")
        f.line(BARRIER)

    def _together(self, fours: int) -> int:
        """How many rows of so many fours pass through the stage at a time."""
        s = self.shape
        room = s.stage(max(self.a.q.width, self.a.v.width)) // (s.x * fours)
        return max(n for n in (8, 16, 32, 64) if n <= min(room, s.columns))

    def first_rows(self, m: Matrix, first: str) -> list[str]:
        """The first rows that `accumulate` needs, in variables."""
        fours = self.shape.fours(m.rows.width)
        return [self.f.var("vec4<f32>", x) for x in self._rows_from(m, first, fours)]

    def _rows_from(self, m: Matrix, first: str, fours: int) -> list[str]:
        f, s = self.f, self.shape
        wide = s.x * fours
        found = []
        for turn in range(self._together(fours) * wide // s.invocations):
            unit = f.let("u32", f"local + {turn * s.invocations}u")
            row = f.let("u32", f"{first} + {unit} / {wide}u")
            found.append(self.four(m, row, f.let("u32", f"{unit} % {wide}u * 4u"), s.columns))
        return found

    def accumulate(self, sums: Lines, m: Matrix, first: str, coming: list[str]) -> None:
        """Add the products of `weights` with rows from `first` on, of which the first have been loaded."""
        f, s = self.f, self.shape
        fours = len(sums[0])
        wide, some = s.x * fours, self._together(fours)
        with f.loop(s.columns, 0, some) as start:
            for turn, four in enumerate(coming):
                f.line(f"{self.stage}[local + {turn * s.invocations}u] = {four};")
            f.line(BARRIER)
            if some < s.columns:
                following = f.let("u32", f"{first} + min({start} + {some}u, {s.columns - some}u)")
                for four, value in zip(coming, self._rows_from(m, following, fours), strict=True):
                    f.line(f"{four} = {value};")
            with f.loop(some, 0, UNROLL) as i:
                for step in range(UNROLL):
                    at = f"({i} + {step}u)"
                    self._add(sums, self._line(self.weights, f"({start} + {at})"), f"{self.stage}[{at} * {wide}u")
            f.line(BARRIER)

    def _add(self, lines: Lines, left: str, right: str) -> None:
        """Add products of a column's part and a row's part, which begin somewhere in workgroup memory."""
        f, s = self.f, self.shape
        with f.block(""):
            for i in range(s.down):
                f.line(f"let l{i} = {left} + {self.y} + {i * s.y}u];")
            for j in range(len(lines[0])):
                f.line(f"let r{j} = {right} + {self.x} + {j * s.x}u];")
            for r, line in enumerate(lines):
                for j, total in enumerate(line):
                    f.line(f"{total} = fma(vec4<f32>(l{r // 4}.{'xyzw'[r % 4]}), r{j}, {total});")

    # logits

    def mask(self, number: int, head: str) -> Mask:
        """The mask, in the buffer of a number, and where a head's begins."""
        if self.a.mask is None:
            return Mask(None, "0u")
        array = self.f.buffer(number, np.dtype(np.bool_))
        return Mask(array, walked(self.f, digits(self.f, head, self.a.mask.heads.sizes), self.a.mask.heads.strides))

    def seen(self, query: str, key: str, mask: Mask) -> str:
        """Whether a query may see a key, as an expression; of those that there are not, anything. Empty: all see all."""
        f, a = self.f, self.a
        conditions = [f"{key} <= {query}"] if a.causal else []
        array, base = mask
        if array is not None and a.mask is not None:
            by_query = times(f"min({query}, {a.queries - 1}u)", a.mask.query)
            by_key = times(f"min({key}, {a.keys - 1}u)", a.mask.key)
            conditions.append(array.load(f.let("u32", f"{base} + {by_query} + {by_key}")).text)
        return f.let("bool", " && ".join(conditions)) if conditions else ""

    def logit(self, product: str, seen: str) -> str:
        """A product scaled, where a query may see a key."""
        x = f"{product} * {literal('f32', self.a.scale)}"
        return f"select({literal('f32', self.a.unseen)}, {x}, {seen})" if seen else x

    def slices_of_rows(self, values: Sequence[str]) -> None:
        """Put a number for each of an invocation's rows into the stage, one beside those of the others that have the same rows."""
        s = self.shape
        for row, value in zip(self.row_numbers("0u"), values, strict=True):
            self.f.line(f"{self.stage}[{row} * {s.x // 4}u + {self.x} / 4u][{self.x} % 4u] = {value};")
        self.f.line(BARRIER)

    def rows_slices(self, row: str) -> list[str]:
        """What all invocations put there for a row, as vectors."""
        s = self.shape
        return [f"{self.stage}[{row} * {s.x // 4}u + {n}u]" for n in range(s.x // 4)]
