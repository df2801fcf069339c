"""Names, groups and rules of collectives, and their NumPy functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices import distribution
from volta_fn.core.trace import ProcessAxis, axis_size, bound_axes
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis, reshape
from volta_fn.primitives.data_movement.slicing import concatenate, index_in_dim

# The names, groups and rules that all collectives have.

Names = tuple[Any, ...]
Groups = tuple[tuple[int, ...], ...] | None


def one_name(axis_name: Any, collective: str) -> Names:
    """Return the binding of the only name; raise `ArgumentError` for several."""
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


# Collectives between processes, as NumPy functions.

Axes = tuple[ProcessAxis, ...]
RankGroups = tuple[tuple[int, ...], ...] | None
Outs = Sequence[np.ndarray | None] | None


def _communicator(axis_names: Axes, axis_index_groups: RankGroups) -> distribution.Communicator:
    return distribution.current().communicator(distribution.members_of(axis_names, axis_index_groups))


def _described(name: str, axis_names: Axes, arrays: Sequence[np.ndarray]) -> str:
    types = ", ".join([f"{a.dtype.name}{list(a.shape)}" for a in arrays[:3]]) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")
    return f"{name} of {types} over {', '.join([repr(axis.name) for axis in axis_names])}"


def _results(arrays: Sequence[np.ndarray], out: Outs) -> list[np.ndarray]:
    """Return the arrays to write: those given, or new ones."""
    destinations = [None] * len(arrays) if out is None else out
    return [np.empty(a.shape, a.dtype) if o is None else o for a, o in zip(arrays, destinations, strict=True)]


def psum(
    *arrays: np.ndarray, axis_names: Axes, axis_index_groups: RankGroups, compression: str | None, out: Outs = None
) -> Sequence[np.ndarray]:
    """Sum each array over processes."""
    outs, communicator = _results(arrays, out), _communicator(axis_names, axis_index_groups)
    description = _described("psum", axis_names, arrays)
    if compression is None:
        communicator.reduce("sum", arrays, outs, description)
    else:
        communicator.compressed_sum(arrays, outs, description)
    return outs


def psum_bucket(*arrays: np.ndarray, dtypes: Sequence[np.dtype], **params: Any) -> Sequence[np.ndarray]:
    """Sum each array over processes, as an array of one of the dtypes."""
    return psum(*[array.astype(dtype, copy=False) for array, dtype in zip(arrays, dtypes, strict=True)], **params)


def extreme(*arrays: np.ndarray, axis_names: Axes, axis_index_groups: RankGroups, step: str, out: Outs = None) -> Sequence[np.ndarray]:
    """Return the maximum or minimum of each array over processes."""
    outs = _results(arrays, out)
    _communicator(axis_names, axis_index_groups).reduce(step, arrays, outs, _described(f"p{step}", axis_names, arrays))
    return outs


_tickets = itertools.count()
_pending: dict[int, distribution.Pending] = {}


def psum_start(*arrays: np.ndarray, axis_names: Axes, axis_index_groups: RankGroups, compression: str | None) -> np.ndarray:
    """Begin a sum over processes, and return the number by which `psum_done` finds it."""
    ticket = next(_tickets) & 0x7FFFFFFF
    communicator = _communicator(axis_names, axis_index_groups)
    _pending[ticket] = communicator.start_sum(arrays, compression, _described("psum", axis_names, arrays))
    return np.array(ticket, np.int32)


def psum_done(ticket: np.ndarray, *, result_avals: Sequence[ShapedArray]) -> Sequence[np.ndarray]:
    """Wait for a sum that `psum_start` began."""
    return _pending.pop(int(ticket)).results()


@functools.cache
def _index(axis_names: Axes, rank: int) -> np.ndarray:
    index = np.array(distribution.members_of(axis_names, None).index(rank), np.int32)
    index.flags.writeable = False
    return index


def axis_index(*, axis_names: Axes) -> np.ndarray:
    """Return this process's position along an axis."""
    return _index(axis_names, distribution.current().rank)


def all_gather(array: np.ndarray, *, axis_names: Axes, axis_index_groups: RankGroups, axis: int, size: int) -> np.ndarray:
    """Stack the arrays of all processes along a new axis."""
    rows = _communicator(axis_names, axis_index_groups).gather(array, _described("all_gather", axis_names, [array]))
    return np.ascontiguousarray(np.moveaxis(rows, 0, axis))


def reduce_scatter(array: np.ndarray, *, axis_names: Axes, axis_index_groups: RankGroups, axis: int, size: int) -> np.ndarray:
    """Sum arrays over processes; each keeps its own row along an axis."""
    rows = np.ascontiguousarray(np.moveaxis(array, axis, 0))
    return _communicator(axis_names, axis_index_groups).reduce_scatter(rows, _described("psum_scatter", axis_names, [array]))


def ppermute(array: np.ndarray, *, axis_names: Axes, perm: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send an array by pairs of source and target."""
    return _communicator(axis_names, None).permute(array, perm, _described("ppermute", axis_names, [array]))


def all_to_all(array: np.ndarray, *, axis_names: Axes, axis_index_groups: RankGroups, split_axis: int, concat_axis: int) -> np.ndarray:
    """Exchange slices between all processes."""
    rows = np.ascontiguousarray(np.moveaxis(array, split_axis, 0))
    received = _communicator(axis_names, axis_index_groups).exchange(rows, _described("all_to_all", axis_names, [array]))
    return np.ascontiguousarray(np.moveaxis(received, 0, concat_axis))
