"""Reading by index, ``x[…]``.

Index expressions parsed and checked, NumPy's basic and advanced indexing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, ArraySpec, ConcreteArray, array_spec, as_value, attach, brief, from_host, wrap
from volta_fn.core.arrays.memory import beside_indices, split_like
from volta_fn.core.aval import Shape
from volta_fn.core.dimension import is_symbolic, is_symbolic_dim, span
from volta_fn.core.trace import EVAL, Tracer, bind, concrete_or_raise, current_trace, is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, BroadcastError, DTypeError, OutOfBoundsError, TracerError, TracerMaskError
from volta_fn.primitives.call import debug_callback_p
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice_p
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, canonical_index, gather, gather_p
from volta_fn.primitives.data_movement.movement import broadcast, broadcast_to, expand_dims, iota, reshape, rev, squeeze
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.primitives.data_movement.slicing import slice as slice_
from volta_fn.primitives.declare import broadcast_shapes
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.settings import current as settings
from volta_fn.source import user_location

# Checks of indices: at once, or in a running program by VOLTA_CHECK_INDICES=1.
#
# A compiled program cannot raise by itself: it moves an index out of range inside, drops the update, or gives NaN. With the variable set
# while a function is traced, its program calls back to Python with each index, which costs time, and raises.


def checks_indices() -> bool:
    """Return True if programs that are traced now check their indices."""
    return settings.check_indices or os.environ.get("VOLTA_CHECK_INDICES", "0") != "0"


class _Check:
    """Raises for numbers outside a range, as from the line where it was made."""

    def __init__(self, low: int, high: int, message: str, ignored: int | None) -> None:
        self.low, self.high, self.message, self.ignored = low, high, message, ignored
        self.location = user_location()

    def __call__(self, numbers: np.ndarray) -> None:
        outside = (numbers < self.low) | (numbers >= self.high)
        if self.ignored is not None:
            outside &= numbers != self.ignored
        if outside.any():
            error = OutOfBoundsError(self.message.format(np.asarray(numbers)[outside].flat[0]))
            error.location = self.location
            raise error


def check_indices(indices: Array, low: int, high: int, message: str, ignored: int | None = None) -> None:
    """Raise `OutOfBoundsError` for an index outside ``low <= i < high``.

    Of traced indices the program makes sure if the user asks for checks. The message has ``{}`` for the index; `ignored` is a number that
    may occur.
    """
    check = _Check(low, high, message, ignored)
    if is_concrete(indices):
        check(np.asarray(indices))
    elif checks_indices():
        bind(debug_callback_p, indices, callback=check)


# Parsing of index expressions ``x[…]`` into checked entries.
#
# The entries, each of which consumes one dimension of the array unless it says otherwise:
#
# - `SliceIndex`: a slice, resolved: ``start + step * i`` for i < size.
# - `Point`: one index.
# - `Indices`: an array of indices; a boolean mask becomes one per dimension it covers, all from its nonzero elements.
# - `Flag`: a bare True or False, which consumes no dimension and adds one of size 1 or 0 next to the indices.
# - `NewAxis`: None, which consumes no dimension and adds one.
# - `EllipsisIndex`: an Ellipsis, after the slices that it stands for; it consumes nothing and only separates its neighbours, which NumPy's
#   placement rule asks about.
#
# Indices are *known* (Python ints, NumPy arrays, arrays that hold numbers) or traced. Known ones come out as NumPy integers, counted from
# the front; where bounds are `strict` one outside raises.


class SliceIndex(NamedTuple):
    """A slice along `dim`."""

    dim: int
    start: int
    step: int
    size: int


class Point(NamedTuple):
    """One index along `dim`: an int, or a traced scalar."""

    dim: int
    index: Any


class Indices(NamedTuple):
    """An array of indices along `dim`: a NumPy array, or a traced one."""

    dim: int
    indices: Any


class Flag(NamedTuple):
    """A bare True (`size` 1) or False (`size` 0)."""

    size: int


class NewAxis:
    """None."""


class EllipsisIndex:
    """The position of an Ellipsis."""


_OUTSIDE = (
    "index {} is out of bounds for dimension {} of size {} (shape {}); "
    "where such indices are meant, say what they do: x.at[i].get(mode='fill'), x.at[i].set(v, mode='drop'), or mode='clip'"
)

Entry = SliceIndex | Point | Indices | Flag | NewAxis | EllipsisIndex


def parse_index(index: Any, shape: Shape, strict: bool = True, wrap: bool = True) -> list[Entry]:
    """Parse an index expression for an array of `shape` into entries.

    Exactly one entry consumes each dimension. `strict` makes known indices outside the array raise, unless the settings permit them; `wrap`
    lets negative ones count from the end.

    Raises:
        OutOfBoundsError: too many indices, a mask of another shape, or a known index outside.
        ArgumentTypeError, DTypeError: something that is not an index.
        ConcretizationError: a traced mask, whose number of elements cannot be known, or a slice with traced bounds.
    """
    strict = strict and (settings.check_static_indices or not settings.permissive)
    items = list(index) if isinstance(index, tuple) else [index]
    items = [_canonical(item) for item in items]
    consumed = sum(map(_consumed_dimensions, items))
    gaps = sum(item is Ellipsis for item in items)
    if gaps > 1:
        raise OutOfBoundsError("an index can have one Ellipsis ('...') only")
    if consumed > len(shape):
        raise OutOfBoundsError(f"too many indices: an array of shape {shape} has {len(shape)} dimensions, but {consumed} were indexed")
    if not gaps:
        items.append(Ellipsis)
    entries: list[Entry] = []
    dim = 0
    for item in items:
        item_entries = list(_read(item, dim, shape, len(shape) - consumed, strict, wrap))
        dim += sum(isinstance(entry, (SliceIndex, Point, Indices)) for entry in item_entries)
        entries += item_entries
    return entries if gaps else [entry for entry in entries if not isinstance(entry, EllipsisIndex)]


def _array_of(sequence: Any) -> Any:
    """Return a nested sequence in an index as an array; its members may be traced."""
    if any(isinstance(leaf, Tracer) for leaf in tree.leaves(sequence)):
        rows = [_array_of(x) if isinstance(x, (list, tuple, range)) else x for x in sequence]
        return concatenate([reshape(row, (1, *np.shape(row))) for row in rows], 0)
    try:
        array = np.asarray(sequence)
    except ValueError:
        raise ArgumentTypeError(f"a sequence in an index must have rows of one length, got {sequence!r:.80}") from None
    return array if array.size else array.astype(np.int32)


def _canonical(item: Any) -> Any:
    """Convert an index to one of the supported kinds, or raise.

    It is None, Ellipsis, a slice, a bool, an int, or an integer or boolean array.
    """
    if item is None or item is Ellipsis or isinstance(item, (slice, bool, int)):
        return item
    if isinstance(item, (list, tuple, range)):
        item = _array_of(item)
    if not isinstance(item, (Array, np.ndarray, np.generic)):
        raise ArgumentTypeError(
            "an index must be an integer, a slice, None, '...', or an integer or boolean array, "
            f"got {brief(item)} of type {type(item).__name__}"
            + (". Arrays have no names for columns: keep a dictionary of arrays" if isinstance(item, str) else "")
            + (". The quotient of integers is n // 2, and n / 2 is a float" if isinstance(item, float) else "")
        )
    if item.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        raise DTypeError(f"an array used as an index must have integer or bool elements, got {item.dtype} of shape {item.shape}")
    is_integer_array = bool(item.ndim) and item.dtype in dtypes.INTEGERS
    # Where indices outside are permitted, one that is split may stay on its devices, and splits the result.
    if isinstance(item, Array) and is_concrete(item) and not (settings.permissive and is_integer_array and _is_split(item)):
        item = np.asarray(item)
    if isinstance(item, Array):
        return item
    return item.item() if item.ndim == 0 else item


def _consumed_dimensions(item: Any) -> int:
    """Return the number of dimensions that an item consumes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, (Array, np.ndarray)) and item.dtype == np.bool_


