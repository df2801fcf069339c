"""Positions, gathering and scattering: `axis_index`, `all_gather`, …."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core import axes as named_axes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.axes import bound_axes
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.array_operations.shorthand import collapse
from volta_fn.primitives.collectives import on_host
from volta_fn.primitives.collectives.groups import (
    Groups,
    Names,
    checked_groups,
    from_groups,
    group_size,
    in_blocks,
    linear_jvp,
    one_name,
    to_groups,
)
from volta_fn.primitives.data_movement.movement import broadcast, broadcasted_iota, canonical_axis, moveaxis
from volta_fn.primitives.reduction import reduce_sum


def axis_size(axis_name: Any) -> int:
    """Return the number of positions along one or more named axes.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: x * vf.lax.axis_size("i"), axis_name="i")(vf.numpy.ones(3))
    Array([3., 3., 3.], dtype=float32)
    """
    return named_axes.axis_size(axis_name)


# The position.


def _index_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names) -> tuple[Array, int | None]:
    if axis.name not in axis_names:
        return bind(axis_index_p, axis_names=axis_names), None
    return broadcasted_iota(np.int32, (axis.size,), 0), 0


def _index_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axis_names: Names) -> tuple[Array, Any]:
    out = bind(axis_index_p, axis_names=axis_names)
    return out, Zero(out.aval.at_least_vspace())


axis_index_p = Primitive(
    "axis_index",
    lambda *, axis_names: ShapedArray((), np.dtype(np.int32)),
    evaluate=on_host.axis_index,
    jvp=_index_jvp,
    batch=_index_batch,
)


def axis_index(axis_name: Any) -> Array:
    """Return the index of the current example or process along a named axis, as int32.

    Over several names it is row-major.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: x + vf.lax.axis_index("i"), axis_name="i")(vf.numpy.zeros(3))
    Array([0., 1., 2.], dtype=float32)
    """
    index: Any = None
    for name in bound_axes(axis_name):
        own = bind(axis_index_p, axis_names=(name,))
        index = own if index is None else index * named_axes.axis_size(name) + own
    return index


# Gathering.


def _gather_abstract(operand: ShapedArray, *, axis_names: Names, axis_index_groups: Groups, axis: int, size: int) -> ShapedArray:
    return operand.update(shape=(*operand.shape[:axis], size, *operand.shape[axis:]))


def _gather_batch(
    mapped: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    axis_names: Names,
    axis_index_groups: Groups,
    axis: int,
    size: int,
) -> tuple[Array, int | None]:
    (value,), (dim,) = args, dims
    if mapped.name not in axis_names:
        front = moveaxis(value, dim or 0, 0)
        return bind(all_gather_p, front, axis_names=axis_names, axis_index_groups=axis_index_groups, axis=axis + 1, size=size), 0
    if axis_index_groups is None:
        return moveaxis(broadcast(value, (size,)), 0, axis) if dim is None else moveaxis(value, dim, axis), None
    stacked = to_groups(value, dim, mapped.size, axis_index_groups)
    every = moveaxis(broadcast(stacked, (size,)), 0, 1)
    return moveaxis(from_groups(every, axis_index_groups), 1, axis + 1), 0


def _gather_transpose(ct: Array, operand: Linear, **params: Any) -> list[Array]:
    return [bind(reduce_scatter_p, ct, **params)]


all_gather_p = Primitive("all_gather", _gather_abstract, evaluate=on_host.all_gather, batch=_gather_batch, transpose=_gather_transpose)
all_gather_p.jvp = linear_jvp(all_gather_p)


def all_gather(x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False) -> Any:
    """Stack the values of `x`, a pytree, of all positions of a named axis.

    They are stacked along a new dimension `axis`, or joined along it if `tiled`. With `axis_index_groups`, lists of positions of one size,
    each gets those of its group.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.all_gather(x, "i").sum() - x, axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    names = one_name(axis_name, "all_gather")
    groups = checked_groups(axis_index_groups, names, "all_gather")

    def gather(leaf: Any) -> Array:
        value = as_value(leaf)
        dim = canonical_axis(axis, value.ndim + (not tiled))
        out = bind(all_gather_p, value, axis_names=names, axis_index_groups=groups, axis=dim, size=group_size(names, groups))
        return collapse(out, dim, dim + 2) if tiled else out

    return tree.map(gather, x)


# Scattering.


def _scatter_abstract(operand: ShapedArray, *, axis_names: Names, axis_index_groups: Groups, axis: int, size: int) -> ShapedArray:
    return operand.update(shape=(*operand.shape[:axis], *operand.shape[axis + 1 :]))


def _scatter_batch(
    mapped: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    axis_names: Names,
    axis_index_groups: Groups,
    axis: int,
    size: int,
) -> tuple[Array, int]:
    (value,), (dim,) = args, dims
    if mapped.name not in axis_names:
        front = moveaxis(value, dim or 0, 0)
        return bind(reduce_scatter_p, front, axis_names=axis_names, axis_index_groups=axis_index_groups, axis=axis + 1, size=size), 0
    total = reduce_sum(to_groups(value, dim, mapped.size, axis_index_groups), (1,))
    return from_groups(moveaxis(total, axis + 1, 1), axis_index_groups), 0


def _scatter_transpose(ct: Array, operand: Linear, **params: Any) -> list[Array]:
    return [bind(all_gather_p, ct, **params)]


reduce_scatter_p = Primitive(
    "reduce_scatter", _scatter_abstract, evaluate=on_host.reduce_scatter, batch=_scatter_batch, transpose=_scatter_transpose
)
reduce_scatter_p.jvp = linear_jvp(reduce_scatter_p)


def psum_scatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False) -> Any:
    """Sum `x` over all positions of a named axis and scatter the sum.

    Each keeps its own slice along `scatter_dimension`.

    That dimension has the size of the axis and is dropped; if `tiled` it is a multiple of it and each keeps a block. With
    `axis_index_groups`, lists of positions of one size, each group has a sum of its own.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.psum_scatter(row, "i"), axis_name="i")(vf.numpy.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    names = one_name(axis_name, "psum_scatter")
    groups = checked_groups(axis_index_groups, names, "psum_scatter")
    size = group_size(names, groups)

    def scatter(leaf: Any) -> Array:
        value = as_value(leaf)
        dim = canonical_axis(scatter_dimension, value.ndim)
        blocks = in_blocks("psum_scatter", value, dim, size, tiled)
        return bind(reduce_scatter_p, blocks, axis_names=names, axis_index_groups=groups, axis=dim, size=size)

    return tree.map(scatter, x)
