"""Cumulative sums and products, differences, gradients and integrals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import (
    BOOL,
    INDEX,
    axes_of,
    axis_of,
    dtype_or,
    flat_or_axis,
    full_like_scalar,
    no_out,
    operand,
    promote,
    promote_inexact,
)
from volta_fn.numpy.elementwise.arithmetic import floor_divide
from volta_fn.numpy.reductions import summed_dtype
from volta_fn.primitives.data_movement.movement import broadcast_to


@fused
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Return the cumulative sum along `axis` (None: flattened); booleans as int32.

    >>> jnp.cumsum(jnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    no_out("cumsum", out)
    return _running("cumsum", a, axis, dtype, lax.cumsum)


@fused
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Return the cumulative product along `axis` (None: flattened); booleans as int32.

    >>> jnp.cumprod(jnp.array([1, 2, 3]))
    Array([1, 2, 6], dtype=int32)
    """
    no_out("cumprod", out)
    return _running("cumprod", a, axis, dtype, lax.cumprod)


def _running(function: str, a: Any, axis: int | None, dtype: Any, accumulate: Callable[..., Array]) -> Array:
    value = operand(function, "a", a)
    value, dim = flat_or_axis(function, value, axis)
    result_dtype = dtype_or(dtype, dtypes.default(INDEX) if value.dtype == BOOL else value.dtype)
    if result_dtype == BOOL:
        # The cumulative sum of booleans is `any` so far, the product `all` so far.
        return lax.ne(accumulate(lax.convert_element_type(lax.ne(value, full_like_scalar(value, 0)), INDEX), dim), 0)
    return accumulate(lax.convert_element_type(value, result_dtype), dim)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the cumulative sum along `axis`, after a 0 if `include_initial`.

    >>> jnp.cumulative_sum(jnp.array([1, 2, 3]), include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial, (lax.cumsum, 0))


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the cumulative product along `axis`, after a 1 if `include_initial`.

    >>> jnp.cumulative_prod(jnp.array([1, 2, 3]), include_initial=True)
    Array([1, 1, 2, 6], dtype=int32)
    """
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial, (lax.cumprod, 1))


def _cumulative(function: str, x: Any, axis: int | None, dtype: Any, include_initial: bool, how: tuple[Any, int]) -> Array:
    value = operand(function, "x", x)
    if value.ndim == 0 or (axis is None and value.ndim != 1):
        raise ShapeError(f"{function}: give axis= for an array of shape {value.shape}; it must have at least one dimension")
    accumulate, start = how
    dim = axis_of(function, 0 if axis is None else axis, value.ndim)
    result = _running(function, value, dim, dtype_or(dtype, summed_dtype(value.dtype)), accumulate)
    if not include_initial:
        return result
    shape = tuple([1 if i == dim else n for i, n in enumerate(result.shape)])
    return lax.concatenate([broadcast_to(full_like_scalar(result, start), shape), result], dim)


@fused
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Return n-th differences of adjacent elements; for booleans, if they differ.

    >>> jnp.diff(jnp.array([1, 4, 9, 16]))
    Array([3, 5, 7], dtype=int32)
    """
    value = operand("diff", "a", a)
    if not value.ndim:
        raise ShapeError("diff: a must have at least one dimension, got a zero-dimensional array")
    if n < 0:
        raise ArgumentError(f"diff: n must not be negative, got {n}")
    dim = axis_of("diff", axis, value.ndim)
    if n == 0:
        return value
    ends = [_end(value, end, dim) for end in (prepend, append)]
    sections = [p for p in (ends[0], value, ends[1]) if p is not None]
    value = lax.concatenate(promote("diff", *sections), dim)
    for _ in range(n):
        later, earlier = lax.slice_in_dim(value, 1, None, axis=dim), lax.slice_in_dim(value, 0, -1, axis=dim)
        value = lax.ne(later, earlier) if value.dtype == BOOL else lax.sub(later, earlier)
    return value


def _end(value: Array, end: Any, dim: int) -> Array | None:
    """Return what `diff` prepends or appends; a scalar becomes one slice."""
    if end is None:
        return None
    section = operand("diff", "prepend or append", end)
    if section.ndim:
        return section
    return broadcast_to(section, tuple([1 if i == dim else n for i, n in enumerate(value.shape)]))


@fused
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """Return the differences of the flattened array, between `to_begin` and `to_end`.

    >>> jnp.ediff1d(jnp.array([1, 4, 9]))
    Array([3, 5], dtype=int32)
    """
    value = operand("ediff1d", "ary", ary)
    flat = lax.reshape(value, (value.size,))
    sections = [diff(flat)]
    for end, position in ((to_begin, 0), (to_end, len(sections) + 1)):
        if end is not None:
            section = operand("ediff1d", "to_begin or to_end", end)
            sections.insert(position, lax.convert_element_type(lax.reshape(section, (section.size,)), value.dtype))
    return lax.concatenate(sections, 0)


