"""Short functions of `jax.lax` that are compositions of primitives and need no rule of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import canonical_shape
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives import arithmetic, comparison
from volta_fn.primitives.cast import convert_element_type
from volta_fn.primitives.joining import concatenate
from volta_fn.primitives.movement import (
    broadcast,
    broadcast_in_dim,
    broadcast_to,
    canonical_axes,
    canonical_axis,
    expand_dims,
    reshape,
    transpose,
)
from volta_fn.primitives.reduction import (
    highest,
    lowest,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
    reduce_xor,
)
from volta_fn.primitives.slicing import index_in_dim, slice_in_dim


def full(shape: Sequence[int] | int, fill_value: Any, dtype: Any = None) -> Array:
    """An array of `shape` with every element equal to the scalar `fill_value`.

    >>> import volta_fn as vf
    >>> vf.lax.full((2,), 7, "float32")
    Array([7., 7.], dtype=float32)
    """
    value = as_value(fill_value)
    if value.shape:
        raise ShapeError(f"full: the fill value must be a scalar, got an array of shape {value.shape}")
    wanted = value.dtype if dtype is None else dtypes.as_dtype(dtype)
    return broadcast(convert_element_type(value, wanted), canonical_shape(shape))


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None) -> Array:
    """An array like `x` in shape and dtype (unless given) with every element equal to `fill_value`."""
    value = as_value(x)
    return full(value.shape if shape is None else shape, fill_value, value.dtype if dtype is None else dtype)


def empty(shape: Sequence[int] | int, dtype: Any = "float32") -> Array:
    """An array of zeros: immutable arrays have no use for uninitialised memory."""
    return full(shape, 0, dtype)


def square(x: Any) -> Array:
    """x * x, element by element."""
    value = as_value(x)
    return arithmetic.mul(value, value)


def reciprocal(x: Any) -> Array:
    """1 / x, element by element."""
    return arithmetic.integer_pow(x, -1)


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """The dimensions from `start_dimension` up to (not including) `stop_dimension` merged into one."""
    value = as_value(operand)
    start, stop, _ = slice(start_dimension, stop_dimension).indices(value.ndim)
    if stop < start:
        raise ShapeError(f"collapse: dimensions {start_dimension} to {stop_dimension} of an array of shape {value.shape} are in no order")
    merged = math.prod(value.shape[start:stop])
    return reshape(value, (*value.shape[:start], merged, *value.shape[stop:]))


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """The pieces of the given sizes, which add up to the dimension's, along `axis`."""
    value = as_value(operand)
    dim = canonical_axis(axis, value.ndim)
    lengths = canonical_shape(sizes, "sizes")
    if sum(lengths) != value.shape[dim]:
        raise ShapeError(f"split: sizes {lengths} do not add up to dimension {dim} of shape {value.shape}")
    ends = np.cumsum(lengths)
    return [slice_in_dim(value, int(end - length), int(end), 1, dim) for end, length in zip(ends, lengths, strict=True)]


def stack(operands: Sequence[Any], axis: int = 0) -> Array:
    """Arrays of one shape and dtype along a new dimension."""
    values = [as_value(o) for o in operands]
    if not values:
        raise ShapeError("stack needs at least one array")
    dim = canonical_axis(axis, values[0].ndim + 1)
    return concatenate([expand_dims(v, (dim,)) for v in values], dim)


def unstack(x: Any, axis: int = 0) -> list[Array]:
    """The arrays along a dimension, which they lose."""
    value = as_value(x)
    dim = canonical_axis(axis, value.ndim)
    return [index_in_dim(value, i, dim, keepdims=False) for i in range(value.shape[dim])]


def tile(operand: Any, reps: Sequence[int]) -> Array:
    """`operand` repeated ``reps[i]`` times along dimension i."""
    value = as_value(operand)
    counts = canonical_shape(reps, "reps")
    if len(counts) != value.ndim:
        raise ShapeError(f"tile: reps {counts} needs one entry per dimension of shape {value.shape}")
    shape = [n for pair in zip(counts, value.shape, strict=True) for n in pair]
    repeated = broadcast_in_dim(value, shape, range(1, 2 * value.ndim, 2))
    return reshape(repeated, [c * n for c, n in zip(counts, value.shape, strict=True)])


