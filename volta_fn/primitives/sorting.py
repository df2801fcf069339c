"""Sorting, the greatest k, and the indices of extremes.

Floating-point numbers order totally: -0.0 equals 0.0, and every NaN is the greatest and equals every other. Derivatives are permuted as the
elements are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray, as_integer
from volta_fn.core.dimension import fits
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, AxisError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.gather import take_along_dim
from volta_fn.primitives.data_movement.movement import batch_in_front, broadcasted_iota, canonical_axis, no_tangents, zero_jvp
from volta_fn.primitives.elementwise.arithmetic import neg
from volta_fn.primitives.elementwise.cast import convert_element_type, decoded
from volta_fn.primitives.reduction import reduce_max, reduce_min

INT32 = np.dtype(np.int32)


# sort


def _sort_abstract(*operands: ShapedArray, dimension: int, is_stable: bool, num_keys: int) -> tuple[ShapedArray, ...]:
    if any(o.shape != operands[0].shape for o in operands):
        raise ShapeError(f"sort needs operands of one shape, got {', '.join(map(str, operands))}")
    if not 0 <= dimension < operands[0].ndim:
        raise AxisError(f"sort: dimension {dimension} is out of range for operands of shape {operands[0].shape}")
    if not 1 <= num_keys <= len(operands):
        raise ArgumentError(f"sort: num_keys must be between 1 and the number of operands, {len(operands)}, got {num_keys}")
    return operands


def _sort_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, dimension: int, **params: Any) -> tuple[Sequence[Array], list[Any]]:
    if all(type(t) is Zero for t in tangents):
        return no_tangents(bind(sort_p, *primals, dimension=dimension, **params))
    indices = broadcasted_iota(INT32 if primals[0].shape[dimension] < 2**31 else np.dtype(np.int64), primals[0].shape, dimension)
    *outs, origins = bind(sort_p, *primals, indices, dimension=dimension, **params)
    permuted = [t if type(t) is Zero else take_along_dim(t, origins, dimension) for t in tangents]
    return outs, permuted


_SORT_BATCH = batch_in_front(lambda size, dimension, **params: {"dimension": dimension + 1, **params})
sort_p = Primitive("sort", _sort_abstract, jvp=_sort_jvp, batch=_SORT_BATCH, multiple_results=True)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sort `operand` along `dimension`, ascending.

    Of several arrays (a sequence) all are permuted as the first `num_keys` demand. Keys are compared in turn, complex numbers by real part
    and then by imaginary part; NaN comes last. Returns an array for an array, a tuple for a sequence. Raises `ShapeError` if shapes differ
    or there is no such dimension.

    >>> vf.lax.sort([vf.numpy.array([2, 1, 2]), vf.numpy.array([7.0, 8.0, 5.0])], num_keys=2)
    (Array([1, 2, 2], dtype=int32), Array([8., 5., 7.], dtype=float32))
    """
    is_sequence = isinstance(operand, (list, tuple))
    values = [as_value(o) for o in operand] if is_sequence else [as_value(operand)]
    if not values or not values[0].shape:
        raise ShapeError("sort needs at least one operand, and operands with at least one dimension")
    dim = canonical_axis(dimension, values[0].ndim, "dimension")
    keys = [decoded(value) for value in values[:num_keys]]
    outs = bind(sort_p, *keys, *values[num_keys:], dimension=dim, is_stable=bool(is_stable), num_keys=int(num_keys))
    outs = [convert_element_type(out, value.dtype, out.weak_type) for out, value in zip(outs, values, strict=True)]
    return tuple(outs) if is_sequence else outs[0]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Array, Array]:
    """Sort `keys` along `dimension`, and permute `values` in the same way.

    >>> vf.lax.sort_key_val(vf.numpy.array([3, 1, 2]), vf.numpy.array([0, 1, 2]))
    (Array([1, 2, 3], dtype=int32), Array([1, 2, 0], dtype=int32))
    """
    sorted_keys, permuted_values = sort((keys, values), dimension, is_stable)
    return sorted_keys, permuted_values


# top_k


def _top_k_abstract(operand: ShapedArray, *, k: int, axis: int) -> tuple[ShapedArray, ShapedArray]:
    if operand.dtype in dtypes.COMPLEX:
        raise DTypeError(f"top_k is not defined for {operand.dtype.name}, which has no order; take the real part or the absolute value")
    if not 0 <= axis < operand.ndim or not 0 <= k <= operand.shape[axis]:
        raise ShapeError(f"top_k: k={k} must be between 0 and the size of axis {axis} of the operand, whose shape is {operand.shape}")
    if not fits(operand.shape[axis], np.iinfo(INT32).max):
        raise ShapeError(f"top_k: indices are int32, which axis {axis} of shape {operand.shape} exceeds; split it")
    shape = (*operand.shape[:axis], k, *operand.shape[axis + 1 :])
    return operand.update(shape=shape), ShapedArray(shape, INT32)


