"""Counts of elements by value: bincount, histogram, histogram2d, histogramdd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.memory.transfer import constrained
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import INDEX, concrete, full_like_scalar, operand, promote_inexact
from volta_fn.numpy.creation import array, linspace, ones
from volta_fn.numpy.shapes import ravel
from volta_fn.numpy.sorting import searchsorted
from volta_fn.numpy.statistics import reductions
from volta_fn.numpy.statistics.cumulative import diff
from volta_fn.primitives.data_movement.movement import broadcast_to


@fused
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None, out_sharding: Any = None) -> Array:
    """Count how often each number 0, 1, 2, … occurs in the vector `x` of integers.

    With `weights`, sum the weights of its occurrences. The result is as long as the largest number requires, at least `minlength`; inside
    traced functions give `length`: numbers not below it are dropped. Negative numbers count as 0.

    >>> jnp.bincount(jnp.array([0, 2, 2]))
    Array([1, 0, 2], dtype=int32)
    """
    value = operand("bincount", "x", x)
    if value.dtype not in dtypes.INTEGERS | dtypes.BOOL or value.ndim != 1:
        raise ArgumentTypeError(f"bincount: x must be a vector of integers, got {value.dtype.name} of shape {value.shape}")
    if length is None:
        numbers = concrete("bincount", "x", value, "The length of the result depends on it: give length= inside traced functions.")
        length = max(int(minlength), int(numbers.max()) + 1 if numbers.size else 0)
    length = int(length)
    value = value if value.dtype in dtypes.INTEGERS else lax.convert_element_type(value, INDEX)
    most = full_like_scalar(value, min(length, dtypes.iinfo(value.dtype).max))  # clamped before conversion: numbers may exceed int32
    index = lax.convert_element_type(lax.clamp(full_like_scalar(value, 0), value, most), dtypes.index_dtype(length))
    amount = (
        array(dtypes.index_dtype(value.size, dtypes.default(INDEX)).type(1)) if weights is None else operand("bincount", "weights", weights)
    )
    if weights is not None and amount.shape != value.shape:
        raise ShapeError(f"bincount: weights must have the shape of x, {value.shape}, got {amount.shape}")
    return constrained(_scattered(index, broadcast_to(amount, value.shape), length), out_sharding)


def _scattered(index: Array, amounts: Array, length: int) -> Array:
    """Sum the amounts of each index; indices not below `length` are dropped."""
    zeros = broadcast_to(full_like_scalar(amounts, 0), (length,))
    return zeros.at[index].add(amounts, mode="drop")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:
    """Return `bins` if edges, or the edges of equal bins over `range` (min to max).

    >>> jnp.histogram_bin_edges(jnp.array([0.0, 4.0]), bins=2)
    Array([0., 2., 4.], dtype=float32)
    """
    if isinstance(bins, str):
        raise ArgumentError(f"histogram: bins must be a number or the edges; choosing them by the rule {bins!r} is not supported")
    value, *_ = promote_inexact("histogram", a)
    edges = array(bins, value.dtype) if isinstance(bins, (list, tuple)) else array(bins)
    if edges.ndim == 1:
        return lax.convert_element_type(edges, value.dtype)
    if edges.ndim:
        raise ShapeError(f"histogram: bins must be a number or a vector of edges, got shape {edges.shape}")
    count = int(concrete("histogram", "bins", edges, "It decides the shape of the result."))
    if count < 1:
        raise ArgumentError(f"histogram: the number of bins must be positive, got {count}")
    low, high = _limits(value, range)
    return linspace(low, high, count + 1, dtype=value.dtype)


def _limits(value: Array, bounds: Any) -> tuple[Array, Array]:
    if bounds is not None:
        low, high = (lax.convert_element_type(b, value.dtype) for b in bounds)
    elif not value.size:
        low, high = full_like_scalar(value, 0), full_like_scalar(value, 1)
    else:
        low, high = reductions.min(value), reductions.max(value)
    same = lax.eq(low, high)
    half = full_like_scalar(value, 0.5)
    return lax.select(same, lax.sub(low, half), low), lax.select(same, lax.add(high, half), high)


@fused
def histogram(a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None) -> tuple[Array, Array]:
    """Return (counts, edges) of the elements; the last bin includes its upper edge.

    With `weights`, sums of weights; with `density`, a probability density.

    >>> jnp.histogram(jnp.array([1.0, 2.0, 1.0]), bins=jnp.array([0.0, 1.0, 2.0, 3.0]))
    (Array([0., 2., 1.], dtype=float32), Array([0., 1., 2., 3.], dtype=float32))
    """
    value = operand("histogram", "a", a)
    flat = None if weights is None else ravel(operand("histogram", "weights", weights))
    counts, (edges,) = histogramdd(lax.reshape(value, (value.size, 1)), [bins], None if range is None else [range], flat, density)
    return counts, edges


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Array, Array, Array]:
    """Return (counts, x edges, y edges) of points (x, y) in bins of a rectangle.

    >>> jnp.histogram2d(jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]), bins=2)[0]
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    first, second = promote_inexact("histogram2d", x, y)
    one_for_both = not isinstance(bins, (list, tuple)) and np.ndim(bins) == 1
    sample = lax.concatenate([lax.reshape(v, (v.size, 1)) for v in (first, second)], 1)
    counts, (x_edges, y_edges) = histogramdd(sample, [bins, bins] if one_for_both else bins, range, weights, density)
    return counts, x_edges, y_edges


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Array, list[Array]]:
    """Return (counts, edges per dimension) of points in bins of a d-dimensional box.

    The points are the rows of `sample` (n, d). Counts, and sums of weights that are integers, are floating-point numbers.
    """
    (points,) = promote_inexact("histogramdd", _columns(sample))
    n, d = points.shape
    per_axis = list(bins) if isinstance(bins, (list, tuple)) or np.ndim(bins) else [bins] * d
    if len(per_axis) != d or (range is not None and len(range) != d):
        raise ShapeError(f"histogramdd: bins and range need an entry for each of the {d} dimensions of sample")
    columns = [lax.index_in_dim(points, i, 1, keepdims=False) for i in np.arange(d).tolist()]
    limits: Sequence[Any] = [None] * d if range is None else range
    edges = [histogram_bin_edges(c, b, r) for c, b, r in zip(columns, per_axis, limits, strict=True)]
    amounts = ones(n, points.dtype) if weights is None else promote_inexact("histogramdd", weights)[0]
    counts = _binned(columns, edges, amounts)
    return (_as_density(counts, edges) if density else counts), edges


