"""What collectives have in common: names, groups, rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.axes import axis_size, bound_axes
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis, reshape
from volta_fn.primitives.data_movement.slicing import index_in_dim

Names = tuple[Any, ...]
Groups = tuple[tuple[int, ...], ...] | None


def one_name(axis_name: Any, collective: str) -> Names:
    """Return what the only name is bound to; raise `ArgumentError` for several."""
    names = bound_axes(axis_name)
    if len(names) != 1:
        raise ArgumentError(f"{collective} takes one axis name, got {names}; call it once per axis")
    return names


def checked_groups(axis_index_groups: Any, names: Names, collective: str) -> Groups:
    """Return groups of positions as tuples.

    Raises `ArgumentError` unless they are of one size and together name each position of one axis once.
    """
    if axis_index_groups is None:
        return None
    if len(names) != 1:
        raise ArgumentError(f"{collective}: axis_index_groups are positions of one axis, but {names} are {len(names)}")
    groups = tuple([tuple(map(int, group)) for group in axis_index_groups])
    if len({len(group) for group in groups}) != 1 or sorted(i for group in groups for i in group) != list(range(axis_size(names))):
        raise ArgumentError(
            f"{collective}: axis_index_groups must name each of {axis_size(names)} positions once, in groups of one size; got {groups}"
        )
    return groups


def group_size(names: Names, groups: Groups) -> int:
    """Return the number of positions that communicate."""
    return axis_size(names) if groups is None else len(groups[0])


def to_groups(value: Array, dim: int | None, size: int, groups: Groups) -> Array:
    """Move the examples to two leading dimensions: groups, and positions in a group.

    `dim` is the dimension of `size` examples; if it is None, all have this value.
    """
    front = broadcast(value, (size,)) if dim is None else moveaxis(value, dim, 0)
    if groups is None:
        return reshape(front, (1, *front.shape))
    return reshape(_rows(front, [i for group in groups for i in group]), (len(groups), len(groups[0]), *front.shape[1:]))


def from_groups(value: Array, groups: Groups) -> Array:
    """Undo `to_groups`: move the examples to one leading dimension, in their order."""
    rows = reshape(value, (value.shape[0] * value.shape[1], *value.shape[2:]))
    return rows if groups is None else _rows(rows, np.argsort([i for group in groups for i in group]).tolist())


def _rows(value: Array, order: Sequence[int]) -> Array:
    return concatenate([index_in_dim(value, i, 0) for i in order], 0)


def in_blocks(collective: str, value: Array, dim: int, size: int, tiled: bool) -> Array:
    """Split `dim` of `value` into a dimension of `size` blocks and their elements.

    If not `tiled`, `dim` is the dimension of blocks itself.
    """
    before, count, after = value.shape[:dim], value.shape[dim], value.shape[dim + 1 :]
    if not tiled and count != size:
        raise ShapeError(f"{collective}: dimension {dim} of shape {value.shape} must have the axis's size {size} (or be tiled)")
    if count % size:
        raise ShapeError(f"{collective}: dimension {dim} of shape {value.shape} does not divide among {size} examples")
    return reshape(value, (*before, size, count // size, *after)) if tiled else value


def linear_jvp(primitive: Primitive) -> Callable[..., Any]:
    """Return the JVP rule of a linear collective of one array."""

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
        out = bind(primitive, *primals, **params)
        (tangent,) = tangents
        return out, Zero(out.aval.at_least_vspace()) if type(tangent) is Zero else bind(primitive, tangent, **params)

    return jvp
