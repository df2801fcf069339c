"""The division of a problem of attention on GPUs.

A schedule divides its blocks among workgroups, and a block among invocations.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.attention import Attention
from volta_fn.compiler.target import TargetCapabilities

# Divide the blocks of attention among workgroups, and a block among invocations.
#
# A *vector* is a ``vec4<f32>``. Workgroup memory is an array of vectors.


class PaddedRows(NamedTuple):
    """A layout of lines of `length` vectors in workgroup memory.

    It has `padding` vectors after each group of four lines. The padding keeps what eight neighbouring invocations write in different banks,
    whether each writes an element of every line of a group or a vector of every group.
    """

    length: int
    padding: int = 2

    @property
    def group(self) -> int:
        """Vectors from one group of four lines to the next."""
        return 4 * self.length + self.padding

    def size(self, count: int) -> int:
        """Return the vectors that `count` lines, a multiple of four, occupy."""
        return count // 4 * self.group

    def offset(self, count: int) -> int:
        """Return the vectors from the first line of a group to a later one."""
        return count // 4 * self.group + count % 4 * self.length


class AttentionSchedule(NamedTuple):
    """Workgroups of y by x invocations.

    Each has `down` vectors of rows and `across` vectors of columns of a block of logits.
    """

    y: int
    x: int
    down: int = 1
    across: int = 1
    #: Iterations of a product that are unrolled.
    unroll: int = 4
    #: Passes in which a block of weights goes through workgroup memory, to take less of it.
    passes: int = 1
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
    def by_column(self) -> PaddedRows:
        """Lines that have an element for every row of the block."""
        return PaddedRows(self.y * self.down)

    @property
    def by_row(self) -> PaddedRows:
        """Lines that have an element for every column of the block."""
        return PaddedRows(self.x * self.across)

    def vectors(self, width: int) -> int:
        """Return how many vectors of a row of `width` features an invocation has."""
        return -(-width // (4 * self.x))

    def slices(self) -> int:
        """Return the vectors of workgroup memory for slices of both operands of logits."""
        return self.by_column.size(self.depth) + self.by_row.size(self.depth)

    def weights(self, *, transposed: bool) -> int:
        """Return the vectors of workgroup memory for a pass over a block of weights.

        If its transpose is multiplied, too, both must fit.
        """
        plain = self.by_column.size(4 * self.x // self.passes)
        return max(plain, self.by_row.size(4 * self.y // self.passes)) if transposed else plain

    def memory(self, width: int, *, transposed: bool) -> int:
        """Return the vectors of workgroup memory in total.

        They hold slices; or weights, followed by the rows that these are multiplied by or a number for each row of each invocation.
        """
        after_weights = max(self.value_rows * self.x * self.vectors(width), self.rows * self.x // 4)
        return max(self.slices(), self.weights(transposed=transposed) + after_weights)

    def fitted(self, width: int, capabilities: TargetCapabilities, *, transposed: bool) -> AttentionSchedule | None:
        """Return the schedule with as few more passes as fit a device; None if none fits."""
        if self.invocations > capabilities.invocations:
            return None
        passes = range(self.passes, 4 * min(self.x, self.y) // self.value_rows + 1)  # each has enough rows for a product
        fitting = (self._replace(passes=n) for n in passes if self.x % n == 0)
        room = capabilities.workgroup_memory // 16 - 1  # vectors, besides the votes of invocations
        return next((s for s in fitting if s.memory(width, transposed=transposed) <= room), None)


#: Schedules for little work, and for much of it: forward, backward, and backward for wide rows. Every device has room for the first three.
_USUAL, _FORWARD, _BACKWARD = AttentionSchedule(8, 16), AttentionSchedule(16, 8, across=2, unroll=16), AttentionSchedule(16, 16)
_WIDE = AttentionSchedule(16, 16, 2, unroll=16, passes=2)

#: Blocks that keep a GPU busy; workgroups enough that the last ones, which leave it partly idle, take a small part of the time (on an
#: H200 some 260 are resident at once); bytes that partial gradients may take.
_MANY, _ENOUGH, _MOST_BYTES = 256, 1536, 1 << 29


def forward_schedule(a: Attention, capabilities: TargetCapabilities) -> AttentionSchedule:
    """Divide the queries of each head into blocks."""
    return _first((_FORWARD,), a, a.stack * a.queries, capabilities, transposed=False)


def backward_schedule(a: Attention, capabilities: TargetCapabilities) -> AttentionSchedule:
    """Divide the keys of each head into blocks."""
    wide = max(a.q.width, a.v.width) > 4 * _BACKWARD.x
    return _first((_WIDE, _BACKWARD) if wide else (_BACKWARD,), a, a.groups * a.keys, capabilities, transposed=True)


def _first(
    schedules: tuple[AttentionSchedule, ...], a: Attention, rows: int, capabilities: TargetCapabilities, *, transposed: bool
) -> AttentionSchedule:
    """Return the first schedule that gives many blocks, or else the usual one."""
    width = max(a.q.width, a.v.width)
    fitting = [s.fitted(width, capabilities, transposed=transposed) for s in schedules if rows >= _MANY * s.rows]
    schedule = next((s for s in fitting if s is not None), None) or _USUAL.fitted(width, capabilities, transposed=transposed)
    assert schedule is not None, "the usual schedule fits all devices"
    return schedule


def chunks(a: Attention, schedule: AttentionSchedule, capabilities: TargetCapabilities) -> int:
    """Return the number of workgroups that share the blocks of keys of a head evenly.

    Each accumulates a gradient of all of Q.
    """
    each = 16 * a.stack * a.queries * (1 + -(-a.q.width // 4))
    room = min(capabilities.binding, _MOST_BYTES) // each
    tiles = -(-a.keys // schedule.rows)
    rounds = -(-tiles // max(1, min(-(-_ENOUGH // a.groups), room)))
    return -(-tiles // rounds)
