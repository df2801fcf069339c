"""How the work of attention is shared out: blocks of queries and keys, and what each invocation has of them."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.facts import Facts

#: Columns of operands that are multiplied at a time.
DEEP = 16

#: Workgroups that keep a GPU busy: with fewer, blocks are small.
_ENOUGH = 128


class Shape(NamedTuple):
    """Workgroups of y by x invocations, each with `down` fours of rows of a block and `across` fours of columns."""

    y: int
    x: int
    down: int
    across: int

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return self.y * self.x

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 4 * self.y * self.down

    @property
    def columns(self) -> int:
        """Columns of a block of logits."""
        return 4 * self.x * self.across

    @property
    def row_line(self) -> int:
        """Vectors between lines that have an element for every row."""
        return self.y * self.down + 1

    @property
    def column_line(self) -> int:
        """Vectors between lines that have an element for every column."""
        return self.x * self.across + 1

    def fours(self, width: int) -> int:
        """Fours that an invocation has of a row of so many features."""
        return -(-width // (4 * self.x))

    def stage(self, width: int) -> int:
        """Vectors of the place through which operands pass, of rows of so many features: of some columns, or of some rows."""
        return max(DEEP * (self.row_line + self.column_line), 8 * self.x * self.fours(width), self.rows * self.x // 4)

    def bytes(self, width: int) -> int:
        """Bytes of workgroup memory."""
        return 16 * (self.stage(width) + self.columns * self.row_line)


_SMALL = Shape(8, 8, 1, 1)
_TALL = Shape(8, 8, 2, 1)
_LARGE = Shape(8, 8, 2, 2)
_WIDE = Shape(8, 16, 2, 1)


def forward_shape(a: Attention, facts: Facts) -> Shape:
    """For the result."""
    return _first([_LARGE if a.v.width <= 64 else _WIDE, _TALL], a.stack, a.queries, a, facts)


def queries_shape(a: Attention, facts: Facts) -> Shape:
    """For the gradient of queries."""
    return _first([_TALL] if a.q.width <= 64 else [_WIDE, _TALL], a.stack, a.queries, a, facts)


def keys_shape(a: Attention, facts: Facts) -> Shape:
    """For the gradients of keys and values."""
    return _first([_WIDE], a.groups, a.keys, a, facts)


def _first(wanted: list[Shape], stack: int, rows: int, a: Attention, facts: Facts) -> Shape:
    """The first shape that the device has the memory for, and of which there are enough blocks."""
    width = max(a.q.width, a.v.width)
    for shape in wanted:
        fits = shape.bytes(width) <= facts.workgroup_memory and shape.invocations <= facts.invocations
        if fits and stack * -(-rows // shape.rows) >= _ENOUGH:
            return shape
    return _SMALL
