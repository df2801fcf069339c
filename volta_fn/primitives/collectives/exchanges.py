"""Values exchanged between positions: `ppermute`, `all_to_all`, …."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.axes import axis_size, bound_axes
from volta_fn.core.primitive import AxisData, Linear, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError
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
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import broadcast, canonical_axis, moveaxis, reshape
from volta_fn.primitives.data_movement.slicing import index_in_dim

Permutation = tuple[tuple[int, int], ...]


def _permute_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, perm: Permutation
) -> tuple[Array, int | None]:
    (value,), (dim,) = args, dims
    if axis.name not in axis_names:
        return bind(ppermute_p, value, axis_names=axis_names, perm=perm), dim
    front = broadcast(value, (axis.size,)) if dim is None else moveaxis(value, dim, 0)
    source_of = {target: source for source, target in perm}
    nothing = broadcast(as_value(np.zeros((), front.dtype)), (1, *front.shape[1:]))
    rows = [index_in_dim(front, source_of[i], 0) if i in source_of else nothing for i in range(axis.size)]
    return concatenate(rows, 0), 0


def _permute_transpose(ct: Array, operand: Linear, *, axis_names: Names, perm: Permutation) -> list[Array]:
    return [bind(ppermute_p, ct, axis_names=axis_names, perm=tuple([(target, source) for source, target in perm]))]


ppermute_p = Primitive(
    "ppermute",
    lambda operand, *, axis_names, perm: operand,
    evaluate=on_host.ppermute,
    batch=_permute_batch,
    transpose=_permute_transpose,
)
ppermute_p.jvp = linear_jvp(ppermute_p)


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Send `x`, a pytree, between examples by (source, target) pairs.

    Examples that receive nothing get zeros.

    Raises `ArgumentError` if a source or target occurs twice or does not exist.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.ppermute(x, "i", [(0, 1), (1, 0)]), axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    names = one_name(axis_name, "ppermute")
    pairs = tuple([(int(source), int(target)) for source, target in perm])
    for side in zip(*pairs, strict=True) if pairs else ():
        if len(set(side)) != len(side) or not all(0 <= i < axis_size(names) for i in side):
            raise ArgumentError(f"ppermute: {pairs} must name each of {axis_size(names)} examples at most once as source and as target")
    return tree.map(lambda leaf: bind(ppermute_p, as_value(leaf), axis_names=names, perm=pairs), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Permute `x`, a pytree, over the examples of a named axis.

    Example i gets the value of example ``perm[i]``.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(vf.numpy.array([10, 11, 12]))
    Array([12, 10, 11], dtype=int32)
    """
    if sorted(perm) != list(range(axis_size(axis_name))):
        raise ArgumentError(f"pshuffle: {tuple(perm)} does not permute {axis_size(axis_name)} examples")
    return ppermute(x, axis_name, [(source, target) for target, source in enumerate(perm)])


def _exchange_abstract(
    operand: ShapedArray, *, axis_names: Names, axis_index_groups: Groups, split_axis: int, concat_axis: int
) -> ShapedArray:
    shape = list(operand.shape)
    size = shape.pop(split_axis)
    shape.insert(concat_axis, size)
    return operand.update(shape=tuple(shape))


def _exchange_batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    axis_names: Names,
    axis_index_groups: Groups,
    split_axis: int,
    concat_axis: int,
) -> tuple[Array, int]:
    (value,), (dim,) = args, dims
    if axis.name not in axis_names:
        front = broadcast(value, (axis.size,)) if dim is None else moveaxis(value, dim, 0)
        params = {"axis_names": axis_names, "axis_index_groups": axis_index_groups}
        return bind(all_to_all_p, front, **params, split_axis=split_axis + 1, concat_axis=concat_axis + 1), 0
    # Example i's block j becomes example j's block i: the stacked dimension and the split one change roles.
    by_target = moveaxis(to_groups(value, dim, axis.size, axis_index_groups), split_axis + 2, 1)
    return from_groups(moveaxis(by_target, 2, concat_axis + 2), axis_index_groups), 0


def _exchange_transpose(
    ct: Array, operand: Linear, *, axis_names: Names, axis_index_groups: Groups, split_axis: int, concat_axis: int
) -> list[Array]:
    params = {"axis_names": axis_names, "axis_index_groups": axis_index_groups}
    return [bind(all_to_all_p, ct, **params, split_axis=concat_axis, concat_axis=split_axis)]


all_to_all_p = Primitive(
    "all_to_all", _exchange_abstract, evaluate=on_host.all_to_all, batch=_exchange_batch, transpose=_exchange_transpose
)
all_to_all_p.jvp = linear_jvp(all_to_all_p)


def all_to_all(x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = False) -> Any:
    """Exchange slices of `x`, a pytree, between all examples of a named axis.

    `x` is split along `split_axis` into a slice per example; slice j goes to example j, and what arrives is joined along `concat_axis`.

    A leaf's `split_axis` is as long as the named axis and is dropped, and what arrives is stacked along a new dimension `concat_axis`.
    If `tiled` it is a multiple of that, each example has a block of it, and what arrives is joined along the dimension `concat_axis`
    that leaves have. With `axis_index_groups`, lists of positions of one size, each group exchanges its own.

    Several names count as one axis, the last varying fastest. The derivative sends cotangents back. Raises `ShapeError`
    if `split_axis` does not divide so, `ArgumentError` if the name is not bound by a surrounding `vmap`.

    >>> import volta_fn as vf
    >>> x = vf.numpy.arange(4.0).reshape(2, 2)
    >>> vf.vmap(lambda row: vf.lax.all_to_all(row, "i", 0, 0), axis_name="i")(x)
    Array([[0., 2.],
           [1., 3.]], dtype=float32)
    >>> vf.vmap(lambda row: vf.lax.all_to_all(row[None], "i", 1, 0, tiled=True), axis_name="i")(x).shape
    (2, 2, 1)
    """
    names = bound_axes(axis_name)
    if len(set(names)) != len(names):
        raise ArgumentError(f"all_to_all: {names} names an axis twice")
    groups = checked_groups(axis_index_groups, names, "all_to_all")

    def exchange(leaf: Any) -> Array:
        value = as_value(leaf)
        split, concat = canonical_axis(split_axis, value.ndim), canonical_axis(concat_axis, value.ndim)
        blocks = in_blocks("all_to_all", value, split, group_size(names, groups), tiled)
        arrived = _exchange(blocks, names, groups, split, concat)
        return collapse(arrived, concat, concat + 2) if tiled else arrived

    return tree.map(exchange, x)


def _exchange(blocks: Array, names: Names, groups: Groups, split: int, concat: int) -> Array:
    """Send the blocks along `split` over all named axes, the last one varying fastest."""
    if len(names) == 1:
        return bind(all_to_all_p, blocks, axis_names=names, axis_index_groups=groups, split_axis=split, concat_axis=concat)
    front = moveaxis(blocks, split, 0)
    grid = reshape(front, (*map(axis_size, names), *front.shape[1:]))
    for dim, name in enumerate(names):
        grid = bind(all_to_all_p, grid, axis_names=(name,), axis_index_groups=None, split_axis=dim, concat_axis=dim)
    return moveaxis(collapse(grid, 0, len(names)), 0, concat)


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """Swap a named axis with the dimension `axis` of `x`, of the same size.

    See `all_to_all`.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.pswapaxes(row, "i", 0), axis_name="i")(vf.numpy.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)
