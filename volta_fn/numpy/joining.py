"""Joining, splitting, repeating and padding arrays, and coordinates of grids.

Pytrees are joined to one vector.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn.core.arrays.array import Array, as_value, brief
from volta_fn.core.aval import Shape, as_integer, canonical_shape, check_option
from volta_fn.core.dimension import max_dim, span
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, OutOfBoundsError, ShapeError
from volta_fn.jit.fused import fused, fused_by_results
from volta_fn.numpy import reductions
from volta_fn.numpy.arguments import (
    Axis,
    axes_of,
    axis_of,
    concrete,
    dtype_or,
    flat_or_axis,
    full_like_scalar,
    is_inexact,
    narrow,
    no_out,
    operand,
    promote,
)
from volta_fn.numpy.arithmetic import round as round_
from volta_fn.numpy.creation import arange, array, linspace, zeros
from volta_fn.numpy.indexing import nonzero
from volta_fn.numpy.shapes import atleast_1d, atleast_2d, atleast_3d, broadcast_to, flip
from volta_fn.numpy.statistics import median
from volta_fn.primitives.data_movement.movement import broadcast_to as broadcast_array
from volta_fn.primitives.data_movement.movement import moveaxis
from volta_fn.primitives.declare import to_dtype
from volta_fn.settings import current as settings

# Joining and splitting: concatenate, stack, split, block, insert, delete, ….

#: Known indices that form at most so many contiguous ranges are joined from slices; others are gathered.
_MOST_RANGES = 8
_STATIC_ADVICE = "It decides the shape of the result, so it must be known while tracing."


def _items(function: str, arrays: Any, dtype: Any) -> list[Array]:
    if isinstance(arrays, (Array, np.ndarray)):
        arrays = list(array(arrays)) if np.ndim(arrays) else arrays
    if not isinstance(arrays, (list, tuple)) and hasattr(arrays, "__len__") and not isinstance(arrays, (str, bytes, dict)):
        arrays = tuple(arrays)  # a library's own sequence
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentTypeError(f"{function}: expected a sequence of arrays, got {arrays!r:.80} of type {type(arrays).__name__}")
    if not arrays:
        raise ArgumentError(f"{function}: needs at least one array")
    if dtype is None:
        return promote(function, *arrays)
    return [lax.convert_element_type(operand(function, str(i), v), dtype) for i, v in enumerate(arrays, 1)]


def _check_axis(function: str, axis: Any) -> None:
    """Raise `ArgumentTypeError` for a second array in place of an axis."""
    if (isinstance(axis, (Array, np.ndarray)) and axis.ndim) or isinstance(axis, (list, tuple)):
        raise ArgumentTypeError(f"{function} takes the arrays as one sequence, {function}([a, b], axis); here the axis is {brief(axis)}")


@fused
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Array:
    """Join arrays along an existing dimension (None: flattened), in one dtype.

    >>> jnp.concatenate([jnp.array([1, 2]), jnp.array([3.5])])
    Array([1. , 2. , 3.5], dtype=float32)

    Raises `ShapeError` unless the other dimensions agree.
    """
    _check_axis("concatenate", axis)
    values = _items("concatenate", arrays, dtype)
    if axis is None:
        values, axis = [lax.reshape(v, (v.size,)) for v in values], 0
    if any(v.ndim == 0 for v in values):
        raise ShapeError("concatenate: zero-dimensional arrays cannot be concatenated; use stack")
    return lax.concatenate(values, axis_of("concatenate", axis, values[0].ndim))


def concat(arrays: Any, /, *, axis: int | None = 0) -> Array:
    """Join arrays along an existing dimension: the Array API's name of `concatenate`."""
    return concatenate(arrays, axis)


@fused
def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Array:
    """Join arrays of one shape along a new dimension.

    >>> jnp.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    _check_axis("stack", axis)
    no_out("stack", out)
    values = _items("stack", arrays, dtype)
    shapes = {v.shape for v in values}
    if len(shapes) > 1:
        raise ShapeError(f"stack: all arrays must have one shape, got {', '.join(str(v.shape) for v in values)}")
    return lax.stack(values, axis_of("stack", axis, values[0].ndim + 1))


def _arrays_of(function: str, arrays: Any, widen: Any, dtype: Any) -> list[Array]:
    return [widen(v) for v in _items(function, arrays, dtype)]


@fused
def vstack(tup: Any, dtype: Any = None) -> Array:
    """Stack rows: join along the first dimension, vectors as rows.

    >>> jnp.vstack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return concatenate(_arrays_of("vstack", tup, atleast_2d, dtype), 0)


