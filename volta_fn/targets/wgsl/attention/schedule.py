"""Schedules of attention: how blocks of queries and keys are divided among workgroups, and a block among invocations.

A *vector* is a ``vec4<f32>``. Workgroup memory is an array of vectors.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.attention.problem import Attention


class PaddedLines(NamedTuple):
    """A layout of lines of `length` vectors in workgroup memory, with `padding` vectors behind each group of four lines.

    The padding keeps what eight neighbouring invocations write in different banks, whether each writes an element of every line of a group
    or a vector of every group.
    """

    length: int
    padding: int = 2

    @property
    def group(self) -> int:
        """Vectors from one group of four lines to the next."""
        return 4 * self.length + self.padding

    def size(self, lines: int) -> int:
        """Vectors that `lines` lines, a multiple of four, take."""
        return lines // 4 * self.group

    def offset(self, lines: int) -> int:
        """Vectors from the first line of a group to the one that is `lines` lines further on."""
        return lines // 4 * self.group + lines % 4 * self.length


class Schedule(NamedTuple):
    """Workgroups of y by x invocations, each with `down` vectors of rows and `across` vectors of columns of a block of logits."""

    y: int
    x: int
    down: int = 1
    across: int = 1
    #: Steps of a product that are unrolled.
    unroll: int = 4
    #: Pieces in which a block of weights passes through workgroup memory, to take less of it.
    pieces: int = 1
    #: Features of both operands of logits that are in workgroup memory at a time.
    depth: int = 16
    #: Rows of the matrix that weights are multiplied by which are in workgroup memory at a time. Every invocation loads at least one
    #: vector of them: there are no fewer than y.
    value_rows: int = 16

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.y * self.x

    @property
    def rows(self) -> int:
        """Rows of a block of logits."""
        return 4 * self.y * self.down

    @property
    def columns(self) -> int:
        """Columns of a block of logits."""
        return 4 * self.x * self.across

    @property
    def by_column(self) -> PaddedLines:
        """Lines that have an element for every row of the block."""
        return PaddedLines(self.y * self.down)

    @property
    def by_row(self) -> PaddedLines:
        """Lines that have an element for every column of the block."""
        return PaddedLines(self.x * self.across)

    def vectors(self, width: int) -> int:
        """How many vectors of a row of `width` features an invocation has."""
        return -(-width // (4 * self.x))

    def slices(self) -> int:
        """Vectors of workgroup memory for slices of both operands of logits."""
        return self.by_column.size(self.depth) + self.by_row.size(self.depth)

    def weights(self, *, transposed: bool) -> int:
        """Vectors of workgroup memory for a piece of a block of weights, or of its transpose if that is multiplied, too."""
        plain = self.by_column.size(4 * self.x // self.pieces)
        return max(plain, self.by_row.size(4 * self.y // self.pieces)) if transposed else plain

    def memory(self, width: int, *, transposed: bool) -> int:
        """Vectors of workgroup memory in all.

        They hold slices; or weights, and behind them the rows that these are multiplied by or a number for each row of each invocation.
        """
        behind = max(self.value_rows * self.x * self.vectors(width), self.rows * self.x // 4)
        return max(self.slices(), self.weights(transposed=transposed) + behind)

    def fitted(self, width: int, facts: TargetCapabilities, *, transposed: bool) -> Schedule | None:
        """The same with as few more pieces as a device has room for; None if it has no room."""
        if self.invocations > facts.invocations:
            return None
        pieces = range(self.pieces, 4 * min(self.x, self.y) // self.value_rows + 1)  # none has fewer rows than are multiplied at a time
        fitting = (self._replace(pieces=n) for n in pieces if self.x % n == 0)
        return next((s for s in fitting if 16 * s.memory(width, transposed=transposed) <= facts.workgroup_memory), None)


#: Schedules for little work, and for much of it: forward, backward, and backward for wide rows. Every device has room for the first three.
_USUAL, _FORWARD, _BACKWARD = Schedule(8, 16), Schedule(16, 8, across=2, unroll=16), Schedule(16, 16)
_WIDE = Schedule(16, 16, 2, unroll=16, pieces=2)

#: Blocks that keep a GPU busy; workgroups enough that the last ones, which leave it partly idle, take a small part of the time (on an
#: H200 some 260 are resident at once); bytes that partial gradients may take.
_MANY, _ENOUGH, _MOST_BYTES = 256, 1536, 1 << 29


def forward_schedule(a: Attention, facts: TargetCapabilities) -> Schedule:
    """How the queries of each head are divided into blocks."""
    return _first((_FORWARD,), a, a.stack * a.queries, facts, transposed=False)


def backward_schedule(a: Attention, facts: TargetCapabilities) -> Schedule:
    """How the keys of each head are divided into blocks."""
    wide = max(a.q.width, a.v.width) > 4 * _BACKWARD.x
    return _first((_WIDE, _BACKWARD) if wide else (_BACKWARD,), a, a.groups * a.keys, facts, transposed=True)


def _first(schedules: tuple[Schedule, ...], a: Attention, rows: int, facts: TargetCapabilities, *, transposed: bool) -> Schedule:
    """The first of some schedules that divides the work into many blocks, or else the usual one."""
    width = max(a.q.width, a.v.width)
    fitting = [s.fitted(width, facts, transposed=transposed) for s in schedules if rows >= _MANY * s.rows]
    found = next((s for s in fitting if s is not None), None) or _USUAL.fitted(width, facts, transposed=transposed)
    assert found is not None, "the usual schedule fits all devices"
    return found


def chunks(a: Attention, schedule: Schedule, facts: TargetCapabilities) -> int:
    """How many workgroups the blocks of keys of a head are divided among, evenly. Each accumulates a whole gradient of Q."""
    each = 16 * a.stack * a.queries * (1 + -(-a.q.width // 4))
    room = min(facts.binding, _MOST_BYTES) // each
    tiles = -(-a.keys // schedule.rows)
    turns = -(-tiles // max(1, min(-(-_ENOUGH // a.groups), room)))
    return -(-tiles // turns)
