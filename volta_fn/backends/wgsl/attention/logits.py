"""Which query sees which key, in an invocation's part of a block of logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.attention.blocks import Blocks, Lines
from volta_fn.backends.wgsl.matmul.indices import digits, times, walked
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.number import literal

#: What is less than any logit, and than what stands for those that are not seen.
LEAST = literal("f32", -float(np.finfo(np.float32).max))


class Mask(NamedTuple):
    """The mask of one head; without an array, there is none."""

    array: Array | None
    base: str


def mask_of(b: Blocks, number: int, head: str) -> Mask:
    """The mask of a head, in the buffer of a number."""
    if b.a.mask is None:
        return Mask(None, "0u")
    array = b.f.buffer(number, np.dtype(np.bool_))
    return Mask(array, walked(b.f, digits(b.f, head, b.a.mask.heads.sizes), b.a.mask.heads.strides))


class Place(NamedTuple):
    """Where a block of logits is: its first query and key, and an invocation's rows and columns of it. Rows are queries, or else keys."""

    by_queries: bool
    query: str
    key: str
    rows: list[str]
    columns: list[str]
    mask: Mask

    def at(self, row: int, column: int) -> tuple[str, str]:
        """The query and the key of a row and a column."""
        pair = self.rows[row], self.columns[column]
        return pair if self.by_queries else pair[::-1]


def component(lines: Lines, row: int, column: int) -> str:
    """A number of an invocation's part of a block."""
    return f"{lines[row][column // 4]}.{'xyzw'[column % 4]}"


def logits(b: Blocks, products: Lines, place: Place) -> Lines:
    """Products scaled, as variables, where a query sees a key; where there is no query, or no key, the least number."""
    f, s, a = b.f, b.shape, b.a
    found = [[f.var("vec4<f32>", f"{four} * {literal('f32', a.scale)}") for four in line] for line in products]
    sides = (place.query, a.queries), (place.key, a.keys)
    (first_row, all_rows), (first_column, all_columns) = sides if place.by_queries else sides[::-1]
    ragged = all_rows % s.rows, all_columns % s.columns
    conditions = [f"{first_row} + {s.rows}u > {all_rows}u"] if ragged[0] else []
    conditions += [f"{first_column} + {s.columns}u > {all_columns}u"] if ragged[1] else []
    if a.causal:
        conditions.append(f"{place.key} + {s.columns if place.by_queries else s.rows}u > {place.query} + 1u")
    if not conditions and a.mask is None:
        return found
    with f.block("" if a.mask is not None else f"if ({' || '.join(conditions)})"):
        for r, row in enumerate(place.rows):
            for c, column in enumerate(place.columns):
                x, is_seen = component(found, r, c), seen(b, *place.at(r, c), place.mask)
                there = [f"{row} < {all_rows}u"] if ragged[0] else []
                there += [f"{column} < {all_columns}u"] if ragged[1] else []
                if is_seen:
                    f.line(f"{x} = select({literal('f32', a.unseen)}, {x}, {is_seen});")
                if there:
                    f.line(f"{x} = select({LEAST}, {x}, {' && '.join(there)});")
    return found


def seen(b: Blocks, query: str, key: str, mask: Mask) -> str:
    """Whether a query may see a key, as an expression; of those that there are not, anything. Empty: all see all."""
    f, a = b.f, b.a
    conditions = [f"{key} <= {query}"] if a.causal else []
    array, base = mask
    if array is not None and a.mask is not None:
        by_query = times(f"min({query}, {a.queries - 1}u)", a.mask.query)
        by_key = times(f"min({key}, {a.keys - 1}u)", a.mask.key)
        conditions.append(array.load(f.let("u32", f"{base} + {by_query} + {by_key}")).text)
    return f.let("bool", " && ".join(conditions)) if conditions else ""
