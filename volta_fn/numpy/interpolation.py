"""Piecewise linear interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.numpy.common import full_like_scalar, promote_inexact
from volta_fn.numpy.searching import searchsorted
from volta_fn.primitives.movement import broadcast_to


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Array:
    """Piecewise linear interpolation through the points (xp, fp), `xp` increasing, at `x`.

    Outside, `left` and `right` (by default the first and last value); with `period`, the points repeat.

    >>> import volta_fn.numpy as jnp
    >>> jnp.interp(jnp.array([0.5, 3.0]), jnp.array([0.0, 1.0, 2.0]), jnp.array([0.0, 10.0, 20.0]))
    Array([ 5., 20.], dtype=float32)
    """
    at, points = promote_inexact("interp", x, xp)
    (values,) = promote_inexact("interp", fp)
    if points.ndim != 1 or points.shape != values.shape or not points.size:
        raise ShapeError(f"interp: xp and fp must be one-dimensional and of one nonzero length, got {points.shape} and {values.shape}")
    if period is not None:
        at, points, values = _periodic(at, points, values, period)
        left = right = None
    first, last = (lax.index_in_dim(values, i, keepdims=False) for i in (0, -1))
    below = first if left is None else lax.convert_element_type(left, values.dtype)
    above = last if right is None else lax.convert_element_type(right, values.dtype)
    result = _between(at, points, values) if points.size > 1 else broadcast_to(first, at.shape)
    result = lax.select(lax.lt(at, lax.index_in_dim(points, 0, keepdims=False)), below, result)
    return lax.select(lax.gt(at, lax.index_in_dim(points, -1, keepdims=False)), above, result)


def _between(at: Array, points: Array, values: Array) -> Array:
    """The interpolated values, for every `at` between two of the points."""
    upper = lax.clamp(np.int32(1), searchsorted(points, at, side="right"), np.int32(points.size - 1))
    lower = upper - 1
    width = lax.sub(points[upper], points[lower])
    empty = lax.eq(width, full_like_scalar(width, 0))
    share = lax.div(lax.sub(at, points[lower]), lax.select(empty, full_like_scalar(width, 1), width))
    share = lax.convert_element_type(lax.select(empty, full_like_scalar(share, 0), share), values.dtype)
    return lax.add(values[lower], lax.mul(share, lax.sub(values[upper], values[lower])))


def _periodic(at: Array, points: Array, values: Array, period: Any) -> tuple[Array, Array, Array]:
    """All points within one period, in order, with one more from the neighbouring period at each end."""
    length = lax.abs(lax.convert_element_type(period, points.dtype))
    points, values = lax.sort((_wrap(points, length), values), num_keys=1)
    head, tail = lax.slice_in_dim(points, 0, 1), lax.slice_in_dim(points, -1, None)
    points = lax.concatenate([lax.sub(tail, length), points, lax.add(head, length)], 0)
    values = lax.concatenate([lax.slice_in_dim(values, -1, None), values, lax.slice_in_dim(values, 0, 1)], 0)
    return _wrap(at, length), points, values


def _wrap(x: Array, length: Array) -> Array:
    """`x` moved into [0, length) by whole lengths."""
    return lax.sub(x, lax.mul(lax.floor(lax.div(x, length)), length))
