"""Reductions along axes, also cumulative ones, and those that ignore NaN.

`axis` is an integer, several, or None for all dimensions; sums, extrema, means and variances take names of mapped axes, too. `keepdims`
leaves reduced dimensions with size 1; `where` masks elements out; `initial` joins the result. Results are strongly typed, also those of
weak arrays. Integers narrower than the default dtype are summed in it (int8 in int32, uint8 in uint32, booleans in int32), float16 and
bfloat16 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import (
    BOOL,
    INDEX,
    Axis,
    axes_of,
    axis_of,
    dtype_or,
    flat_or_axis,
    full_like_scalar,
    is_complex,
    is_inexact,
    narrowed,
    no_out,
    operand,
    promote,
    promote_inexact,
    split_axes,
    strong_array,
    wide,
)
from volta_fn.numpy.arithmetic import remainder
from volta_fn.numpy.logic import isnan, truth
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.reduction import highest, lowest


def summed_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of sums and products of a dtype."""
    if dtype not in dtypes.INTEGERS | dtypes.BOOL:
        return dtype
    least = dtypes.default(np.dtype(np.uint32) if dtype in dtypes.UNSIGNED else INDEX)
    return dtype if dtype.itemsize >= least.itemsize else least


def masked(value: Array, where: Any, fill: Any) -> Array:
    """Return `value` with `fill` wherever the mask is false."""
    if where is None:
        return value
    mask = operand("a reduction", "where", where)
    if mask.dtype != BOOL:
        raise ArgumentError(f"where must be a boolean mask, got {mask.dtype.name}")
    shape = lax.broadcast_shapes(mask.shape, value.shape)
    return broadcast_to(lax.select(mask, value, full_like_scalar(value, fill)), shape)