def _read(item: Any, dim: int, shape: Shape, rest: int, strict: bool, wrap: bool) -> Iterator[Entry]:
    """Return the entries of one item whose first dimension is `dim`.

    An Ellipsis stands for `rest` dimensions.
    """
    if item is None:
        yield NewAxis()
    elif item is Ellipsis:
        yield from [SliceIndex(d, 0, 1, shape[d]) for d in range(dim, dim + rest)]
        yield EllipsisIndex()
    elif isinstance(item, bool):
        yield Flag(int(item))
    elif isinstance(item, slice):
        yield _slice_index(item, dim, shape[dim])
    elif isinstance(item, int):
        yield Point(dim, _known_point(item, dim, shape, strict, wrap))
    elif _is_mask(item):
        yield from _masked(item, dim, shape)
    elif isinstance(item, np.ndarray) and not is_symbolic_dim(shape[dim]):
        yield Indices(dim, known_indices(item, dim, shape, strict, wrap))
    else:
        if isinstance(item, np.ndarray):  # of an axis of symbolic size
            item = as_value(item)
        elif strict:
            check_traced_indices(item, dim, shape, wrap)
        traced = canonical_index(item, shape[dim], wrap)
        yield Indices(dim, traced) if item.ndim else Point(dim, traced)


def _slice_index(item: slice, dim: int, size: int) -> SliceIndex:
    try:
        start, _, step, length = span(item, size)
    except TracerError:  # whose message says more
        raise
    except TypeError:
        raise ArgumentTypeError(f"a slice must consist of integers or None, got {item}") from None
    except ValueError:
        raise ArgumentError(f"a slice's step must not be 0, got {item}") from None
    return SliceIndex(dim, start, step, length)


