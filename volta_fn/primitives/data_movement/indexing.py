"""What gather and scatter share: dimension numbers, modes and default fill values.

Jargon. A gather reads a *window* (a block of ``slice_sizes``) of the operand at each of many *start indices*, and lays the windows
out in the result; a scatter writes windows of *updates* into the operand. The start indices are one integer array, whose last
dimension holds the vector of coordinates of one window; its other dimensions are the *batch*. Dimensions named in
``operand_batching_dims`` and their partners in the indices run in step: example i of the indices reads example i of the operand.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.errors import ArgumentError, DTypeError, ShapeError


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
