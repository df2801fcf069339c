"""What attention is asked for: ``softmax(scale q kᵀ + mask) v`` for each of many heads, of arrays with rows of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.matmul_problem import Walk
from volta_fn.compiler.ir.attention import Axes, Form
from volta_fn.core.aval import Shape, ShapedArray


@dataclass(frozen=True)
class Rows:
    """Matrices in an array, one for each head of each batch entry: `count` rows of `width` neighbours, `step` elements apart."""

    dtype: np.dtype
    elements: int
    heads: Walk
    count: int
    step: int
    width: int

    @property
    def by_vectors(self) -> bool:
        """Whether rows can be read four elements at a time: neighbours from a multiple of 4 on are an aligned vector."""
        return all(n % 4 == 0 for n in (self.elements, self.step, self.width, *self.heads.strides))


class MaskWalk(NamedTuple):
    """Where a mask's elements are: by head, and how far apart by query and by key."""

    heads: Walk
    query: int
    key: int


@dataclass(frozen=True)
class Attention:
    """The whole. Results lie in memory as `out`, the gradients as what they are of."""

    q: Rows
    k: Rows
    v: Rows
    out: Rows
    #: The result's cotangent; None where there is none.
    cotangent: Rows | None
    scale: float
    #: What logits are where a query does not see a key.
    unseen: float
    #: Whether query t sees the keys up to t only.
    causal: bool
    #: None: there is no mask.
    mask: MaskWalk | None
    #: Heads of q that share one of k and v: neighbours.
    shared: int

    @property
    def groups(self) -> int:
        """Heads of k and v, of all batch entries."""
        return self.stack // self.shared

    @property
    def stack(self) -> int:
        """How many heads there are, of all batch entries."""
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
        """How many multiplications there are, all keys seen."""
        return self.stack * self.queries * self.keys * (self.q.width + self.v.width)


def attention_of(avals: Sequence[ShapedArray], form: Form) -> Attention:
    """The problem of an instruction with operands of these types (see `compiler/ir/attention.py`)."""
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
    """The steps of a contiguous array's axes, in elements."""
    return [*accumulate(reversed(shape[1:]), mul, initial=1)][::-1] if shape else []


def _rows(shape: Shape, dtype: np.dtype, axes: Axes, shared: int = 1) -> Rows:
    """The matrices of an array, each of which serves so many neighbouring heads."""
    steps = _strides(shape)
    sizes, strides = [shape[a] for a in axes.heads], [steps[a] for a in axes.heads]
    if shared > 1:
        sizes, strides = [*sizes, shared], [*strides, 0]
    return Rows(dtype, prod(shape), Walk(tuple(sizes), tuple(strides)), shape[axes.rows], steps[axes.rows], shape[axes.features])


def _mask(shape: Shape, heads: Shape) -> MaskWalk:
    """A mask whose shape broadcasts to (heads, queries, keys)."""
    whole = (1,) * (len(heads) + 2 - len(shape)) + shape
    *stack, query, key = [0 if size == 1 else step for size, step in zip(whole, _strides(whole), strict=True)]
    return MaskWalk(Walk(heads, tuple(stack)), query, key)
