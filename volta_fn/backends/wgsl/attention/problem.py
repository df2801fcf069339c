"""What attention is asked for: ``softmax(scale q kᵀ + mask) v`` for each of many heads, of arrays with rows of neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from volta_fn.compiler.contractions.problem import Walk


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
    def fours(self) -> bool:
        """Whether fours in a row, from a multiple of 4 on, are aligned."""
        return all(n % 4 == 0 for n in (self.elements, self.step, self.width, *self.heads.strides))


@dataclass(frozen=True)
class Attention:
    """The whole. Results and cotangents lie in memory as `out`, the gradients as what they are of."""

    q: Rows
    k: Rows
    v: Rows
    out: Rows
    scale: float
    #: Whether query t sees the keys up to t only.
    causal: bool = False
    #: Where a mask's elements are, by head; by query and key they are neighbours in lines of `keys`. None: there is no mask.
    mask: Walk | None = None

    @property
    def groups(self) -> int:
        """Heads of k and v, of all batch entries."""
        return self.stack // self.shared

    @property
    def shared(self) -> int:
        """Heads of q that share one of k and v: neighbours."""
        return self.k.heads.sizes[2] if len(self.k.heads.sizes) == 3 else 1

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


def attention_of(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], dtype: np.dtype, scale: float, *, causal: bool, mask: tuple[int, ...] | None
) -> Attention:
    """The problem for contiguous arrays q (batch, heads, T, features), k and v (batch, groups, S, features), and a bool mask.

    The mask's shape is (1 or batch, 1 or heads, T, S). Every group serves as many heads, next to one another.
    """
    batch, heads, t, _ = q
    each = heads // k[1]

    def rows(shape: tuple[int, ...], shared: bool) -> Rows:
        size = shape[2] * shape[3]
        walk = Walk((batch, shape[1], each), (shape[1] * size, size, 0)) if shared else Walk((batch * heads,), (size,))
        return Rows(dtype, prod(shape), walk, shape[2], shape[3], shape[3])

    seen = None
    if mask is not None:
        size = mask[2] * mask[3]
        steps = mask[1] * size if mask[0] > 1 else 0, size if mask[1] > 1 else 0
        seen = Walk((batch, heads), steps)
    return Attention(rows(q, False), rows(k, each > 1), rows(v, each > 1), rows((batch, heads, t, v[3]), False), scale, causal, seen)
