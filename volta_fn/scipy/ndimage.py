"""Interpolation of arrays at coordinates: names of `scipy.ndimage`.

>>> import volta_fn as vf
>>> vf.scipy.ndimage.map_coordinates(vf.numpy.array([1.0, 3.0]), [vf.numpy.array([0.5])], order=1)
Array([2.], dtype=float32)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError, UnsupportedError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import converted, is_python_scalar, operand, promote_inexact

__all__ = ["map_coordinates"]


# Values of an array between its elements: the nearest one, or a linear mean.

#: The index of one neighbour of each coordinate along one axis, and its weight (None: 1).
Neighbor = tuple[Array, Array | None]


@fused
def map_coordinates(input: Any, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: Any = 0.0) -> Array:
    """Interpolate an array at coordinates.

    Args:
        input: an array of n dimensions.
        coordinates: n arrays of one shape (or that broadcast), the coordinates along each dimension in units of elements.
        order: 0 for the nearest element, 1 for linear interpolation.
        mode: what lies outside: "constant" is `cval`, "nearest" the element at the edge, "wrap" the array again, "reflect" its mirror
            image with the element at the edge repeated, "mirror" the same without repeating it. SciPy calls "constant" and "wrap"
            "grid-constant" and "grid-wrap", which are accepted, too.
        cval: the value outside in the mode "constant".

    Returns:
        An array of the coordinates' shape and the dtype of `input`; integers are rounded.

    Derivatives by `input` and, for order 1, by the coordinates. Raises `ShapeError` unless there is one array of coordinates for each
    dimension, `UnsupportedError` for another order, `ArgumentError` for another mode.

    >>> picture = jnp.array([[0.0, 1.0], [2.0, 3.0]])
    >>> vf.scipy.ndimage.map_coordinates(picture, [jnp.array([0.5]), jnp.array([1.0])], order=1)
    Array([2.], dtype=float32)
    """
    values = operand("map_coordinates", "input", input)
    points = [_coordinate(c, values) for c in coordinates]
    if len(points) != values.ndim:
        raise ShapeError(f"map_coordinates: an array of shape {values.shape} needs {values.ndim} arrays of coordinates, got {len(points)}")
    if order not in _NEIGHBORS:
        raise UnsupportedError(f"map_coordinates: order must be 0 or 1, got {order!r}; splines are in scipy.ndimage")
    if mode not in _INSIDE:
        raise ArgumentError(f"map_coordinates: mode must be one of {', '.join(map(repr, _INSIDE))}, got {mode!r}")
    if not values.size:
        raise ShapeError(f"map_coordinates: an array of shape {values.shape} has no elements to interpolate")
    outside = converted("map_coordinates", cval, values.dtype) if mode in ("constant", "grid-constant") else None
    neighbors = [_NEIGHBORS[order](p) for p in points]
    terms = [_term(values, corner, mode, outside) for corner in itertools.product(*neighbors)]
    total = sum(terms[1:], start=terms[0])
    return _rounded(total).astype(values.dtype) if values.dtype in dtypes.INTEGERS else total.astype(values.dtype)


def _coordinate(c: Any, values: Array) -> Array:
    """Return coordinates as floats: Python's numbers as exact as the values."""
    wide = values.dtype in (np.float64, np.complex128)
    return (
        converted("map_coordinates", c, np.dtype(np.float64)) if wide and is_python_scalar(c) else promote_inexact("map_coordinates", c)[0]
    )


def _term(values: Array, corner: Sequence[Neighbor], mode: str, outside: Array | None) -> Array:
    """Return one neighbour of each coordinate, times its weight."""
    indices = [i for i, _ in corner]
    inside = [_INSIDE[mode](i, n) for i, n in zip(indices, values.shape, strict=True)]
    term = values[tuple(inside)] if inside else values
    if outside is not None and indices:
        is_inside = [(i >= 0) & (i < n) for i, n in zip(indices, values.shape, strict=True)]
        term = vnp.where(math.prod(is_inside[1:], start=is_inside[0]), term, outside)
    weights = [w for _, w in corner if w is not None]
    return math.prod(weights[1:], start=weights[0]) * term if weights else term


def _nearest(coordinate: Array) -> list[Neighbor]:
    return [(_rounded(coordinate).astype(np.int32), None)]


def _two_nearest(coordinate: Array) -> list[Neighbor]:
    below = vnp.floor(coordinate)
    share = coordinate - below
    index = below.astype(np.int32)
    return [(index, 1 - share), (index + 1, share)]


def _rounded(x: Array) -> Array:
    """Round to integers, halves away from zero."""
    return x if x.dtype in dtypes.INTEGERS else vnp.trunc(x + vnp.where(x < 0, -0.5, 0.5))


def _mirrored(index: Array, size: int) -> Array:
    last = size - 1
    return vnp.abs((index + last) % max(2 * last, 1) - last) if last else vnp.zeros_like(index)


_NEIGHBORS: dict[int, Callable[[Array], list[Neighbor]]] = {0: _nearest, 1: _two_nearest}
#: By mode, from an index and the size of an axis to an index inside.
_INSIDE: dict[str, Callable[[Array, int], Array]] = {
    **dict.fromkeys(["constant", "grid-constant", "nearest"], lambda index, size: vnp.clip(index, 0, size - 1)),
    **dict.fromkeys(["wrap", "grid-wrap"], lambda index, size: index % size),
    "mirror": _mirrored,
    "reflect": lambda index, size: _mirrored(2 * index + 1, 2 * size + 1) // 2,
}
