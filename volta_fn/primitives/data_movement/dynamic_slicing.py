"""Slices of known sizes that start at indices known only at run time.

A start that would let the block reach outside is moved so that the block lies inside, as in JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray, canonical_shape
from volta_fn.core.primitive import AxisData, Linear, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentTypeError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.gather import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    canonical_index,
    gather_p,
    scatter_p,
)
from volta_fn.primitives.data_movement.movement import (
    broadcast,
    canonical_axis,
    expand_dims,
    iota,
    linear_jvp,
    moveaxis,
    reshape,
    squeeze,
    stacked_in_front,
)
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.primitives.declare import weakly_promoted
from volta_fn.primitives.elementwise import arithmetic
from volta_fn.primitives.elementwise.cast import convert_element_type


def ds(start: Any, size: int | None = None, stride: int | None = None) -> slice | Array:
    """Return an index for `size` elements from `start`, which may be traced.

    They are `stride` apart. Without a size there are `start` elements from the first; None stands for all elements.

    >>> vf.numpy.arange(10)[ds(2, 3)]
    Array([2, 3, 4], dtype=int32)
    """
    if start is None:
        return slice(None)
    if size is None:
        start, size = 0, start
    stride = 1 if stride is None else stride
    if isinstance(start, (int, np.integer)):
        return slice(int(start), int(start) + size * stride, stride)
    first = as_value(start)
    return first + iota(first.dtype, size) * stride


CLIP = GatherScatterMode.CLIP


def _check_block(name: str, operand: ShapedArray, starts: Sequence[ShapedArray], sizes: Shape, block: str) -> None:
    if len(starts) != operand.ndim or len(sizes) != operand.ndim:
        raise ShapeError(
            f"{name} needs one start index and one size per dimension: got operand {operand}, {len(starts)} start_indices, {block} {sizes}"
        )
    if any(not 0 <= size <= full for size, full in zip(sizes, operand.shape, strict=True)):
        raise ShapeError(f"{name}: {block} {sizes} must fit into the operand's shape {operand.shape}")
    for start in starts:
        if start.shape or start.dtype not in dtypes.INTEGERS:
            raise DTypeError(f"{name}: start_indices must be zero-dimensional integers, got {', '.join(map(str, starts))}")


def _stacked_starts(axis: AxisData, starts: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int | None]:
    """Return the starts as index vectors, and the dimension of the examples.

    That is the one along which the starts of several examples are stacked.
    """
    wide = any(s.dtype.itemsize == 8 or s.dtype == np.uint32 for s in starts)
    columns = [convert_element_type(s, np.int64 if wide else np.int32) for s in starts]
    if all(d is None for d in dims):
        return concatenate([reshape(c, (1,)) for c in columns], 0), None
    columns = [broadcast(c, (axis.size,)) if d is None else c for c, d in zip(columns, dims, strict=True)]
    return concatenate([reshape(c, (axis.size, 1)) for c in columns], 1), 0


def _zero_index() -> Array:
    return as_value(np.zeros((), np.int32))


# dynamic_slice


def _slice_abstract(operand: ShapedArray, *starts: ShapedArray, slice_sizes: Shape) -> ShapedArray:
    _check_block("dynamic_slice", operand, starts, slice_sizes, "slice_sizes")
    return operand.update(shape=slice_sizes)


def _slice_transpose(ct: Any, operand: Linear, *starts: Array, slice_sizes: Shape) -> list[Any]:
    zeros = broadcast(as_value(np.zeros((), ct.dtype)), operand.shape)
    return [bind(dynamic_update_slice_p, zeros, ct, *starts), *[None] * len(starts)]


def _slice_accumulate(total: Array, ct: Array, operand: Linear, *starts: Array, slice_sizes: Shape) -> Array:
    old = bind(dynamic_slice_p, total, *starts, slice_sizes=slice_sizes)
    return bind(dynamic_update_slice_p, total, arithmetic.add(old, ct), *starts)


def _slice_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, slice_sizes: Shape) -> tuple[Array, int]:
    operand, *starts = args
    if all(d is None for d in dims[1:]):
        front = moveaxis(operand, dims[0] or 0, 0)
        return bind(dynamic_slice_p, front, _zero_index(), *starts, slice_sizes=(axis.size, *slice_sizes)), 0
    indices, indices_dim = _stacked_starts(axis, starts, dims[1:])
    all_dims = tuple(range(len(slice_sizes)))
    return gather_p.batch(  # type: ignore[misc]  # it has a batching rule
        axis, (operand, indices), (dims[0], indices_dim), slice_sizes=slice_sizes, mode=CLIP, fill_value=None,
        dimension_numbers=GatherDimensionNumbers(all_dims, (), all_dims),
    )  # fmt: skip


dynamic_slice_p = Primitive(
    "dynamic_slice",
    _slice_abstract,
    jvp=linear_jvp(0),
    transpose=_slice_transpose,
    accumulate=_slice_accumulate,
    batch=_slice_batch,
    views=True,
)


# dynamic_update_slice


def _update_abstract(operand: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> ShapedArray:
    _check_block("dynamic_update_slice", operand, starts, update.shape, "update of shape")
    if operand.dtype != update.dtype:
        raise DTypeError(
            f"dynamic_update_slice needs operand and update of one dtype, got {operand} and {update}; convert with lax.convert_element_type"
        )
    return ShapedArray(operand.shape, operand.dtype, operand.weak_type and update.weak_type)


def _update_transpose(ct: Any, operand: Any, update: Any, *starts: Array) -> list[Any]:
    ct_operand = ct_update = None
    if type(operand) is Linear:
        nothing = broadcast(as_value(np.zeros((), ct.dtype)), update.shape)
        ct_operand = bind(dynamic_update_slice_p, ct, nothing, *starts)
    if type(update) is Linear:
        ct_update = bind(dynamic_slice_p, ct, *starts, slice_sizes=update.shape)
    return [ct_operand, ct_update, *[None] * len(starts)]


def _update_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int]:
    operand, update, *starts = args
    if all(d is None for d in dims[2:]):
        return bind(dynamic_update_slice_p, *stacked_in_front(axis, args[:2], dims[:2]), _zero_index(), *starts), 0
    indices, indices_dim = _stacked_starts(axis, starts, dims[2:])
    everything = tuple(range(len(starts)))
    return scatter_p.batch(  # type: ignore[misc]  # it has a batching rule
        axis, (operand, indices, update), (dims[0], indices_dim, dims[1]), mode=CLIP, unique_indices=True,
        dimension_numbers=ScatterDimensionNumbers(everything, (), everything),
    )  # fmt: skip


dynamic_update_slice_p = Primitive(
    "dynamic_update_slice", _update_abstract, overwrites=0, jvp=linear_jvp(0, 1), transpose=_update_transpose, batch=_update_batch
)


# The functions.


def _start_indices(shape: Shape, start_indices: Any, allow_negative: bool, name: str) -> list[Array]:
    """Return an array per dimension; negative starts count from the end if allowed."""
    if isinstance(start_indices, (Array, np.ndarray)):
        if start_indices.ndim != 1:
            raise ShapeError(f"{name}: start_indices must be a sequence or a 1-d array, got shape {start_indices.shape}")
        vector = as_value(start_indices)
        starts: list[Any] = [reshape(slice_of(vector, i), ()) for i in range(vector.shape[0])]
    elif isinstance(start_indices, Iterable):
        starts = list(start_indices)
    else:
        example = f"({', '.join('0' * len(shape))}{',' * (len(shape) == 1)})"
        raise ArgumentTypeError(f"{name}: start_indices is a sequence of one index per dimension, as in {example}, got {start_indices!r}")
    if len(starts) != len(shape):
        raise ShapeError(f"{name} needs one start index per dimension of an operand of shape {shape}, got {len(starts)}")
    return [canonical_index(start, size, allow_negative) for start, size in zip(starts, shape, strict=True)]


def slice_of(vector: Array, i: int) -> Array:
    """Return the i-th element of a vector, as an array of one."""
    from_i = as_value(np.asarray(i, np.int32))
    return bind(dynamic_slice_p, vector, from_i, slice_sizes=(1,))


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int], *, allow_negative_indices: bool = True) -> Array:
    """Return the block of `operand` of shape `slice_sizes` at `start_indices`.

    A start too far out is moved so that the block lies inside; negative ones count from the end, unless `allow_negative_indices` is
    False. Raises `ShapeError` for blocks larger than the operand.

    >>> vf.lax.dynamic_slice(vf.numpy.arange(5), (3,), (3,))
    Array([2, 3, 4], dtype=int32)
    """
    value = as_value(operand)
    starts = _start_indices(value.shape, start_indices, allow_negative_indices, "dynamic_slice")
    return bind(dynamic_slice_p, value, *starts, slice_sizes=canonical_shape(slice_sizes))


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any, *, allow_negative_indices: bool = True) -> Array:
    """Replace the block of `operand` at `start_indices` by `update`.

    They have one rank and dtype. A start too far out is moved so that the block lies inside. Raises `ShapeError` if the update is larger
    than the operand.

    >>> vf.lax.dynamic_update_slice(vf.numpy.zeros(4), vf.numpy.ones(2), (1,))
    Array([0., 1., 1., 0.], dtype=float32)
    """
    value, new = weakly_promoted("dynamic_update_slice", (operand, update))
    starts = _start_indices(value.shape, start_indices, allow_negative_indices, "dynamic_update_slice")
    return bind(dynamic_update_slice_p, value, new, *starts)


def _along(value: Array, start: Any, axis: int) -> tuple[int, list[Any]]:
    dim = canonical_axis(axis, value.ndim)
    return dim, [start if d == dim else 0 for d in range(value.ndim)]


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True) -> Array:
    """Apply `dynamic_slice` to one dimension; the others are kept.

    >>> vf.lax.dynamic_slice_in_dim(vf.numpy.arange(5), 1, 3)
    Array([1, 2, 3], dtype=int32)
    """
    value = as_value(operand)
    dim, starts = _along(value, start_index, axis)
    sizes = [slice_size if d == dim else n for d, n in enumerate(value.shape)]
    return dynamic_slice(value, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: bool = True) -> Array:
    """Return the elements at `index` along one dimension.

    The dimension stays with size 1 if `keepdims`.

    >>> vf.lax.dynamic_index_in_dim(vf.numpy.arange(6).reshape(3, 2), 1, keepdims=False)
    Array([2, 3], dtype=int32)
    """
    value = as_value(operand)
    row = dynamic_slice_in_dim(value, index, 1, axis, allow_negative_indices=allow_negative_indices)
    return row if keepdims else squeeze(row, (axis,))


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int, *, allow_negative_indices: bool = True) -> Array:
    """Apply `dynamic_update_slice` to one dimension; other dimensions start at 0.

    >>> vf.lax.dynamic_update_slice_in_dim(vf.numpy.arange(4), vf.numpy.array([7, 8]), 1, 0)
    Array([0, 7, 8, 3], dtype=int32)
    """
    value = as_value(operand)
    _, starts = _along(value, start_index, axis)
    return dynamic_update_slice(value, update, starts, allow_negative_indices=allow_negative_indices)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int, *, allow_negative_indices: bool = True) -> Array:
    """Replace the elements of `operand` at `index` along one dimension.

    `update` may lack that dimension.

    >>> vf.lax.dynamic_update_index_in_dim(vf.numpy.zeros((2, 2)), vf.numpy.ones(2), 1, axis=0)
    Array([[0., 0.],
           [1., 1.]], dtype=float32)
    """
    value, new = as_value(operand), as_value(update)
    dim = canonical_axis(axis, value.ndim)
    if new.ndim != value.ndim:
        new = expand_dims(new, (dim,))
    return dynamic_update_slice_in_dim(value, new, index, dim, allow_negative_indices=allow_negative_indices)
