"""Slices with bounds known while tracing, whose transpose is `pad`."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData
from volta_fn.core.trace import bind
from volta_fn.errors import ShapeError
from volta_fn.primitives.data_movement.movement import canonical_axis, linear_primitive, moveaxis, reshape

Ints = tuple[int, ...]


# slice


def _slice_abstract(operand: ShapedArray, *, start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> ShapedArray:
    steps = strides or (1,) * operand.ndim
    if not len(start_indices) == len(limit_indices) == len(steps) == operand.ndim:
        raise ShapeError(
            f"slice needs one start, limit and stride per dimension of {operand}, got {start_indices}, {limit_indices}, {strides}"
        )
    for i, (start, limit, step) in enumerate(zip(start_indices, limit_indices, steps, strict=True)):
        if not 0 <= start <= limit <= operand.shape[i] or step < 1:
            raise ShapeError(f"slice {start}:{limit}:{step} does not fit dimension {i} of shape {operand.shape}")
    sizes = [-(-(limit - start) // step) for start, limit, step in zip(start_indices, limit_indices, steps, strict=True)]
    return operand.update(shape=tuple(sizes))


@lru_cache(maxsize=1024)
def _slices(start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> tuple[builtins.slice, ...]:
    steps = strides or (1,) * len(start_indices)
    return tuple([builtins.slice(*bounds) for bounds in zip(start_indices, limit_indices, steps, strict=True)])


def _slice_evaluate(operand: np.ndarray, *, start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> np.ndarray:
    return operand[_slices(start_indices, limit_indices, strides)]


def _slice_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, start_indices: Ints, limit_indices: Ints, strides: Ints | None
) -> tuple[Array, int]:
    front = moveaxis(args[0], dims[0] or 0, 0)
    steps = None if strides is None else (1, *strides)
    return bind(slice_p, front, start_indices=(0, *start_indices), limit_indices=(front.shape[0], *limit_indices), strides=steps), 0


#: Its transpose is `pad`, and declared next to it.
slice_p = linear_primitive("slice", _slice_abstract, _slice_evaluate, _slice_batch)


def slice(operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None) -> Array:
    """Return the elements from `start_indices` up to `limit_indices`.

    The limits are not included; every `strides`-th element is taken.

    Raises `ShapeError` when the bounds do not fit: nothing is clamped silently.

    >>> import volta_fn as vf
    >>> vf.lax.slice(vf.numpy.arange(10), (2,), (8,), (3,))
    Array([2, 5], dtype=int32)
    """
    value = as_value(operand)
    starts, limits = (tuple(int(i) for i in bounds) for bounds in (start_indices, limit_indices))
    steps = None if strides is None or all(s == 1 for s in strides) else tuple(int(s) for s in strides)
    return bind(slice_p, value, start_indices=starts, limit_indices=limits, strides=steps)


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Array:
    """Slice one dimension; indices may be negative or None as in Python.

    >>> import volta_fn as vf
    >>> vf.lax.slice_in_dim(vf.numpy.arange(6), 1, 6, 2)
    Array([1, 3, 5], dtype=int32)
    """
    value = as_value(operand)
    dim = canonical_axis(axis, value.ndim)
    start, limit, _ = builtins.slice(start_index, limit_index).indices(value.shape[dim])
    starts, limits, steps = [0] * value.ndim, list(value.shape), [1] * value.ndim
    starts[dim], limits[dim], steps[dim] = start, max(start, limit), stride
    return slice(value, starts, limits, steps)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the elements at `index` along one dimension.

    The dimension stays with size 1 if `keepdims`.

    >>> import volta_fn as vf
    >>> vf.lax.index_in_dim(vf.numpy.array([[1, 2], [3, 4]]), 1, 1, keepdims=False)
    Array([2, 4], dtype=int32)
    """
    value = as_value(operand)
    dim = canonical_axis(axis, value.ndim)
    size = value.shape[dim]
    if not -size <= index < size:
        raise ShapeError(f"index {index} is out of bounds for dimension {dim} of shape {value.shape}")
    start = index % size
    row = slice_in_dim(value, start, start + 1, 1, dim)
    return row if keepdims else reshape(row, value.shape[:dim] + value.shape[dim + 1 :])
