"""Ragged contraction: an axis of the left operand in groups of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.memory.transfer import constrained
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.array_operations.shorthand import full_like
from volta_fn.primitives.contraction import dot_general
from volta_fn.primitives.cumulative import cumsum
from volta_fn.primitives.data_movement.movement import broadcast_in_dim, broadcasted_iota, moveaxis
from volta_fn.primitives.elementwise.arithmetic import sub
from volta_fn.primitives.elementwise.comparison import bitwise_and, ge, lt
from volta_fn.primitives.elementwise.selection import select


class RaggedDotDimensionNumbers(NamedTuple):
    """The axes of a ragged contraction.

    Args:
        dot_dimension_numbers: those of `dot_general`, the group axis of `rhs` aside.
        lhs_ragged_dimensions: the one axis of `lhs` that falls into groups.
        rhs_group_dimensions: the axis of `rhs` with an entry for each group, if the ragged axis is free; else nothing.
    """

    dot_dimension_numbers: Any
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


#: Rows of `lhs` in groups, and a matrix of `rhs` for each group.
_BASIC = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Multiply groups of consecutive rows, each by a matrix of its own.

    Args:
        lhs: rows, of shape (m, k).
        rhs: a matrix for each group, of shape (g, k, n).
        group_sizes: how many rows each group has: integers of shape (g,). Rows beyond the last group give zeros.
        precision: as in `dot_general`.
        preferred_element_type: the dtype of the sums.
        group_offset: must be None.

    Returns an array of shape (m, n). Raises as `ragged_dot_general`.

    >>> matrices = jnp.array([[[1.0]], [[10.0]]])
    >>> vf.lax.ragged_dot(jnp.array([[1.0], [2.0], [3.0]]), matrices, jnp.array([2, 1])).ravel()
    Array([ 1.,  2., 30.], dtype=float32)
    """
    return constrained(ragged_dot_general(lhs, rhs, group_sizes, _BASIC, precision, preferred_element_type, group_offset), out_sharding)


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Contract pairs of axes, where an axis of `lhs` falls into groups.

    A free ragged axis (m) takes another entry of `rhs` for each group; a contracting one (k) is summed group by group, and the result has a
    leading axis of groups; a ragged batch axis changes nothing.

    Args:
        lhs: of shape (b…, m…, k…), in any order of axes.
        rhs: of shape (g, b…, k…, n…) if the ragged axis is free, else (b…, k…, n…), in any order of axes.
        group_sizes: integers of shape (g,), or with leading axes for those of `lhs` that stand outside the ragged axis: the batch axes,
            and the axes of its own kind before it.
        ragged_dot_dimension_numbers: the axes.
        precision: as in `dot_general`.
        preferred_element_type: the dtype of the sums.
        group_offset: must be None: every group is computed here.

    Raises:
        ArgumentError: a group offset, not one ragged axis, or an axis of groups of `rhs` where the ragged one is not free.
        DTypeError: group sizes that are not integers.
        ShapeError: shapes that do not fit.

    >>> numbers = vf.lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    >>> vf.lax.ragged_dot_general(jnp.array([[1.0, 2.0, 3.0]]), jnp.ones((3, 1)), jnp.array([2, 1]), numbers).ravel()
    Array([3., 3.], dtype=float32)
    """
    x, y, sizes = as_value(lhs), as_value(rhs), as_value(group_sizes)
    numbers = ragged_dot_dimension_numbers
    _check(sizes, numbers, group_offset)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = [tuple(map(tuple, pair)) for pair in numbers.dot_dimension_numbers]
    (ragged,) = numbers.lhs_ragged_dimensions
    groups = tuple(numbers.rhs_group_dimensions)
    if groups and ragged in (*lhs_contract, *lhs_batch):
        raise ArgumentError(f"ragged_dot: rhs has no axis of groups unless the ragged axis is free, got rhs_group_dimensions={groups}")
    if ragged in lhs_batch:
        _check_sizes(x, sizes, [i for i in lhs_batch if i < ragged])
        return constrained(dot_general(x, y, numbers.dot_dimension_numbers, precision, preferred_element_type), out_sharding)
    kind = lhs_contract if ragged in lhs_contract else [i for i in range(x.ndim) if i not in (*lhs_contract, *lhs_batch)]
    outer = (*lhs_batch, *[i for i in kind if i < ragged])
    _check_sizes(x, sizes, outer)
    members = _members(x, sizes, ragged, outer)
    grouped = _masked(broadcast_in_dim(x, members.shape, range(1, members.ndim)), members)
    contract, batch = [i + 1 for i in lhs_contract], [i + 1 for i in lhs_batch]
    if ragged in lhs_contract:
        out = dot_general(grouped, y, ((contract, rhs_contract), (batch, rhs_batch)), precision, preferred_element_type)
        return constrained(moveaxis(out, len(batch), 0), out_sharding)
    return constrained(
        dot_general(grouped, y, (([0, *contract], [*groups, *rhs_contract]), (batch, rhs_batch)), precision, preferred_element_type),
        out_sharding,
    )


def _check(sizes: Array, numbers: RaggedDotDimensionNumbers, group_offset: Any) -> None:
    if group_offset is not None:
        raise ArgumentError("ragged_dot: group_offset must be None; give the groups to compute, and their sizes, alone")
    if len(numbers.lhs_ragged_dimensions) != 1:
        raise ArgumentError(f"ragged_dot: lhs_ragged_dimensions names one axis, got {numbers.lhs_ragged_dimensions}")
    if sizes.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"ragged_dot: group_sizes must be integers, got {sizes.dtype.name}")
    if not sizes.ndim:
        raise ShapeError("ragged_dot: group_sizes needs an axis of groups, got a scalar")


def _check_sizes(x: Array, sizes: Array, outer: Sequence[int]) -> None:
    wanted = tuple([x.shape[i] for i in outer])
    if sizes.ndim > 1 and sizes.shape[:-1] != wanted:
        raise ShapeError(
            f"ragged_dot: group_sizes of shape {sizes.shape} fits neither (groups,) nor {(*wanted, sizes.shape[-1])}, "
            f"which has the axes {tuple(outer)} of lhs before it"
        )


def _members(x: Array, sizes: Array, ragged: int, outer: Sequence[int]) -> Array:
    """Return, by group and element of `x`, whether the element belongs to the group."""
    last = sizes.ndim - 1
    ends = moveaxis(cumsum(sizes, last), last, 0)
    starts = sub(ends, moveaxis(sizes, last, 0))
    shape = (ends.shape[0], *x.shape)
    index = broadcasted_iota(sizes.dtype, shape, ragged + 1)
    axes = (0,) if sizes.ndim == 1 else (0, *[i + 1 for i in outer])
    start, end = [broadcast_in_dim(bound, shape, axes) for bound in (starts, ends)]
    return bitwise_and(ge(index, start), lt(index, end))


def _masked(x: Array, keep: Array) -> Array:
    return select(keep, x, full_like(x, np.zeros((), x.dtype)))