@fused
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """Integrate `y` over points `x`, or at distances `dx`, by the trapezoidal rule.

    >>> jnp.trapezoid(jnp.array([1.0, 2.0, 3.0]), dx=2.0)
    Array(8., dtype=float32)
    """
    if x is None:
        (heights,) = promote_inexact("trapezoid", y)
        heights, gaps = promote_inexact("trapezoid", heights, dx)
    else:
        heights, points = promote_inexact("trapezoid", y, x)
        gaps = diff(points, axis=axis if points.ndim > 1 else -1)
    after = heights.ndim - 1 - axis_of("trapezoid", axis, heights.ndim)
    if x is not None and gaps.ndim == 1:
        gaps = lax.reshape(gaps, (gaps.size, *[1] * after))
    pairs = lax.add(lax.slice_in_dim(heights, 1, None, axis=axis), lax.slice_in_dim(heights, 0, -1, axis=axis))
    areas = lax.mul(lax.mul(pairs, gaps), full_like_scalar(pairs, 0.5))
    return lax.reduce_sum(areas, (areas.ndim - 1 - after,))


@fused
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """Return central differences inside and one-sided ones at the ends, per axis.

    `varargs` are the spacings: none (1), one for all axes, or one per axis; each a number or the points' coordinates.

    >>> jnp.gradient(jnp.array([1.0, 4.0, 9.0, 16.0]))
    Array([3., 4., 6., 7.], dtype=float32)
    """
    if edge_order not in (None, 1):
        raise ArgumentError(f"gradient: edge_order must be 1, got {edge_order}")
    (value,) = promote_inexact("gradient", f)
    axes = axes_of("gradient", axis, value.ndim)
    spacings = list(varargs) * len(axes) if len(varargs) == 1 else list(varargs) or [1.0] * len(axes)
    if len(spacings) != len(axes):
        raise ArgumentError(f"gradient: give no, one or {len(axes)} spacings for {len(axes)} axes, got {len(varargs)}")
    slopes = [_slope(value, operand("gradient", "a spacing", h), i) for h, i in zip(spacings, axes, strict=True)]
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(value: Array, spacing: Array, dim: int) -> Array:
    size = value.shape[dim]
    if size < 2:
        raise ShapeError(f"gradient: axis {dim} of shape {value.shape} needs at least two points")
    if spacing.ndim and spacing.shape != (size,):
        raise ShapeError(f"gradient: the coordinates along axis {dim} must have shape ({size},), got {spacing.shape}")
    points = lax.convert_element_type(spacing, value.dtype)

    def section(x: Array, start: int | None, stop: int | None) -> Array:
        return lax.slice_in_dim(x, start, stop, axis=dim)

    if not points.ndim:
        first, last = section(value, 0, 1), section(value, -1, None)
        steps = lax.sub(lax.concatenate([section(value, 1, None), last], dim), lax.concatenate([first, section(value, 0, -1)], dim))
        index = dtypes.index_dtype(size)
        number = lax.broadcasted_iota(index, value.shape, dim)
        at_end = lax.bitwise_or(lax.eq(number, index.type(0)), lax.eq(number, index.type(size - 1)))
        return lax.div(steps, lax.mul(lax.select(at_end, full_like_scalar(steps, 1), full_like_scalar(steps, 2)), points))
    along = [size - 1 if i == dim else 1 for i in range(value.ndim)]
    gaps = lax.reshape(diff(points), along)
    slopes = lax.div(diff(value, axis=dim), gaps)
    before, after = section(gaps, 0, -1), section(gaps, 1, None)
    weighted = lax.add(lax.mul(after, section(slopes, 0, -1)), lax.mul(before, section(slopes, 1, None)))
    inside = lax.div(weighted, lax.add(before, after))
    return lax.concatenate([section(slopes, 0, 1), inside, section(slopes, -1, None)], dim)


def _least_of_dtype(bound: Any, dtype: np.dtype) -> Array:
    """Return the smallest number of a dtype that is at least a bound."""
    return lax.convert_element_type(lax.ceil(*promote_inexact("unwrap", bound)) if dtype in dtypes.INTEGERS else bound, dtype)


def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * np.pi) -> Array:
    """Remove jumps of at least `discont` (and `period` / 2) by adding full periods.

    Integers stay integers if the period is one.

    >>> jnp.unwrap(jnp.array([0.0, 3.0, 6.0, 0.0]), period=7.0)
    Array([0., 3., 6., 7.], dtype=float32)
    """
    value, length = promote("unwrap", p, period)
    dim = axis_of("unwrap", axis, value.ndim)
    half = lax.div(length, full_like_scalar(length, 2))
    steps = diff(value, axis=dim)
    # Wrap each step to [-half, half); a step of exactly +half stays positive.
    offset = lax.add(steps, half)
    wrapped = lax.sub(lax.sub(offset, lax.mul(floor_divide(offset, length), length)), half)
    wrapped = lax.select(lax.bitwise_and(lax.eq(wrapped, lax.neg(half)), lax.gt(steps, full_like_scalar(steps, 0))), half, wrapped)
    least = half if discont is None else _least_of_dtype(discont, value.dtype)
    correction = lax.select(lax.lt(lax.abs(steps), least), full_like_scalar(steps, 0), lax.sub(wrapped, steps))
    corrected = lax.add(lax.slice_in_dim(value, 1, None, axis=dim), lax.cumsum(correction, dim))
    return lax.concatenate([lax.slice_in_dim(value, 0, 1, axis=dim), corrected], dim)
