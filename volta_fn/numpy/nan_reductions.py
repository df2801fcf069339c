"""Reductions that ignore NaN: nansum, nanmean, nanmax, …."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import Axis, axes_of, full_like_scalar, is_inexact, operand
from volta_fn.numpy.cumulative import cumprod, cumsum
from volta_fn.numpy.elementwise.logic import isnan
from volta_fn.numpy.reductions import all, argmax, argmin, max, mean, min, prod, sum, variance
from volta_fn.primitives.declare import to_dtype


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
    return mean(a, axis, dtype, out, keepdims, where=_present("nanmean", a, where))


def _present(function: str, a: Any, where: Any) -> Array:
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
    return lax.convert_element_type(result, result_dtype, result.weak_type)


def _variance(
    function: str, a: Any, axis: Axis, dtype: Any, out: None, ddof: Any, keepdims: bool, where: Any, mean: Any
) -> tuple[Array, np.dtype]:
    """Return the variance in the accumulation dtype, and the dtype of the result."""
    value = operand(function, "a", a)
    present = _present(function, value, where)
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