def _masked(mask: Any, dim: int, shape: Shape) -> Iterator[Entry]:
    concrete_or_raise(
        mask,
        "indexing by a boolean mask, whose number of True elements is a shape,",
        "Use volta_fn.numpy.where(mask, x, other), a reduction's where= argument, or x.at[mask].set(scalar), whose shapes are known.",
        TracerMaskError,
    )
    covered = shape[dim : dim + mask.ndim]
    if mask.ndim != len(covered) or any(size not in (0, full) for size, full in zip(mask.shape, covered, strict=True)):
        raise OutOfBoundsError(
            f"a boolean index must have the shape of the dimensions it covers: dimensions {dim} to {dim + mask.ndim - 1} of shape {shape} "
            f"are {covered}, the mask has shape {mask.shape}"
        )
    if not mask.ndim:
        yield Flag(int(mask))
    for offset, indices in enumerate(np.nonzero(mask) if mask.ndim else ()):
        yield Indices(dim + offset, indices.astype(np.int32))


def _known_point(index: int, dim: int, shape: Shape, strict: bool, wrap: bool) -> int | Array:
    """Normalise a known index to count from the front.

    One out of range raises or, if bounds are not strict, becomes -1 or the dimension's size. In a program it stays an array then, so that
    `checkify` finds it.
    """
    size = shape[dim]
    front = index + size if wrap and index < 0 else index
    if is_symbolic_dim(size):
        return front
    if not 0 <= front < size and (strict or (not size and settings.permissive)):  # JAX finds nothing to move it to, either
        raise _out_of_bounds_error(index, dim, shape)
    if not 0 <= front < size and settings.permissive:
        dtypes.scalar_dtype(index)  # which raises for what JAX has no integer for
    if not 0 <= front < size and current_trace() is not EVAL:
        return from_host(np.array(min(max(front, -(2**31)), 2**31 - 1), np.int32))
    return min(max(front, -1), size)


