"""Interpolation with the names of `jax.scipy.interpolate`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import is_inexact
from volta_fn.primitives.declare import promote_args

__all__ = ["RegularGridInterpolator"]


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
