"""Gather: reading many windows of an array at indices known at run time.

Its transpose is declared in `scatter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.primitive import AxisData, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentTypeError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.indexing import GatherDimensionNumbers, GatherScatterMode, check_numbers, shift_dims
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import broadcast, canonical_axes, expand_dims, moveaxis


def _gather_abstract(
    operand: ShapedArray,
    indices: ShapedArray,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    mode: GatherScatterMode,
    fill_value: Any,
) -> ShapedArray:
    numbers = dimension_numbers
    check_numbers("gather", operand, indices, numbers, slice_sizes, "start_indices")
    absent = numbers.collapsed_slice_dims + numbers.operand_batching_dims
    window = [size for dim, size in enumerate(slice_sizes) if dim not in absent]
    rank = len(window) + indices.ndim - 1
    offsets = numbers.offset_dims
    if len(offsets) != len(window) or list(offsets) != sorted({*offsets} & {*range(rank)}):
        raise ShapeError(
            f"gather: offset_dims must increase and name {len(window)} of the result's {rank} dimensions, one per dimension of a window; "
            f"got operand {operand}, start_indices {indices}, slice_sizes {slice_sizes}, {numbers}"
        )
    inside, batch = iter(window), iter(indices.shape)
    return operand.update(shape=tuple([next(inside if dim in offsets else batch) for dim in range(rank)]))


def _gather_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
    (operand, indices), (tangent, _) = primals, tangents
    out = bind(gather_p, operand, indices, **params)
    if type(tangent) is Zero:
        return out, Zero(out.aval.at_least_vspace())
    return out, bind(gather_p, tangent, indices, **(params | {"fill_value": 0}))


def _gather_batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    **params: Any,
) -> tuple[Array, int]:
    (operand, indices), (operand_dim, indices_dim) = args, dims
    numbers = dimension_numbers
    if operand_dim is None:
        indices = moveaxis(indices, indices_dim or 0, 0)
        numbers = numbers._replace(
            offset_dims=shift_dims(numbers.offset_dims), start_indices_batching_dims=shift_dims(numbers.start_indices_batching_dims)
        )
        return bind(gather_p, operand, indices, dimension_numbers=numbers, slice_sizes=slice_sizes, **params), 0
    operand = moveaxis(operand, operand_dim, 0)
    stepping = indices_dim is not None  # Example i of the indices reads example i of the operand; else all read all.
    if indices_dim is not None:
        indices = moveaxis(indices, indices_dim, 0)
    numbers = GatherDimensionNumbers(
        offset_dims=shift_dims(numbers.offset_dims, None if stepping else 0),
        collapsed_slice_dims=shift_dims(numbers.collapsed_slice_dims),
        start_index_map=shift_dims(numbers.start_index_map),
        operand_batching_dims=shift_dims(numbers.operand_batching_dims, 0 if stepping else None),
        start_indices_batching_dims=shift_dims(numbers.start_indices_batching_dims, 0) if stepping else numbers.start_indices_batching_dims,
    )
    sizes = (min(axis.size, 1) if stepping else axis.size, *slice_sizes)
    return bind(gather_p, operand, indices, dimension_numbers=numbers, slice_sizes=sizes, **params), 0


gather_p = Primitive("gather", _gather_abstract, jvp=_gather_jvp, batch=_gather_batch, views=True)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Array:
    """Gather windows of `operand` at many indices, as XLA's gather.

    Indexing ``x[i]`` is the friendly form of it.

    Args:
        operand: the array to read.
        start_indices: integers (*batch, index vector); each vector is the index of one window.
        dimension_numbers: which dimension is which.
        slice_sizes: the size of a window along each dimension of `operand`.
        unique_indices, indices_are_sorted: promises that cost and gain nothing here; JAX has them.
        mode: the treatment of windows not completely inside `operand`; None means "fill".
        fill_value: a number that fills them; None: NaN, the least signed or the greatest unsigned integer, or True.

    Raises:
        ShapeError: the numbers, sizes and shapes do not fit together.
        DTypeError: the indices are not integers.

    >>> import volta_fn as vf
    >>> rows = vf.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> vf.lax.gather(vf.numpy.arange(6).reshape(3, 2), vf.numpy.array([[2], [0]]), rows, (1, 2))
    Array([[4, 5],
           [0, 1]], dtype=int32)
    """
    value = as_value(operand)
    numbers = GatherDimensionNumbers(*[tuple(dims) for dims in dimension_numbers])
    sizes = tuple([int(s) for s in slice_sizes])
    how = GatherScatterMode.from_any(mode)
    fill = _canonical_fill(fill_value, value.dtype) if how is GatherScatterMode.FILL_OR_DROP else None
    return bind(gather_p, value, as_value(start_indices), dimension_numbers=numbers, slice_sizes=sizes, mode=how, fill_value=fill)


def _canonical_fill(fill_value: Any, dtype: np.dtype) -> Any:
    """Return the fill value as a Python scalar, or None if it is the default.

    NaN, which does not equal itself, would defeat caches.
    """
    if fill_value is None:
        return None
    if not isinstance(fill_value, (bool, int, float, complex, np.generic)):
        raise ArgumentTypeError(f"fill_value must be a Python or NumPy scalar, got {fill_value!r} of type {type(fill_value).__name__}")
    if dtypes.promote((dtype, False), dtypes.scalar_dtype(fill_value))[0].kind != dtype.kind:
        raise DTypeError(f"fill_value {fill_value!r} is no {dtype.name}, which the elements are")
    fill = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    return None if fill != fill and dtype in dtypes.INEXACT else fill


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Return the slices of `src` at indices along `axes`.

    There is a vector of integers per axis; indices wrap around.

    >>> import volta_fn as vf
    >>> vf.lax.index_take(vf.numpy.arange(6).reshape(3, 2), [vf.numpy.array([0, -1])], (0,))
    Array([[0, 1],
           [4, 5]], dtype=int32)
    """
    value = as_value(src)
    dims = canonical_axes(tuple(axes), value.ndim)
    indices = concatenate([expand_dims(i, (1,)) for i in idxs], 1)
    indices = indices % np.array([[value.shape[d] for d in dims]], indices.dtype)
    sizes = [1 if d in dims else n for d, n in enumerate(value.shape)]
    numbers = GatherDimensionNumbers(tuple(range(1, 1 + value.ndim - len(dims))), tuple(sorted(dims)), dims)
    return gather(value, indices, numbers, sizes, mode=GatherScatterMode.PROMISE_IN_BOUNDS)


def take_along_dim(operand: Array, indices: Array, dim: int) -> Array:
    """Return ``operand[..., indices[..., j, ...], ...]``, indexed along `dim`.

    The shapes agree but along `dim`; indices must lie in bounds.
    """
    if not indices.size:
        return broadcast(as_value(np.zeros((), operand.dtype)), indices.shape)
    others = tuple([d for d in range(operand.ndim) if d != dim])
    numbers = GatherDimensionNumbers((), (dim,), (dim,), others, others)
    sizes = (1,) * operand.ndim
    column = expand_dims(indices, (indices.ndim,))
    mode = GatherScatterMode.PROMISE_IN_BOUNDS
    return bind(gather_p, operand, column, dimension_numbers=numbers, slice_sizes=sizes, mode=mode, fill_value=None)