def _columns(sample: Any) -> Array:
    value = lax.transpose(array(sample), (1, 0)) if isinstance(sample, (list, tuple)) else operand("histogramdd", "sample", sample)
    if value.ndim == 1:
        return lax.reshape(value, (value.size, 1))
    if value.ndim != 2:
        raise ShapeError(f"histogramdd: sample must have shape (n, d), got {value.shape}")
    return value


def _binned(columns: Sequence[Array], edges: Sequence[Array], amounts: Array) -> Array:
    sizes = [e.size - 1 for e in edges]
    total = int(np.prod(sizes, dtype=np.int64))
    index_dtype = dtypes.index_dtype(total)
    flat = full_like_scalar(lax.iota(index_dtype, 1), 0)
    outside = full_like_scalar(lax.eq(flat, flat), False)
    for column, edge, size in zip(columns, edges, sizes, strict=True):
        last = lax.index_in_dim(edge, -1, keepdims=False)
        bin_ = lax.sub(lax.convert_element_type(searchsorted(edge, column, side="right"), index_dtype), index_dtype.type(1))
        bin_ = lax.select(lax.eq(column, last), index_dtype.type(size - 1), bin_)
        outside = lax.bitwise_or(outside, lax.bitwise_or(lax.lt(bin_, index_dtype.type(0)), lax.ge(bin_, index_dtype.type(size))))
        flat = lax.add(lax.mul(flat, index_dtype.type(size)), bin_)
    index = lax.select(outside, index_dtype.type(total), flat)
    return lax.reshape(_scattered(index, amounts, total), sizes)


def _as_density(counts: Array, edges: Sequence[Array]) -> Array:
    density = lax.div(counts, reductions.sum(counts))
    for axis, edge in enumerate(edges):
        widths = lax.convert_element_type(diff(edge), density.dtype)
        density = lax.div(density, lax.reshape(widths, [widths.size if i == axis else 1 for i in range(density.ndim)]))
    return density
