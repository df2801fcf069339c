"""A problem of attention: ``softmax(scale q kᵀ + bias) v`` for many heads.

Targets with routines describe an equation by it. Arrays have contiguous rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Walk, contiguous_strides
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window


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


class LogitWalk(NamedTuple):
    """An array with an element for each logit, a mask or a bias, and its strides.

    These are by head, by query and by key; 0 where the array is broadcast.
    """

    dtype: np.dtype
    elements: int
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
    #: The keys that a query sees by their positions.
    window: Window
    #: The bound of scaled products; 0: none.
    softcap: float
    #: What is added to logits, if anything, and where queries see keys.
    bias: LogitWalk | None
    masks: tuple[LogitWalk, ...]
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
    def causal(self) -> bool:
        """Whether query t sees the keys up to t."""
        return self.window == CAUSAL

    @property
    def may_be_blind(self) -> bool:
        """Whether hidden keys may have weights.

        They have where all logits that a query sees are less than `unseen`: where it sees no key, which then weights all equally, where a
        bias takes them there, as one of -inf does, and where products overflow.
        """
        return self.unseen != -inf and (bool(self.masks) or self.window != Window())

    @property
    def operands(self) -> int:
        """How many operands there are: q, k, v, the bias and the masks."""
        return 3 + (self.bias is not None) + len(self.masks)

    @property
    def products(self) -> int:
        """Multiplications, if all keys are seen."""
        return self.stack * self.queries * self.keys * (self.q.width + self.v.width)


def sees_some(window: Window, queries: int, keys: int) -> bool:
    """Return True if every query sees some key by its position."""
    before, after = window
    return (after is None or after >= 0) and (before is None or (before >= 0 and queries <= keys + before))


def attention_of(avals: Sequence[ShapedArray], form: Form) -> Attention:
    """Return the problem of an equation with operands of these types."""
    q, k, v = avals[:3]
    heads = tuple([q.shape[a] for a in form.q.heads])
    shared = heads[-1] // k.shape[form.k.heads[-1]]
    out = list(q.shape)
    out[form.q.features] = v.shape[form.v.features]
    walks = [_logit_walk(aval, heads) for aval in avals[3 : form.operands]]
    cotangent = None if form.cotangent is None else _rows(avals[-1].shape, q.dtype, form.cotangent)
    return Attention(
        q=_rows(q.shape, q.dtype, form.q),
        k=_rows(k.shape, k.dtype, form.k, shared),
        v=_rows(v.shape, v.dtype, form.v, shared),
        out=_rows(tuple(out), q.dtype, form.q),
        cotangent=cotangent,
        scale=form.scale,
        unseen=form.unseen,
        window=form.window,
        softcap=form.softcap,
        bias=walks[0] if form.biased else None,
        masks=tuple(walks[form.biased :]),
        shared=shared,
    )


def _rows(shape: Shape, dtype: np.dtype, axes: Axes, shared: int = 1) -> Rows:
    """Return the matrices of an array, each serving `shared` consecutive heads."""
    steps = contiguous_strides(shape)
    sizes, strides = [shape[a] for a in axes.heads], [steps[a] for a in axes.heads]
    if shared > 1:
        sizes, strides = [*sizes, shared], [*strides, 0]
    return Rows(dtype, prod(shape), Walk(tuple(sizes), tuple(strides)), shape[axes.rows], steps[axes.rows], shape[axes.features])


def _logit_walk(aval: ShapedArray, heads: Shape) -> LogitWalk:
    """Return an array whose shape broadcasts to (heads, queries, keys)."""
    padded = (1,) * (len(heads) + 2 - aval.ndim) + aval.shape
    *stack, query, key = [0 if size == 1 else step for size, step in zip(padded, contiguous_strides(padded), strict=True)]
    return LogitWalk(aval.dtype, aval.size, Walk(heads, tuple(stack)), query, key)