def known_indices(indices: np.ndarray, dim: int, shape: Shape, strict: bool, wrap: bool) -> np.ndarray:
    """Normalise known indices to count from the front, as int32 if they fit."""
    size = shape[dim]
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    dtype = np.int32 if size < 2**31 else np.int64
    end = min(size, 1 << 8 * indices.itemsize - (indices.dtype.kind == "i"))
    if indices.size and indices.view(f"u{indices.itemsize}").max() < end:  # as unsigned numbers, negative ones are not below it
        return indices.astype(dtype, copy=False)
    indices = indices.astype(np.int64, copy=False)
    front = np.where(indices < 0, indices + size, indices) if wrap else indices
    is_outside = (front < 0) | (front >= size)
    if strict and is_outside.any():
        raise _out_of_bounds_error(int(indices[is_outside][0]), dim, shape)
    return np.clip(front, -1, size).astype(dtype)


def known_array(indices: Array, dim: int, shape: Shape) -> Array:
    """Normalise a known array of indices to count from the front.

    The array is returned as it is if they do already.
    """
    values = np.asarray(indices)
    front = known_indices(values, dim, shape, True, True)
    return indices if front is values else split_like(as_value(front), indices)


def _out_of_bounds_error(index: int, dim: int, shape: Shape) -> OutOfBoundsError:
    return OutOfBoundsError(_OUTSIDE.format(index, dim, shape[dim], shape))


def check_traced_indices(index: Array, dim: int, shape: Shape, wrap: bool = True) -> None:
    """Let a program with checks raise for indices outside of a dimension."""
    check_indices(index, -shape[dim] if wrap else 0, shape[dim], _OUTSIDE.format("{}", dim, shape[dim], shape))


def single_mask(index: Any) -> Any:
    """Return the mask if the index is a single boolean array; else None."""
    items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    return items[0] if len(items) == 1 and _is_mask(items[0]) and items[0].ndim else None


# Reading by index, ``x[…]``: NumPy's basic and advanced indexing.
#
# Each form is lowered to the simplest primitives that express it. Slices become one `slice` (and a `rev` where steps are negative), a
# traced scalar index, and slices beside it, one `dynamic_slice`, arrays of indices one `gather`; a `reshape` then drops the dimensions of
# scalar indices and adds those of None. `window_numbers` words an index as windows of a gather or a scatter, for both.

#: The most indices for which NumPy reads elements faster than a program that first checks their bounds.
_FEW = 1 << 14

CLIP, FILL, PROMISE = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS


def get_item(array: Any, index: Any) -> Array:
    """Read ``array[index]`` by NumPy's rules.

    An index mixes slices, integers, None, Ellipsis, boolean masks and arrays of integers. A known index outside the array raises; one that
    only the program knows is clamped to the nearest index inside.

    Raises:
        OutOfBoundsError: a known index outside, too many indices, or a mask of another shape.
        ArgumentTypeError, DTypeError: something that is not an index.
        ConcretizationError: a traced boolean mask, or a slice with traced bounds.

    >>> x = vf.numpy.arange(6).reshape(2, 3)
    >>> x[:, ::-1], x[1, [0, 2]]
    (Array([[2, 1, 0],
           [5, 4, 3]], dtype=int32), Array([3, 5], dtype=int32))
    """
    if type(index) is ConcreteArray and (rows := read_slices(array, index, 0)) is not None:
        return rows
    if type(index) is tuple and (elements := _read_at_once(array, index)) is not None:
        return elements
    value = beside_indices(as_value(array), index)
    return read(value, parse_index(index, value.shape), None)


