"""Slicing and concatenation along the axes of arrays."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray, as_integer
from volta_fn.core.dimension import max_dim, span, surely_less
from volta_fn.core.primitive import PRIMITIVES, AxisData, Linear, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import (
    batch_in_front,
    broadcast,
    canonical_axis,
    linear_jvp,
    linear_primitive,
    moveaxis,
    reshape,
)
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.reduction import reduce_sum

# Slices with bounds known while tracing, whose transpose is `pad`.

Ints = tuple[int, ...]


# slice


def _slice_abstract(operand: ShapedArray, *, start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> ShapedArray:
    steps = strides or (1,) * operand.ndim
    if not len(start_indices) == len(limit_indices) == len(steps) == operand.ndim:
        raise ShapeError(
            f"slice needs one start, limit and stride per dimension of {operand}, got {start_indices}, {limit_indices}, {strides}"
        )
    for i, (start, limit, step) in enumerate(zip(start_indices, limit_indices, steps, strict=True)):
        if surely_less(start, 0) or surely_less(limit, start) or surely_less(operand.shape[i], limit) or surely_less(step, 1):
            raise ShapeError(f"slice {start}:{limit}:{step} does not fit dimension {i} of shape {operand.shape}")
    sizes = [(limit - start + step - 1) // step for start, limit, step in zip(start_indices, limit_indices, steps, strict=True)]
    return operand.update(shape=tuple(sizes))


@lru_cache(maxsize=1024)
def _slices(start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> tuple[builtins.slice, ...]:
    steps = strides or (1,) * len(start_indices)
    return tuple([builtins.slice(*bounds) for bounds in zip(start_indices, limit_indices, steps, strict=True)])


def _slice_transpose(ct: Any, operand: Linear, *, start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> list[Any]:
    steps = strides or (1,) * operand.ndim
    config = []
    for size, cut, start, step in zip(operand.shape, ct.shape, start_indices, steps, strict=True):
        covered = start + (cut - 1) * step + 1 if cut else start
        config.append((start, size - covered, step - 1))
    return [pad(ct, np.zeros((), operand.dtype), config)]


slice_p = linear_primitive(
    "slice",
    _slice_abstract,
    lambda operand, *, start_indices, limit_indices, strides: operand[_slices(start_indices, limit_indices, strides)],
    batch_in_front(
        lambda size, start_indices, limit_indices, strides: {
            "start_indices": (0, *start_indices),
            "limit_indices": (size, *limit_indices),
            "strides": strides and (1, *strides),
        }
    ),
    _slice_transpose,
)


def slice(operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None) -> Array:
    """Return the elements from `start_indices` up to `limit_indices`.

    The limits are not included; every `strides`-th element is taken. Raises `ShapeError` when the bounds do not fit: nothing is clamped
    silently.

    >>> vf.lax.slice(vf.numpy.arange(10), (2,), (8,), (3,))
    Array([2, 5], dtype=int32)
    """
    value = as_value(operand)
    starts, limits = (tuple([as_integer(i, "slice: a bound") for i in bounds]) for bounds in (start_indices, limit_indices))
    steps = None if strides is None or all(s == 1 for s in strides) else tuple([as_integer(s, "slice: a stride") for s in strides])
    return bind(slice_p, value, start_indices=starts, limit_indices=limits, strides=steps)


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Array:
    """Slice one dimension; indices may be negative or None as in Python.

    >>> vf.lax.slice_in_dim(vf.numpy.arange(6), 1, 6, 2)
    Array([1, 3, 5], dtype=int32)
    """
    value = as_value(operand)
    dim = canonical_axis(axis, value.ndim)
    start, limit, *_ = span(builtins.slice(start_index, limit_index), value.shape[dim])
    starts, limits, steps = [0] * value.ndim, list(value.shape), [1] * value.ndim
    starts[dim], limits[dim], steps[dim] = start, max_dim(start, limit), stride
    return slice(value, starts, limits, steps)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the elements at `index` along one dimension.

    The dimension stays with size 1 if `keepdims`.

    >>> vf.lax.index_in_dim(vf.numpy.array([[1, 2], [3, 4]]), 1, 1, keepdims=False)
    Array([2, 4], dtype=int32)
    """
    value = as_value(operand)
    dim = canonical_axis(axis, value.ndim)
    size = value.shape[dim]
    if not -size <= index < size:
        raise ShapeError(f"index {index} is out of bounds for dimension {dim} of shape {value.shape}")
    start = index % size
    row = slice_in_dim(value, start, start + 1, 1, dim)
    return row if keepdims else reshape(row, value.shape[:dim] + value.shape[dim + 1 :])


