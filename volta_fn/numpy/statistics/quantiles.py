"""Quantiles, percentiles and medians, and their forms that ignore NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.memory.transfer import constrained
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import INDEX, Axis, axes_of, full_like_scalar, is_complex, no_out, promote_inexact
from volta_fn.numpy.elementwise.logic import isnan
from volta_fn.numpy.statistics import reductions
from volta_fn.numpy.statistics.moments import spread_weights
from volta_fn.primitives.data_movement.movement import expand_dims

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
    return _quantile("median", a, 0.5, axis, out, "midpoint", keepdims, None, skip_nan=False)


@fused
def nanmedian(a: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Array:
    """Return `median` of the elements that are not NaN.

    >>> jnp.nanmedian(jnp.array([3.0, jnp.nan, 10.0, 2.0]))
    Array(3., dtype=float32)
    """
    return _quantile("nanmedian", a, 0.5, axis, out, "midpoint", keepdims, None, skip_nan=True)


def _per_cent(function: str, q: Any) -> Array:
    (fraction,) = promote_inexact(function, q)
    return lax.div(fraction, full_like_scalar(fraction, 100.0))


def _quantile(
    function: str, a: Any, q: Any, axis: Axis, out: None, method: str, keepdims: bool, weights: Any, skip_nan: bool
) -> Array:  # fmt: skip
    no_out(function, out)
    if method not in _METHODS:
        raise ArgumentError(f"{function}: method must be one of {', '.join(_METHODS)}, got {method!r}")
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
    count = int(np.prod([value.shape[i] for i in axes], dtype=np.int64))
    return lax.reshape(lax.transpose(value, [*others, *axes]), (*[value.shape[i] for i in others], count))


def _along_last(ordered: Array, fraction: Array, method: str, skip_nan: bool) -> Array:
    """Return quantiles of sorted vectors (NaN last), of shape (quantiles, vectors...)."""
    missing = _count(isnan(ordered))
    work = dtypes.accumulator(ordered.dtype)
    last = lax.convert_element_type(lax.sub(missing.dtype.type(ordered.shape[-1] - 1), missing), work)
    position = _position(_per_vector(lax.convert_element_type(fraction, work), last), last, method)
    low, high = lax.floor(position), lax.ceil(position)
    f_low, f_high = _element(ordered, low), _element(ordered, high)
    result = _between(f_low, f_high, lax.convert_element_type(lax.sub(position, low), ordered.dtype), method)
    return lax.select(_lost(ordered, missing, skip_nan), full_like_scalar(result, np.nan), result)


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


def _lost(ordered: Array, missing: Array, skip_nan: bool) -> Array:
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
    wanted = lax.mul(_per_vector(lax.convert_element_type(fraction, sums.dtype), total), total)
    # Elements before the first nonzero weight are no quantile, not even that of 0.
    before = lax.bitwise_or(lax.lt(sums, expand_dims(wanted, (wanted.ndim,))), lax.le(sums, full_like_scalar(sums, 0)))
    result = _element(ordered, _count(before))
    valid = reductions.all(lax.ge(weight, nothing), -1)
    finite = lax.bitwise_and(lax.gt(total, full_like_scalar(total, 0)), lax.is_finite(total))
    lost = lax.bitwise_or(_lost(ordered, _count(absent), skip_nan), lax.bitwise_not(lax.bitwise_and(valid, finite)))
    return lax.select(lost, full_like_scalar(result, np.nan), result)


def _element(ordered: Array, position: Array) -> Array:
    """Return the element at an integer position, for each quantile and vector."""
    dtype = dtypes.index_dtype(ordered.shape[-1])
    index = lax.clamp(dtype.type(0), lax.convert_element_type(position, dtype), dtype.type(ordered.shape[-1] - 1))
    grid = [lax.broadcasted_iota(INDEX, index.shape, i) for i in range(1, index.ndim)]
    return ordered[(*grid, index)]


def _between(low: Array, high: Array, weight: Array, method: str) -> Array:
    if method in ("lower", "inverted_cdf"):
        return low
    if method == "higher":
        return lax.select(lax.gt(weight, full_like_scalar(weight, 0)), high, low)
    half = full_like_scalar(weight, 0.5)
    if method == "nearest":
        return lax.select(lax.gt(weight, half), high, low)
    if method == "midpoint":
        weight = lax.select(lax.gt(weight, full_like_scalar(weight, 0)), half, full_like_scalar(weight, 0))
    return lax.add(_weighed(low, lax.sub(full_like_scalar(weight, 1), weight)), _weighed(high, weight))


def _weighed(value: Array, weight: Array) -> Array:
    """Return the product with a weight; an infinity of weight zero counts nothing."""
    nothing = full_like_scalar(weight, 0)
    ignored = lax.bitwise_and(lax.eq(weight, nothing), lax.eq(lax.abs(value), full_like_scalar(value, np.inf)))
    return lax.mul(lax.select(ignored, full_like_scalar(value, 0), value), weight)
