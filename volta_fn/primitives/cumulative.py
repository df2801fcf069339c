"""Cumulative reductions: of all elements up to each.

All but the sum obey a recurrence ``out[t] = f(out[t-1], x[t])``. Its tangent is ``y[t] = a[t] y[t-1] + b[t]``, where a is the derivative
of f with respect to its first argument, and b that with respect to the second, times the tangent of x. So one routine differentiates all
of them, without a division that zeros could spoil.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Primitive, Reduction, RuleOf, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import AxisError, DTypeError
from volta_fn.primitives.data_movement.movement import (
    canonical_axis,
    linear_primitive,
    rev,
)
from volta_fn.primitives.data_movement.slicing import concatenate, pad, slice_in_dim
from volta_fn.primitives.elementwise import selection
from volta_fn.primitives.elementwise.arithmetic import difference, logistic
from volta_fn.primitives.elementwise.cast import convert_element_type, in_wider_dtype
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.reduction import reduce_max, reduce_min, reduce_prod, reduce_sum_p


def _abstract(name: str, allowed: frozenset[np.dtype]) -> Callable[..., ShapedArray]:
    def abstract(operand: ShapedArray, *, axis: int, reverse: bool) -> ShapedArray:
        if operand.dtype not in allowed:
            raise dtypes.dtype_error(name, operand.dtype, allowed)
        if not 0 <= axis < operand.ndim:
            raise AxisError(f"{name}: axis {axis} is out of range for an operand of shape {operand.shape}")
        return operand

    return abstract


def sum_dtype(step: str, dtype: np.dtype) -> np.dtype:
    """Return the dtype in which a target of 64 bits accumulates elements of `dtype`.

    Sums are accumulated one after another, so in 32 bits the rounding errors of long ones would add up. Products lose as much in any order.
    """
    wide = dtypes.accumulator(dtype)
    return dtypes.WIDE_NUMBERS.get(wide, wide) if step in ("add", "logaddexp") else wide


def _batch(primitive: Primitive) -> Callable[..., Any]:
    def batch(data: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis: int, reverse: bool) -> tuple[Array, int]:
        dim = dims[0] or 0
        return bind(primitive, args[0], axis=axis + (axis >= dim), reverse=reverse), dim

    return batch


cumsum_p: Primitive = linear_primitive(
    "cumsum",
    _abstract("cumsum", dtypes.NUMBERS),
    None,
    RuleOf(_batch),
    lambda ct, operand, *, axis, reverse: [bind(cumsum_p, ct, axis=axis, reverse=not reverse)],
    views=False,
    combines=reduce_sum_p.reduction,
)


def _recurrence(a: Array, b: Array, axis: int) -> Array:
    """Solve y[t] = a[t] y[t-1] + b[t], y[0] = b[0]; each step doubles the reach."""
    size, reach = b.shape[axis], 1
    a = slice_in_dim(a, 1, size, 1, axis)
    while reach < size:
        # `a` belongs to the elements from `reach` on; those before are done.
        further = a * slice_in_dim(b, 0, size - reach, 1, axis) + slice_in_dim(b, reach, size, 1, axis)
        b = concatenate([slice_in_dim(b, 0, reach, 1, axis), further], axis)
        a = slice_in_dim(a, reach, None, 1, axis) * slice_in_dim(a, 0, max(size - 2 * reach, 0), 1, axis)
        reach *= 2
    return b


Derivatives = Callable[[Array, Array, Array], tuple[Array, Array]]


def _declare(name: str, allowed: frozenset[np.dtype], combines: Reduction | None, start: float, derivatives: Derivatives) -> Primitive:
    """Declare a cumulative primitive whose recurrence begins with `start`.

    ``derivatives(previous, x, out)`` returns its derivatives with respect to the previous result and to the element x.
    """

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axis: int, reverse: bool) -> tuple[Array, Any]:
        (operand,), (tangent,) = primals, tangents
        dtype, accumulator = operand.dtype, dtypes.accumulator(operand.dtype)
        if type(tangent) is Zero:
            out = bind(primitive, operand, axis=axis, reverse=reverse)
            return out, Zero(out.aval.tangent_aval())
        operand, tangent = (convert_element_type(v, accumulator) for v in (operand, tangent))
        out = bind(primitive, operand, axis=axis, reverse=reverse)
        reversed_axes = (axis,) if reverse else ()
        x, total, tangent = (rev(v, reversed_axes) for v in (operand, out, tangent))
        delay = [(int(i == axis), -int(i == axis), 0) for i in range(x.ndim)]
        previous = pad(total, as_value(np.asarray(start, x.dtype)), delay) if x.shape[axis] else total
        by_previous, by_x = derivatives(previous, x, total)
        tangents_out = rev(_recurrence(by_previous, tangent * by_x, axis), reversed_axes)
        return convert_element_type(out, dtype), convert_element_type(tangents_out, dtype)

    primitive = Primitive(name, _abstract(name, allowed), jvp=jvp, batch=RuleOf(_batch), combines=combines)
    return primitive


def _extremum_derivatives(lesser: Callable[[Array, Array], Array]) -> Derivatives:
    """Return the derivatives of a cumulative extremum.

    The winner's is 1, that of equal values 1/2 each, and that of x is 1 where `previous` is NaN.
    """

    def derivatives(previous: Array, x: Array, out: Array) -> tuple[Array, Array]:
        zero, half, one = (as_value(np.asarray(v, out.dtype)) for v in (0, 0.5, 1))
        by_x = select(lesser(x, previous), zero, select(selection.eq(x, previous), half, one))
        return one - by_x, by_x

    return derivatives


def _logaddexp_derivatives(previous: Array, x: Array, out: Array) -> tuple[Array, Array]:
    """Return the derivatives of log(exp(previous) + exp(x)), as `logaddexp` has them."""
    # Each is a fraction of the sum, 1/2 of equal infinities. For the first element, `previous` is NaN: all of the sum is x. There x stands
    # for it, so that the derivatives of the fraction are not NaN.
    first = selection.bitwise_and(selection.ne(previous, previous), selection.eq(out, out))
    previous = select(first, x, previous)
    by_x = select(first, as_value(np.ones((), out.dtype)), logistic(difference(x, previous)))
    return logistic(difference(previous, x)), by_x


cumprod_p = _declare("cumprod", dtypes.NUMBERS, reduce_prod.primitive.reduction, 1, lambda before, x, out: (x, before))
cummax_p = _declare("cummax", dtypes.REALS, reduce_max.primitive.reduction, np.nan, _extremum_derivatives(selection.lt))
cummin_p = _declare("cummin", dtypes.REALS, reduce_min.primitive.reduction, np.nan, _extremum_derivatives(selection.gt))
cumlogsumexp_p = _declare(
    "cumlogsumexp", dtypes.FLOATS, Reduction("logaddexp", lambda dtype: -np.inf, rounds=True), np.nan, _logaddexp_derivatives
)


# The functions.


def _apply(primitive: Primitive, operand: Any, axis: int, reverse: bool) -> Array:
    value = as_value(operand)
    try:
        return bind(primitive, value, axis=canonical_axis(axis, value.ndim), reverse=bool(reverse))
    except DTypeError as error:
        return in_wider_dtype(primitive.name, lambda wide: _apply(primitive, wide, axis, reverse), [value], error)


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return cumulative sums along `axis`, from its end if `reverse`.

    float16 and bfloat16 accumulate in float32.

    >>> vf.lax.cumsum(vf.numpy.array([1, 2, 3]), reverse=True)
    Array([6, 5, 3], dtype=int32)
    """
    return _apply(cumsum_p, operand, axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return cumulative products along `axis`, from its end if `reverse`.

    float16 and bfloat16 accumulate in float32.

    >>> vf.lax.cumprod(vf.numpy.array([1, 2, 3]))
    Array([1, 2, 6], dtype=int32)
    """
    return _apply(cumprod_p, operand, axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return cumulative maxima along `axis`, from its end if `reverse`.

    NaN propagates.

    >>> vf.lax.cummax(vf.numpy.array([1, 3, 2]))
    Array([1, 3, 3], dtype=int32)
    """
    return _apply(cummax_p, operand, axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return cumulative minima along `axis`, from its end if `reverse`.

    NaN propagates.

    >>> vf.lax.cummin(vf.numpy.array([3, 1, 2]))
    Array([3, 1, 1], dtype=int32)
    """
    return _apply(cummin_p, operand, axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """Return cumulative ``log(sum(exp(x)))`` along `axis`, without overflow.

    They begin at the end of the axis if `reverse`.

    >>> vf.lax.cumlogsumexp(vf.numpy.array([90.0, 90.0]))
    Array([90.      , 90.693146], dtype=float32)
    """
    return _apply(cumlogsumexp_p, operand, axis, reverse)