def _read_at_once(array: Any, index: tuple[Any, ...]) -> Array | None:
    """Read a slice, or a few points by an index for each dimension, as NumPy does.

    None for other indices, while tracing or where results are checked, if the array is not NumPy's or is distributed, and if an index is
    outside.
    """
    if type(array) is not ConcreteArray or type(array._buffer) is not np.ndarray or current_trace() is not EVAL:
        return None
    if array._spec.device.sharding is not None or settings.sees_results:
        return None
    items: list[Any] = []
    arrays = slices = 0
    for item in index:
        kind = type(item)
        if kind is ConcreteArray or kind is np.ndarray:
            if kind is ConcreteArray:
                if item._spec.device is not array._spec.device:
                    return None
                item = item._buffer
            if type(item) is not np.ndarray or not 0 < item.size <= _FEW:
                return None
            dtype = item.dtype
            if dtype.kind != "i" and (dtype.kind != "u" or dtype.itemsize == 8):  # NumPy makes the largest uint64 negative
                return None
            arrays += 1
        elif kind is slice or item is None or item is Ellipsis:
            slices += 1
        elif kind is not int:
            return None
        items.append(item)
    if arrays and (slices or len(items) < array.ndim):  # which may be many elements, for a program
        return None
    try:
        elements = np.asarray(array._buffer[tuple(items)])
    except (IndexError, TypeError, ValueError):  # the error is to be typed, or indices outside are permitted
        return None
    return wrap(elements, _spec_with_shape(array._spec, elements.shape))


def read_by_numpy(function: Callable[..., np.ndarray], array: Any, index: Any, axis: int | None) -> Array | None:
    """Read elements at a few known indices along an axis by a NumPy function.

    None while tracing, where arrays are not NumPy's, and if an index is outside. Of scalars, NumPy's `take` would read an axis, too.
    """
    if type(array) is not ConcreteArray or current_trace() is not EVAL or (axis is not None and not array.shape):
        return None
    buffer, at = array._buffer, index._buffer if type(index) is ConcreteArray and index._spec.device is array._spec.device else index
    if type(buffer) is not np.ndarray or type(at) is not np.ndarray or at.dtype.kind != "i" or at.size > _FEW or _is_split(array, index):
        return None
    try:
        elements = np.asarray(function(buffer, at, axis))
    except (IndexError, ValueError):
        return None
    return wrap(elements, _spec_with_shape(array._spec, elements.shape))


def read_slices(array: Any, index: Any, axis: int | None) -> Array | None:
    """Return the slices of an array at known indices along an axis (None: elements).

    None while tracing, and for what takes several steps.
    """
    elements = read_by_numpy(np.ndarray.take, array, index, axis)
    if elements is not None or type(array) is not ConcreteArray or type(index) is not ConcreteArray:
        return elements
    array, shape = beside_indices(array, index), array.shape
    dim = axis if axis is not None else 0 if len(shape) == 1 else -1
    if current_trace() is not EVAL or index.dtype.kind not in "iu" or not 0 <= dim < len(shape) or not index.size or settings.permissive:
        return None
    at = known_array(index, dim, shape)
    numbers, sizes = _slices_along(shape, dim, index.ndim)
    return bind(gather_p, array, reshape(at, (*at.shape, 1)), dimension_numbers=numbers, slice_sizes=sizes, mode=PROMISE, fill_value=None)


def _is_split(*arrays: Any) -> bool:
    """Return whether an array is split between devices, which decides how results are."""
    return any(type(a) is ConcreteArray and a._spec.device.sharding is not None for a in arrays)


@lru_cache(maxsize=1024)
def _slices_along(shape: Shape, dim: int, rank: int) -> tuple[GatherDimensionNumbers, Shape]:
    """Return the windows of a gather of slices at index arrays of a rank."""
    offsets = tuple([d if d < dim else d - 1 + rank for d in range(len(shape)) if d != dim])
    return GatherDimensionNumbers(offsets, (dim,), (dim,)), tuple([1 if d == dim else size for d, size in enumerate(shape)])


