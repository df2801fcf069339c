"""Collectives between processes, as NumPy functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.axes import ProcessAxis
from volta_fn.core.distribution import world

Axes = tuple[ProcessAxis, ...]
Groups = tuple[tuple[int, ...], ...] | None
Outs = Sequence[np.ndarray | None] | None


def _communicator(axis_names: Axes, axis_index_groups: Groups) -> world.Communicator:
    return world.current().communicator(world.members_of(axis_names, axis_index_groups))


def _described(name: str, axis_names: Axes, arrays: Sequence[np.ndarray]) -> str:
    """Describe a call."""
    types = ", ".join([f"{a.dtype.name}{list(a.shape)}" for a in arrays[:3]]) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")
    return f"{name} of {types} over {', '.join([repr(axis.name) for axis in axis_names])}"


def _results(arrays: Sequence[np.ndarray], out: Outs) -> list[np.ndarray]:
    """Return the arrays to write: those given, or new ones."""
    given = [None] * len(arrays) if out is None else out
    return [np.empty(a.shape, a.dtype) if o is None else o for a, o in zip(arrays, given, strict=True)]


def psum(
    *arrays: np.ndarray, axis_names: Axes, axis_index_groups: Groups, compression: str | None, out: Outs = None
) -> Sequence[np.ndarray]:
    """Sum each array over processes."""
    outs, communicator = _results(arrays, out), _communicator(axis_names, axis_index_groups)
    description = _described("psum", axis_names, arrays)
    if compression is None:
        communicator.reduce("sum", arrays, outs, description)
    else:
        communicator.compressed_sum(arrays, outs, description)
    return outs


def extreme(*arrays: np.ndarray, axis_names: Axes, axis_index_groups: Groups, step: str, out: Outs = None) -> Sequence[np.ndarray]:
    """Return the maximum or minimum of each array over processes."""
    outs = _results(arrays, out)
    _communicator(axis_names, axis_index_groups).reduce(step, arrays, outs, _described(f"p{step}", axis_names, arrays))
    return outs


_tickets = itertools.count()
_pending: dict[int, world.Pending] = {}


def psum_start(*arrays: np.ndarray, axis_names: Axes, axis_index_groups: Groups, compression: str | None) -> np.ndarray:
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
    index = np.array(world.members_of(axis_names, None).index(rank), np.int32)
    index.flags.writeable = False
    return index


def axis_index(*, axis_names: Axes) -> np.ndarray:
    """Return this process's position along an axis."""
    return _index(axis_names, world.current().rank)


def all_gather(array: np.ndarray, *, axis_names: Axes, axis_index_groups: Groups, axis: int, size: int) -> np.ndarray:
    """Stack the arrays of all processes along a new axis."""
    rows = _communicator(axis_names, axis_index_groups).gather(array, _described("all_gather", axis_names, [array]))
    return np.ascontiguousarray(np.moveaxis(rows, 0, axis))


def reduce_scatter(array: np.ndarray, *, axis_names: Axes, axis_index_groups: Groups, axis: int, size: int) -> np.ndarray:
    """Sum arrays over processes; each keeps its own row along an axis."""
    rows = np.ascontiguousarray(np.moveaxis(array, axis, 0))
    return _communicator(axis_names, axis_index_groups).reduce_scatter(rows, _described("psum_scatter", axis_names, [array]))


def ppermute(array: np.ndarray, *, axis_names: Axes, perm: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send an array by pairs of source and target."""
    return _communicator(axis_names, None).permute(array, perm, _described("ppermute", axis_names, [array]))


def all_to_all(array: np.ndarray, *, axis_names: Axes, axis_index_groups: Groups, split_axis: int, concat_axis: int) -> np.ndarray:
    """Exchange slices between all processes."""
    rows = np.ascontiguousarray(np.moveaxis(array, split_axis, 0))
    found = _communicator(axis_names, axis_index_groups).exchange(rows, _described("all_to_all", axis_names, [array]))
    return np.ascontiguousarray(np.moveaxis(found, 0, concat_axis))
