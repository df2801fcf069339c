"""Loops over arrays, by their sizes and strides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from volta_fn.codegen.index_arith import IndexArithmetic, V

Dims = tuple[int, ...]


def row_major(shape: Sequence[int]) -> Dims:
    """Return the strides, in elements, of a contiguous array."""
    return tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])


def merged(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[Dims, ...]:
    """Return the same loops without size 1, with contiguous neighbours merged."""
    kept: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1][1:], steps, strict=True)):
            kept[-1] = (kept[-1][0] * size, *steps)
        else:
            kept.append((size, *steps))
    columns = list(zip(*kept, strict=True))
    return tuple(columns) if columns else ((),) * (1 + len(strides))


def row_offset(f: IndexArithmetic[V], row: V, i: V, size: int, columns: int) -> V:
    """Emit the offset of element `i` of a row along an axis.

    The axis has `size` elements; the axes after it have `columns` together.
    """

    def terms() -> Iterator[V]:
        yield f.times(f.quotient(row, columns), size * columns)
        yield f.remainder(row, columns)
        yield f.times(i, columns)

    return f.sum(terms())
