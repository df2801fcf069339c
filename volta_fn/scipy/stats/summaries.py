"""Ranks, the most common value and the standard error of the mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.numpy.arguments import axis_of, is_inexact, operand
from volta_fn.primitives.declare import promote_args


class ModeResult(NamedTuple):
    """The most common values, and how often they occur."""

    mode: Array
    count: Array  # type: ignore[assignment]  # it hides the method of tuples, as in SciPy


class _Runs(NamedTuple):
    """Sorted vectors (along the last axis), and the runs of equal elements in them."""

    values: Array
    order: Array
    first: Array
    last: Array
    number: Array


def _check_policy(function: str, policy: str) -> None:
    if policy not in ("propagate", "omit"):
        advice = "a program cannot look for NaN: check the array before" if policy == "raise" else f"got {policy!r}"
        raise ArgumentError(f"{function}: nan_policy must be 'propagate' or 'omit'; {advice}")


def _is_nan(a: Array) -> Array:
    return vnp.isnan(a) if is_inexact(a) else vnp.zeros(a.shape, np.bool_)


def _runs(a: Array) -> _Runs:
    """Sort vectors and find the runs; NaN are equal to one another."""
    index = lax.broadcasted_iota(np.int32, a.shape, a.ndim - 1)
    values, order = lax.sort_key_val(a, index)
    before, after = values[..., :-1], values[..., 1:]
    differs = (before != after) & ~(_is_nan(before) & _is_nan(after))
    end = vnp.ones((*a.shape[:-1], min(a.shape[-1], 1)), np.bool_)
    begins, ends = vnp.concatenate([end, differs], -1), vnp.concatenate([differs, end], -1)
    axis = a.ndim - 1
    first = lax.cummax(vnp.where(begins, index, 0), axis)
    last = lax.cummin(vnp.where(ends, index, a.shape[-1]), axis, reverse=True)
    return _Runs(values, order, first, last, vnp.cumsum(begins, axis, dtype=np.int32))


def rankdata(a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Array:
    """Return the ranks of the elements, beginning with 1 for the smallest.

    Args:
        a: an array of real numbers.
        method: the rank of equal elements: the "average", "min" or "max" of the ranks that they would have in a row; with "dense" the
            next larger element follows without a gap; with "ordinal" equal elements have different ranks, in their order.
        axis: rank along this axis, by default among all elements, whose ranks are a vector.
        nan_policy: "propagate": all ranks along an axis with a NaN are NaN. "omit": only that of NaN is.

    Returns float32, float64 for dtypes of 64 bits. Raises `ArgumentError` for other methods or policies.

    >>> vf.scipy.stats.rankdata(vf.numpy.array([10, 30, 20, 30]))
    Array([1. , 3.5, 2. , 3.5], dtype=float32)
    """
    _check_policy("rankdata", nan_policy)
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ArgumentError(f"rankdata: method must be 'average', 'min', 'max', 'dense' or 'ordinal', got {method!r}")
    values = operand("rankdata", "a", a)
    values = vnp.ravel(values) if axis is None else vnp.moveaxis(values, axis_of("rankdata", axis, values.ndim), -1)
    dtype = dtypes.accumulator(dtypes.to_inexact(values.dtype))
    is_nan = _is_nan(values)
    if nan_policy == "propagate":
        is_nan = vnp.any(is_nan, -1, keepdims=True)
    ranks = vnp.where(is_nan, np.nan, _ranks(_runs(values), method, dtype))
    return ranks if axis is None else vnp.moveaxis(ranks, -1, axis)


def _ranks(runs: _Runs, method: str, dtype: np.dtype) -> Array:
    axis = runs.order.ndim - 1
    _, position = lax.sort_key_val(runs.order, lax.broadcasted_iota(np.int32, runs.order.shape, axis))
    if method == "ordinal":
        return (position + 1).astype(dtype)
    if method == "average":
        sorted_ranks = 0.5 * (runs.first.astype(dtype) + runs.last.astype(dtype)) + 1.0
    else:
        sorted_ranks = {"min": runs.first + 1, "max": runs.last + 1, "dense": runs.number}[method].astype(dtype)
    return vnp.take_along_axis(sorted_ranks, position, axis)


def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """Return the most common value along an axis, the smallest of several such.

    Args:
        a: an array of real numbers; a scalar counts as one element.
        axis: the axis; None for all elements.
        nan_policy: "propagate": NaN is a value like others. "omit": NaN is not counted.
        keepdims: whether the axis stays, with size 1.

    Returns the values and, as int32, how often they occur: NaN and 0 where there are none. Raises `ArgumentError` for other policies.

    >>> vf.scipy.stats.mode(vf.numpy.array([2, 4, 1, 1, 3, 4, 4]))
    ModeResult(mode=Array(4, dtype=int32), count=Array(3, dtype=int32))
    """
    _check_policy("mode", nan_policy)
    values = vnp.atleast_1d(operand("mode", "a", a))
    ndim = values.ndim
    values = vnp.ravel(values) if axis is None else vnp.moveaxis(values, axis_of("mode", axis, ndim), -1)
    result = _most_common(values, nan_policy == "omit")
    if not keepdims:
        return result
    axes = tuple(range(ndim)) if axis is None else axis
    return ModeResult(vnp.expand_dims(result.mode, axes), vnp.expand_dims(result.count, axes))


def _most_common(values: Array, omits_nan: bool) -> ModeResult:
    if values.shape[-1] == 0:
        dtype = values.dtype if is_inexact(values) else dtypes.to_inexact(values.dtype)
        return ModeResult(vnp.full(values.shape[:-1], np.nan, dtype), vnp.zeros(values.shape[:-1], int))
    runs = _runs(values)
    counts = (runs.last - runs.first + 1).astype(int)
    if omits_nan:
        counts = vnp.where(_is_nan(runs.values), 0, counts)
    best = vnp.argmax(counts, -1, keepdims=True)
    return ModeResult(*[vnp.take_along_axis(v, best, -1)[..., 0] for v in (runs.values, counts)])


def sem(a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Array:
    """Return the standard error of the mean: the standard deviation over sqrt(n).

    Args:
        a: an array of numbers.
        axis: the axis; None for all elements.
        ddof: what is subtracted from n in the standard deviation.
        nan_policy: "propagate": NaN gives NaN. "omit": NaN is not counted.
        keepdims: whether the axis stays, with size 1.

    Raises `ArgumentError` for other policies.

    >>> vf.scipy.stats.sem(vf.numpy.array([2.0, 4.0, 1.0, 1.0, 3.0])).round(4)
    Array(0.5831, dtype=float32)
    """
    _check_policy("sem", nan_policy)
    (values,) = promote_args("sem", (a,), dtypes.INEXACT)
    if nan_policy == "omit":
        count = vnp.sum(~vnp.isnan(values), axis, keepdims=keepdims, dtype=dtypes.real_dtype(dtypes.accumulator(values.dtype)))
        deviation = vnp.nanstd(values, axis, ddof=ddof, keepdims=keepdims)
        return deviation / vnp.sqrt(count).astype(deviation.dtype)
    size = values.size if axis is None else values.shape[axis_of("sem", axis, values.ndim)]
    return vnp.std(values, axis, ddof=ddof, keepdims=keepdims) / float(np.sqrt(size))