def restore(reduced: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return a reduction's result, with reduced dimensions of size 1 if `keepdims`."""
    return lax.expand_dims(reduced, axes) if keepdims else reduced


def _with_initial(reduced: Array, initial: Any, combine: Callable[..., Array]) -> Array:
    if initial is None:
        return reduced
    if np.ndim(initial):
        raise ShapeError(f"initial must be one number, got an array of shape {np.shape(initial)}")
    return combine(reduced, to_dtype(initial, reduced.dtype))


@fused
def sum(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None,
    promote_integers: bool = True,
) -> Array:  # fmt: skip
    """Return the sum of the elements along `axis`.

    >>> jnp.sum(jnp.array([[1, 2], [3, 4]]), axis=0)
    Array([4, 6], dtype=int32)
    """
    rules = (0, lax.reduce_sum, lax.add, lax.psum, lax.reduce_or, lax.bitwise_or, lax.pmax)
    return _accumulated("sum", a, axis, dtype, out, keepdims, initial, where, promote_integers, rules)


@fused
def prod(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None,
    promote_integers: bool = True,
) -> Array:  # fmt: skip
    """Return the product of the elements along `axis`.

    >>> jnp.prod(jnp.array([1.5, 2.0, 2.0]))
    Array(6., dtype=float32)
    """
    rules = (1, lax.reduce_prod, lax.mul, None, lax.reduce_and, lax.bitwise_and, None)
    return _accumulated("prod", a, axis, dtype, out, keepdims, initial, where, promote_integers, rules)


def _accumulated(
    name: str, a: Any, axis: Axis, dtype: Any, out: None, keepdims: bool, initial: Any, where: Any, promote_integers: bool, rules: Any
) -> Array:
    no_out(name, out)
    value = operand(name, "a", a)
    result_dtype = dtype_or(dtype, summed_dtype(value.dtype) if promote_integers else value.dtype)
    identity, *numeric, reduce_bool, combine_bool, collect_bool = rules
    reduce, combine, collect = (reduce_bool, combine_bool, collect_bool) if result_dtype == BOOL else numeric
    axes, names = split_axes(name, axis, value.ndim) if collect else (axes_of(name, axis, value.ndim), ())
    value = masked(lax.convert_element_type(value, result_dtype), where, identity)
    return restore(_with_initial(_collected(reduce(value, axes), names, collect), initial, combine), axes, keepdims)


def _collected(reduced: Array, names: tuple[str, ...], collect: Callable[..., Array]) -> Array:
    """Return a reduction's result, also reduced along the mapped axes of these names."""
    return collect(reduced, names) if names else reduced


@fused
def max(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the largest element along `axis`; NaN if any is NaN.

    >>> jnp.max(jnp.array([[1, 5], [3, 2]]), axis=1)
    Array([5, 3], dtype=int32)

    Raises `ShapeError` for no elements without `initial`.
    """
    return _extremum("max", a, axis, out, keepdims, initial, where, (lax.reduce_max, lax.max, lax.pmax, lowest))


@fused
def min(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the smallest element along `axis`, like `max`."""
    return _extremum("min", a, axis, out, keepdims, initial, where, (lax.reduce_min, lax.min, lax.pmin, highest))


def minmax(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> tuple[Array, Array]:
    """Return the smallest and largest element; `initial` may be a pair for the two.

    >>> jnp.minmax(jnp.array([[1, 5], [3, 2]]), axis=1)
    (Array([1, 2], dtype=int32), Array([5, 3], dtype=int32))
    """
    least, greatest = initial if isinstance(initial, tuple) else (initial, initial)
    return min(a, axis, out, keepdims, least, where), max(a, axis, out, keepdims, greatest, where)


def _extremum(name: str, a: Any, axis: Axis, out: None, keepdims: bool, initial: Any, where: Any, rules: tuple[Any, ...]) -> Array:
    no_out(name, out)
    reduce, combine, collect, identity = rules
    value = operand(name, "a", a)
    axes, names = split_axes(name, axis, value.ndim)
    if initial is None:
        _check_not_empty(name, value, axes)
        if where is not None:
            raise ArgumentError(f"{name}: where= needs initial=, the result where no element is left")
    value = lax.convert_element_type(value, value.dtype)
    reduced = _collected(reduce(masked(value, where, identity(value.dtype)), axes), names, collect)
    return restore(_with_initial(reduced, initial, combine), axes, keepdims)


def _check_not_empty(name: str, value: Array, axes: tuple[int, ...]) -> None:
    if 0 in [value.shape[i] for i in axes]:
        remedy = "" if name.startswith("arg") else "; give initial= for a result"
        raise ShapeError(f"{name} of no elements: axis {axes} of shape {value.shape} is empty{remedy}")


@fused
def all(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Return True if all elements along `axis` are nonzero (also if there are none).

    >>> bool(jnp.all(jnp.array([1, 2, 0])))
    False
    """
    return _truth_reduction("all", a, axis, out, keepdims, where, lax.reduce_and)


@fused
def any(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Return True if any element along `axis` is nonzero.

    >>> jnp.any(jnp.array([[0, 0], [0, 1]]), axis=1)
    Array([False,  True], dtype=bool)
    """
    return _truth_reduction("any", a, axis, out, keepdims, where, lax.reduce_or)


def _truth_reduction(name: str, a: Any, axis: Axis, out: None, keepdims: bool, where: Any, reduce: Callable[..., Array]) -> Array:
    no_out(name, out)
    value = truth(name, a)
    axes = axes_of(name, axis, value.ndim)
    return restore(reduce(masked(value, where, reduce is lax.reduce_and), axes), axes, keepdims)


@fused
def count_nonzero(a: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Count the nonzero elements along `axis`, in default integers.

    >>> jnp.count_nonzero(jnp.array([0, 3, 0, 4]))
    Array(2, dtype=int32)
    """
    nonzero = truth("count_nonzero", a)
    return sum(nonzero, axis, dtypes.index_dtype(nonzero.size, dtypes.default(INDEX)), keepdims=keepdims)


@fused
def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the int32 index of the first largest element, or NaN (None: flattened).

    >>> jnp.argmax(jnp.array([[1, 5], [3, 2]]), axis=1)
    Array([1, 0], dtype=int32)
    """
    return _arg_extremum("argmax", a, axis, out, bool(keepdims), lax.argmax)


@fused
def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the int32 index of the first smallest element, or NaN (None: flattened).

    >>> jnp.argmin(jnp.array([3, 1, 2]))
    Array(1, dtype=int32)
    """
    return _arg_extremum("argmin", a, axis, out, bool(keepdims), lax.argmin)


def _arg_extremum(name: str, a: Any, axis: int | None, out: None, keepdims: bool, find: Callable[..., Array]) -> Array:
    no_out(name, out)
    value = operand(name, "a", a)
    flat, dim = flat_or_axis(name, value, axis)
    _check_not_empty(name, flat, (dim,))
    index = find(flat, dim, dtypes.index_dtype(flat.shape[dim], dtypes.default(INDEX)))
    return restore(index, tuple(range(value.ndim)) if axis is None else (dim,), keepdims)


@fused
def ptp(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
    """Return the range of the elements along `axis`: the largest minus the smallest.

    >>> jnp.ptp(jnp.array([3, 1, 7]))
    Array(6, dtype=int32)
    """
    return lax.sub(max(a, axis, out, keepdims), min(a, axis, out, keepdims))


def element_count(value: Array, axes: tuple[int, ...], where: Any, names: tuple[str, ...] = ()) -> Any:
    """Return how many elements a reduction combines; an array under a mask."""
    if where is None:
        shape = value.shape
        return math.prod([*[shape[i] for i in axes], *[lax.axis_size(name) for name in names]])
    return sum(broadcast_to(operand("a reduction", "where", where), value.shape), (*axes, *names), dtypes.index_dtype(value.size))


def _accumulation_operand(value: Array, dtype: Any, where: Any) -> tuple[Array, np.dtype]:
    """Return the elements in the accumulation dtype, and the result dtype."""
    result = dtype_or(dtype, dtypes.to_inexact(value.dtype))
    value = value if where is None else broadcast_to(value, lax.broadcast_shapes(value.shape, np.shape(where)))
    return lax.convert_element_type(value, dtypes.accumulator(result)), result


@fused
def mean(a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Return the arithmetic mean along `axis` as a float (or complex); NaN if empty.

    >>> jnp.mean(jnp.array([1, 2, 4]))
    Array(2.3333333, dtype=float32)
    """
    no_out("mean", out)
    value, result_dtype = _accumulation_operand(operand("mean", "a", a), dtype, where)
    axes, names = split_axes("mean", axis, value.ndim)
    result = _mean(value, axes, where, names)
    return restore(lax.convert_element_type(result, result_dtype), axes, keepdims)


def _mean(value: Array, axes: tuple[int, ...], where: Any, names: tuple[str, ...]) -> Array:
    total = _collected(lax.reduce_sum(masked(value, where, 0), axes), names, lax.psum)
    return lax.div(total, to_dtype(element_count(value, axes, where, names), value.dtype))


@fused
def var(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, *, where: Any = None,
    mean: Any = None, correction: Any = None,
) -> Array:  # fmt: skip
    """Return the variance along `axis`: the sum of |x - mean(x)|² over n - ddof.

    It is real unless `dtype` is complex. `mean`, if already known, must have kept its dimensions; `correction` is another name for `ddof`.
    Two passes keep the digits of nearly equal large numbers.

    >>> jnp.var(jnp.array([1.0, 2.0, 3.0, 4.0]))
    Array(1.25, dtype=float32)
    """
    result, result_dtype = variance("var", a, axis, dtype, out, ddof, keepdims, where, mean, correction)
    return lax.convert_element_type(result, result_dtype)


def variance(
    function: str, a: Any, axis: Axis, dtype: Any, out: None, ddof: Any, keepdims: bool, where: Any, mean: Any, correction: Any
) -> tuple[Array, np.dtype]:
    """Return the variance in the accumulation dtype, and the dtype of the result."""
    no_out(function, out)
    if correction is not None and ddof != 0:
        raise ArgumentError(f"{function}: give ddof or correction, not both; got ddof={ddof}, correction={correction}")
    removed = ddof if correction is None else correction
    if np.iscomplexobj(removed):
        raise ArgumentTypeError(f"{function}: ddof is subtracted from a number of elements, so it must be real, got {removed!r:.80}")
    value = operand(function, "a", a)
    if dtype is not None:
        dtype = dtypes.as_dtype(dtype)
        if is_complex(value) and dtype not in dtypes.COMPLEX:
            raise DTypeError(f"{function}: the variance of {value.dtype.name} is computed in a complex dtype, got dtype={dtype.name}")
        if function != "var" and dtype not in dtypes.INEXACT:
            raise DTypeError(f"{function}: the result may be a fraction or NaN, so dtype must be inexact, got {dtype.name}")
    value, result_dtype = _accumulation_operand(value, dtype, where)
    axes, names = split_axes(function, axis, value.ndim)
    center = restore(_mean(value, axes, where, names), axes, True) if mean is None else to_dtype(mean, value.dtype)
    deviations = masked(lax.sub(value, center), where, 0)  # masked before squaring, so that masked NaN does not reach derivatives
    if not is_complex(deviations):
        squares = lax.mul(deviations, deviations)
    else:
        squares = lax.add(lax.integer_pow(lax.real(deviations), 2), lax.integer_pow(lax.imag(deviations), 2))
    count = lax.sub(to_dtype(element_count(value, axes, where, names), squares.dtype), to_dtype(removed, squares.dtype))
    total = _collected(lax.reduce_sum(squares, axes), names, lax.psum)
    result = lax.div(total, lax.max(count, full_like_scalar(count, 0.0)))
    return restore(result, axes, keepdims), dtypes.real_dtype(result_dtype) if dtype is None else result_dtype


@fused
def std(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, *, where: Any = None,
    mean: Any = None, correction: Any = None,
) -> Array:  # fmt: skip
    """Return the standard deviation along `axis`: the square root of `var`.

    >>> jnp.std(jnp.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    result, result_dtype = variance("std", a, axis, dtype, out, ddof, keepdims, where, mean, correction)
    return lax.convert_element_type(lax.sqrt(result), result_dtype)


# Reductions that ignore NaN.


def _replaced(function: str, a: Any, fill: Any, dtype: Any = None) -> tuple[Array, Array]:
    """Return the elements, with `fill` for NaN, and the mask of NaN.

    They are of `dtype` if that is inexact.
    """
    value = operand(function, "a", a)
    if dtype is not None and dtypes.as_dtype(dtype) in dtypes.INEXACT:
        value = lax.convert_element_type(value, dtype)
    missing = isnan(value)
    return (lax.select(missing, full_like_scalar(value, fill), value) if is_inexact(value) else value), missing


@fused
def nansum(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Return the sum along `axis`, with NaN as 0.

    >>> jnp.nansum(jnp.array([1.0, jnp.nan, 2.0]))
    Array(3., dtype=float32)
    """
    return sum(_replaced("nansum", a, 0, dtype)[0], axis, dtype, out, keepdims, initial, where)


@fused
def nanprod(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Return the product along `axis`, with NaN as 1.

    >>> jnp.nanprod(jnp.array([2.0, jnp.nan, 3.0]))
    Array(6., dtype=float32)
    """
    return prod(_replaced("nanprod", a, 1, dtype)[0], axis, dtype, out, keepdims, initial, where)


@fused
def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Return the cumulative sum along `axis`, with NaN as 0.

    >>> jnp.nancumsum(jnp.array([2.0, jnp.nan, 3.0]))
    Array([2., 2., 5.], dtype=float32)
    """
    return cumsum(_replaced("nancumsum", a, 0, dtype)[0], axis, dtype, out)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Return the cumulative product along `axis`, with NaN as 1.

    >>> jnp.nancumprod(jnp.array([2.0, jnp.nan, 3.0]))
    Array([2., 2., 6.], dtype=float32)
    """
    return cumprod(_replaced("nancumprod", a, 1, dtype)[0], axis, dtype, out)


@fused
def nanmax(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the largest element along `axis` that is not NaN; NaN if there is none.

    >>> jnp.nanmax(jnp.array([1.0, jnp.nan, 3.0]))
    Array(3., dtype=float32)
    """
    return _nan_extremum(max, -np.inf, a, axis, out, keepdims, initial, where)


@fused
def nanmin(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the smallest element along `axis` that is not NaN; NaN if there is none.

    >>> jnp.nanmin(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    return _nan_extremum(min, np.inf, a, axis, out, keepdims, initial, where)


def _nan_extremum(
    reduce: Callable[..., Array], fill: float, a: Any, axis: Axis, out: None, keepdims: bool, initial: Any, where: Any
) -> Array:
    value, missing = _replaced(f"nan{reduce.__name__}", a, fill)
    result = reduce(value, axis, out, keepdims, initial, where)
    if not is_inexact(result) or initial is not None:
        return result
    return lax.select(all(missing, axis, keepdims=keepdims), full_like_scalar(result, np.nan), result)


@fused
def nanargmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the index of the first largest element that is not NaN; -1 if none.

    >>> jnp.nanargmax(jnp.array([1.0, jnp.nan, 3.0]))
    Array(2, dtype=int32)
    """
    return _nan_arg_extremum(argmax, -np.inf, a, axis, out, bool(keepdims))


@fused
def nanargmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the index of the first smallest element that is not NaN; -1 if none.

    >>> jnp.nanargmin(jnp.array([2.0, jnp.nan, 1.0]))
    Array(2, dtype=int32)
    """
    return _nan_arg_extremum(argmin, np.inf, a, axis, out, bool(keepdims))


def _nan_arg_extremum(find: Callable[..., Array], fill: float, a: Any, axis: int | None, out: None, keepdims: bool) -> Array:
    value, missing = _replaced(f"nan{find.__name__}", a, fill)
    index = find(value, axis, out, keepdims)
    return lax.select(all(missing, axis, keepdims=keepdims), index.dtype.type(-1), index)


@fused
def nanmean(a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, where: Any = None) -> Array:
    """Return the mean along `axis` of the elements that are not NaN; NaN if none.

    >>> jnp.nanmean(jnp.array([1.0, jnp.nan, 2.0]))
    Array(1.5, dtype=float32)
    """
    return mean(a, axis, dtype, out, keepdims, where=_number_mask("nanmean", a, where))


def _number_mask(function: str, a: Any, where: Any) -> Array:
    present = lax.bitwise_not(isnan(operand(function, "a", a)))
    return present if where is None else lax.bitwise_and(present, operand(function, "where", where))


@fused
def nanvar(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, where: Any = None,
    mean: Any = None,
) -> Array:  # fmt: skip
    """Return the variance of the elements that are not NaN; NaN for at most `ddof`.

    >>> jnp.nanvar(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    result, result_dtype = _variance("nanvar", a, axis, dtype, out, ddof, keepdims, where, mean)
    return lax.convert_element_type(result, result_dtype)


def _variance(
    function: str, a: Any, axis: Axis, dtype: Any, out: None, ddof: Any, keepdims: bool, where: Any, mean: Any
) -> tuple[Array, np.dtype]:
    """Return the variance in the accumulation dtype, and the dtype of the result."""
    value = operand(function, "a", a)
    present = _number_mask(function, value, where)
    axes = axes_of(function, axis, value.ndim)
    result, result_dtype = variance(function, value, axes, dtype, out, ddof, True, present, mean, None)
    count = sum(present, axes, dtypes.index_dtype(present.size), keepdims=True)
    enough = lax.gt(to_dtype(count, result.dtype), to_dtype(ddof, result.dtype))
    result = lax.select(enough, result, full_like_scalar(result, np.nan))
    return (result if keepdims else lax.squeeze(result, axes)), result_dtype


@fused
def nanstd(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, where: Any = None,
    mean: Any = None,
) -> Array:  # fmt: skip
    """Return the standard deviation along `axis` of the elements that are not NaN.

    >>> jnp.nanstd(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    result, result_dtype = _variance("nanstd", a, axis, dtype, out, ddof, keepdims, where, mean)
    return lax.convert_element_type(lax.sqrt(result), result_dtype, result.weak_type)


# Cumulative reductions.


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
        heights, gaps = promote_inexact("trapezoid", y, x)
    like, heights, gaps = heights, wide(heights), wide(gaps)
    if x is not None:
        gaps = diff(gaps, axis=axis if gaps.ndim > 1 else -1)
    after = heights.ndim - 1 - axis_of("trapezoid", axis, heights.ndim)
    if x is not None and gaps.ndim == 1:
        gaps = lax.reshape(gaps, (gaps.size, *[1] * after))
    pairs = lax.add(lax.slice_in_dim(heights, 1, None, axis=axis), lax.slice_in_dim(heights, 0, -1, axis=axis))
    areas = lax.mul(lax.mul(pairs, gaps), full_like_scalar(pairs, 0.5))
    return narrowed(lax.reduce_sum(areas, (areas.ndim - 1 - after,)), like)


@fused
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """Return central differences inside and one-sided ones at the ends, per axis.

    `varargs` are the spacings: none (1), one for all axes, or one per axis; each a number or the points' coordinates.

    >>> jnp.gradient(jnp.array([1.0, 4.0, 9.0, 16.0]))
    Array([3., 4., 6., 7.], dtype=float32)
    """
    if edge_order not in (None, 1):
        raise ArgumentError(f"gradient: edge_order must be 1, got {edge_order}")
    value, *distances = promote_inexact("gradient", f, *varargs)
    axes = axes_of("gradient", axis, value.ndim)
    spacings = distances * len(axes) if len(distances) == 1 else distances or [full_like_scalar(value, 1)] * len(axes)
    if len(spacings) != len(axes):
        raise ArgumentError(f"gradient: give no, one or {len(axes)} spacings for {len(axes)} axes, got {len(varargs)}")
    slopes = [_gradient_along(value, h, i) for h, i in zip(spacings, axes, strict=True)]
    return slopes[0] if len(slopes) == 1 else slopes


def _gradient_along(value: Array, points: Array, dim: int) -> Array:
    size = value.shape[dim]
    if size < 2:
        raise ShapeError(f"gradient: axis {dim} of shape {value.shape} needs at least two points")
    if points.ndim and points.shape != (size,):
        raise ShapeError(f"gradient: the coordinates along axis {dim} must have shape ({size},), got {points.shape}")

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
    # Wrap each step to [-half, half); a step of exactly +half stays positive, unless odd integers have no half.
    wrapped = lax.sub(remainder(lax.add(steps, half), length), half)
    is_upper = lax.bitwise_and(lax.eq(wrapped, lax.neg(half)), lax.gt(steps, full_like_scalar(steps, 0)))
    wrapped = lax.select(lax.bitwise_and(is_upper, lax.eq(lax.add(half, half), length)), half, wrapped)
    least = half if discont is None else _least_of_dtype(discont, value.dtype)
    correction = lax.select(lax.lt(lax.abs(steps), least), full_like_scalar(steps, 0), lax.sub(wrapped, steps))
    corrected = lax.add(lax.slice_in_dim(value, 1, None, axis=dim), lax.cumsum(correction, dim))
    return strong_array(lax.concatenate([lax.slice_in_dim(value, 0, 1, axis=dim), corrected], dim))