@fused
def hstack(tup: Any, dtype: Any = None) -> Array:
    """Join along the second dimension, vectors along their only one.

    >>> jnp.hstack([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    values = _arrays_of("hstack", tup, atleast_1d, dtype)
    return concatenate(values, 0 if values[0].ndim == 1 else 1)


@fused
def dstack(tup: Any, dtype: Any = None) -> Array:
    """Join along the third dimension.

    >>> jnp.dstack([jnp.array([1, 2]), jnp.array([3, 4])]).shape
    (1, 2, 2)
    """
    return concatenate(_arrays_of("dstack", tup, atleast_3d, dtype), 2)


@fused
def column_stack(tup: Any) -> Array:
    """Join vectors as the columns of a matrix, and matrices next to one another.

    >>> jnp.column_stack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return concatenate([v if v.ndim > 1 else lax.reshape(v, (v.size, 1)) for v in _items("column_stack", tup, None)], 1)


def block(arrays: Any) -> Array:
    """Assemble an array from nested lists of blocks.

    The innermost lists are joined along the last dimension, the next along the one before.

    >>> jnp.block([[jnp.ones((1, 1)), jnp.zeros((1, 2))]])
    Array([[1., 0., 0.]], dtype=float32)
    """
    depth = _depth(arrays)
    rank = max(depth, *(np.ndim(leaf) for leaf in _blocks(arrays)))
    return _join_blocks(arrays, depth, rank)


def _depth(nest: Any) -> int:
    if not isinstance(nest, list):
        return 0
    if not nest:
        raise ArgumentError("block: lists of blocks must not be empty")
    depths = {_depth(item) for item in nest}
    if len(depths) > 1:
        raise ArgumentError("block: the lists of blocks must all be nested equally deep")
    return 1 + depths.pop()


def _blocks(nest: Any) -> list[Any]:
    return [leaf for item in nest for leaf in _blocks(item)] if isinstance(nest, list) else [nest]


def _join_blocks(nest: Any, depth: int, rank: int) -> Array:
    if not isinstance(nest, list):
        return lax.broadcast_to_rank(operand("block", "a block", nest), rank)
    return concatenate([_join_blocks(item, depth - 1, rank) for item in nest], axis=-depth)


