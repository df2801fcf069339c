"""Shapes and the order of elements: reshape, transpose, broadcast, flip, roll, …."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.arrays.memory import beside, constrained
from volta_fn.core.aval import as_integer, broadcasts_to, canonical_shape, sizes_of
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ArgumentTypeError, BroadcastError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import Axis, axes_of, axis_of, concrete, flat_or_axis, narrow, operand, operands, wide_index
from volta_fn.numpy.creation import array
from volta_fn.primitives.data_movement import movement


def shape(a: Any) -> tuple[int, ...]:
    """Return the size of each dimension."""
    return np.shape(a) if not isinstance(a, Array) else a.shape


def ndim(a: Any) -> int:
    """Return the number of dimensions."""
    return len(shape(a))


def size(a: Any, axis: Axis = None) -> int:
    """Return the number of elements, or the length along `axis`."""
    sizes = shape(a)
    return math.prod(sizes[i] for i in axes_of("size", axis, len(sizes)))


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Array:
    """Return the elements in row-major order in another shape.

    One size may be -1 and follows from the others. `order="F"` reads and writes the elements in column-major order.

    >>> jnp.reshape(jnp.arange(6), (2, -1))
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    """
    value = operand("reshape", "a", a)
    sizes = sizes_of(shape)
    if order == "F":
        return constrained(transpose(reshape(transpose(value), sizes[::-1])), out_sharding)
    if order not in ("C", "K", "A"):
        raise ArgumentError(f"reshape: order must be 'C' or 'F', got {order!r}")
    return constrained(lax.reshape(value, sizes), out_sharding)


def ravel(a: Any, order: str = "C", *, out_sharding: Any = None) -> Array:
    """Return the elements in one dimension.

    >>> jnp.ravel(jnp.array([[1, 2], [3, 4]]))
    Array([1, 2, 3, 4], dtype=int32)
    """
    return constrained(reshape(a, (-1,) if size(a) else (0,), order), out_sharding)


@fused
def transpose(a: Any, axes: Sequence[int] | None = None) -> Array:
    """Permute the dimensions to the order of `axes`; reverse them by default.

    >>> jnp.transpose(jnp.zeros((2, 3, 4))).shape
    (4, 3, 2)
    """
    value = operand("transpose", "a", a)
    order = tuple(range(value.ndim))[::-1] if axes is None else axes_of("transpose", axes, value.ndim)
    if len(order) != value.ndim:
        raise ShapeError(f"transpose: axes {tuple(order)} must name each of the {value.ndim} dimensions of shape {value.shape}")
    return lax.transpose(value, order)


@fused
def reversed_dims(a: Any, /) -> Array:
    """Reverse the dimensions: `transpose` as a property, which takes less time."""
    value = operand("transpose", "a", a)
    return lax.transpose(value, tuple(range(value.ndim))[::-1])


def permute_dims(a: Any, /, axes: Sequence[int]) -> Array:
    """Permute the dimensions to the order of `axes`."""
    return transpose(a, axes)


def matrix_transpose(x: Any, /) -> Array:
    """Exchange the last two dimensions: transpose every matrix of a stack."""
    value = operand("matrix_transpose", "x", x)
    if value.ndim < 2:
        raise ShapeError(f"matrix_transpose: x must have at least two dimensions, got shape {value.shape}")
    return swapaxes(value, -1, -2)


@fused
def swapaxes(a: Any, axis1: int, axis2: int) -> Array:
    """Exchange two dimensions.

    >>> jnp.swapaxes(jnp.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    value = operand("swapaxes", "a", a)
    i, j = (axis_of("swapaxes", axis, value.ndim) for axis in (axis1, axis2))
    order = list(range(value.ndim))
    order[i], order[j] = j, i
    return lax.transpose(value, order)


@fused
def moveaxis(a: Any, source: Axis, destination: Axis) -> Array:
    """Move dimensions to other positions; the others keep their order.

    >>> jnp.moveaxis(jnp.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    value = operand("moveaxis", "a", a)
    sources, dims = (axes_of("moveaxis", axes, value.ndim) for axes in (source, destination))
    if len(sources) != len(dims):
        raise ArgumentError(f"moveaxis: source {source} and destination {destination} must have the same number of axes")
    order = [i for i in range(value.ndim) if i not in sources]
    for dim, i in sorted(zip(dims, sources, strict=True)):
        order.insert(dim, i)
    return lax.transpose(value, order)


def rollaxis(a: Any, axis: int, start: int = 0) -> Array:
    """Move one dimension before `start`; prefer `moveaxis`.

    >>> jnp.rollaxis(jnp.zeros((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    value = operand("rollaxis", "a", a)
    source = axis_of("rollaxis", axis, value.ndim)
    dim = start if start == value.ndim else axis_of("rollaxis", start, value.ndim)
    return movement.moveaxis(value, source, dim - (dim > source))


def expand_dims(a: Any, axis: Axis) -> Array:
    """Insert dimensions of size 1 at the positions `axis` of the result.

    >>> jnp.expand_dims(jnp.zeros(3), (0, 2)).shape
    (1, 3, 1)
    """
    value = operand("expand_dims", "a", a)
    count = len(axis) if isinstance(axis, (tuple, list, range)) else 1
    return lax.expand_dims(value, axes_of("expand_dims", axis, value.ndim + count))


def squeeze(a: Any, axis: Axis = None) -> Array:
    """Remove the dimensions `axis`, all of size 1; None removes every one of size 1.

    >>> jnp.squeeze(jnp.ones((1, 3, 1))).shape
    (3,)
    """
    value = operand("squeeze", "a", a)
    # A symbolic size that may be 1 is refused by its comparison.
    axes = tuple([i for i, n in enumerate(value.shape) if n <= 1 and n == 1]) if axis is None else axes_of("squeeze", axis, value.ndim)
    return lax.squeeze(value, axes)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that arrays of these shapes broadcast to."""
    return lax.broadcast_shapes(*[canonical_shape(s) for s in shapes]) if shapes else ()


def broadcast_to(array: Any, shape: Any, *, out_sharding: Any = None) -> Array:
    """Broadcast `array` to `shape`: align dimensions at the right and stretch size 1.

    >>> jnp.broadcast_to(jnp.array([1, 2]), (2, 2))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    value = operand("broadcast_to", "array", array)
    target = canonical_shape(shape, "broadcast_to: shape")
    if not broadcasts_to(value.shape, target):
        raise BroadcastError(f"broadcast_to: an array of shape {value.shape} does not broadcast to {target}")
    return constrained(movement.broadcast_to(value, target), out_sharding)


def broadcast_arrays(*args: Any) -> tuple[Array, ...]:
    """Broadcast the arrays to their common shape.

    >>> [x.shape for x in jnp.broadcast_arrays(jnp.ones((2, 1)), jnp.ones(3))]
    [(2, 3), (2, 3)]
    """
    values = [operand("broadcast_arrays", str(i), a) for i, a in enumerate(args)]
    target = broadcast_shapes(*[v.shape for v in values])
    return tuple([movement.broadcast_to(v, target) for v in values])


def _at_least(function: str, arys: Sequence[Any], widen: Any) -> Any:
    results = [widen(operand(function, str(i), a)) for i, a in enumerate(arys)]
    return results[0] if len(results) == 1 else results


def atleast_1d(*arys: Any) -> Any:
    """Return each array with at least one dimension: scalars become vectors.

    >>> jnp.atleast_1d(3.0).shape
    (1,)
    """
    return _at_least("atleast_1d", arys, lambda a: a if a.ndim else lax.reshape(a, (1,)))


def atleast_2d(*arys: Any) -> Any:
    """Return each array with at least two dimensions, adding new ones in front.

    >>> jnp.atleast_2d(jnp.ones(3)).shape
    (1, 3)
    """
    return _at_least("atleast_2d", arys, lambda a: lax.broadcast_to_rank(a, max(a.ndim, 2)))


def atleast_3d(*arys: Any) -> Any:
    """Expand (N,) to (1, N, 1) and (M, N) to (M, N, 1); scalars to (1, 1, 1).

    >>> jnp.atleast_3d(jnp.ones((2, 3))).shape
    (2, 3, 1)
    """
    shapes = {0: lambda s: (1, 1, 1), 1: lambda s: (1, *s, 1), 2: lambda s: (*s, 1)}
    return _at_least("atleast_3d", arys, lambda a: lax.reshape(a, shapes[a.ndim](a.shape)) if a.ndim < 3 else a)


@fused
def flip(m: Any, axis: Axis = None) -> Array:
    """Reverse the order of elements along `axis` (None: along all).

    >>> jnp.flip(jnp.arange(3))
    Array([2, 1, 0], dtype=int32)
    """
    value = operand("flip", "m", m)
    return lax.rev(value, axes_of("flip", axis, value.ndim))


@fused
def fliplr(m: Any) -> Array:
    """Reverse the second dimension.

    >>> jnp.fliplr(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    return flip(m, 1)


@fused
def flipud(m: Any) -> Array:
    """Reverse the first dimension.

    >>> jnp.flipud(jnp.array([[1, 2], [3, 4]]))
    Array([[3, 4],
           [1, 2]], dtype=int32)
    """
    return flip(m, 0)


@fused
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Rotate k times by 90° in the plane of two axes, from first to second.

    >>> jnp.rot90(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 4],
           [1, 3]], dtype=int32)
    """
    value = operand("rot90", "m", m)
    plane = axes_of("rot90", axes, value.ndim)
    if len(plane) != 2:
        raise ArgumentError(f"rot90: axes must be two, got {axes!r}")
    i, j = plane
    quarters = as_integer(k, "rot90: k") % 4
    if quarters == 2:
        return lax.rev(value, (i, j))
    if quarters == 1:
        return swapaxes(lax.rev(value, (j,)), i, j)
    return lax.rev(swapaxes(value, i, j), (j,)) if quarters else value


@fused
def roll(a: Any, shift: Any, axis: Axis = None) -> Array:
    """Shift the elements cyclically by `shift` along `axis`.

    Without `axis` the flattened array is rolled. The shift may be a traced array.

    >>> jnp.roll(jnp.arange(5), 2)
    Array([3, 4, 0, 1, 2], dtype=int32)
    """
    value = operand("roll", "a", a)
    if axis is None:
        return lax.reshape(roll(lax.reshape(value, (value.size,)), shift, 0), value.shape)
    dims = [axis_of("roll", i, value.ndim) for i in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    shifts = shift if isinstance(shift, (tuple, list)) else [shift] * len(dims) if np.ndim(shift) == 0 else list(array(shift))
    if len(shifts) == 1 < len(dims):
        shifts = list(shifts) * len(dims)
    if len(dims) == 1 < len(shifts):
        dims = dims * len(shifts)
    if len(shifts) != len(dims):
        raise ArgumentError(f"roll: shift has {len(shifts)} entries and axis {len(dims)}")
    for by, dim in zip(shifts, dims, strict=True):
        value = _roll_traced(value, by, dim) if isinstance(by, Tracer) else _roll_static(value, int(by), dim)
    return value


def _roll_static(value: Array, by: int, dim: int) -> Array:
    length = value.shape[dim]
    cut = by % length if length else 0
    if not cut:
        return value
    tail, head = lax.slice_in_dim(value, length - cut, None, axis=dim), lax.slice_in_dim(value, 0, length - cut, axis=dim)
    return lax.concatenate([tail, head], dim)


def _roll_traced(value: Array, by: Array, dim: int) -> Array:
    """Slice a window, at the traced shift, from two copies laid end to end."""
    length = value.shape[dim]
    if not length:
        return value
    start = (length - wide_index(by, length) % length) % length  # -by would be another number where it is unsigned
    return lax.dynamic_slice_in_dim(lax.concatenate([value, value], dim), start, length, dim)


@fused
def repeat(a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None) -> Array:
    """Repeat each element (or slice along `axis`) `repeats` times.

    `repeats` is one number or one for each element. The length of the result must be known while tracing: traced `repeats` need
    `total_repeat_length`, to which the result is cut, or filled up with the last slice.

    >>> jnp.repeat(jnp.array([3, 4]), jnp.array([1, 3]))
    Array([3, 4, 4, 4], dtype=int32)
    """
    value = operand("repeat", "a", a)
    value, dim = flat_or_axis("repeat", value if value.ndim else lax.reshape(value, (1,)), axis)
    if np.ndim(repeats) == 0 and not isinstance(repeats, Tracer) and total_repeat_length is None:
        count = as_integer(repeats, "repeat: repeats")
        if count < 0:
            raise ArgumentError(f"repeat: repeats must not be negative, got {count}")
        before, length, after = value.shape[:dim], value.shape[dim], value.shape[dim + 1 :]
        wide = lax.broadcast_in_dim(value, (*before, length, count, *after), [i + (i > dim) for i in range(value.ndim)])
        return constrained(lax.reshape(wide, (*before, length * count, *after)), out_sharding)
    number_or_numbers = array(narrow(repeats))
    if number_or_numbers.dtype in dtypes.INEXACT and number_or_numbers.size:
        raise ArgumentTypeError(f"repeat: repeats must be integers, got {number_or_numbers.dtype.name}")
    counts = movement.broadcast_to(beside(number_or_numbers, value), (value.shape[dim],))  # traced, inside a traced function
    if total_repeat_length is None:
        numbers = concrete("repeat", "repeats", number_or_numbers, "Give total_repeat_length= if it is traced.")
        numbers = np.broadcast_to(numbers, counts.shape)
        if numbers.size and numbers.min() < 0:
            raise ArgumentError(f"repeat: repeats must not be negative, got {numbers}")
        total_repeat_length = int(numbers.sum())
    index = dtypes.index_dtype(max(total_repeat_length, value.shape[dim]))
    ends = lax.cumsum(lax.convert_element_type(counts, index), 0)
    # Element i of the result comes from the first slice whose cumulative count exceeds i.
    passed = lax.le(ends, lax.reshape(lax.iota(index, total_repeat_length), (total_repeat_length, 1)))
    source = lax.reduce_sum(lax.convert_element_type(passed, index), (1,))
    source = lax.min(index.type(value.shape[dim] - 1), source)
    return constrained(value[(slice(None),) * dim + (source,)], out_sharding)


@fused
def tile(A: Any, reps: Any) -> Array:
    """Repeat the array `reps` times along each dimension.

    >>> jnp.tile(jnp.array([1, 2]), (2, 2))
    Array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    value = operand("tile", "A", A)
    counts = canonical_shape(reps, "tile: reps")
    rank = max(value.ndim, len(counts))
    return lax.tile(lax.broadcast_to_rank(value, rank), (1,) * (rank - len(counts)) + counts)


def resize(a: Any, new_shape: Any) -> Array:
    """Return the elements in any other shape, repeated from the start as needed.

    >>> jnp.resize(jnp.array([1, 2, 3]), (2, 2))
    Array([[1, 2],
           [3, 1]], dtype=int32)
    """
    value = ravel(a)
    target = canonical_shape(new_shape)
    count = math.prod(target)
    if not value.size:
        return lax.convert_element_type(movement.broadcast_to(array(0, value.dtype), target), value.dtype)
    repeated = tile(value, -(-count // value.size))
    return lax.reshape(lax.slice_in_dim(repeated, 0, count), target)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices along `axis`.

    >>> jnp.unstack(jnp.array([[1, 2], [3, 4]]))
    (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
    """
    (value,) = operands("unstack", x=x)
    if not value.ndim:
        raise ShapeError("unstack: x must have at least one dimension, got a zero-dimensional array")
    return tuple(lax.unstack(value, axis_of("unstack", axis, value.ndim)))
