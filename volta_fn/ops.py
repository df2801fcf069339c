"""Reductions over segments: elements of an array that share a number.

The functions are those of `jax.ops`. All take the same arguments:
    data: an array, whose first axis is reduced; its elements have shape ``data.shape[1:]``.
    segment_ids: integers, one for each element of `data`, which need not be sorted: the segment that the element belongs to.
    num_segments: the number of segments, a Python integer; needed where `segment_ids` is traced (default: the largest number plus one).
    indices_are_sorted, unique_indices: promises about `segment_ids`; `segment_prod` has a derivative only if they are unique.
    bucket_size: first reduce buckets of as many consecutive elements, then their results: for less rounding. None: one bucket.
    mode: what happens to numbers outside of 0 … num_segments - 1: they are dropped (None, "drop", "fill"), moved to the nearest segment
        ("clip"), or promised not to occur ("promise_in_bounds").

The result has shape ``(num_segments, *data.shape[1:])`` and the dtype of `data`; a segment without elements has the value that changes
no other, such as 0 for sums. They raise `ShapeError` if `segment_ids` is not a vector as long as `data`, `ArgumentError` for a negative
`num_segments`, a `bucket_size` below 1 and an unknown `mode`, and `ArgumentTypeError` for segment numbers that are not integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, from_host
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import as_integer
from volta_fn.core.primitive import reduction_of
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.arguments import concrete, narrow, operand
from volta_fn.primitives.data_movement.movement import broadcast


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Return the sum of each segment; see the module for arguments and errors.

    >>> vf.ops.segment_sum(jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 2, 0]))
    Array([5., 0., 2.], dtype=float32)
    """
    return constrained(_segment_reduce("segment_sum", data, segment_ids, num_segments, unique_indices, bucket_size, mode), out_sharding)


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Return the product of each segment; see the module for arguments and errors.

    >>> vf.ops.segment_prod(jnp.array([3, 2, 4]), jnp.array([0, 2, 0]))
    Array([12,  1,  2], dtype=int32)
    """
    return constrained(_segment_reduce("segment_prod", data, segment_ids, num_segments, unique_indices, bucket_size, mode), out_sharding)


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Return the minimum of each segment; see the module for arguments and errors.

    >>> vf.ops.segment_min(jnp.array([3.0, 2.0, 4.0]), jnp.array([0, 2, 0]))
    Array([ 3., inf,  2.], dtype=float32)
    """
    return constrained(_segment_reduce("segment_min", data, segment_ids, num_segments, unique_indices, bucket_size, mode), out_sharding)


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Return the maximum of each segment; see the module for arguments and errors.

    >>> vf.ops.segment_max(jnp.array([3.0, 2.0, 4.0]), jnp.array([0, 1, 0]))
    Array([4., 2.], dtype=float32)
    """
    return constrained(_segment_reduce("segment_max", data, segment_ids, num_segments, unique_indices, bucket_size, mode), out_sharding)


#: By function: the scatter that combines elements, the method of `x.at` for it, and the reduction of buckets.
_REDUCTIONS: dict[str, tuple[str, str, Callable[..., Array]]] = {
    "segment_sum": ("scatter_add", "add", vnp.sum),
    "segment_prod": ("scatter_mul", "multiply", vnp.prod),
    "segment_min": ("scatter_min", "min", vnp.min),
    "segment_max": ("scatter_max", "max", vnp.max),
}


def _segment_reduce(
    name: str, data: Any, segment_ids: Any, num_segments: int | None, unique: bool, bucket_size: int | None, mode: Any
) -> Array:
    values, ids = operand(name, "data", data), operand(name, "segment_ids", narrow(segment_ids))
    if ids.dtype not in dtypes.INTEGERS:
        raise ArgumentTypeError(f"{name}: segment_ids must be integers, got {ids.dtype.name}")
    if ids.ndim != 1 or values.shape[:1] != ids.shape:
        raise ShapeError(f"{name}: segment_ids must be a vector as long as data, got shapes {ids.shape} and {values.shape}")
    count = _count(name, ids, num_segments)
    scatter, method, reduce = _REDUCTIONS[name]
    start = from_host(reduction_of(scatter).start(values.dtype))
    options = {"mode": "drop" if mode is None else mode, "wrap_negative_indices": False, "unique_indices": unique}
    start_values = broadcast(start, (count, *values.shape[1:]))
    if bucket_size is None or not start_values.size:
        return getattr(start_values.at[ids], method)(values, **options) if start_values.size else start_values
    size = as_integer(bucket_size, f"{name}: bucket_size")
    if size < 1:
        raise ArgumentError(f"{name}: bucket_size must be positive, got {size}")
    buckets = broadcast(start, (-(-ids.size // size), count, *values.shape[1:]))
    numbers = vnp.arange(ids.size, dtype=np.int32) // np.int32(size)
    results = getattr(buckets.at[numbers, ids], method)(values, **options)
    return reduce(results, axis=0, initial=start).astype(values.dtype)


def _count(name: str, ids: Array, num_segments: int | None) -> int:
    if num_segments is None:
        numbers = concrete(name, "segment_ids", ids, "Give num_segments, as a Python integer.")
        return max(int(numbers.max(initial=-1)) + 1, 0)
    count = as_integer(num_segments, f"{name}: num_segments")
    if count < 0:
        raise ArgumentError(f"{name}: num_segments must not be negative, got {count}")
    return count