def _top_k_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, k: int, axis: int) -> tuple[tuple[Array, Array], list[Any]]:
    values, indices = bind(top_k_p, *primals, k=k, axis=axis)
    (tangent,) = tangents
    permuted = Zero(values.aval.tangent_aval()) if type(tangent) is Zero else take_along_dim(tangent, indices, axis)
    return (values, indices), [permuted, Zero(indices.aval.tangent_aval())]


_TOP_K_BATCH = batch_in_front(lambda size, k, axis: {"k": k, "axis": axis + 1})
top_k_p = Primitive("top_k", _top_k_abstract, jvp=_top_k_jvp, batch=_TOP_K_BATCH, multiple_results=True)


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """Return the `k` greatest elements along `axis`, and their int32 indices.

    The greatest comes first; of equals the one with the lower index. NaN counts as greatest. Raises `ShapeError` if there are fewer than
    `k`.

    >>> vf.lax.top_k(vf.numpy.array([3.0, 9.0, 5.0]), 2)
    (Array([9., 5.], dtype=float32), Array([1, 2], dtype=int32))
    """
    value = as_value(operand)
    if not value.shape:
        raise ShapeError("top_k needs an operand with at least one dimension, got a scalar")
    values, indices = bind(top_k_p, decoded(value), k=as_integer(k, "top_k: k"), axis=canonical_axis(axis, value.ndim))
    return convert_element_type(values, value.dtype, values.weak_type), indices


def approx_max_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """Return the `k` greatest elements along a dimension, and their indices.

    They are exact, so JAX's options of approximation change nothing.

    >>> vf.lax.approx_max_k(vf.numpy.array([3.0, 1.0, 2.0]), 2)
    (Array([3., 2.], dtype=float32), Array([0, 2], dtype=int32))
    """
    return top_k(operand, k, axis=reduction_dimension)


def approx_min_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """Return the `k` least elements along a dimension, and their indices.

    They are of floating-point dtype, the least first; otherwise as `approx_max_k`.

    >>> vf.lax.approx_min_k(vf.numpy.array([3.0, 9.0, 5.0]), 2)
    (Array([3., 5.], dtype=float32), Array([0, 2], dtype=int32))
    """
    values, indices = top_k(neg(operand), k, axis=reduction_dimension)
    return neg(values), indices


# argmax and argmin


def _declare_extreme(name: str, value: Primitive) -> Primitive:
    def abstract(operand: ShapedArray, *, axes: tuple[int, ...], index_dtype: np.dtype) -> ShapedArray:
        if operand.dtype in dtypes.COMPLEX:
            raise DTypeError(
                f"{name} is not defined for {operand.dtype.name}, which has no order; take the real part or the absolute value"
            )
        if index_dtype not in dtypes.INTEGERS:
            raise DTypeError(f"{name}: index_dtype must be an integer dtype, got {index_dtype.name}")
        if len(axes) != 1 or not 0 <= axes[0] < operand.ndim or not operand.shape[axes[0]]:
            raise ShapeError(f"{name} needs one axis, of at least one element, of an operand of shape {operand.shape}; got axes {axes}")
        if not fits(operand.shape[axes[0]] - 1, np.iinfo(index_dtype).max):
            raise ShapeError(
                f"{name}: positions along axis {axes[0]} of shape {operand.shape} do not fit {index_dtype.name}; use a wider one"
            )
        return ShapedArray(operand.shape[: axes[0]] + operand.shape[axes[0] + 1 :], index_dtype)

    assert value.reduction is not None
    batch = batch_in_front(lambda size, axes, **params: {"axes": (axes[0] + 1,), **params})
    return Primitive(name, abstract, jvp=zero_jvp, batch=batch, reduction=value.reduction._replace(index_of=value.name))


argmax_p = _declare_extreme("argmax", reduce_max.primitive)
argmin_p = _declare_extreme("argmin", reduce_min.primitive)


def _extreme(primitive: Primitive, operand: Any, axis: int, index_dtype: Any) -> Array:
    value = as_value(operand)
    return bind(primitive, value, axes=(canonical_axis(axis, value.ndim),), index_dtype=dtypes.as_dtype(index_dtype))


def argmax(operand: Any, axis: int, index_dtype: Any = INT32) -> Array:
    """Return the index of the first greatest element along `axis`; NaN wins.

    Raises `ShapeError` along an axis without elements.

    >>> vf.lax.argmax(vf.numpy.array([1.0, 3.0, 3.0]), 0, "int32")
    Array(1, dtype=int32)
    """
    return _extreme(argmax_p, operand, axis, index_dtype)


def argmin(operand: Any, axis: int, index_dtype: Any = INT32) -> Array:
    """Return the index of the first least element along `axis`; NaN wins.

    Raises `ShapeError` along an axis without elements.

    >>> vf.lax.argmin(vf.numpy.array([3, 1, 2]), 0)
    Array(1, dtype=int32)
    """
    return _extreme(argmin_p, operand, axis, index_dtype)
