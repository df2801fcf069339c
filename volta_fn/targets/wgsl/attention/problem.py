"""A problem of attention: ``softmax(scale q kᵀ + mask) v`` for many heads.

A schedule divides its blocks among workgroups, and a block among invocations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Walk
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.primitives.call import Axes, Form

# Describe a problem: ``softmax(scale q kᵀ + mask) v`` for many heads.
#
# Arrays have contiguous rows.


@dataclass(frozen=True)
class Rows:
    """Matrices in an array, one for each head of each batch entry.

    Each has `count` rows of `width` contiguous elements, with a stride of `step` elements.
    """

    dtype: np.dtype
    elements: int
    heads: Walk
    count: int
    step: int
    width: int

    @property
    def by_vectors(self) -> bool:
        """Whether rows can be read four elements at a time, as aligned vectors."""
        return all(n % 4 == 0 for n in (self.elements, self.step, self.width, *self.heads.strides))


class MaskWalk(NamedTuple):
    """The strides of a mask: by head, by query and by key."""

    heads: Walk
    query: int
    key: int


@dataclass(frozen=True)
class Attention:
    """The problem. Results have the layout of `out`, gradients that of their operands."""

    q: Rows
    k: Rows
    v: Rows
    out: Rows
    #: The result's cotangent; None in the forward computation.
    cotangent: Rows | None
    scale: float
    #: The logit where a query does not see a key.
    unseen: float
    #: Whether query t only sees the keys up to t.
    causal: bool
    #: None without a mask.
    mask: MaskWalk | None
    #: Consecutive heads of q that share one of k and v.
    shared: int

    @property
    def groups(self) -> int:
        """Heads of k and v, of all batch entries."""
        return self.stack // self.shared

    @property
    def stack(self) -> int:
        """Heads of all batch entries."""
        return self.q.heads.size

    @property
    def queries(self) -> int:
        """Queries of a head."""
        return self.q.count

    @property
    def keys(self) -> int:
        """Keys of a head."""
        return self.k.count

    @property
    def products(self) -> int:
        """Multiplications, if all keys are seen."""
        return self.stack * self.queries * self.keys * (self.q.width + self.v.width)


def attention_of(avals: Sequence[ShapedArray], form: Form) -> Attention:
    """Return the problem of an equation with operands of these types."""
    q, k, v = avals[:3]
    heads = tuple([q.shape[a] for a in form.q.heads])
    shared = heads[-1] // k.shape[form.k.heads[-1]]
    out = list(q.shape)
    out[form.q.features] = v.shape[form.v.features]
    mask = _mask(avals[3].shape, heads) if form.masked else None
    cotangent = None if form.cotangent is None else _rows(avals[-1].shape, q.dtype, form.cotangent)
    return Attention(
        q=_rows(q.shape, q.dtype, form.q),
        k=_rows(k.shape, k.dtype, form.k, shared),
        v=_rows(v.shape, v.dtype, form.v, shared),
        out=_rows(tuple(out), q.dtype, form.q),
        cotangent=cotangent,
        scale=form.scale,
        unseen=form.unseen,
        causal=form.causal,
        mask=mask,
        shared=shared,
    )


def _strides(shape: Shape) -> list[int]:
    """Return the strides of a contiguous array, in elements."""
    return [*accumulate(reversed(shape[1:]), mul, initial=1)][::-1] if shape else []


def _rows(shape: Shape, dtype: np.dtype, axes: Axes, shared: int = 1) -> Rows:
    """Return the matrices of an array, each serving `shared` consecutive heads."""
    steps = _strides(shape)
    sizes, strides = [shape[a] for a in axes.heads], [steps[a] for a in axes.heads]
    if shared > 1:
        sizes, strides = [*sizes, shared], [*strides, 0]
    return Rows(dtype, prod(shape), Walk(tuple(sizes), tuple(strides)), shape[axes.rows], steps[axes.rows], shape[axes.features])


def _mask(shape: Shape, heads: Shape) -> MaskWalk:
    """Return a mask whose shape broadcasts to (heads, queries, keys)."""
    padded = (1,) * (len(heads) + 2 - len(shape)) + shape
    *stack, query, key = [0 if size == 1 else step for size, step in zip(padded, _strides(padded), strict=True)]
    return MaskWalk(Walk(heads, tuple(stack)), query, key)


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
        return next((s for s in fitting if 16 * s.memory(width, transposed=transposed) <= capabilities.workgroup_memory), None)


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