@lru_cache(maxsize=1024)
def _spec_with_shape(spec: ArraySpec, shape: Shape) -> ArraySpec:
    return array_spec(spec.aval.update(shape=shape), spec.device)


def read(value: Array, entries: Sequence[Entry], mode: GatherScatterMode | None, fill_value: Any = None) -> Array:
    """Return the elements at the entries.

    Indices that may be out of range are treated by `mode` (None: CLIP).
    """
    points = [e for e in entries if type(e) is Point]
    filling = mode is FILL and any(not (type(p.index) is int and 0 <= p.index < value.shape[p.dim]) for p in points)
    if filling or any(isinstance(e, (Indices, Flag)) for e in entries):
        value = _cut(value, [e for e in entries if type(e) is SliceIndex])
        windows = window_numbers([SliceIndex(e.dim, 0, 1, e.size) if type(e) is SliceIndex else e for e in entries], value.shape)
        if not math.prod(windows.shape):
            return broadcast(as_value(np.zeros((), value.dtype)), windows.shape)
        if any(not value.shape[dim] for dim in windows.numbers.collapsed_slice_dims):
            raise OutOfBoundsError(
                f"an array of shape {value.shape} has no elements, so an index along its dimensions of size 0 has no meaning"
            )
        gather_mode = mode or (PROMISE if windows.is_constant and not settings.permissive else CLIP)
        out = gather(value, windows.indices, windows.numbers, windows.sizes, mode=gather_mode, fill_value=fill_value)
        return reshape(out, windows.shape)
    sizes = [e.size if isinstance(e, SliceIndex) else 1 for e in entries if isinstance(e, (SliceIndex, NewAxis))]
    if any(type(p.index) is not int for p in points):
        is_block = [_is_block(e, value.shape) for e in entries]
        rest, blocks = ([e for e, mark in zip(entries, is_block, strict=True) if mark is kind] for kind in (False, True))
        out = _dynamic_slice(_cut(value, rest), blocks)
    else:
        out = _cut(value, entries)
    return reshape(out, sizes) if any(isinstance(e, NewAxis) for e in entries) else squeeze(out, [p.dim for p in points])


def _is_block(entry: Entry, shape: Shape) -> bool:
    """Return True if an entry is a point or a span of adjacent elements."""
    if type(entry) is SliceIndex:
        return entry.step == 1 and not is_symbolic((entry.start, entry.size, shape[entry.dim]))
    return type(entry) is Point and (type(entry.index) is not int or not is_symbolic(shape))


def _cut(value: Array, entries: Sequence[Entry]) -> Array:
    """Apply slices and known points to `value` as one slice.

    Points leave size 1; negative steps are reversed afterwards.
    """
    if is_symbolic(value.shape) or is_symbolic([e.step for e in entries if type(e) is SliceIndex]):
        strided = [e for e in entries if type(e) is SliceIndex and is_symbolic((e.start, e.step, e.size)) and e.step not in (1, -1)]
        for block in strided:
            value = _every_step(value, block)
        entries = [e for e in entries if e not in strided]
    starts, limits, steps, reversed_dims = [0] * value.ndim, list(value.shape), [1] * value.ndim, []
    for e in entries:
        if type(e) is Point and type(e.index) is int:
            starts[e.dim] = min(max(e.index, 0), value.shape[e.dim] - 1)
            limits[e.dim] = starts[e.dim] + 1
        elif type(e) is SliceIndex:
            starts[e.dim], limits[e.dim] = _bounds(e)
            steps[e.dim] = abs(e.step)
            reversed_dims += [e.dim] if e.step < 0 else []
    if limits != list(value.shape) or any(starts) or steps != [1] * value.ndim:
        value = slice_(value, starts, limits, steps)
    return rev(value, reversed_dims)


