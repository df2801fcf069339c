"""What attention is made of: products of blocks of rows by a workgroup, each invocation having some fours of rows and of columns.

Rows of operands pass through workgroup memory, a few columns or a few rows at a time, and so do weights, transposed. Slices and weights
take turns in the same place: the less of it each workgroup has, the more of them are at work side by side. Every step ends with a barrier,
so that the next may write there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import gcd
from typing import NamedTuple

from volta_fn.backends.wgsl.attention.operands import Matrix
from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.attention.shape import Shape, Table
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.patches import patch
from volta_fn.backends.wgsl.scalars.shader import Shader

BARRIER = "workgroupBarrier();"

#: An invocation's part of a block: of each of its rows, its fours of columns.
Lines = list[list[str]]


class _Unit(NamedTuple):
    """Four columns of a row that an invocation loads, of rows in blocks of so many; and where they go, a line after the other."""

    matrix: Matrix
    block: int
    line: int
    deep: str
    wide: str
    place: str


class Stream(NamedTuple):
    """What is loaded of two operands, a slice after the other, and variables for what comes next."""

    left: list[_Unit]
    right: list[_Unit]
    coming: list[str]


class _Side(NamedTuple):
    """Lines in workgroup memory, and where they begin."""

    start: str
    table: Table


class Blocks:
    """A shader of attention. If `turned` products are needed, there is memory for them."""

    def __init__(self, a: Attention, shape: Shape, facts: Facts, *, turned: bool = False) -> None:
        self.a, self.shape, self.f = a, shape, Shader(facts, shape.invocations)
        self.memory = self.f.workgroup("memory", "vec4<f32>", shape.memory(max(a.q.width, a.v.width), turned=turned))
        #: Where rows are, behind weights.
        self.behind = shape.weights(turned=turned)
        self._lane()

    def _lane(self) -> None:
        """Which rows and columns an invocation has."""
        f, s = self.f, self.shape
        down, across = min(s.y, 4), min(s.x, 8)
        below, right, y, x = patch(f, down, across, s.x // across)
        self.y, self.x = f.let("u32", f"{below} * {down}u + {y}"), f.let("u32", f"{right} * {across}u + {x}")

    # an invocation's part

    def row_numbers(self, begin: str, fours: int = 0) -> list[str]:
        """The numbers of its rows, of a block that begins somewhere: so many fours, or those of logits."""
        s = self.shape
        return [self.f.let("u32", f"{begin} + ({self.y} + {i * s.y}u) * 4u + {e}u") for i in range(fours or s.down) for e in range(4)]

    def column_numbers(self, begin: str) -> list[str]:
        """The numbers of its columns of logits."""
        s = self.shape
        return [self.f.let("u32", f"{begin} + ({self.x} + {j * s.x}u) * 4u + {e}u") for j in range(s.across) for e in range(4)]

    def features(self, fours: int) -> list[str]:
        """The numbers of the first features of its fours of them."""
        return [self.f.let("u32", f"({self.x} + {j * self.shape.x}u) * 4u") for j in range(fours)]

    def zeros(self, fours: int, down: int = 0) -> Lines:
        """Variables for so many fours of each of its rows, of which there are so many fours, or those of logits."""
        return [[self.f.var("vec4<f32>", "vec4<f32>()") for _ in range(fours)] for _ in range(4 * (down or self.shape.down))]

    def store(self, m: Matrix, begin: str, lines: Lines) -> None:
        """Write its part of a block of rows."""
        columns = self.features(len(lines[0]))
        for row, line in zip(self.row_numbers(begin), lines, strict=True):
            for column, value in zip(columns, line, strict=True):
                m.store(row, column, value)

    # products of rows

    def stream(self, left: Matrix, right: Matrix) -> Stream:
        """What products of rows of both need."""
        s = self.shape
        units = self._units(left, s.rows, s.by_column, 0), self._units(right, s.columns, s.by_row, s.by_column.size(s.deep))
        return Stream(*units, [self.f.var("vec4<f32>", "vec4<f32>()") for _ in [*units[0], *units[1]]])

    def begin(self, stream: Stream, row: str, column: str, k: str = "0u") -> None:
        """Load the slices of columns from `k` on, of rows from `row` and from `column` on."""
        f, s = self.f, self.shape
        units = [*[(unit, row) for unit in stream.left], *[(unit, column) for unit in stream.right]]
        for (unit, first), four in zip(units, stream.coming, strict=True):
            place = f.let("u32", f"{first} + {unit.wide}"), f.let("u32", f"{k} + {unit.deep}")
            f.line(f"{four} = {unit.matrix.four(*place, unit.block, s.deep)};")

    def products(self, stream: Stream, row: str, column: str) -> Lines:
        """The products of rows, once it has begun. Slices that follow are loaded while one is multiplied."""
        f, s = self.f, self.shape
        sums = self.zeros(s.across)
        width = stream.left[0].matrix.rows.width
        with f.loop(width, 0, s.deep) as k:
            for unit, four in zip([*stream.left, *stream.right], stream.coming, strict=True):
                for e, c in enumerate("xyzw"):
                    f.line(f"{self.memory}[{unit.place} + {e * unit.line}u][{unit.wide} % 4u] = {four}.{c};")
            f.line(BARRIER)
            following = f.let("u32", f"{k} + {s.deep}u")
            with f.block(f"if ({following} < {width}u)"):
                self.begin(stream, row, column, following)
            self._steps(sums, s.deep, _Side("0u", s.by_column), _Side(f"{s.by_column.size(s.deep)}u", s.by_row))
            f.line(BARRIER)
        return sums

    def _units(self, m: Matrix, size: int, table: Table, start: int) -> list[_Unit]:
        """What an invocation loads of a slice of so many rows."""
        f, s = self.f, self.shape
        found = []
        for turn in range(size * s.deep // 4 // s.invocations):
            number = f.let("u32", f"local + {turn * s.invocations}u")
            deep, wide = f.let("u32", f"{number} % {s.deep // 4}u"), f.let("u32", f"{number} / {s.deep // 4}u")
            place = f.let("u32", f"{start}u + {deep} * {table.four}u + {wide} / 4u")
            found.append(_Unit(m, size, table.line, f.let("u32", f"{deep} * 4u"), wide, place))
        return found

    def _steps(self, sums: Lines, count: int, left: _Side, right: _Side) -> None:
        """Add the products of so many lines of two tables."""
        f, unroll = self.f, min(self.shape.unroll, count)
        with f.loop(count // unroll) as i:
            one, other = [
                f.let("u32", f"{side.start} + {i} * {side.table.past(unroll)}u + {lane}")
                for side, lane in ((left, self.y), (right, self.x))
            ]
            for step in range(unroll):
                with f.block(""):
                    for n in range(len(sums) // 4):
                        f.line(f"let l{n} = {self.memory}[{one} + {left.table.past(step) + n * self.shape.y}u];")
                    for n in range(len(sums[0])):
                        f.line(f"let r{n} = {self.memory}[{other} + {right.table.past(step) + n * self.shape.x}u];")
                    for r, line in enumerate(sums):
                        for n, total in enumerate(line):
                            f.line(f"{total} = fma(vec4<f32>(l{r // 4}.{'xyzw'[r % 4]}), r{n}, {total});")

    # products of weights and rows

    def first_rows(self, m: Matrix, first: str) -> list[str]:
        """The first rows that weights are multiplied by, from `first` on, in variables."""
        return [self.f.var("vec4<f32>", x) for x in self._rows_from(m, first)]

    def add_products(self, sums: Lines, weights: Lines, m: Matrix, first: str, coming: list[str]) -> None:
        """Add the products of weights with rows that belong to their columns, from `first` on, of which the first have been loaded."""
        s, table = self.shape, self.shape.by_column
        count = s.x // s.parts
        for j in range(s.across):
            with self.f.loop(s.parts) as part:
                with self._those(self.x, count, part):
                    for e, c in enumerate("xyzw"):
                        for i in range(s.down):
                            column = ", ".join(f"{weights[4 * i + r][j]}.{c}" for r in range(4))
                            place = f"{self.x} % {count}u * {table.four}u + {self.y} + {e * table.line + i * s.y}u"
                            self.f.line(f"{self.memory}[{place}] = vec4<f32>({column});")
                start = self.f.let("u32", f"{first} + ({j * s.x}u + {part} * {count}u) * 4u")
                self._accumulate(sums, m, start, coming, 4 * count, table)

    def add_turned(self, sums: Lines, weights: Lines, m: Matrix, first: str, coming: list[str]) -> None:
        """The same with rows that belong to their rows."""
        s, table = self.shape, self.shape.by_row
        count = s.y // s.parts
        for i in range(s.down):
            with self.f.loop(s.parts) as part:
                with self._those(self.y, count, part):
                    for e in range(4):
                        for j in range(s.across):
                            place = f"{self.y} % {count}u * {table.four}u + {self.x} + {e * table.line + j * s.x}u"
                            self.f.line(f"{self.memory}[{place}] = {weights[4 * i + e][j]};")
                start = self.f.let("u32", f"{first} + ({i * s.y}u + {part} * {count}u) * 4u")
                self._accumulate(sums, m, start, coming, 4 * count, table)

    def _those(self, lane: str, count: int, part: str) -> AbstractContextManager[None]:
        """A block for those whose lane is in a part of so many."""
        return self.f.block(f"if ({lane} / {count}u == {part})" if self.shape.parts > 1 else "")

    def _rows_from(self, m: Matrix, first: str) -> list[str]:
        f, s = self.f, self.shape
        wide = s.x * s.fours(m.rows.width)
        found = []
        for turn in range(s.high * wide // s.invocations):
            unit = f.let("u32", f"local + {turn * s.invocations}u")
            row = f.let("u32", f"{first} + {unit} / {wide}u")
            found.append(m.four(row, f.let("u32", f"{unit} % {wide}u * 4u"), gcd(s.rows, s.columns), 4 * wide))
        return found

    def _accumulate(self, sums: Lines, m: Matrix, first: str, coming: list[str], count: int, table: Table) -> None:
        """Add the products of what `weights` has for so many rows with them. Those that follow are loaded into `coming` in the end."""
        f, s = self.f, self.shape
        wide = s.x * len(sums[0])
        with f.loop(count, 0, s.high) as start:
            for turn, four in enumerate(coming):
                f.line(f"{self.memory}[{self.behind}u + local + {turn * s.invocations}u] = {four};")
            f.line(BARRIER)
            for four, value in zip(coming, self._rows_from(m, f.let("u32", f"{first} + {start} + {s.high}u")), strict=True):
                f.line(f"{four} = {value};")
            begin = f.let("u32", f"{start} / 4u * {table.four}u")
            self._steps(sums, s.high, _Side(begin, table), _Side(f"{self.behind}u", Table(wide, 0)))
            f.line(BARRIER)
