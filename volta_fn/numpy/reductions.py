"""Reductions along axes: sum, prod, max, min, any, all, argmax, mean, var, std, ….

`axis` is an integer, several, or None for all dimensions; `keepdims` leaves reduced dimensions with size 1; `where` masks elements out;
`initial` joins the result. Integers narrower than the default dtype are summed in it (int8 in int32, uint8 in uint32, booleans in
int32), float16 and bfloat16 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import BOOL, INDEX, Axis, axes_of, dtype_or, flat_or_axis, full_like_scalar, is_complex, no_out, operand
from volta_fn.numpy.elementwise.logic import truth
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
    rules = (0, lax.reduce_sum, lax.add, lax.reduce_or, lax.bitwise_or)
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
    rules = (1, lax.reduce_prod, lax.mul, lax.reduce_and, lax.bitwise_and)
    return _accumulated("prod", a, axis, dtype, out, keepdims, initial, where, promote_integers, rules)


def _accumulated(
    name: str, a: Any, axis: Axis, dtype: Any, out: None, keepdims: bool, initial: Any, where: Any, promote_integers: bool, rules: Any
) -> Array:
    no_out(name, out)
    value = operand(name, "a", a)
    result_dtype = dtype_or(dtype, summed_dtype(value.dtype) if promote_integers else value.dtype)
    axes = axes_of(name, axis, value.ndim)
    identity, *numeric, reduce_bool, combine_bool = rules
    reduce, combine = (reduce_bool, combine_bool) if result_dtype == BOOL else numeric
    value = masked(lax.convert_element_type(value, result_dtype, value.weak_type and dtype is None), where, identity)
    return restore(_with_initial(reduce(value, axes), initial, combine), axes, keepdims)


@fused
def max(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the largest element along `axis`; NaN if any is NaN.

    >>> jnp.max(jnp.array([[1, 5], [3, 2]]), axis=1)
    Array([5, 3], dtype=int32)

    Raises `ShapeError` for no elements without `initial`.
    """
    return _extremum("max", a, axis, out, keepdims, initial, where, (lax.reduce_max, lax.max, lowest))


@fused
def min(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """Return the smallest element along `axis`, like `max`."""
    return _extremum("min", a, axis, out, keepdims, initial, where, (lax.reduce_min, lax.min, highest))


def minmax(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> tuple[Array, Array]:
    """Return the smallest and largest element; `initial` may be a pair for the two.

    >>> jnp.minmax(jnp.array([[1, 5], [3, 2]]), axis=1)
    (Array([1, 2], dtype=int32), Array([5, 3], dtype=int32))
    """
    least, greatest = initial if isinstance(initial, tuple) else (initial, initial)
    return min(a, axis, out, keepdims, least, where), max(a, axis, out, keepdims, greatest, where)


def _extremum(name: str, a: Any, axis: Axis, out: None, keepdims: bool, initial: Any, where: Any, rules: tuple[Any, Any, Any]) -> Array:
    no_out(name, out)
    reduce, combine, identity = rules
    value = operand(name, "a", a)
    axes = axes_of(name, axis, value.ndim)
    if initial is None:
        _check_not_empty(name, value, axes)
        if where is not None:
            raise ArgumentError(f"{name}: where= needs initial=, the result where no element is left")
    reduced = reduce(masked(value, where, identity(value.dtype)), axes)
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


def element_count(value: Array, axes: tuple[int, ...], where: Any) -> Any:
    """Return how many elements a reduction combines; an array under a mask."""
    if where is None:
        shape = value.shape
        return math.prod([shape[i] for i in axes])
    return sum(broadcast_to(operand("a reduction", "where", where), value.shape), axes, dtypes.index_dtype(value.size))


def _working(value: Array, dtype: Any, where: Any) -> tuple[Array, np.dtype]:
    """Return the elements in the accumulation dtype, and the result dtype."""
    result = dtype_or(dtype, dtypes.to_inexact(value.dtype))
    value = value if where is None else broadcast_to(value, lax.broadcast_shapes(value.shape, np.shape(where)))
    return lax.convert_element_type(value, dtypes.accumulator(result), value.weak_type and dtype is None), result


@fused
def mean(a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Return the arithmetic mean along `axis` as a float (or complex); NaN if empty.

    >>> jnp.mean(jnp.array([1, 2, 4]))
    Array(2.3333333, dtype=float32)
    """
    no_out("mean", out)
    value, result_dtype = _working(operand("mean", "a", a), dtype, where)
    axes = axes_of("mean", axis, value.ndim)
    result = _mean(value, axes, where)
    return restore(lax.convert_element_type(result, result_dtype, result.weak_type), axes, keepdims)


def _mean(value: Array, axes: tuple[int, ...], where: Any) -> Array:
    return lax.div(lax.reduce_sum(masked(value, where, 0), axes), to_dtype(element_count(value, axes, where), value.dtype))


@fused
def var(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, *, where: Any = None,
    mean: Any = None, correction: Any = None,
) -> Array:  # fmt: skip
    """Return the variance along `axis`: the sum of |x - mean(x)|² over n - ddof.

    `mean`, if already known, must have kept its dimensions; `correction` is another name for `ddof`. Two passes keep the digits of nearly
    equal large numbers.

    >>> jnp.var(jnp.array([1.0, 2.0, 3.0, 4.0]))
    Array(1.25, dtype=float32)
    """
    result, result_dtype = variance("var", a, axis, dtype, out, ddof, keepdims, where, mean, correction)
    return lax.convert_element_type(result, result_dtype, result.weak_type)


def variance(
    function: str, a: Any, axis: Axis, dtype: Any, out: None, ddof: Any, keepdims: bool, where: Any, mean: Any, correction: Any
) -> tuple[Array, np.dtype]:
    """Return the variance in the accumulation dtype, and the dtype of the result."""
    no_out(function, out)
    if correction is not None and ddof != 0:
        raise ArgumentError(f"{function}: give ddof or correction, not both; got ddof={ddof}, correction={correction}")
    removed = ddof if correction is None else correction
    value, result_dtype = _working(operand(function, "a", a), dtype, where)
    axes = axes_of(function, axis, value.ndim)
    center = restore(_mean(value, axes, where), axes, True) if mean is None else to_dtype(mean, value.dtype)
    deviations = masked(lax.sub(value, center), where, 0)  # masked before squaring, so that masked NaN does not reach derivatives
    if not is_complex(deviations):
        squares = lax.mul(deviations, deviations)
    else:
        squares = lax.add(lax.integer_pow(lax.real(deviations), 2), lax.integer_pow(lax.imag(deviations), 2))
    count = lax.sub(to_dtype(element_count(value, axes, where), squares.dtype), to_dtype(removed, squares.dtype))
    total = lax.reduce_sum(squares, axes)
    result = lax.div(total, lax.max(count, full_like_scalar(count, 0.0)))
    return restore(result, axes, keepdims), dtypes.real_dtype(result_dtype)


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
    return lax.convert_element_type(lax.sqrt(result), result_dtype, result.weak_type)
