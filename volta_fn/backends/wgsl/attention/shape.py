"""How the work of attention is shared out: blocks of queries and keys, and what each invocation has of them."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.facts import Facts

#: Columns of operands that are multiplied at a time.
DEEP = 16


class Shape(NamedTuple):
    """Workgroups of y by x invocations, each with `down` fours of rows of a block, and a four of columns of logits."""

    y: int
    x: int
    down: int

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
        return 4 * self.x

    @property
    def row_line(self) -> int:
        """Vectors between lines that have an element for every row."""
        return self.y * self.down + 1

    @property
    def column_line(self) -> int:
        """Vectors between lines that have an element for every column."""
        return self.x + 1

    def fours(self, width: int) -> int:
        """Fours that an invocation has of a row of so many features."""
        return -(-width // (4 * self.x))

    def stage(self, width: int) -> int:
        """Vectors of the place through which operands pass, of rows of so many features: of some columns, or of some rows."""
        return max(DEEP * (self.row_line + self.column_line), 8 * self.x * self.fours(width), self.rows * self.x // 4)

    def bytes(self, width: int) -> int:
        """Bytes of workgroup memory."""
        return 16 * (self.stage(width) + self.columns * self.row_line)


#: The second is for wide rows: it reads less per product, and has too many sums for few rows or little memory.
_USUAL, _TALL = Shape(8, 16, 1), Shape(16, 16, 2)

#: Workgroups that keep a GPU busy.
_ENOUGH = 128


def shape_for(a: Attention, stack: int, rows: int, facts: Facts) -> Shape:
    """How to share out so many rows (queries or keys) of each of a stack of heads. The usual shape fits all devices."""
    width = max(a.q.width, a.v.width)
    fits = _TALL.bytes(width) <= facts.workgroup_memory and _TALL.invocations <= facts.invocations
    return _TALL if width > 64 and fits and stack * -(-rows // _TALL.rows) >= _ENOUGH else _USUAL