def _every_step(value: Array, span: SliceIndex) -> Array:
    """Take a slice of symbolic bounds by the positions of its elements."""
    # The bounds of a strided slice would have to be in order where it is empty, too, which makes its size another expression.
    start, step = (convert_element_type(as_value(x), np.dtype(np.int32)) for x in (span.start, span.step))
    positions = start + step * iota(np.dtype(np.int32), span.size)
    others = tuple([dim for dim in range(value.ndim) if dim != span.dim])
    numbers = GatherDimensionNumbers(others, (span.dim,), (span.dim,))
    sizes = tuple([1 if dim == span.dim else size for dim, size in enumerate(value.shape)])
    return gather(value, expand_dims(positions, (1,)), numbers, sizes, mode=CLIP)


def _bounds(span: SliceIndex) -> tuple[int, int]:
    """Return the least index of a slice and the one after its greatest."""
    if not span.size:
        return 0, 0
    last = span.start + span.step * (span.size - 1)
    return (span.start, last + 1) if span.step > 0 else (last, span.start + 1)


def _dynamic_slice(value: Array, blocks: Sequence[Any]) -> Array:
    """Slice `value` by points, which leave size 1, and spans of adjacent elements."""
    if any(type(e) is Point and not value.shape[e.dim] for e in blocks):
        raise OutOfBoundsError(
            f"an array of shape {value.shape} has no elements, so an index along its dimensions of size 0 has no meaning"
        )
    starts, sizes = [as_value(np.int32(0))] * value.ndim, list(value.shape)
    for e in blocks:
        start = e.start if type(e) is SliceIndex else e.index
        starts[e.dim] = canonical_index(start, value.shape[e.dim], allow_negative=False) if type(start) is int else as_value(start)
        sizes[e.dim] = e.size if type(e) is SliceIndex else 1
    return bind(dynamic_slice_p, value, *starts, slice_sizes=tuple(sizes))


# Windows.


class Windows(NamedTuple):
    """An index as windows of a gather or scatter."""

    #: The index vectors: a NumPy array if all are known.
    indices: Any
    numbers: GatherDimensionNumbers
    #: A window's size along each dimension of the array.
    sizes: Shape
    #: The result's shape with and without the dimensions that None adds.
    shape: Shape
    compact: Shape
    #: Dimensions of the compact result that run backwards.
    reversed_dims: tuple[int, ...]

    @property
    def is_constant(self) -> bool:
        """Whether all indices are known."""
        return isinstance(self.indices, np.ndarray)


class _Layout:
    """A builder of `Windows`."""

    def __init__(self, ndim: int) -> None:
        self.sizes = [0] * ndim
        self.shape: list[int] = []
        self.compact: list[int] = []
        self.batch: list[int] = []
        self.offsets: list[int] = []
        self.collapsed: list[int] = []
        self.reversed_dims: list[int] = []
        #: (dimension, its indices, the batch dimension after the last one that they run along)
        self.columns: list[tuple[int, Any, int]] = []

    def pick(self, dim: int, indices: Any, end: int) -> None:
        """Give windows size 1 along `dim`, at `indices`."""
        self.sizes[dim] = 1
        self.collapsed.append(dim)
        self.columns.append((dim, indices, end))

    def extend(self, sizes: Shape) -> None:
        for extended in (self.batch, self.compact, self.shape):
            extended.extend(sizes)

    def span(self, span: SliceIndex, full: int) -> None:
        """Add a slice."""
        # Neighboring elements are a range of the window; others are indices along a batch dimension of their own.
        if abs(span.step) != 1 and span.size > 1:
            self.extend((span.size,))
            self.pick(span.dim, span.start + span.step * np.arange(span.size), len(self.batch))
            return
        first, _ = _bounds(span)
        self.sizes[span.dim] = span.size
        if 0 < span.size < full:
            self.columns.append((span.dim, np.asarray(first), 0))
        if span.step < 0:
            self.reversed_dims.append(len(self.compact))
        self.offsets.append(len(self.compact))
        self.compact.append(span.size)
        self.shape.append(span.size)


