"""Emit logits: scaled products, and which query sees which key."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from volta_fn.targets.wgsl.attention.blocks import AttentionShader, Patch
from volta_fn.targets.wgsl.matmul.indices import digits, times, walked
from volta_fn.targets.wgsl.scalars.memory import Array
from volta_fn.targets.wgsl.scalars.number import literal

#: Less than any logit, including those of keys that are not seen.
LOWEST = literal("f32", -float(np.finfo(np.float32).max))


class Mask(NamedTuple):
    """The mask of one head; without an array, there is none."""

    array: Array | None
    base: str


def mask_of(b: AttentionShader, number: int, head: str) -> Mask:
    """Return the mask of a head, in the buffer of a number."""
    if b.a.mask is None:
        return Mask(None, "0u")
    array = b.f.buffer(number, np.dtype(np.bool_))
    return Mask(array, walked(b.f, digits(b.f, head, b.a.mask.heads.sizes), b.a.mask.heads.strides))


class BlockPosition(NamedTuple):
    """The position of a block of logits and of an invocation in it.

    It has the first query and key, and an invocation's rows (queries if `by_queries`, else keys) and columns.
    """

    by_queries: bool
    query: str
    key: str
    rows: list[str]
    columns: list[str]
    mask: Mask

    def at(self, row: int, column: int) -> tuple[str, str]:
        """Return the query and the key of a row and a column."""
        pair = self.rows[row], self.columns[column]
        return pair if self.by_queries else pair[::-1]


def component(patch: Patch, row: int, column: int) -> str:
    """Return an element of an invocation's patch, as an expression."""
    return f"{patch[row][column // 4]}.{'xyzw'[column % 4]}"


def logits(b: AttentionShader, products: Patch, position: BlockPosition) -> Patch:
    """Declare the scaled products as variables.

    They are `a.unseen` where a query does not see a key, and `LOWEST` beyond the last query or key.
    """
    f, s, a = b.f, b.schedule, b.a
    patch = [[f.var("vec4<f32>", f"{vector} * {literal('f32', a.scale)}") for vector in row_values] for row_values in products]
    sides = (position.query, a.queries), (position.key, a.keys)
    (first_row, all_rows), (first_column, all_columns) = sides if position.by_queries else sides[::-1]
    ragged = all_rows % s.rows, all_columns % s.columns
    conditions = [f"{first_row} + {s.rows}u > {all_rows}u"] if ragged[0] else []
    conditions += [f"{first_column} + {s.columns}u > {all_columns}u"] if ragged[1] else []
    if a.causal:
        conditions.append(f"{position.key} + {s.columns if position.by_queries else s.rows}u > {position.query} + 1u")
    if not conditions and a.mask is None:
        return patch
    with f.block("" if a.mask is not None else f"if ({' || '.join(conditions)})"):
        for (r, row), (c, column) in product(enumerate(position.rows), enumerate(position.columns)):
            x, is_seen = component(patch, r, c), seen(b, *position.at(r, c), position.mask)
            exists = [f"{row} < {all_rows}u"] if ragged[0] else []
            exists += [f"{column} < {all_columns}u"] if ragged[1] else []
            if is_seen:
                f.emit(f"{x} = select({literal('f32', a.unseen)}, {x}, {is_seen});")
            if exists:
                f.emit(f"{x} = select({LOWEST}, {x}, {' && '.join(exists)});")
    return patch


def seen(b: AttentionShader, query: str, key: str, mask: Mask) -> str:
    """Return whether a query may see a key, as an expression; empty if all see all.

    It is arbitrary beyond the last query or key.
    """
    f, a = b.f, b.a
    conditions = [f"{key} <= {query}"] if a.causal else []
    array, base = mask
    if array is not None and a.mask is not None:
        by_query = times(f"min({query}, {a.queries - 1}u)", a.mask.query)
        by_key = times(f"min({key}, {a.keys - 1}u)", a.mask.key)
        conditions.append(array.load(f.let("u32", f"{base} + {by_query} + {by_key}")).text)
    return f.let("bool", " && ".join(conditions)) if conditions else ""
