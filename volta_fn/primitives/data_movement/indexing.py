"""Slices, static and dynamic, and what gather and scatter share."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.primitive import AxisData
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import canonical_axis, linear_primitive, moveaxis, reshape

# ------------------------------------------------------------------------------
# What gather and scatter share: dimension numbers, modes and default fill values.
#
# Jargon. A gather reads a *window* (a block of ``slice_sizes``) of the operand at each of many *start indices*, and lays the windows
# out in the result; a scatter writes windows of *updates* into the operand. The start indices are one integer array, whose last
# dimension holds the vector of coordinates of one window; its other dimensions are the *batch*. Dimensions named in
# ``operand_batching_dims`` and their partners in the indices run in step: example i of the indices reads example i of the operand.
# ------------------------------------------------------------------------------


class GatherDimensionNumbers(NamedTuple):
    """How the dimensions of operand, start indices and result of a gather correspond.

    The names are XLA's.

    Attributes:
        offset_dims: the result's dimensions that run within a window, in the order of the operand's dimensions.
        collapsed_slice_dims: operand dimensions of window size 1 that the result lacks.
        start_index_map: for each entry of an index vector, the operand dimension that it addresses.
        operand_batching_dims: operand dimensions (window size 1, absent from the windows) that run in step with the indices.
        start_indices_batching_dims: the matching dimensions of the indices.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """How the dimensions of operand, indices and updates of a scatter correspond.

    The names are XLA's.

    Attributes:
        update_window_dims: the updates' dimensions that run within a window, in the order of the operand's dimensions.
        inserted_window_dims: operand dimensions of window size 1 that the updates lack.
        scatter_dims_to_operand_dims: for each entry of an index vector, the operand dimension that it addresses.
        operand_batching_dims: operand dimensions (window size 1, absent from the windows) that run in step with the indices.
        scatter_indices_batching_dims: the matching dimensions of the indices.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


class GatherScatterMode(enum.Enum):
    """What happens to a window that does not lie wholly inside the operand."""

    #: The window moves to the nearest index inside.
    CLIP = "clip"
    #: A gather fills all of the window with a fill value; a scatter leaves the window out.
    FILL_OR_DROP = "fill_or_drop"
    #: The caller promises that there is none. A broken promise reads as CLIP and writes as FILL_OR_DROP.
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """Return a mode by its name.

        The names are "clip", "fill" or "drop", and "promise_in_bounds"; None means FILL_OR_DROP.

        Raises `ArgumentError` if there is no mode of that name.

        >>> GatherScatterMode.from_any("drop").name
        'FILL_OR_DROP'
        """
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode not in _MODES:
            raise ArgumentError(f"mode must be 'clip', 'fill', 'drop', 'promise_in_bounds', a GatherScatterMode or None, got {mode!r}")
        return _MODES[mode]


_MODES: dict[str | None, GatherScatterMode] = {
    None: GatherScatterMode.FILL_OR_DROP,
    "clip": GatherScatterMode.CLIP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
}


def check_numbers(
    name: str, operand: ShapedArray, indices: ShapedArray, numbers: GatherDimensionNumbers, slice_sizes: Shape, index_name: str
) -> None:
    """Raise unless the numbers describe windows found by `indices`.

    The error is a `ShapeError` or `DTypeError`; windows are of `slice_sizes` of the operand.
    """
    given = f"operand {operand}, {index_name} {indices}, slice_sizes {slice_sizes}, {numbers}"

    def require(condition: bool, demand: str) -> None:
        if not condition:
            raise ShapeError(f"{name}: {demand}; got {given}")

    if indices.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"{name}: {index_name} must be integers, got {indices}; convert them with lax.convert_element_type")
    require(indices.ndim > 0, f"{index_name} needs a last dimension that holds the index vectors (reshape to (…, 1) for scalar indices)")
    collapsed, addressed, batching = numbers.collapsed_slice_dims, numbers.start_index_map, numbers.operand_batching_dims
    partners = numbers.start_indices_batching_dims
    require(_increase(collapsed, operand.ndim), "collapsed (inserted) dims must increase and be dimensions of the operand")
    require(_increase(batching, operand.ndim), "operand_batching_dims must increase and be dimensions of the operand")
    require(_increase(sorted(addressed), operand.ndim), "the dimensions that index vectors address must differ and be the operand's")
    require(indices.shape[-1] == len(addressed), f"the last dimension of {index_name} must have one entry per addressed dimension")
    require(not {*collapsed, *addressed} & {*batching}, "a batching dimension can be neither addressed nor collapsed (inserted)")
    require(_increase(sorted(partners), indices.ndim - 1), f"the batching dims of {index_name} must differ and exclude its last dimension")
    require(
        [operand.shape[d] for d in batching] == [indices.shape[d] for d in partners],
        f"operand_batching_dims and the batching dims of {index_name} must pair up and have equal sizes",
    )
    require(len(slice_sizes) == operand.ndim, "a window needs one size per dimension of the operand")
    require(all(0 <= s <= n for s, n in zip(slice_sizes, operand.shape, strict=True)), "a window must fit into the operand")
    require(all(slice_sizes[d] == 1 for d in collapsed), "windows must have size 1 along collapsed (inserted) dimensions")
    require(all(slice_sizes[d] == min(1, operand.shape[d]) for d in batching), "windows must have size 1 along batching dimensions")


def _increase(dims: Sequence[int], limit: int) -> bool:
    """Return True if the dims are different, in order, and lie in [0, limit)."""
    return all(a < b for a, b in pairwise((-1, *dims, limit)))


def shift_dims(dims: tuple[int, ...], lead: int | None = None) -> tuple[int, ...]:
    """Shift the dims for a new dimension in front.

    It joins them as `lead` if that is given.
    """
    later = tuple([d + 1 for d in dims])
    return later if lead is None else (lead, *later)


def default_fill(dtype: np.dtype) -> Any:
    """Return the default fill value of a gather's invalid windows.

    It is the least signed integer, the greatest unsigned one, True, or NaN.
    """
    if dtype in dtypes.INTEGERS | dtypes.STORAGE_INTEGERS:
        info = dtypes.iinfo(dtype)
        return info.min if info.min < 0 else info.max
    return True if dtype.kind == "b" else np.nan


# ------------------------------------------------------------------------------
# Slices with bounds known while tracing, whose transpose is `pad`.
# ------------------------------------------------------------------------------

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
