"""Ragged contraction: `ragged_dot`, where an axis of the left operand has groups.

The forms that mixtures of experts need are the primitive `ragged_dot`: rows in groups with a matrix for each, and its derivative by the
matrices, a sum of outer products for each group. Targets expand it to a loop over blocks of rows of one group each (Gale et al. 2022), so
that every row meets the matrix of its group only. Other forms are contractions of operands masked by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.array_operations.operators import full_like
from volta_fn.primitives.contraction import TENSORFLOAT32, check_precision, dot_general, in_kind_of, product_dtype, rounding
from volta_fn.primitives.cumulative import cumsum
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_index_in_dim, dynamic_update_index_in_dim
from volta_fn.primitives.data_movement.movement import (
    broadcast_in_dim,
    broadcasted_iota,
    instantiate,
    moveaxis,
    no_tangents,
    reshape,
    stacked_in_front,
)
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.primitives.elementwise.arithmetic import add, sub
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import bitwise_and, ge, lt, select
from volta_fn.primitives.scan import scan
from volta_fn.settings import current as settings

# Ragged contraction: an axis of the left operand in groups of different sizes.


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
    if x.ndim == 2 and sizes.ndim == 1 and not lhs_batch and len(lhs_contract) == 1:
        if ragged in lhs_contract and y.ndim == 2:
            rows = moveaxis(x, ragged, 0), moveaxis(y, rhs_contract[0], 0)
            return constrained(_bind(*rows, sizes, SUMS, precision, preferred_element_type), out_sharding)
        if ragged not in lhs_contract and y.ndim == 3 and len(groups) == 1:
            matrices = moveaxis(y, groups[0], 0)
            transposed = rhs_contract[0] > next(i for i in range(3) if i not in (groups[0], rhs_contract[0]))
            form = TRANSPOSED_ROWS if transposed else ROWS
            return constrained(_bind(moveaxis(x, ragged, 0), matrices, sizes, form, precision, preferred_element_type), out_sharding)
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
    expected = tuple([x.shape[i] for i in outer])
    if sizes.ndim > 1 and sizes.shape[:-1] != expected:
        raise ShapeError(
            f"ragged_dot: group_sizes of shape {sizes.shape} fits neither (groups,) nor {(*expected, sizes.shape[-1])}, "
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


# The primitive.
#
# ``ragged_dot(x, y, sizes)``, of rows x of shape (m, k), is one of three:
#
# - "rows": y of shape (g, k, n) gives each row times its group's matrix, (m, n);
# - "transposed rows": y of shape (g, n, k) gives each row times its group's matrix transposed, (m, n);
# - "sums": y of shape (m, n) gives for each group the sum of its rows' outer products, (g, k, n).
#
# It is linear in x and in y, and its transposes are again these three. Rows beyond the last group are zeros, or belong to no sum. `rounds`
# says whether a GPU may round the operands to TensorFloat-32 (`Precision`).

ROWS, TRANSPOSED_ROWS, SUMS = "rows", "transposed rows", "sums"


def _bind(x: Array, y: Array, sizes: Array, kind: str, precision: Any, dtype: Any) -> Array:
    preferred = None if dtype is None else dtypes.as_dtype(dtype)
    x, y = in_kind_of(preferred, x, y)
    result = product_dtype("ragged_dot", x.aval, y.aval, preferred)
    if precision is not None:
        check_precision("ragged_dot", precision)
    precision = settings.matmul_precision if precision is None else precision
    rounds = precision is not None and x.dtype == y.dtype == np.float32 and rounding(precision) == TENSORFLOAT32
    out: Array = bind(ragged_dot_p, x, y, sizes, kind=kind, rounds=rounds, dtype=result)
    return out


def _abstract(x: ShapedArray, y: ShapedArray, sizes: ShapedArray, *, kind: str, rounds: bool, dtype: np.dtype) -> ShapedArray:
    if kind not in (ROWS, TRANSPOSED_ROWS, SUMS):
        raise ArgumentError(f"ragged_dot: kind={kind!r} is none of {ROWS!r}, {TRANSPOSED_ROWS!r} and {SUMS!r}")
    shape: tuple[int, ...] = ()
    if (x.ndim, y.ndim, sizes.ndim) == (2, 2 if kind == SUMS else 3, 1):
        (m, k), (g,) = x.shape, sizes.shape
        if kind == SUMS and y.shape[0] == m:
            shape = (g, k, y.shape[1])
        elif kind != SUMS and (y.shape[0], y.shape[2 if kind == TRANSPOSED_ROWS else 1]) == (g, k):
            shape = (m, y.shape[1 if kind == TRANSPOSED_ROWS else 2])
    if not shape:
        raise ShapeError(f"ragged_dot: rows {x}, {y} and sizes {sizes} of groups do not fit together")
    return ShapedArray(shape, product_dtype("ragged_dot", x, y, dtype))


def _evaluate(x: np.ndarray, y: np.ndarray, sizes: np.ndarray, *, kind: str, rounds: bool, dtype: np.dtype) -> np.ndarray:
    wide = dtypes.accumulator(dtype) if dtype in dtypes.FLOATS else dtype
    ends = np.minimum(np.cumsum(sizes.astype(np.int64)), len(x))
    x, y = x.astype(wide, copy=False), y.astype(wide, copy=False)
    shape: tuple[int, ...] = (
        (len(sizes), x.shape[1], y.shape[1]) if kind == SUMS else (len(x), y.shape[1 if kind == TRANSPOSED_ROWS else 2])
    )
    out = np.zeros(shape, wide)
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if kind == SUMS:
            out[group] = x[start:end].T @ y[start:end]
        else:
            out[start:end] = x[start:end] @ (y[group].T if kind == TRANSPOSED_ROWS else y[group])
    return out.astype(dtype, copy=False)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
    out = bind(ragged_dot_p, *primals, **params)
    x, y, sizes = primals
    moved_x, moved_y, _ = tangents
    terms = []
    if type(moved_x) is not Zero:
        terms.append(bind(ragged_dot_p, instantiate(moved_x), y, sizes, **params))
    if type(moved_y) is not Zero:
        terms.append(bind(ragged_dot_p, x, instantiate(moved_y), sizes, **params))
    if not terms:
        return no_tangents(out)
    return out, terms[0] if len(terms) == 1 else add(*terms)


def _transpose(ct: Array, x: Any, y: Any, sizes: Array, *, kind: str, rounds: bool, dtype: np.dtype) -> list[Any]:
    def product(left: Array, right: Array, kind: str, like: Any) -> Array:
        wide = dtypes.promote_types(left.dtype, right.dtype)
        out: Array = bind(ragged_dot_p, left, right, sizes, kind=kind, rounds=rounds, dtype=wide)
        return out if wide == like.dtype else convert_element_type(out, like.dtype)

    if type(x) is Linear:
        if kind == SUMS:
            return [product(y, ct, TRANSPOSED_ROWS, x), None, None]
        return [product(ct, y, TRANSPOSED_ROWS if kind == ROWS else ROWS, x), None, None]
    if kind == SUMS:
        return [None, product(x, ct, ROWS, y), None]
    left, right = (x, ct) if kind == ROWS else (ct, x)
    return [None, product(left, right, SUMS, y), None]


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
    """Batch by more rows in each group, or by a loop over examples."""
    x, y, sizes = args
    if dims[1] is None and dims[2] is None and params["kind"] != SUMS:
        rows = moveaxis(x, dims[0] or 0, 1)
        together = reshape(rows, (rows.shape[0] * axis.size, rows.shape[2]))
        out = bind(ragged_dot_p, together, y, sizes * sizes.dtype.type(axis.size), **params)
        return reshape(out, (rows.shape[0], axis.size, out.shape[1])), 1
    stacked = tuple(stacked_in_front(axis, args, dims))
    return scan(lambda _, each: (None, bind(ragged_dot_p, *each, **params)), None, stacked)[1], 0


ragged_dot_p = Primitive("ragged_dot", _abstract, evaluate=_evaluate, jvp=_jvp, transpose=_transpose, batch=_batch)


def masked(x: Array, y: Array, sizes: Array, *, kind: str, rounds: bool, dtype: np.dtype) -> Array:
    """Return what the primitive means, by rows masked by group.

    Every row meets every matrix.
    """
    members = _members(x, sizes, 0, ())
    grouped = _masked(broadcast_in_dim(x, members.shape, (1, 2)), members)
    precision = "default" if rounds else "highest"
    if kind == SUMS:
        return dot_general(grouped, y, (((1,), (0,)), ((), ())), precision, dtype)
    contracted = 2 if kind == TRANSPOSED_ROWS else 1
    return dot_general(grouped, y, (((0, 2), (0, contracted)), ((), ())), precision, dtype)


# The expansion: a loop over blocks of rows of one group each.

#: The most rows of a block.
_BLOCK = 128


def block_size(rows: int, groups: int) -> int:
    """Return how many rows a block has: a power of two near the mean of a group."""
    return 1 if rows <= groups else min(1 << (rows // groups).bit_length() - 1, _BLOCK)


def expanded(x: Array, y: Array, sizes: Array, *, kind: str, rounds: bool, dtype: np.dtype) -> Array:
    """Return what the primitive means, by blocks of rows of one group."""
    rows, groups = x.shape[0], sizes.shape[0]
    shape = ragged_dot_p.abstract(x.aval, y.aval, sizes.aval, kind=kind, rounds=rounds, dtype=dtype).shape
    precision = "default" if rounds else "highest"
    wide = dtypes.accumulator(dtype) if dtype in dtypes.FLOATS else dtype
    zero = np.zeros((), wide if kind == SUMS else dtype)
    if not rows or not groups or not x.shape[1] or 0 in shape:
        return full_like(x, np.zeros((), dtype), dtype, shape)
    block = block_size(rows, groups)
    count = min(rows, rows // block + groups)  # no more blocks, however rows are distributed
    ends = cumsum(sizes.astype(np.int32), 0).clip(0, rows)
    starts = concatenate([ends[:1] * 0, ends[:-1]], 0)
    blocks = (ends - starts + (block - 1)) // block
    last_blocks = cumsum(blocks, 0)
    number = broadcasted_iota(np.dtype(np.int32), (count,), 0)
    group = (number[:, None] >= last_blocks).astype(np.int32).sum(1).clip(0, groups - 1)
    row = (starts + (blocks - last_blocks) * block)[group][:, None] + number[:, None] * block
    row = row + broadcasted_iota(np.dtype(np.int32), (1, block), 1)
    inside = (row < ends[group][:, None]) & (number < last_blocks[-1])[:, None]
    row = row.clip(0, rows - 1)
    if kind == SUMS:

        def accumulate(sums: Array, each: tuple[Array, ...]) -> tuple[Array, None]:
            index, left, right = each
            total = add(dynamic_index_in_dim(sums, index, 0, False), dot_general(left, right, (((0,), (0,)), ((), ())), precision, wide))
            return dynamic_update_index_in_dim(sums, total, index, 0), None

        left = select(broadcast_in_dim(inside, (count, block, x.shape[1]), (0, 1)), x[row], full_like(x[row], np.zeros((), x.dtype)))
        total: Array = scan(accumulate, full_like(x, zero, wide, shape), (group, left, y[row]))[0]
        return convert_element_type(total, dtype)
    contracted = 1 if kind == TRANSPOSED_ROWS else 0

    def multiply(_: None, each: tuple[Array, Array]) -> tuple[None, Array]:
        index, some = each
        return None, dot_general(some, dynamic_index_in_dim(y, index, 0, False), (((1,), (contracted,)), ((), ())), precision, dtype)

    results = reshape(scan(multiply, None, (group, x[row]))[1], (count * block, shape[1]))
    every = broadcasted_iota(np.dtype(np.int32), (rows,), 0)
    owner = (every[:, None] >= ends).astype(np.int32).sum(1).clip(0, groups - 1)
    place = ((last_blocks - blocks) * block - starts)[owner] + every
    exists = broadcast_in_dim(every < ends[-1], shape, (0,))
    return select(exists, results[place.clip(0, count * block - 1)], full_like(x, zero, dtype, shape))
