"""How the work of attention is shared out: blocks of queries and keys, and what each invocation has of them."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.backends.wgsl.attention.problem import Attention
from volta_fn.backends.wgsl.facts import Facts


class Table(NamedTuple):
    """Lines of so many vectors in workgroup memory, in fours with a gap behind each.

    What eight invocations side by side write is in different banks so, be it an element of each line of a four or a vector of each four.
    """

    line: int
    gap: int = 2

    @property
    def four(self) -> int:
        """Vectors from a four of lines to the next."""
        return 4 * self.line + self.gap

    def size(self, lines: int) -> int:
        """Vectors of so many lines."""
        return lines // 4 * self.four

    def past(self, lines: int) -> int:
        """Vectors from a first line of a four to the one so many lines behind."""
        return lines // 4 * self.four + lines % 4 * self.line


class Shape(NamedTuple):
    """Workgroups of y by x invocations, each with `down` fours of rows and `across` fours of columns of a block of logits."""

    y: int
    x: int
    down: int = 1
    across: int = 1
    #: Steps of a product that are written out in a turn of the loop.
    unroll: int = 4
    #: Parts in which weights pass through workgroup memory, to take less of it.
    parts: int = 1
    #: Columns of both operands of logits, and rows that weights are multiplied by, that are in workgroup memory at a time. There are
    #: fours of these, of rows that are not empty, for all invocations: not fewer rows than y.
    deep: int = 16
    high: int = 16

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
    def by_column(self) -> Table:
        """Lines that have an element for every row."""
        return Table(self.y * self.down)

    @property
    def by_row(self) -> Table:
        """Lines that have an element for every column."""
        return Table(self.x * self.across)

    def fours(self, width: int) -> int:
        """Fours that an invocation has of a row of so many features."""
        return -(-width // (4 * self.x))

    def slices(self) -> int:
        """Vectors of slices of both operands of logits."""
        return self.by_column.size(self.deep) + self.by_row.size(self.deep)

    def weights(self, *, turned: bool) -> int:
        """Vectors of a part of a block of weights, with room for one that is `turned` if there are such."""
        plain = self.by_column.size(4 * self.x // self.parts)
        return max(plain, self.by_row.size(4 * self.y // self.parts)) if turned else plain

    def memory(self, width: int, *, turned: bool) -> int:
        """Vectors of workgroup memory: slices, or weights and rows that they are multiplied by, or a number of each invocation's rows."""
        behind = max(self.high * self.x * self.fours(width), self.rows * self.x // 4)
        return max(self.slices(), self.weights(turned=turned) + behind)

    def fitted(self, width: int, facts: Facts, *, turned: bool) -> Shape | None:
        """The same with as few more parts as a device has room for; None if it has no room."""
        if self.invocations > facts.invocations:
            return None
        parts = range(self.parts, 4 * min(self.x, self.y) // self.high + 1)  # each has as many rows as are multiplied at a time
        fitting = (self._replace(parts=n) for n in parts if self.x % n == 0)
        return next((s for s in fitting if 16 * s.memory(width, turned=turned) <= facts.workgroup_memory), None)


#: Shapes for little work, and for much of it: forward, backward, and backward for wide rows. All devices have room for the first three.
_USUAL, _FORWARD, _BACKWARD, _WIDE = Shape(8, 16), Shape(16, 8, across=2, unroll=16), Shape(16, 16), Shape(16, 16, 2, unroll=16, parts=2)

#: Blocks that keep a GPU busy; workgroups of which the last few, which leave some of it idle, take a small part of the time (on an H200
#: some 260 are at work at once); bytes that parts of a gradient may take.
_MANY, _ENOUGH, _MOST_BYTES = 256, 1536, 1 << 29


def forward_shape(a: Attention, facts: Facts) -> Shape:
    """How to share out the queries of each head."""
    return _first((_FORWARD,), a, a.stack * a.queries, facts, turned=False)


def backward_shape(a: Attention, facts: Facts) -> Shape:
    """How to share out the keys of each head."""
    wide = max(a.q.width, a.v.width) > 4 * _BACKWARD.x
    return _first((_WIDE, _BACKWARD) if wide else (_BACKWARD,), a, a.groups * a.keys, facts, turned=True)


def _first(shapes: tuple[Shape, ...], a: Attention, rows: int, facts: Facts, *, turned: bool) -> Shape:
    """The first of some shapes of which there are many blocks, or else the usual one."""
    width = max(a.q.width, a.v.width)
    fitting = [s.fitted(width, facts, turned=turned) for s in shapes if rows >= _MANY * s.rows]
    found = next((s for s in fitting if s is not None), None) or _USUAL.fitted(width, facts, turned=turned)
    assert found is not None, "the usual shape fits all devices"
    return found


def chunks(a: Attention, shape: Shape, facts: Facts) -> int:
    """Into how many workgroups the blocks of keys of a head go, about as many to each. Each has a whole gradient of Q to add to."""
    each = 16 * a.stack * a.queries * (1 + -(-a.q.width // 4))
    room = min(facts.binding, _MOST_BYTES) // each
    tiles = -(-a.keys // shape.rows)
    turns = -(-tiles // max(1, min(-(-_ENOUGH // a.groups), room)))
    return -(-tiles // turns)
