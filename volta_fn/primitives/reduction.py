"""Reductions: primitives that combine the elements along some axes into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.primitive import PRIMITIVES, AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind, current_trace
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.movement import (
    broadcast_in_dim,
    broadcast_in_dim_p,
    canonical_axes,
    linear_primitive,
    reshape,
)

Axes = tuple[int, ...]


def _reduced_shape(operand: ShapedArray, axes: Axes) -> Shape:
    return tuple([n for i, n in enumerate(operand.shape) if i not in axes])


def _abstract(name: str, allowed: frozenset[np.dtype]) -> Callable[..., ShapedArray]:
    def abstract(operand: ShapedArray, *, axes: Axes) -> ShapedArray:
        if operand.dtype not in allowed:
            raise DTypeError(f"{name} is not defined for {operand.dtype.name}; it takes {', '.join(sorted(d.name for d in allowed))}")
        if any(not 0 <= a < operand.ndim for a in axes) or len(set(axes)) != len(axes):
            raise ShapeError(f"{name} axes {axes} do not fit an array of shape {operand.shape}")
        return operand.update(shape=_reduced_shape(operand, axes))

    return abstract


def _batch(primitive: Primitive) -> Callable[..., Any]:
    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axes: Axes) -> tuple[Array, int]:
        dim = dims[0] or 0
        shifted = tuple([a + (a >= dim) for a in axes])
        return bind(primitive, args[0], axes=shifted), dim - sum(a < dim for a in shifted)

    return batch


def _expand(reduced: Array, shape: Shape, axes: Axes) -> Array:
    """`reduced` repeated along the axes that a reduction of an array of `shape` removed."""
    return broadcast_in_dim(reduced, shape, [i for i in range(len(shape)) if i not in axes])


def _evaluate(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    def evaluate(operand: np.ndarray, *, axes: Axes) -> np.ndarray:
        if operand.dtype.itemsize == 2 and operand.dtype in dtypes.FLOATS and ufunc in (np.add, np.multiply):
            return ufunc.reduce(operand.astype(np.float32), axis=axes).astype(operand.dtype)
        return ufunc.reduce(operand, axis=axes, dtype=operand.dtype)

    return evaluate


# sum


reduce_sum_p = linear_primitive(
    "reduce_sum",
    _abstract("reduce_sum", dtypes.NUMBERS),
    _evaluate(np.add),
    lambda *_, **__: None,
    lambda ct, operand, *, axes: [_expand(ct, operand.shape, axes)],
    views=False,
)
reduce_sum_p.batch = _batch(reduce_sum_p)


def reduce_sum(operand: Any, axes: Sequence[int]) -> Array:
    """The sum of the elements along `axes` (float16 and bfloat16 accumulate in float32).

    >>> import volta_fn as vf
    >>> vf.lax.reduce_sum(vf.numpy.ones((2, 3)), (1,))
    Array([3., 3.], dtype=float32)
    """
    value = as_value(operand)
    kept = canonical_axes(tuple(axes), value.ndim)
    return current_trace().process(reduce_sum_p, (value,), {"axes": kept}) if kept else value


def _broadcast_transpose(ct: Any, operand: Linear, *, shape: Shape, broadcast_dimensions: Axes) -> list[Any]:
    summed = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    summed += [d for n, d in zip(operand.shape, broadcast_dimensions, strict=True) if n == 1 and shape[d] != 1]
    return [reshape(reduce_sum(ct, summed), operand.shape)]


broadcast_in_dim_p.transpose = _broadcast_transpose


# product


def _prod_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axes: Axes) -> tuple[Array, Any]:
    """The derivative of a product by each factor is the product of the others, built by halving so that zeros divide nothing."""
    (operand,), (tangent,) = primals, tangents
    out = bind(reduce_prod_p, operand, axes=axes)
    if type(tangent) is Zero:
        return out, Zero(out.aval.at_least_vspace())
    kept = [i for i in range(operand.ndim) if i not in axes]
    shape = (*[operand.shape[i] for i in kept], -1)
    order = (*kept, *axes)
    count = operand.size // max(out.size, 1)
    values, rates = (reshape(_transposed(v, order), shape if operand.size else (*shape[:-1], count)) for v in (operand, tangent))
    while values.shape[-1] > 1:
        values, rates = _halve(values, rates)
    if values.shape[-1] == 0:
        return out, Zero(out.aval.at_least_vspace())
    return out, reshape(rates, out.shape)


def _transposed(value: Array, order: Axes) -> Array:
    return bind(PRIMITIVES["transpose"], value, permutation=order)


def _halve(values: Array, rates: Array) -> tuple[Array, Array]:
    """Multiply neighbours along the last axis, by the product rule."""
    size = values.shape[-1]
    half, odd = size // 2, size % 2
    mul, add = PRIMITIVES["mul"], PRIMITIVES["add"]

    def cut(x: Array, start: int, limit: int) -> Array:
        starts, limits = (0,) * (x.ndim - 1), x.shape[:-1]
        return bind(PRIMITIVES["slice"], x, start_indices=(*starts, start), limit_indices=(*limits, limit), strides=None)

    left, right = cut(values, 0, half), cut(values, half, 2 * half)
    product = bind(mul, left, right)
    rate = bind(add, bind(mul, cut(rates, 0, half), right), bind(mul, left, cut(rates, half, 2 * half)))
    if not odd:
        return product, rate
    join = PRIMITIVES["concatenate"]
    axis = values.ndim - 1
    return (
        bind(join, product, cut(values, size - 1, size), dimension=axis),
        bind(join, rate, cut(rates, size - 1, size), dimension=axis),
    )


reduce_prod_p = Primitive("reduce_prod", _abstract("reduce_prod", dtypes.NUMBERS), evaluate=_evaluate(np.multiply), jvp=_prod_jvp)
reduce_prod_p.batch = _batch(reduce_prod_p)


def reduce_prod(operand: Any, axes: Sequence[int]) -> Array:
    """The product of the elements along `axes`.

    >>> import volta_fn as vf
    >>> vf.lax.reduce_prod(vf.numpy.array([[1, 2], [4, 3]]), (1,))
    Array([ 2, 12], dtype=int32)
    """
    value = as_value(operand)
    return bind(reduce_prod_p, value, axes=canonical_axes(tuple(axes), value.ndim))


# maximum and minimum


def _extremum_evaluate(ufunc: np.ufunc, start: Callable[[np.dtype], Any]) -> Callable[..., np.ndarray]:
    def evaluate(operand: np.ndarray, *, axes: Axes) -> np.ndarray:
        if not operand.size and any(operand.shape[a] == 0 for a in axes):
            return np.full(_reduced_shape(operand, axes), start(operand.dtype), operand.dtype)  # type: ignore[arg-type]  # only .shape is read
        return ufunc.reduce(operand, axis=axes)

    return evaluate


def _extremum_jvp(primitive: Primitive) -> Callable[..., Any]:
    """Among equal extremal elements the tangent is shared equally."""

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axes: Axes) -> tuple[Array, Any]:
        (operand,), (tangent,) = primals, tangents
        out = bind(primitive, operand, axes=axes)
        if type(tangent) is Zero or not operand.size:
            return out, Zero(out.aval.at_least_vspace())
        chosen = bind(PRIMITIVES["eq"], operand, _expand(out, operand.shape, axes))
        weights = bind(PRIMITIVES["convert_element_type"], chosen, new_dtype=operand.dtype, weak_type=False)
        total = bind(reduce_sum_p, bind(PRIMITIVES["mul"], tangent, weights), axes=axes)
        return out, bind(PRIMITIVES["div"], total, bind(reduce_sum_p, weights, axes=axes))

    return jvp


def _extremum(name: str, ufunc: np.ufunc, start: Callable[[np.dtype], Any]) -> Primitive:
    primitive = Primitive(name, _abstract(name, dtypes.ALL), evaluate=_extremum_evaluate(ufunc, start))
    primitive.jvp = _extremum_jvp(primitive)
    primitive.batch = _batch(primitive)
    return primitive


def lowest(dtype: np.dtype) -> Any:
    """The value that `max` of nothing gives: -inf, the smallest integer, or False."""
    if dtype in dtypes.INTEGERS:
        return dtypes.iinfo(dtype).min
    return False if dtype in dtypes.BOOL else -np.inf


def highest(dtype: np.dtype) -> Any:
    """The value that `min` of nothing gives: inf, the largest integer, or True."""
    if dtype in dtypes.INTEGERS:
        return dtypes.iinfo(dtype).max
    return True if dtype in dtypes.BOOL else np.inf


reduce_max_p = _extremum("reduce_max", np.maximum, lowest)
reduce_min_p = _extremum("reduce_min", np.minimum, highest)


def reduce_max(operand: Any, axes: Sequence[int]) -> Array:
    """The largest element along `axes`; NaN if there is one; -inf (or the smallest integer) of no elements.

    >>> import volta_fn as vf
    >>> vf.lax.reduce_max(vf.numpy.array([[1, 2], [4, 3]]), (1,))
    Array([2, 4], dtype=int32)
    """
    value = as_value(operand)
    return bind(reduce_max_p, value, axes=canonical_axes(tuple(axes), value.ndim))


def reduce_min(operand: Any, axes: Sequence[int]) -> Array:
    """The smallest element along `axes`; NaN if there is one; inf (or the largest integer) of no elements.

    >>> import volta_fn as vf
    >>> vf.lax.reduce_min(vf.numpy.array([[1, 2], [4, 3]]), (1,))
    Array([1, 3], dtype=int32)
    """
    value = as_value(operand)
    return bind(reduce_min_p, value, axes=canonical_axes(tuple(axes), value.ndim))


# logic


def _logical(name: str, ufunc: np.ufunc) -> Primitive:
    primitive = Primitive(name, _abstract(name, dtypes.BOOL | dtypes.INTEGERS), evaluate=_evaluate(ufunc))
    primitive.batch = _batch(primitive)

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axes: Axes) -> tuple[Array, Any]:
        out = bind(primitive, *primals, axes=axes)
        return out, Zero(out.aval.at_least_vspace())

    primitive.jvp = jvp
    return primitive


reduce_and_p = _logical("reduce_and", np.bitwise_and)
reduce_or_p = _logical("reduce_or", np.bitwise_or)
reduce_xor_p = _logical("reduce_xor", np.bitwise_xor)


def reduce_and(operand: Any, axes: Sequence[int]) -> Array:
    """Bitwise (for bool: logical) "and" of the elements along `axes`.

    >>> import volta_fn as vf
    >>> vf.lax.reduce_and(vf.numpy.array([[True, False], [True, True]]), (1,))
    Array([False,  True], dtype=bool)
    """
    value = as_value(operand)
    return bind(reduce_and_p, value, axes=canonical_axes(tuple(axes), value.ndim))


def reduce_or(operand: Any, axes: Sequence[int]) -> Array:
    """Bitwise (for bool: logical) "or" of the elements along `axes`.

    >>> import volta_fn as vf
    >>> vf.lax.reduce_or(vf.numpy.array([[True, False], [False, False]]), (1,))
    Array([ True, False], dtype=bool)
    """
    value = as_value(operand)
    return bind(reduce_or_p, value, axes=canonical_axes(tuple(axes), value.ndim))


def reduce_xor(operand: Any, axes: Sequence[int]) -> Array:
    """Bitwise (for bool: logical) "exclusive or" of the elements along `axes`.

    >>> import volta_fn as vf
    >>> vf.lax.reduce_xor(vf.numpy.array([5, 3]), (0,))
    Array(6, dtype=int32)
    """
    value = as_value(operand)
    return bind(reduce_xor_p, value, axes=canonical_axes(tuple(axes), value.ndim))