def broadcast_to_rank(x: Any, rank: int) -> Array:
    """`x` with leading dimensions of size 1, up to `rank` of them in all."""
    value = as_value(x)
    if rank < value.ndim:
        raise ShapeError(f"broadcast_to_rank: an array of shape {value.shape} has more than {rank} dimensions")
    return reshape(value, ((1,) * (rank - value.ndim)) + value.shape)


def broadcast_like(arr: Any, like_arr: Any) -> Array:
    """`arr` broadcast to the shape of `like_arr`."""
    return broadcast_to(as_value(arr), as_value(like_arr).shape)


#: The reductions that `reduce` knows by the function that combines two elements: the reduction, and its value for no elements.
_MONOIDS: dict[Any, tuple[Callable[..., Array], Callable[[np.dtype], Any]]] = {
    arithmetic.add: (reduce_sum, lambda dtype: 0),
    arithmetic.mul: (reduce_prod, lambda dtype: 1),
    arithmetic.max: (reduce_max, lowest),
    arithmetic.min: (reduce_min, highest),
    comparison.bitwise_and: (
        reduce_and,
        lambda dtype: True if dtype in dtypes.BOOL else dtypes.iinfo(dtype).max if dtype in dtypes.UNSIGNED else -1,
    ),
    comparison.bitwise_or: (reduce_or, lambda dtype: 0),
    comparison.bitwise_xor: (reduce_xor, lambda dtype: 0),
}


def reduce(operand: Any, init_value: Any, computation: Callable[..., Any], dimensions: Sequence[int]) -> Array:
    """The elements along `dimensions` combined by `computation`, beginning with `init_value`.

    `computation` is one of `lax.add`, `mul`, `max`, `min`, `bitwise_and`, `bitwise_or`, `bitwise_xor`, which have kernels, or any
    associative function of two arrays, which is applied to halves. Raises `ShapeError` if `init_value` is no scalar.

    >>> import volta_fn as vf
    >>> vf.lax.reduce(vf.numpy.array([1, 2, 3]), 0, vf.lax.add, (0,))
    Array(6, dtype=int32)
    """
    value = as_value(operand)
    start = as_value(init_value)
    if start.shape:
        raise ShapeError(f"reduce: init_value must be a scalar, got an array of shape {start.shape}")
    if start.dtype != value.dtype and not start.weak_type:
        raise ArgumentError(f"reduce: operand has dtype {value.dtype.name} and init_value {start.dtype.name}; they must agree")
    start = convert_element_type(start, value.dtype)
    axes = canonical_axes(tuple(dimensions), value.ndim, "dimensions")
    found = _MONOIDS.get(computation)
    if found is None:
        return _reduce_by_halves(value, start, computation, axes)
    reduction, identity = found
    reduced = reduction(value, axes)
    if not isinstance(start, Tracer) and start == as_value(np.asarray(identity(value.dtype), value.dtype)):
        return reduced
    return computation(start, reduced)


def _reduce_by_halves(value: Array, start: Array, computation: Callable[..., Any], axes: Sequence[int]) -> Array:
    kept = [i for i in range(value.ndim) if i not in axes]
    shape = [value.shape[i] for i in kept]
    rest = reshape(transpose(value, (*axes, *kept)), (math.prod(value.shape[i] for i in axes), *shape))
    while rest.shape[0] > 1:
        half = rest.shape[0] // 2
        combined = as_value(computation(slice_in_dim(rest, 0, half), slice_in_dim(rest, half, 2 * half)))
        rest = combined if rest.shape[0] % 2 == 0 else concatenate([combined, slice_in_dim(rest, 2 * half, 2 * half + 1)], 0)
    first = broadcast(start, shape)
    return as_value(computation(first, reshape(rest, shape))) if rest.shape[0] else first