def window_numbers(entries: Sequence[Entry], shape: Shape) -> Windows:
    """Express an index as windows of an array of `shape`.

    Arrays of indices broadcast together. By NumPy's rule their dimensions stand where the first of them stood if they are neighbours,
    else in front; scalar indices next to arrays count as arrays.
    """
    arrays = any(isinstance(e, (Indices, Flag)) for e in entries)
    picking = [i for i, e in enumerate(entries) if isinstance(e, (Indices, Flag, Point))] if arrays else []
    together = _broadcast_indices([entries[i] for i in picking])
    neighbours = bool(picking) and picking[-1] - picking[0] + 1 == len(picking)
    position = (picking[0] if neighbours else 0) if picking else None
    layout = _Layout(len(shape))
    end = 0
    for i, e in enumerate(entries):
        if i == position:
            layout.extend(together)
            end = len(layout.batch)
        if isinstance(e, SliceIndex):
            layout.span(e, shape[e.dim])
        elif isinstance(e, Point):
            layout.pick(e.dim, e.index, end)
        elif isinstance(e, Indices):
            layout.pick(e.dim, e.indices, end)
        elif isinstance(e, NewAxis):
            layout.shape.append(1)
    numbers = GatherDimensionNumbers(tuple(layout.offsets), tuple(sorted(layout.collapsed)), tuple([dim for dim, _, _ in layout.columns]))
    indices = _index_vectors([(values, end) for _, values, end in layout.columns], tuple(layout.batch))
    return Windows(indices, numbers, tuple(layout.sizes), tuple(layout.shape), tuple(layout.compact), tuple(layout.reversed_dims))


def _broadcast_indices(entries: Sequence[Entry]) -> Shape:
    shapes = [e.indices.shape if isinstance(e, Indices) else (e.size,) if isinstance(e, Flag) else () for e in entries]
    try:
        return broadcast_shapes(*shapes) if shapes else ()
    except BroadcastError as error:
        raise BroadcastError(f"the arrays of an index must broadcast together: {error.message}") from None


def _index_vectors(columns: Sequence[tuple[Any, int]], batch: Shape) -> Any:
    """Stack index columns into an array of shape (*batch, len(columns)).

    Each column runs along the batch dimensions before its end. The result is a NumPy array if every column is known.
    """
    rank = len(batch)
    constants = [np.asarray(values) for values, _ in columns if isinstance(values, (int, np.ndarray))]
    traced = [values for values, _ in columns if isinstance(values, Array)]
    wide = any(values.size and values.dtype.itemsize > 4 and values.max() >= 2**31 for values in constants)
    wide |= any(values.dtype == np.uint32 or values.dtype.itemsize == 8 for values in traced)
    dtype = np.int64 if wide else np.int32
    if not traced:
        aligned = [values.reshape(_padded_shape(values.shape, end, rank)) for values, (_, end) in zip(constants, columns, strict=True)]
        stacked = [np.broadcast_to(column, batch) for column in aligned]
        if len(stacked) == 1 and current_trace() is EVAL:  # which are read at once, and need no copy
            return stacked[0][..., np.newaxis].astype(dtype, copy=False)
        return np.stack(stacked, axis=-1).astype(dtype) if stacked else np.zeros((*batch, 0), dtype)
    arrays = []
    for values, end in columns:
        array = convert_element_type(values, dtype) if isinstance(values, Array) else as_value(np.asarray(values, dtype))
        column = reshape(array, (*_padded_shape(array.shape, end, rank), 1))
        arrays.append(broadcast_to(column, (*batch, 1)))
    return concatenate(arrays, rank)


def _padded_shape(shape: Shape, end: int, rank: int) -> Shape:
    """Pad a shape with ones to `rank`, its last dimension before `end`."""
    return (1,) * (end - len(shape)) + shape + (1,) * (rank - end)


attach("__getitem__", get_item)
