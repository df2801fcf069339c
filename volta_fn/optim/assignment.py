"""The linear assignment problem: matching rows and columns at the least cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import DTypeError, ShapeError

__all__ = ["base_hungarian_algorithm", "hungarian_algorithm"]


def hungarian_algorithm(cost_matrix: Any) -> tuple[Array, Array]:
    """Return the matching of rows and columns with the least sum of costs.

    It is computed by shortest augmenting paths (Jonker and Volgenant 1987) in O(n³), and can be jitted and batched.

    Args:
        cost_matrix: real numbers of shape (N, M); infinite costs and NaN count as the largest numbers.

    Returns row numbers in ascending order and the columns matched with them: two int32 arrays of shape (min(N, M),).

    Raises `ShapeError` for an array that is no matrix, `DTypeError` for complex numbers.

    >>> cost = vnp.array([[8.0, 4.0, 7.0], [5.0, 2.0, 3.0], [9.0, 4.0, 8.0]])
    >>> optim.assignment.hungarian_algorithm(cost)
    (Array([0, 1, 2], dtype=int32), Array([0, 2, 1], dtype=int32))
    """
    cost = _checked(cost_matrix)
    rows, columns = cost.shape
    if not rows or not columns:
        return vnp.zeros(0, np.int32), vnp.zeros(0, np.int32)
    if rows > columns:
        row_of = _matched_columns(cost.T)
        order = vnp.argsort(row_of).astype(np.int32)
        return row_of[order], order
    return vnp.arange(rows, dtype=np.int32), _matched_columns(cost)


base_hungarian_algorithm = hungarian_algorithm


def _checked(cost_matrix: Any) -> Array:
    cost = as_value(cost_matrix)
    if cost.ndim != 2:
        raise ShapeError(f"hungarian_algorithm: the costs are a matrix, got shape {cost.shape}; use vmap for a batch")
    if cost.dtype in dtypes.COMPLEX:
        raise DTypeError(f"hungarian_algorithm: costs are real numbers, got {cost.dtype.name}")
    wide = cost.astype(dtypes.accumulator(cost.dtype) if cost.dtype in dtypes.FLOATS else np.float32)
    largest = float(np.finfo(wide.dtype).max) / 16
    return vnp.clip(vnp.where(vnp.isnan(wide), largest, wide), -largest, largest)


class _Search(NamedTuple):
    """A shortest path over columns from a free row: Dijkstra's algorithm."""

    row: Any
    distance: Any
    distances: Any
    came_from: Any
    visited: Any
    end: Any


class _Matching(NamedTuple):
    """Prices of rows and columns; each column's row and each row's column, or -1."""

    u: Any
    v: Any
    row_of: Any
    column_of: Any


def _matched_columns(cost: Array) -> Array:
    """Return the column of each row of a matrix that is not higher than wide."""
    rows, columns = cost.shape
    none = [vnp.full(n, -1, np.int32) for n in (columns, rows)]
    start = _Matching(vnp.zeros(rows, cost.dtype), vnp.zeros(columns, cost.dtype), *none)
    return lax.fori_loop(0, rows, lambda row, matching: _with_row(cost, vnp.asarray(row, np.int32), matching), start).column_of


def _with_row(cost: Array, row: Array, matching: _Matching) -> _Matching:
    found = _shortest_path(cost, row, matching)
    u, v, row_of, column_of = matching
    raised = vnp.where(found.visited, found.distance - found.distances, 0)
    u = u.at[row].add(found.distance).at[vnp.maximum(row_of, 0)].add(vnp.where(row_of >= 0, raised, 0))
    row_of, column_of = _augmented(found.end, row, found.came_from, row_of, column_of)
    return _Matching(u, v - raised, row_of, column_of)


def _shortest_path(cost: Array, row: Array, matching: _Matching) -> _Search:
    """Search from a row until a column that has none."""
    columns = cost.shape[1]

    def step(search: _Search) -> _Search:
        reduced = search.distance + cost[search.row] - matching.u[search.row] - matching.v
        closer = ~search.visited & (reduced < search.distances)
        distances = vnp.where(closer, reduced, search.distances)
        nearest = vnp.argmin(vnp.where(search.visited, vnp.inf, distances)).astype(np.int32)
        owner = matching.row_of[nearest]
        return _Search(
            owner,
            distances[nearest],
            distances,
            vnp.where(closer, search.row, search.came_from),
            search.visited.at[nearest].set(True),
            vnp.where(owner < 0, nearest, search.end),
        )

    unknown = vnp.full(columns, np.finfo(cost.dtype).max, cost.dtype)
    nowhere = vnp.full(columns, -1, np.int32)
    start = _Search(row, vnp.zeros((), cost.dtype), unknown, nowhere, vnp.zeros(columns, bool), vnp.full((), -1, np.int32))
    return lax.while_loop(lambda search: search.end < 0, step, start)


def _augmented(end: Array, row: Array, came_from: Array, row_of: Array, column_of: Array) -> tuple[Array, Array]:
    """Give each column of the path the row that it was reached from."""

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        column, row_of, column_of = state
        new = came_from[column]
        return column_of[new], row_of.at[column].set(new), column_of.at[new].set(column)

    _, row_of, column_of = lax.while_loop(lambda state: state[0] >= 0, step, (end, row_of, column_of))
    return row_of, column_of