# Joining and padding: concatenate, pad. Linear in every array operand.

PaddingConfig = tuple[tuple[int, int, int], ...]


# concatenate


def _concatenate_abstract(*operands: ShapedArray, dimension: int) -> ShapedArray:
    first = operands[0]
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise DTypeError(f"concatenate needs one dtype, got {', '.join(map(str, operands))}")
        agree = all(a == b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=False)) if i != dimension)
        if other.ndim != first.ndim or not agree:
            raise ShapeError(
                f"concatenate along dimension {dimension} needs shapes that agree elsewhere, "
                f"got {', '.join(str(o.shape) for o in operands)}. "
                "Join along another dimension, pad or cut the arrays, or join those of equal shapes along a new one with stack."
            )
    shape = list(first.shape)
    shape[dimension] = sum(o.shape[dimension] for o in operands)
    return ShapedArray(tuple(shape), first.dtype, all(o.weak_type for o in operands))


def _concatenate_transpose(ct: Any, *operands: Any, dimension: int) -> list[Any]:
    results: list[Any] = []
    start = 0
    for operand in operands:
        limit = start + operand.shape[dimension]
        if type(operand) is Linear:
            starts, limits = [0] * ct.ndim, list(ct.shape)
            starts[dimension], limits[dimension] = start, limit
            results.append(slice(ct, starts, limits))
        else:
            results.append(None)
        start = limit
    return results


