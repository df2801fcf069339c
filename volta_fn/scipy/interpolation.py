"""Interpolation between the elements of arrays: names of `scipy.interpolate` and `scipy.ndimage`.

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

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import converted, is_inexact, is_python_scalar, operand, promote_inexact
from volta_fn.primitives.declare import promote_args

__all__ = ["RegularGridInterpolator", "map_coordinates"]


# Interpolation of values on a regular grid.


@tree.register_pytree_node_class
class RegularGridInterpolator:
    """A function that interpolates values on a grid with unequal steps; a pytree.

    It is called with points of shape (..., n), or a tuple of n > 1 arrays of coordinates, which broadcast, or for n = 1 a vector. It
    returns an array (..., *rest), of the values' dtype, differentiable by points, values and grid. NaN coordinates give NaN.

    Args:
        points: the coordinates along each of the n axes, strictly increasing vectors of at least two.
        values: of shape (m1, …, mn, *rest), float or complex; integers become floats.
        method: "linear", or "nearest", which takes the lower of two neighbours as near.
        bounds_error: not supported, as programs cannot raise errors for the numbers that they get.
        fill_value: the value outside the grid, NaN by default; None extrapolates.

    Raises:
        ArgumentError: another method, `bounds_error`, or coordinates that do not increase (unless they are traced). ShapeError: the shapes
            do not fit. DTypeError: a complex `fill_value` for real values.

    >>> grid = jnp.array([1, 2, 3]), jnp.array([4, 5, 6])
    >>> values = jnp.array([[10, 20, 30], [40, 50, 60], [70, 80, 90]])
    >>> interpolate = vf.scipy.interpolate.RegularGridInterpolator(grid, values)
    >>> interpolate(jnp.array([[1.5, 4.5], [2.2, 5.8], [0.0, 5.0]])).round(4)
    Array([30., 64., nan], dtype=float32)
    """

    def __init__(
        self, points: Sequence[Any], values: Any, method: str = "linear", bounds_error: bool = False, fill_value: Any = np.nan
    ) -> None:
        if bounds_error:
            raise ArgumentError("RegularGridInterpolator: bounds_error is not supported; points outside the grid get the fill_value")
        self.method = _checked(method)
        self.bounds_error: bool = bounds_error
        (self.values,) = promote_args("RegularGridInterpolator", (vnp.asarray(values),), dtypes.INEXACT)
        self.grid = tuple([vnp.asarray(p) for p in points])
        sizes = tuple([axis.size for axis in self.grid])
        if any(axis.ndim != 1 for axis in self.grid) or min(sizes, default=0) < 2 or self.values.shape[: len(sizes)] != sizes:
            shapes = ", ".join(str(axis.shape) for axis in self.grid)
            raise ShapeError(
                f"RegularGridInterpolator: the points must be vectors of at least two, and values have their sizes in front, got {shapes} "
                f"and values {self.values.shape}"
            )
        for i, axis in enumerate(self.grid):
            if is_concrete(axis) and not np.all(np.diff(np.asarray(axis).astype(np.float64)) > 0):
                raise ArgumentError(
                    f"RegularGridInterpolator: the points along axis {i} do not increase; sort them together with the values"
                )
        if fill_value is not None and vnp.iscomplexobj(fill_value) and self.values.dtype not in dtypes.COMPLEX:
            raise DTypeError("RegularGridInterpolator: the fill_value is complex, but the values are real")
        self.fill_value = None if fill_value is None else vnp.asarray(fill_value, self.values.dtype)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, bool]]:
        """Return the arrays as children, and the method."""
        return (self.grid, self.values, self.fill_value), (self.method, self.bounds_error)

    @classmethod
    def tree_unflatten(cls, aux_data: tuple[str, bool], children: Sequence[Any]) -> RegularGridInterpolator:
        """Rebuild the interpolator, of leaves that may be any objects."""
        interpolator = object.__new__(cls)
        interpolator.grid, interpolator.values, interpolator.fill_value = children
        interpolator.method, interpolator.bounds_error = aux_data
        return interpolator

    def __call__(self, xi: Any, method: str | None = None) -> Array:
        """Interpolate at the points `xi`, by another method than usual if given."""
        chosen = self.method if method is None else _checked(method)
        points = self._points(xi)
        rest = (1,) * (self.values.ndim - len(self.grid))
        cells = [_find(axis, points[..., i], rest) for i, axis in enumerate(self.grid)]
        result = self._nearest(cells) if chosen == "nearest" else self._linear(cells)
        if self.fill_value is not None:
            outside = [(points[..., i] < axis[0]) | (points[..., i] > axis[-1]) for i, axis in enumerate(self.grid)]
            result = vnp.where(vnp.any(vnp.stack(outside), 0).reshape(*points.shape[:-1], *rest), self.fill_value, result)
        wrong = vnp.any(vnp.isnan(points), -1).reshape(*points.shape[:-1], *rest)
        return lax.convert_element_type(vnp.where(wrong, np.nan, result), self.values.dtype)

    def _points(self, xi: Any) -> Array:
        """Return points as an array of floats with the coordinates in the last dimension."""
        size = len(self.grid)
        xi = xi[0] if isinstance(xi, tuple) and len(xi) == 1 else xi
        if isinstance(xi, tuple):
            separate = promote_args("RegularGridInterpolator", (*xi, *self.grid), dtypes.FLOATS)[: len(xi)]
            coordinates = vnp.stack(vnp.broadcast_arrays(*separate), -1)
        else:
            points = vnp.asarray(xi, self.grid[0].dtype) if isinstance(xi, list) and is_inexact(self.grid[0]) else vnp.asarray(xi)
            (coordinates, *_) = promote_args("RegularGridInterpolator", (points, *self.grid), dtypes.FLOATS)
            coordinates = coordinates.reshape(-1, size) if coordinates.ndim < 2 else coordinates
        if coordinates.shape[-1] != size:
            raise ShapeError(f"RegularGridInterpolator: the points have {coordinates.shape[-1]} coordinates, the grid {size}")
        return coordinates

    def _linear(self, cells: Sequence[tuple[Array, Array]]) -> Array:
        """Sum the values at the corners of the cells, weighted."""
        total: Any = 0.0
        for corner in itertools.product((0, 1), repeat=len(cells)):
            weight: Any = 1.0
            for side, (_, share) in zip(corner, cells, strict=True):
                weight = weight * (share if side else 1.0 - share)
            total = total + weight * self.values[tuple([index + side for side, (index, _) in zip(corner, cells, strict=True)])]
        return total

    def _nearest(self, cells: Sequence[tuple[Array, Array]]) -> Array:
        return self.values[tuple([index + (share.reshape(index.shape) > 0.5) for index, share in cells])]


def _checked(method: str) -> str:
    if method not in ("linear", "nearest"):
        raise ArgumentError(f"RegularGridInterpolator: method must be 'linear' or 'nearest', got {method!r}")
    return method


def _find(axis: Array, x: Array, rest: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the cell of each coordinate, and its position in the cell from 0 to 1.

    The position has further dimensions of size 1, to broadcast against the values.
    """
    axis = lax.convert_element_type(axis, x.dtype)
    index = vnp.clip(vnp.searchsorted(axis, x) - 1, 0, axis.size - 2)
    share = (x - axis[index]) / (axis[index + 1] - axis[index])
    return index, share.reshape(*x.shape, *rest)


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
