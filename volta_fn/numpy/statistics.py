"""Averages, covariances, histograms, quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import as_integer, check_option
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import reductions
from volta_fn.numpy.arguments import (
    INDEX,
    Axis,
    axes_of,
    concrete,
    dtype_or,
    full_like_scalar,
    is_complex,
    narrowed,
    no_out,
    operand,
    promote_inexact,
    wide,
)
from volta_fn.numpy.creation import array, linspace, ones
from volta_fn.numpy.logic import isnan
from volta_fn.numpy.products import matmul
from volta_fn.numpy.reductions import diff
from volta_fn.numpy.shapes import ravel
from volta_fn.numpy.sorting import searchsorted
from volta_fn.primitives.data_movement.movement import broadcast_to, expand_dims
from volta_fn.primitives.declare import to_dtype

# Averages, covariances and correlations.


@overload
def average(a: Any, axis: Axis = None, weights: Any = None, returned: Literal[False] = False, keepdims: bool = False) -> Array: ...
@overload
def average(a: Any, axis: Axis = None, weights: Any = None, *, returned: Literal[True], keepdims: bool = False) -> tuple[Array, Array]: ...
@fused
def average(a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """Return the (weighted) mean along `axis`; if `returned`, also the weights' sum.

    >>> jnp.average(jnp.array([1.0, 3.0]), weights=jnp.array([3.0, 1.0]))
    Array(1.5, dtype=float32)
    """
    if weights is None:
        value = operand("average", "a", a)
        axes = axes_of("average", axis, value.ndim)
        result = reductions.mean(value, axes, keepdims=keepdims)
        total: Array = full_like_scalar(result, reductions.element_count(value, axes, None))
    else:
        value, weight = promote_inexact("average", a, weights)
        axes = axes_of("average", axis, value.ndim)
        weight = spread_weights("average", weight, value, axes)
        full = wide(weight)
        sums = [reductions.sum(x, axes, keepdims=keepdims) for x in (full, lax.mul(wide(value), full))]
        total, result = narrowed(sums[0], value), narrowed(lax.div(sums[1], sums[0]), value)
    return (result, broadcast_to(total, result.shape)) if returned else result


def spread_weights(function: str, weight: Array, value: Array, axes: tuple[int, ...]) -> Array:
    """Return weights in the shape of `value`, or expanded to it from those of `axes`.

    The dimensions of the latter come in the order in which `axes` names them.
    """
    if weight.shape == value.shape:
        return weight
    if weight.ndim != len(axes) or weight.shape != tuple([value.shape[i] for i in axes]):
        raise ShapeError(f"{function}: weights of shape {weight.shape} fit neither shape {value.shape} nor its axes {axes}")
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    return lax.broadcast_in_dim(lax.transpose(weight, order), value.shape, sorted(axes))


@fused
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None, aweights: Any = None,
    dtype: Any = None,
) -> Array:  # fmt: skip
    """Return the covariance matrix of variables in rows (columns if not `rowvar`).

    Args:
        m: the observations, a vector or matrix.
        y: more variables of the same form.
        rowvar: whether rows are the variables.
        bias: whether to divide by n rather than n - 1 (`ddof`, if given, overrides it).
        fweights: how often each observation was made.
        aweights: the weight of each observation.
        dtype: of the result.

    >>> jnp.cov(jnp.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    result, result_dtype = _covariance("cov", m, y, rowvar, bias, ddof, fweights, aweights, dtype)
    return lax.convert_element_type(result, result_dtype, result.weak_type)


def _covariance(
    function: str, m: Any, y: Any, rowvar: bool, bias: bool, ddof: int | None, fweights: Any, aweights: Any, dtype: Any
) -> tuple[Array, np.dtype]:
    """Return the covariances in the accumulation dtype, and the dtype of the result."""
    variables = promote_inexact(function, *[v for v in (m, y) if v is not None])
    if any(p.ndim > 2 for p in variables):
        raise ShapeError(f"{function}: m and y must have at most two dimensions, got shapes {[p.shape for p in variables]}")
    first, *others = variables
    in_columns = not (others or rowvar) and first.ndim == 2 and fweights is aweights is None
    # Without `rowvar` NumPy transposes every matrix m, but no y of one row.
    rows = [] if in_columns else [_as_rows(first, rowvar), *[_as_rows(v, rowvar or v.shape[:1] == (1,)) for v in others]]
    value = first if in_columns else lax.concatenate(rows, 0)
    result_dtype = dtype_or(dtype, value.dtype)
    value = lax.convert_element_type(value, dtypes.accumulator(result_dtype))
    removed = (0 if bias else 1) if ddof is None else ddof
    if in_columns:  # which are summed where they are, without a transpose
        centered = lax.sub(value, reductions.mean(value, 0, keepdims=True))
        product = lax.dot_general(centered, lax.conj(centered), (((0,), (0,)), ((), ())))
        result = lax.div(product, full_like_scalar(value, max(value.shape[0] - removed, 0)))
        return (lax.reshape(result, ()) if result.shape == (1, 1) else result), result_dtype
    weight = None
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            continue
        counts = operand("cov", name, weights)
        if counts.shape != value.shape[1:]:
            raise ShapeError(f"cov: {name} must have shape {value.shape[1:]}, got {counts.shape}")
        if name == "fweights" and counts.dtype not in dtypes.INTEGERS:
            raise ArgumentTypeError(f"cov: fweights must be integers, got {counts.dtype.name}")
        counts = lax.convert_element_type(counts, value.dtype)
        weight = counts if weight is None else lax.mul(weight, counts)
    if weight is None:
        center, factor = reductions.mean(value, 1, keepdims=True), full_like_scalar(value, max(value.shape[1] - removed, 0))
    else:
        center = lax.div(reductions.sum(lax.mul(value, weight), 1, keepdims=True), reductions.sum(weight))
        factor = _weighted_count(weight, removed, aweights, value)
    centered = lax.sub(value, center)
    other = centered if weight is None else lax.mul(centered, weight)
    result = lax.div(matmul(centered, lax.transpose(lax.conj(other), (1, 0))), factor)
    return (lax.reshape(result, ()) if result.shape == (1, 1) else result), result_dtype


def _as_rows(value: Array, rowvar: bool) -> Array:
    matrix = lax.broadcast_to_rank(value, 2)
    return matrix if rowvar or value.ndim < 2 else lax.transpose(matrix, (1, 0))


def _weighted_count(weight: Array, removed: int, aweights: Any, value: Array) -> Array:
    total = reductions.sum(weight)
    if not removed:
        return total
    if aweights is None:
        return lax.sub(total, full_like_scalar(total, removed))
    again = lax.convert_element_type(operand("cov", "aweights", aweights), value.dtype)
    return lax.sub(total, lax.div(lax.mul(full_like_scalar(total, removed), reductions.sum(lax.mul(weight, again))), total))


@fused
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """Return Pearson's correlation coefficients of variables in rows; see `cov`.

    >>> jnp.corrcoef(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]))
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    c, result_dtype = _covariance("corrcoef", x, y, rowvar, False, None, None, None, dtype)
    return lax.convert_element_type(_correlations(c), result_dtype, c.weak_type)


def _correlations(c: Array) -> Array:
    """Return covariances divided by both standard deviations."""
    if not c.ndim:
        return lax.div(c, c)
    n = c.shape[0]
    variance = lax.slice_in_dim(lax.reshape(lax.real(c) if is_complex(c) else c, (n * n,)), 0, n * n, n + 1)
    deviation = lax.sqrt(variance)
    rows, columns = (lax.broadcast_in_dim(deviation, (n, n), (d,)) for d in (0, 1))
    result = lax.div(lax.div(c, to_dtype(rows, c.dtype)), to_dtype(columns, c.dtype))
    if is_complex(result):
        return lax.complex(*[_unit(counts) for counts in (lax.real(result), lax.imag(result))])
    return _unit(result)


def _unit(x: Array) -> Array:
    """Clip to [-1, 1], which rounding may exceed."""
    return lax.clamp(full_like_scalar(x, -1), x, full_like_scalar(x, 1))


# Counts of elements by value: bincount, histogram, histogram2d, histogramdd.


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
        length = max(as_integer(minlength, "bincount: minlength"), int(numbers.max()) + 1 if numbers.size else 0)
    length = int(length)
    value = value if value.dtype in dtypes.INTEGERS else lax.convert_element_type(value, INDEX)
    most = full_like_scalar(value, min(length, dtypes.iinfo(value.dtype).max))  # clamped before conversion: numbers may exceed int32
    index = lax.convert_element_type(lax.clamp(full_like_scalar(value, 0), value, most), dtypes.index_dtype(length))
    amount = (
        array(dtypes.index_dtype(value.size, dtypes.default(INDEX)).type(1)) if weights is None else operand("bincount", "weights", weights)
    )
    if weights is not None and amount.shape != value.shape:
        raise ShapeError(f"bincount: weights must have the shape of x, {value.shape}, got {amount.shape}")
    return constrained(_sums_by_index(index, broadcast_to(amount, value.shape), length), out_sharding)


def _sums_by_index(index: Array, amounts: Array, length: int) -> Array:
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
    bins = array(bins, value.dtype) if isinstance(bins, (list, tuple)) else bins
    if np.ndim(bins) == 1:
        return lax.convert_element_type(bins, value.dtype)
    if np.ndim(bins):
        raise ShapeError(f"histogram: bins must be a number or a vector of edges, got shape {np.shape(bins)}")
    count = as_integer(concrete("histogram", "bins", bins, "It decides the shape of the result."), "histogram: bins")
    if count < 1:
        raise ArgumentError(f"histogram: the number of bins must be positive, got {count}")
    if range is not None:
        low, high = (lax.convert_element_type(b, value.dtype) for b in range)
    elif not value.size:
        low, high = full_like_scalar(value, 0), full_like_scalar(value, 1)
    else:
        low, high = reductions.min(value), reductions.max(value)
    same = lax.eq(low, high)
    half = full_like_scalar(value, 0.5)
    low, high = lax.select(same, lax.sub(low, half), low), lax.select(same, lax.add(high, half), high)
    return linspace(low, high, count + 1, dtype=value.dtype)


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
    counts = lax.reshape(_sums_by_index(index, amounts, total), sizes)
    return (_as_density(counts, edges) if density else counts), edges


def _columns(sample: Any) -> Array:
    value = lax.transpose(array(sample), (1, 0)) if isinstance(sample, (list, tuple)) else operand("histogramdd", "sample", sample)
    if value.ndim == 1:
        return lax.reshape(value, (value.size, 1))
    if value.ndim != 2:
        raise ShapeError(f"histogramdd: sample must have shape (n, d), got {value.shape}")
    return value


def _as_density(counts: Array, edges: Sequence[Array]) -> Array:
    density = lax.div(counts, reductions.sum(counts))
    for axis, edge in enumerate(edges):
        widths = lax.convert_element_type(diff(edge), density.dtype)
        density = lax.div(density, lax.reshape(widths, [widths.size if i == axis else 1 for i in range(density.ndim)]))
    return density


# Quantiles, percentiles and medians, and their forms that ignore NaN.

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


@fused
def quantile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False,
    *, weights: Any = None,
) -> Array:  # fmt: skip
    """Return the `q`-quantiles along `axis` for q in [0, 1]; NaN where an element is.

    `method` interpolates between two elements: "linear", "lower", "higher", "midpoint", "nearest"; or "inverted_cdf": the smallest element
    that is at least as large as a fraction `q` of all. The dimensions of `q` come first in the result.

    Args:
        weights: how much each element counts, in the shape of `a` or of its `axis`. Only for "inverted_cdf"; integers count as that many
            copies, and an element of weight zero is never the result. Negative or NaN weights, and a sum of zero or infinity, give NaN.

    The result has the floating dtype of `a` (and of `weights`) and is differentiable by `a`. Raises `ArgumentError` for an unknown method
    or one that takes no weights, `ArgumentTypeError` for complex numbers, `ShapeError` for no elements and for weights that do not fit.

    >>> jnp.quantile(jnp.array([1.0, 2.0, 4.0]), jnp.array([0.25, 0.5]))
    Array([1.5, 2. ], dtype=float32)
    >>> jnp.quantile(jnp.array([1.0, 2.0, 4.0]), 0.5, method="inverted_cdf", weights=jnp.array([1, 1, 3]))
    Array(4., dtype=float32)
    """
    return _quantile("quantile", a, q, axis, out, method, keepdims, weights, skip_nan=False)


@fused
def nanquantile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False,
    *, weights: Any = None,
) -> Array:  # fmt: skip
    """Return `quantile` of the elements that are not NaN; NaN where there are none.

    >>> jnp.nanquantile(jnp.array([1.0, jnp.nan, 4.0]), 0.5)
    Array(2.5, dtype=float32)
    """
    return _quantile("nanquantile", a, q, axis, out, method, keepdims, weights, skip_nan=True)


@fused
def percentile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False,
    *, weights: Any = None, out_sharding: Any = None
) -> Array:  # fmt: skip
    """Return `quantile` for `q` in per cent.

    >>> jnp.percentile(jnp.array([1.0, 2.0, 4.0]), 25)
    Array(1.5, dtype=float32)
    """
    return constrained(
        _quantile("percentile", a, _per_cent("percentile", q), axis, out, method, keepdims, weights, skip_nan=False), out_sharding
    )


@fused
def nanpercentile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False,
    *, weights: Any = None,
) -> Array:  # fmt: skip
    """Return `percentile` of the elements that are not NaN.

    >>> jnp.nanpercentile(jnp.array([1.0, jnp.nan, 4.0]), 50)
    Array(2.5, dtype=float32)
    """
    return _quantile("nanpercentile", a, _per_cent("nanpercentile", q), axis, out, method, keepdims, weights, skip_nan=True)


@fused
def median(a: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Array:
    """Return the middle element, or the mean of the middle two; NaN if any is NaN.

    >>> jnp.median(jnp.array([3, 1, 10, 2]))
    Array(2.5, dtype=float32)
    """
    middle = _quantile("median", a, 0.5, axis, out, "midpoint", keepdims, None, skip_nan=False)
    return lax.convert_element_type(middle, middle.dtype)


@fused
def nanmedian(a: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Array:
    """Return `median` of the elements that are not NaN.

    >>> jnp.nanmedian(jnp.array([3.0, jnp.nan, 10.0, 2.0]))
    Array(3., dtype=float32)
    """
    middle = _quantile("nanmedian", a, 0.5, axis, out, "midpoint", keepdims, None, skip_nan=True)
    return lax.convert_element_type(middle, middle.dtype)


def _per_cent(function: str, q: Any) -> Array:
    (fraction,) = promote_inexact(function, q)
    return lax.div(fraction, full_like_scalar(fraction, 100.0))


def _quantile(
    function: str, a: Any, q: Any, axis: Axis, out: None, method: str, keepdims: bool, weights: Any, skip_nan: bool
) -> Array:  # fmt: skip
    no_out(function, out)
    check_option(method, f"{function}: method", _METHODS)
    if weights is not None and method != "inverted_cdf":
        raise ArgumentError(f"{function}: the method {method!r} takes no weights; use method='inverted_cdf'")
    value, *weight = promote_inexact(function, a, *[w for w in (weights,) if w is not None])
    (fraction,) = promote_inexact(function, q)
    if is_complex(value) or is_complex(fraction):
        raise ArgumentTypeError(f"{function}: complex numbers have no order")
    axes = axes_of(function, axis, value.ndim)
    rows, *weight_rows = [_flattened_last(v, axes) for v in (value, *[spread_weights(function, w, value, axes) for w in weight])]
    if not rows.shape[-1]:
        raise ShapeError(f"{function} of no elements: axis {axes} of shape {value.shape} is empty")
    fractions = lax.reshape(fraction, (fraction.size,))
    if weight_rows:
        ordered, ordered_weights = lax.sort((rows, *weight_rows), dimension=rows.ndim - 1)
        result = _weighted(ordered, ordered_weights, fractions, skip_nan)
    else:
        result = _along_last(lax.sort(rows, dimension=rows.ndim - 1), fractions, method, skip_nan)
    shape = tuple([1 if i in axes else n for i, n in enumerate(value.shape)]) if keepdims else rows.shape[:-1]
    return lax.reshape(result, fraction.shape + shape)


def _flattened_last(value: Array, axes: tuple[int, ...]) -> Array:
    others = [i for i in range(value.ndim) if i not in axes]
    count = math.prod([value.shape[i] for i in axes])
    return lax.reshape(lax.transpose(value, [*others, *axes]), (*[value.shape[i] for i in others], count))


def _along_last(ordered: Array, fraction: Array, method: str, skip_nan: bool) -> Array:
    """Return quantiles of sorted vectors (NaN last), of shape (quantiles, vectors...)."""
    missing = _count(isnan(ordered))
    work = dtypes.accumulator(ordered.dtype)
    last = lax.convert_element_type(lax.sub(to_dtype(ordered.shape[-1] - 1, missing.dtype), missing), work)
    position = _position(_per_vector(lax.convert_element_type(fraction, work), last), last, method)
    low, high = lax.floor(position), lax.ceil(position)
    f_low, f_high = _element(ordered, low), _element(ordered, high)
    result = _interpolated(f_low, f_high, lax.convert_element_type(lax.sub(position, low), ordered.dtype), method)
    return lax.select(_lacks_quantiles(ordered, missing, skip_nan), full_like_scalar(result, np.nan), result)


def _count(truth: Array) -> Array:
    return lax.reduce_sum(lax.convert_element_type(truth, dtypes.index_dtype(truth.shape[-1])), (truth.ndim - 1,))


def _per_vector(fraction: Array, vectors: Array) -> Array:
    """Reshape the probabilities to broadcast against one value per vector."""
    return expand_dims(fraction, range(1, 1 + vectors.ndim))


def _position(fraction: Array, last: Array, method: str) -> Array:
    """Return the position of a quantile between elements 0 and `last`."""
    nothing = full_like_scalar(last, 0)
    if method != "inverted_cdf":
        return lax.mul(fraction, lax.max(last, nothing))
    one = full_like_scalar(last, 1)
    return lax.max(lax.sub(lax.ceil(lax.mul(fraction, lax.add(last, one))), one), nothing)


def _lacks_quantiles(ordered: Array, missing: Array, skip_nan: bool) -> Array:
    """Return True for vectors without quantiles: with a NaN, or of NaN only."""
    return lax.ge(missing, missing.dtype.type(ordered.shape[-1])) if skip_nan else lax.gt(missing, missing.dtype.type(0))


def _weighted(ordered: Array, weight: Array, fraction: Array, skip_nan: bool) -> Array:
    """Return weighted quantiles of sorted vectors (NaN last).

    The quantile is the first element up to which weights sum up to a fraction of their sum.
    """
    absent = isnan(ordered)
    nothing = full_like_scalar(weight, 0)
    counted = lax.convert_element_type(lax.select(absent, nothing, weight), dtypes.accumulator(weight.dtype))
    sums = lax.cumsum(lax.stop_gradient(counted), axis=counted.ndim - 1)
    total = lax.index_in_dim(sums, -1, sums.ndim - 1, keepdims=False)
    thresholds = lax.mul(_per_vector(lax.convert_element_type(fraction, sums.dtype), total), total)
    # Elements before the first nonzero weight are no quantile, not even that of 0.
    before = lax.bitwise_or(lax.lt(sums, expand_dims(thresholds, (thresholds.ndim,))), lax.le(sums, full_like_scalar(sums, 0)))
    result = _element(ordered, _count(before))
    valid = reductions.all(lax.ge(weight, nothing), -1)
    finite = lax.bitwise_and(lax.gt(total, full_like_scalar(total, 0)), lax.is_finite(total))
    lost = lax.bitwise_or(_lacks_quantiles(ordered, _count(absent), skip_nan), lax.bitwise_not(lax.bitwise_and(valid, finite)))
    return lax.select(lost, full_like_scalar(result, np.nan), result)


def _element(ordered: Array, position: Array) -> Array:
    """Return the element at an integer position, for each quantile and vector."""
    dtype = dtypes.index_dtype(ordered.shape[-1])
    index = lax.clamp(dtype.type(0), lax.convert_element_type(position, dtype), to_dtype(ordered.shape[-1] - 1, dtype))
    grid = [lax.broadcasted_iota(INDEX, index.shape, i) for i in range(1, index.ndim)]
    return ordered[(*grid, index)]


def _interpolated(low: Array, high: Array, weight: Array, method: str) -> Array:
    if method in ("lower", "inverted_cdf"):
        return low
    if method == "higher":
        return lax.select(lax.gt(weight, full_like_scalar(weight, 0)), high, low)
    half = full_like_scalar(weight, 0.5)
    if method == "nearest":
        return lax.select(lax.gt(weight, half), high, low)
    if method == "midpoint":
        weight = lax.select(lax.gt(weight, full_like_scalar(weight, 0)), half, full_like_scalar(weight, 0))
    return lax.add(_weighted_product(low, lax.sub(full_like_scalar(weight, 1), weight)), _weighted_product(high, weight))


def _weighted_product(value: Array, weight: Array) -> Array:
    """Return the product with a weight; an infinity of weight zero counts nothing."""
    nothing = full_like_scalar(weight, 0)
    ignored = lax.bitwise_and(lax.eq(weight, nothing), lax.eq(lax.abs(value), full_like_scalar(value, np.inf)))
    return lax.mul(lax.select(ignored, full_like_scalar(value, 0), value), weight)