concatenate_p = Primitive(
    "concatenate",
    _concatenate_abstract,
    evaluate=lambda *operands, dimension, out=None: np.concatenate(operands, dimension, out),
    jvp=linear_jvp(),
    transpose=_concatenate_transpose,
    batch=batch_in_front(lambda size, dimension: {"dimension": dimension + 1}),
)


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Join arrays along an existing dimension.

    Their dtypes and other dimensions must agree.

    >>> vf.lax.concatenate([vf.numpy.zeros(2), vf.numpy.ones(1)], 0)
    Array([0., 0., 1.], dtype=float32)
    """
    values = [as_value(o) for o in operands]
    if not values:
        raise ShapeError("concatenate needs at least one array")
    if not values[0].shape:
        raise ShapeError("zero-dimensional arrays cannot be concatenated; stack them instead")
    dim = canonical_axis(dimension, values[0].ndim, "dimension")
    return values[0] if len(values) == 1 else bind(concatenate_p, *values, dimension=dim)


# pad


def _pad_abstract(operand: ShapedArray, padding_value: ShapedArray, *, padding_config: PaddingConfig) -> ShapedArray:
    if operand.dtype != padding_value.dtype or padding_value.shape:
        raise DTypeError(f"pad needs a zero-dimensional padding value of dtype {operand.dtype.name}, got {padding_value}")
    if len(padding_config) != operand.ndim or any(interior < 0 for _, _, interior in padding_config):
        raise ShapeError(f"pad needs (low, high, interior >= 0) per dimension of {operand}, got {padding_config}")
    sizes = [lo + hi + max_dim(n + (n - 1) * interior, 0) for n, (lo, hi, interior) in zip(operand.shape, padding_config, strict=True)]
    if any(s < 0 for s in sizes):
        raise ShapeError(f"padding {padding_config} cuts more than the shape {operand.shape} has")
    return ShapedArray(tuple(sizes), operand.dtype, operand.weak_type and padding_value.weak_type)


@lru_cache(maxsize=1024)
def _pad_slices(shape: Shape, padding_config: PaddingConfig) -> tuple[Shape, tuple[builtins.slice, ...], tuple[builtins.slice, ...]]:
    """Return the result's shape, and the operand's slice and its offset in it."""
    sizes, source, target = [], [], []
    for n, (lo, hi, interior) in zip(shape, padding_config, strict=True):
        step = interior + 1
        size = lo + hi + max(n + (n - 1) * interior, 0)
        first = max(0, -(-max(-lo, 0) // step))
        last = min(n, max(-(-(size - lo) // step), 0)) if n else 0
        sizes.append(size)
        source.append(np.s_[first : max(first, last)])
        begin = lo + first * step
        target.append(np.s_[begin : begin + (max(last - first, 1) - 1) * step + 1 : step] if last > first else np.s_[0:0])
    return tuple(sizes), tuple(source), tuple(target)


def _pad_evaluate(
    operand: np.ndarray, padding_value: np.ndarray, *, padding_config: PaddingConfig, out: np.ndarray | None = None
) -> np.ndarray:
    shape, source, target = _pad_slices(operand.shape, padding_config)
    out = np.empty(shape, operand.dtype) if out is None else out
    out[...] = padding_value
    out[target] = operand[source]
    return out


def _pad_transpose(ct: Any, operand: Any, padding_value: Any, *, padding_config: PaddingConfig) -> list[Any]:
    inner = ct_value = None
    if type(operand) is Linear:
        # The operand's elements; zero where it was cut.
        cut = pad(ct, np.zeros((), ct.dtype), [(-lo, -hi, 0) for lo, hi, _ in padding_config])
        inner = slice(cut, [0] * cut.ndim, cut.shape, [interior + 1 for _, _, interior in padding_config])
    if type(padding_value) is Linear:
        # A sum of the other elements alone: a difference of sums cancels, and is NaN where the operand's cotangents are infinite.
        is_operand = _operand_mask(operand.shape, padding_config)
        padding = bind(PRIMITIVES["select_n"], is_operand, ct, broadcast(as_value(np.zeros((), ct.dtype)), ct.shape))
        ct_value = reduce_sum(padding, range(ct.ndim))
    return [inner, ct_value]


def _operand_mask(shape: Shape, padding_config: PaddingConfig) -> Array:
    """Return which elements of a padded array are the operand's."""
    return bind(pad_p, broadcast(as_value(np.True_), shape), as_value(np.False_), padding_config=padding_config)


def _pad_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, padding_config: PaddingConfig) -> tuple[Array, int]:
    (operand, value), (dim, value_dim) = args, dims
    if value_dim is None:
        front = moveaxis(operand, dim or 0, 0)
        return bind(pad_p, front, value, padding_config=((0, 0, 0), *padding_config)), 0
    stacked = broadcast(operand, (axis.size,)) if dim is None else moveaxis(operand, dim, 0)
    config = ((0, 0, 0), *padding_config)
    padded = bind(pad_p, stacked, as_value(np.zeros((), operand.dtype)), padding_config=config)
    fill = reshape(value, (axis.size, *(1,) * (padded.ndim - 1)))
    return bind(PRIMITIVES["select_n"], _operand_mask(stacked.shape, config), fill, padded), 0


pad_p = Primitive("pad", _pad_abstract, evaluate=_pad_evaluate, jvp=linear_jvp(), transpose=_pad_transpose, batch=_pad_batch)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Array:
    """Pad `operand` with elements of `padding_value` before, after and between.

    The configuration is (low, high, interior) per dimension; negative numbers cut.

    >>> vf.lax.pad(vf.numpy.array([1, 2]), vf.numpy.array(0), [(1, 2, 1)])
    Array([0, 1, 0, 2, 0, 0], dtype=int32)
    """
    value = as_value(operand)
    fill = as_value(padding_value)
    if fill.weak_type and fill.dtype != value.dtype:
        fill = convert_element_type(fill, value.dtype, weak_type=True)
    config = tuple([(as_integer(lo, "pad"), as_integer(hi, "pad"), as_integer(interior, "pad")) for lo, hi, interior in padding_config])
    if not any(any(c) for c in config) and len(config) == value.ndim and fill.dtype == value.dtype and not fill.shape:
        return value
    return bind(pad_p, value, fill, padding_config=config)