@fused
def append(arr: Any, values: Any, axis: int | None = None) -> Array:
    """Append `values` to `arr` along `axis` (None: both flattened).

    >>> jnp.append(jnp.array([1, 2]), jnp.array([3]))
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate([arr, values], axis)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Split along `axis` into a number of equal sections, or before the given indices.

    >>> [section.tolist() for section in jnp.split(jnp.arange(5), [1, 3])]
    [[0], [1, 2], [3, 4]]

    Raises `ShapeError` if an equal division leaves a rest (`array_split` allows one).
    """
    value = operand("split", "ary", ary)
    dim = axis_of("split", axis, value.ndim)
    cuts = _cuts("split", indices_or_sections)
    if cuts.ndim == 0 and (cuts < 1 or value.shape[dim] % int(cuts)):
        raise ShapeError(f"split: axis {dim} of shape {value.shape} does not divide into {cuts} equal sections; use array_split")
    return _sections(value, cuts, dim)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Split like `split`; if sections cannot be equal, the first are one longer.

    >>> jnp.array_split(jnp.arange(5), 2)
    [Array([0, 1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    value = operand("array_split", "ary", ary)
    dim = axis_of("array_split", axis, value.ndim)
    cuts = _cuts("array_split", indices_or_sections)
    if cuts.ndim == 0 and cuts < 1:
        raise ArgumentError(f"array_split: the number of sections must be positive, got {cuts}")
    return _sections(value, cuts, dim)


def _cuts(function: str, indices_or_sections: Any) -> np.ndarray:
    """Return the number of sections, or the indices before which they begin."""
    cuts = concrete(function, "indices_or_sections", indices_or_sections, _STATIC_ADVICE)
    if cuts.size and (cuts.dtype.kind not in "iu" or cuts.ndim > 1):
        raise ArgumentTypeError(f"{function}: indices_or_sections is an integer or a sequence of integers, got {indices_or_sections!r}")
    return cuts


def _sections(value: Array, cuts: np.ndarray, dim: int) -> list[Array]:
    length = value.shape[dim]
    if cuts.ndim == 0:
        count = int(cuts)
        small, rest = divmod(length, count)
        bounds = np.cumsum([0] + [small + 1] * rest + [small] * (count - rest)).tolist()
    else:
        bounds = [0, *(span(slice(0, int(c)), length)[1] for c in cuts.ravel()), length]
    return [lax.slice_in_dim(value, lo, max_dim(lo, hi), axis=dim) for lo, hi in pairwise(bounds)]


def vsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """Split along the first dimension.

    >>> [x.shape for x in jnp.vsplit(jnp.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return split(ary, indices_or_sections, 0)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """Split along the second dimension (a vector along its only one).

    >>> [x.shape for x in jnp.hsplit(jnp.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    return split(ary, indices_or_sections, 0 if np.ndim(ary) == 1 else 1)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """Split along the third dimension.

    >>> [x.shape for x in jnp.dsplit(jnp.ones((2, 2, 4)), 2)]
    [(2, 2, 2), (2, 2, 2)]
    """
    return split(ary, indices_or_sections, 2)


@fused
def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """Remove the elements at `obj` (index, slice, indices or mask) along `axis`.

    With `assume_unique_indices`, indices may be traced: the result is shorter by their number.

    >>> jnp.delete(jnp.arange(5), jnp.array([1, 3]))
    Array([0, 2, 4], dtype=int32)
    """
    value = operand("delete", "arr", arr)
    value, dim = flat_or_axis("delete", value, axis)
    length = value.shape[dim]
    if isinstance(obj, Tracer) and obj.dtype in dtypes.INTEGERS and (assume_unique_indices or not obj.ndim):
        # A stable sort moves the elements at traced indices to the end.
        indices = lax.reshape(obj, (obj.size,))
        is_named = broadcast_to(array(np.int8(0)), (length,)).at[indices].set(np.int8(1))
        _, order = lax.sort((is_named, lax.iota(dtypes.index_dtype(length), length)), num_keys=1)
        return value[(slice(None),) * dim + (lax.slice_in_dim(order, 0, max(length - indices.size, 0)),)]
    keep = np.ones(length, bool)
    keep[_positions("delete", obj, length)] = False
    return _take_positions([value], np.flatnonzero(keep), dim)


@fused
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Array:
    """Insert `values`, in `arr`'s dtype, before the positions `obj` along `axis`.

    `values` broadcast to ``arr`` with as many slices along `axis` as there are positions, or any number of them at a single position. If
    `obj` is an integer, the first dimension of `values` is that of the slices, as if they were assigned to ``arr[:, obj]``.

    >>> jnp.insert(jnp.arange(3), 1, 9)
    Array([0, 9, 1, 2], dtype=int32)
    """
    value = operand("insert", "arr", arr)
    value, dim = flat_or_axis("insert", value, axis)
    new = lax.convert_element_type(operand("insert", "values", values), value.dtype)
    if new.ndim > value.ndim:
        raise ShapeError(f"insert: values of shape {new.shape} have more dimensions than the array, {value.ndim}; drop some by reshape")
    new = lax.expand_dims(new, range(value.ndim - new.ndim))
    if np.ndim(obj) == 0 and not isinstance(obj, slice):
        new = moveaxis(new, 0, dim)  # as in x[:, 0] = values, where a position is not a dimension of values
    length = value.shape[dim]
    if isinstance(obj, Tracer) and obj.dtype in dtypes.INTEGERS and obj.shape in ((), (1,)):
        count = new.shape[dim]
        shape = tuple([count if i == dim else n for i, n in enumerate(value.shape)])
        index = dtypes.index_dtype(length + count)
        position = lax.convert_element_type(lax.reshape(obj, ()), index)
        start = lax.clamp(index.type(0), lax.select(position < 0, position + length, position), index.type(length))
        result = lax.iota(index, length + count)
        indices = lax.select(result < start, result, lax.select(result < start + count, result - start + length, result - count))
        return lax.concatenate([value, broadcast_to(new, shape)], dim)[(slice(None),) * dim + (indices,)]
    at = _positions("insert", obj, length, end=1)
    if len(at) == 1:
        at = np.full(new.shape[dim], at[0])  # at a single position, a block of any length is inserted
    count = len(at)
    shape = tuple([count if i == dim else n for i, n in enumerate(value.shape)])
    new = broadcast_to(new, shape)
    order = np.argsort(at, kind="stable")
    targets = at[order] + np.arange(count)
    source = np.zeros(length + count, np.int64)
    mask = np.ones(length + count, bool)
    mask[targets] = False
    source[mask] = np.arange(length)
    source[targets] = length + order
    return _take_positions([value, new], source, dim)


def _take_positions(arrays: list[Array], source: np.ndarray, dim: int) -> Array:
    """Take slices at concrete positions from arrays joined along a dimension."""
    # Positions that form few contiguous ranges are joined from slices; others are gathered.
    ends = np.cumsum([array.shape[dim] for array in arrays])
    owner = np.searchsorted(ends, source, side="right")
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(owner) != 0)) + 1
    if len(breaks) >= _MOST_RANGES or not len(source):
        joined = arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, dim)
        return joined[(slice(None),) * dim + (source,)]
    bounds = [0, *breaks.tolist(), len(source)]
    offsets = ends - [array.shape[dim] for array in arrays]

    def section(start: int, stop: int) -> Array:
        number = int(owner[start])
        first = int(source[start] - offsets[number])
        return lax.slice_in_dim(arrays[number], first, first + stop - start, axis=dim)

    ranges = [section(start, stop) for start, stop in pairwise(bounds)]
    return ranges[0] if len(ranges) == 1 else lax.concatenate(ranges, dim)


def _positions(function: str, obj: Any, length: int, end: int = 0) -> np.ndarray:
    """Return indices of any form as indices into an axis, counted from the front.

    `end` is 1 if the position after the last element counts too.
    """
    if isinstance(obj, slice):
        return np.arange(length)[obj]
    numbers = concrete(function, "obj", array(narrow(obj)), _STATIC_ADVICE)
    if numbers.dtype == np.bool_:
        if numbers.shape != (length,) and (function == "delete" or not numbers.shape):
            raise ShapeError(f"{function}: a mask must have shape ({length},), that of the axis, got {numbers.shape}")
        return np.flatnonzero(numbers)
    if numbers.dtype not in dtypes.INTEGERS and numbers.size:
        raise ArgumentTypeError(f"{function}: obj must be integers, a slice or a mask, got {numbers.dtype.name}")
    flat = numbers.ravel().astype(np.int64)
    if ((flat < -length) | (flat >= length + end)).any():
        raise OutOfBoundsError(f"{function}: obj {flat.tolist()} is out of bounds for an axis of length {length}")
    return np.where(flat < 0, flat + length, flat)


def trim_zeros(filt: Any, trim: str = "fb", axis: Axis = None) -> Array:
    """Remove slices of zeros at the front ("f") and back ("b") of concrete arrays.

    >>> jnp.trim_zeros(jnp.array([0, 1, 0, 2, 0]))
    Array([1, 0, 2], dtype=int32)
    """
    value = operand("trim_zeros", "filt", filt)
    dims = axes_of("trim_zeros", axis, value.ndim)
    nonzero = np.nonzero(np.atleast_1d(concrete("trim_zeros", "filt", value, _STATIC_ADVICE)))  # which has no axes to trim if 0-d
    for dim in dims:
        numbers = nonzero[dim]
        start = int(numbers.min(initial=value.shape[dim])) if "f" in trim.lower() else 0
        stop = int(numbers.max(initial=-1)) + 1 if "b" in trim.lower() else value.shape[dim]
        value = lax.slice_in_dim(value, start, max(start, stop), axis=dim)
    return value


# `pad` in all of NumPy's modes.

Widths = list[tuple[int, int]]


@fused
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """Pad `array` with (before, after) new elements along each dimension.

    Args:
        array: the array.
        pad_width: one number for all sides, a (before, after) pair for all dimensions, a pair for each, or a dict {axis: width}.
        mode: "constant" (`constant_values`, default 0), "edge", "reflect" and "symmetric" (`reflect_type` "even" or "odd"), "wrap",
            "linear_ramp" (`end_values`), "maximum", "minimum", "mean", "median" (`stat_length`), "empty" (zeros), or a function
            `(vector, pad_width, axis, kwargs) -> vector` of one-dimensional vectors.

    >>> jnp.pad(jnp.array([1, 2, 3]), (2, 1), mode="reflect")
    Array([3, 2, 1, 2, 3, 2], dtype=int32)
    """
    value = operand("pad", "array", array)
    if isinstance(pad_width, dict):
        full = [(0, 0)] * value.ndim
        for dimension, width in pad_width.items():
            full[dimension] = _pairs("pad_width", width, 1)[0]
        pairs = full
    else:
        pairs = _pairs("pad_width", pad_width, value.ndim)
    if any(w < 0 for pair in pairs for w in pair):
        raise ArgumentError(f"pad: pad_width must not be negative, got {pad_width}")
    widths = [(as_integer(lo, "pad: a width"), as_integer(hi, "pad: a width")) for lo, hi in pairs]
    if callable(mode):
        return _pad_by_function(value, widths, mode, kwargs)
    if mode not in _MODES:
        raise ArgumentError(f"pad: mode must be one of {', '.join(_MODES)} or a function, got {mode!r}")
    extend, option = _MODES[mode]
    if unknown := set(kwargs) - {option}:
        raise ArgumentError(f"pad: mode {mode!r} takes {[option] if option else 'no options'}, got {sorted(unknown)}")
    if mode in ("constant", "empty"):
        return _constant(value, widths, **kwargs)
    if option == "reflect_type" and kwargs.get(option, "even") not in ("even", "odd"):
        raise ArgumentError(f"pad: reflect_type must be 'even' or 'odd', got {kwargs[option]!r}")
    options: Sequence[Any] = [kwargs.get(option)] * value.ndim
    if option == "end_values":
        options = _pairs(option, kwargs.get(option, 0), value.ndim)
    elif option == "stat_length":
        length = kwargs.get(option)
        options = [(None, None)] * value.ndim if length is None else _pairs(option, length, value.ndim)
    for axis, (lo, hi) in enumerate(widths):
        if not value.shape[axis] and (lo or hi):
            raise ShapeError(f"pad: mode {mode!r} cannot extend the empty axis {axis} of shape {value.shape}")
        value = extend(value, axis, lo, hi, options[axis]) if lo or hi else value
    return value


def _pairs(name: str, value: Any, ndim: int) -> list[tuple[Any, Any]]:
    """Expand the shorter forms that NumPy allows to a pair for each dimension."""
    numbers = concrete("pad", name, value, "It must be known while tracing.")
    try:
        return [tuple(pair) for pair in np.broadcast_to(numbers, (ndim, 2)).tolist()]
    except ValueError:
        raise ArgumentError(f"pad: {name} must be a number, a pair or a pair for each of {ndim} dimensions, got {value!r}") from None


def _constant(value: Array, widths: Widths, constant_values: Any = 0) -> Array:
    if not np.ndim(constant_values):
        fill = lax.convert_element_type(operand("pad", "constant_values", constant_values), value.dtype, value.weak_type)
        return lax.pad(value, fill, [(lo, hi, 0) for lo, hi in widths])
    for axis, ((lo, hi), (before, after)) in enumerate(zip(widths, _pairs("constant_values", constant_values, value.ndim), strict=True)):
        for amount, fill in (((lo, 0, 0), before), ((0, hi, 0), after)):
            config = [amount if i == axis else (0, 0, 0) for i in range(value.ndim)]
            value = lax.pad(value, full_like_scalar(value, fill), config)
    return value


def _ends(value: Array, axis: int, front: int = 1, back: int = 1) -> tuple[Array, Array]:
    size = value.shape[axis]
    return lax.slice_in_dim(value, 0, min(front, size), axis=axis), lax.slice_in_dim(value, size - min(back, size), size, axis=axis)


def _repeated(edge: Array, count: int, axis: int) -> Array:
    return broadcast_array(edge, tuple([count if i == axis else n for i, n in enumerate(edge.shape)]))


def _edge(value: Array, axis: int, lo: int, hi: int, option: None) -> Array:
    first, last = _ends(value, axis)
    return lax.concatenate([_repeated(first, lo, axis), value, _repeated(last, hi, axis)], axis)


def _mirror(value: Array, axis: int, lo: int, hi: int, reflect_type: str | None, skip: int) -> Array:
    """Mirror elements at both ends, in several rounds if there are too few for one."""
    # All rounds but the last mirror all elements, so that the next one mirrors at the ends again.
    if value.shape[axis] == 1 and skip:
        return _edge(value, axis, lo, hi, None)
    while lo > 0 or hi > 0:
        most = value.shape[axis] - skip
        front, back = (lo, hi) if max(lo, hi) <= most else [most if width > most else 0 for width in (lo, hi)]
        first, last = (lax.slice_in_dim(value, start, start + n, axis=axis) for start, n in ((skip, front), (most - back, back)))
        before, after = (_mirrored(*pair, axis, reflect_type) for pair in zip((first, last), _ends(value, axis), strict=True))
        value = lax.concatenate([before, value, after], axis)
        lo, hi = lo - front, hi - back
    return value


def _mirrored(section: Array, edge: Array, axis: int, reflect_type: str | None) -> Array:
    reverse = flip(section, axis)
    return lax.sub(lax.add(edge, edge), reverse) if reflect_type == "odd" else reverse


def _wrap(value: Array, axis: int, lo: int, hi: int, option: None) -> Array:
    size = value.shape[axis]
    copies = lax.concatenate([value] * (1 + -(-lo // size) + -(-hi // size)), axis)
    start = -lo % size
    return lax.slice_in_dim(copies, start, start + lo + size + hi, axis=axis)


def _linear_ramp(value: Array, axis: int, lo: int, hi: int, end_values: tuple[Any, Any]) -> Array:
    (first, last), (before, after) = _ends(value, axis), end_values
    return lax.concatenate([_ramp(first, before, lo, axis), value, flip(_ramp(last, after, hi, axis), axis)], axis)


def _ramp(edge: Array, end: Any, count: int, axis: int) -> Array:
    """Return `count` steps from `end` to `edge` (of size 1 along the axis), excluded."""
    if is_inexact(edge):
        return linspace(full_like_scalar(edge, end), lax.squeeze(edge, (axis,)), count, endpoint=False, axis=axis)
    # Integers are rounded down. Distances are unsigned: that of any two integers fits the unsigned dtype of as many bits.
    info = dtypes.iinfo(edge.dtype)
    if end != int(end) or not info.min <= end <= info.max:
        raise ArgumentError(f"pad: end_values {end} does not fit {edge.dtype.name}")
    unsigned = np.dtype(np.uint64 if info.bits == 64 else np.uint32)
    first = full_like_scalar(edge, int(end))
    rises = edge >= first
    start, stop = (lax.convert_element_type(v, unsigned) for v in (first, edge))
    distance = lax.select(rises, stop - start, start - stop)
    step = lax.broadcasted_iota(unsigned, [count if i == axis else 1 for i in range(edge.ndim)], axis)
    step_count = unsigned.type(max(count, 1))
    up = lax.select(rises, unsigned.type(0), step_count - unsigned.type(1))  # a falling ramp rounds its steps up
    gone = distance // step_count * step + (distance % step_count * step + up) // step_count
    return lax.convert_element_type(lax.select(broadcast_array(rises, gone.shape), start + gone, start - gone), edge.dtype)


def _statistic(value: Array, axis: int, lo: int, hi: int, lengths: tuple[Any, Any], summary: Callable[..., Array]) -> Array:
    size = value.shape[axis]
    summaries = [summary(section, axis, keepdims=True) for section in _ends(value, axis, *[n or size for n in lengths])]
    before, after = (lax.convert_element_type(s if is_inexact(value) else round_(s), value.dtype) for s in summaries)
    return lax.concatenate([_repeated(before, lo, axis), value, _repeated(after, hi, axis)], axis)


def _pad_by_function(value: Array, widths: Widths, function: Callable[..., Any], options: dict[str, Any]) -> Array:
    """Follow NumPy's protocol: pad with zeros, then pass each vector to the function."""
    padded = lax.pad(value, full_like_scalar(value, 0), [(lo, hi, 0) for lo, hi in widths])
    for axis, width in enumerate(widths):
        moved = moveaxis(padded, axis, padded.ndim - 1)
        rows = lax.reshape(moved, (-1 if moved.size else 0, moved.shape[-1]))
        done = [function(lax.index_in_dim(rows, i, keepdims=False), width, axis, options) for i in range(rows.shape[0])]
        moved = lax.reshape(lax.concatenate([lax.expand_dims(row, (0,)) for row in done], 0), moved.shape)
        padded = moveaxis(moved, padded.ndim - 1, axis)
    return padded


#: How each mode extends an axis, and the name of its option.
_MODES: dict[str, tuple[Callable[..., Array], str]] = {
    "constant": (_constant, "constant_values"),
    "edge": (_edge, ""),
    "reflect": (functools.partial(_mirror, skip=1), "reflect_type"),
    "symmetric": (functools.partial(_mirror, skip=0), "reflect_type"),
    "wrap": (_wrap, ""),
    "linear_ramp": (_linear_ramp, "end_values"),
    "empty": (_constant, ""),
    "maximum": (functools.partial(_statistic, summary=reductions.max), "stat_length"),
    "minimum": (functools.partial(_statistic, summary=reductions.min), "stat_length"),
    "mean": (functools.partial(_statistic, summary=reductions.mean), "stat_length"),
    "median": (functools.partial(_statistic, summary=median), "stat_length"),
}


# A pytree of arrays as one vector.


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Concatenate the leaves of a pytree; also return the inverse function.

    Args:
        pytree: arrays and Python scalars in any containers.

    Returns:
        ``(vector, unravel)``: all elements, in the leaves' common dtype (float32 if there are none), and the function from such a vector to
        a pytree like the given one. Leaves of several dtypes are converted back to their own. Where all leaves have one dtype, `unravel`
        takes vectors of any dtype and keeps that dtype. It raises `ShapeError` for a vector of another length, and `DTypeError` for
        one of another dtype where leaves have several.

    >>> vector, unravel = vf.flatten_util.ravel_pytree({"w": jnp.ones((2, 2)), "b": jnp.zeros(1)})
    >>> vector, unravel(vector)["w"].shape
    (Array([0., 1., 1., 1., 1.], dtype=float32), (2, 2))
    """
    leaves, structure = tree.flatten(pytree)
    values = [as_value(x) for x in leaves]
    leaf_dtypes = tuple([v.dtype for v in values])
    dtype = dtypes.promote(*[(v.dtype, v.weak_type) for v in values])[0] if values else np.dtype(np.float32)
    flat = [lax.reshape(to_dtype(x, dtype), (v.size,)) for x, v in zip(leaves, values, strict=True)]
    vector = lax.concatenate(flat, 0) if flat else zeros(0, dtype)
    return vector, _Unravel(structure, tuple([v.shape for v in values]), leaf_dtypes, dtype)


class _Unravel:
    """The inverse of `ravel_pytree` for pytrees of one structure and types.

    Inverses for equal structures and types are equal, so that it can be a static argument.
    """

    def __init__(self, structure: Any, shapes: tuple[Shape, ...], leaf_dtypes: tuple[np.dtype, ...], dtype: np.dtype) -> None:
        self.structure = structure
        self.shapes = shapes
        self.leaf_dtypes = leaf_dtypes
        self.dtype = dtype

    def _key(self) -> tuple[Any, ...]:
        return self.structure, self.shapes, self.leaf_dtypes, self.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unravel) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, vector: Any) -> Any:
        flat = as_value(vector)
        sizes = [math.prod(s) for s in self.shapes]
        if flat.shape != (sum(sizes),):
            raise ShapeError(f"unravel takes a vector of {sum(sizes)} elements, as ravel_pytree returned, got shape {flat.shape}")
        several = set(self.leaf_dtypes) - {self.dtype}
        if several and flat.dtype != self.dtype:
            raise DTypeError(f"unravel takes a vector of dtype {self.dtype.name}, as ravel_pytree returned, got {flat.dtype.name}")
        leaves = [lax.reshape(x, shape) for x, shape in zip(lax.split(flat, sizes), self.shapes, strict=True)] if sizes else []
        if several:
            leaves = [_to_leaf_dtype(x, dtype) for x, dtype in zip(leaves, self.leaf_dtypes, strict=True)]
        return tree.unflatten(self.structure, leaves)


def _to_leaf_dtype(x: Array, dtype: np.dtype) -> Array:
    """Convert back to a leaf's dtype, which drops the imaginary zeros of real leaves."""
    real = lax.real(x) if x.dtype in dtypes.COMPLEX and dtype not in dtypes.COMPLEX else x
    return lax.convert_element_type(real, dtype)


# Coordinates of grids: meshgrid, indices, ix_, and index notation (mgrid, r_, …).


@fused_by_results
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Array, ...]:
    """Return each vector as a coordinate array of the grid's shape (`sparse`: open).

    >>> [g.tolist() for g in jnp.meshgrid(jnp.array([1, 2]), jnp.array([5, 6, 7]))]
    [[[1, 2], [1, 2], [1, 2]], [[5, 5], [6, 6], [7, 7]]]

    With `indexing="ij"` the first vector runs along the first dimension; with "xy" along the second.
    """
    check_option(indexing, "meshgrid: indexing", ("xy", "ij"))
    values = [operand("meshgrid", str(i), x) for i, x in enumerate(xi)]
    if any(v.ndim > 1 for v in values):
        raise ShapeError(f"meshgrid: the coordinates must be vectors, got shapes {[v.shape for v in values]}")
    values = [lax.reshape(v, (v.size,)) for v in values]
    rank = len(values)
    along = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else range(rank)
    sizes = [values[number].size for number in along]
    shapes = [[sizes[i] if sparse is False or i == axis else 1 for i in range(rank)] for axis in along]
    return tuple([lax.broadcast_in_dim(v, shape, (axis,)) for axis, v, shape in zip(along, values, shapes, strict=True)])


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """Return the index of every element of a grid, per dimension; stacked or `sparse`.

    >>> jnp.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    sizes = canonical_shape(dimensions)
    result_dtype = dtype_or(dtype, dtypes.index_dtype(max(sizes, default=0), dtypes.default(np.dtype(np.int32))))
    if sparse:
        return tuple([lax.broadcasted_iota(result_dtype, [n if i == d else 1 for i, n in enumerate(sizes)], d) for d in range(len(sizes))])
    if not sizes:
        return array(np.zeros((0,), result_dtype))
    return stack([lax.broadcasted_iota(result_dtype, sizes, d) for d in range(len(sizes))])


def ix_(*args: Any) -> tuple[Array, ...]:
    """Convert vectors of indices (or masks) into an open grid.

    x[ix_(rows, columns)] is the sub-matrix of those rows and columns.

    >>> jnp.arange(9).reshape(3, 3)[jnp.ix_(jnp.array([0, 2]), jnp.array([1]))]
    Array([[1],
           [7]], dtype=int32)
    """
    results = []
    for i, arg in enumerate(args):
        value = array(arg) if isinstance(arg, (list, tuple)) else operand("ix_", str(i), arg)
        if value.ndim != 1:
            raise ShapeError(f"ix_: the arguments must be vectors, got shape {value.shape}")
        value = nonzero(value)[0] if value.dtype in dtypes.BOOL else value
        results.append(lax.reshape(value, [value.size if i == j else 1 for j in range(len(args))]))
    return tuple(results)


def _points(item: slice) -> Array:
    """Return the numbers of start:stop:step, or of start:stop:nj, n with both ends."""
    start = 0 if item.start is None else item.start
    if item.stop is None and settings.permissive:
        return arange(start, step=item.step)
    if item.stop is None:
        raise ArgumentError(f"a grid's slice needs a stop, got {item}")
    if isinstance(item.step, complex):
        return linspace(start, item.stop, int(abs(item.step)))
    return arange(start, item.stop, item.step)


class _Grid:
    """Index notation for coordinates: ``mgrid[0:2, 0:3]``, ``ogrid[0:2, 0:3]``."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _points(key)
        if not key:
            return [] if self.sparse else arange(0)
        axes = meshgrid(*[_points(item) for item in key], indexing="ij", sparse=self.sparse)
        common = dtypes.result_type(*[g.dtype for g in axes])
        grids = [lax.convert_element_type(g, common) for g in axes]
        return grids if self.sparse else stack(grids)


mgrid, ogrid = _Grid(sparse=False), _Grid(sparse=True)


class RClass:
    """Index notation for joining along the first axis: ``r_[1:4, 0, x]``."""

    axis, ndmin, trans1d = 0, 1, -1

    def __getitem__(self, key: Any) -> Array:
        items: Sequence[Any] = key if isinstance(key, tuple) else (key,)
        axis, ndmin, trans1d = options = self.axis, self.ndmin, self.trans1d
        if items and isinstance(items[0], str):
            text = items[0]
            try:
                numbers = [int(number) for number in text.split(",")]
            except ValueError:
                raise ArgumentError(f"r_ and c_ take a directive of up to three integers such as '0,2,1', got {text!r}") from None
            axis, ndmin, trans1d = (*numbers, *options[len(numbers) :])[:3]
            items = items[1:]
        return concatenate([_widened(item, ndmin, trans1d) for item in items], axis)


class CClass(RClass):
    """Index notation for columns: ``c_[x, y]``."""

    axis, ndmin, trans1d = -1, 2, 0


def _widened(item: Any, ndmin: int, trans1d: int) -> Array:
    """Return an item with `ndmin` dimensions, its own from `trans1d` on (-1: last)."""
    value = _points(item) if isinstance(item, slice) else array(item)
    scalar = value.ndim == 0
    value = lax.reshape(value, (1,)) if scalar else value
    missing = ndmin - value.ndim
    if missing <= 0:
        return value
    before = min(max(trans1d + (missing + 1 if trans1d < 0 else 0), 0), missing)
    return lax.reshape(value, (1,) * before + value.shape + (1,) * (missing - before))


r_, c_ = RClass(), CClass()


s_, index_exp = np.s_, np.index_exp
