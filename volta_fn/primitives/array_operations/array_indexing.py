"""Reading by index, ``x[…]``: NumPy's basic and advanced indexing.

Each form is lowered to the simplest primitives that express it. Slices become one `slice` (and a `rev` where steps are negative), a traced
scalar index one `dynamic_slice`, arrays of indices one `gather`; a `reshape` then drops the dimensions of scalar indices and adds those of
None. `window_numbers` words an index as windows of a gather or a scatter, for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.array import Array, ArraySpec, ConcreteArray, array_spec, as_value, attach, wrap
from volta_fn.core.aval import Shape
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.errors import BroadcastError, OutOfBoundsError
from volta_fn.primitives.array_operations.indices import Entry, Flag, Indices, NewAxis, Point, Span, known_array, parse_index
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice_p
from volta_fn.primitives.data_movement.gather import gather, gather_p
from volta_fn.primitives.data_movement.movement import broadcast, broadcast_to, reshape, rev
from volta_fn.primitives.data_movement.slicing import GatherDimensionNumbers, GatherScatterMode, concatenate
from volta_fn.primitives.data_movement.slicing import slice as slice_
from volta_fn.primitives.declare import broadcast_shapes
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.settings import current as settings

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

    >>> import volta_fn as vf
    >>> x = vf.numpy.arange(6).reshape(2, 3)
    >>> x[:, ::-1], x[1, [0, 2]]
    (Array([[2, 1, 0],
           [5, 4, 3]], dtype=int32), Array([3, 5], dtype=int32))
    """
    if type(index) is ConcreteArray and (rows := read_slices(array, index, 0)) is not None:
        return rows
    value = as_value(array)
    return read(value, parse_index(index, value.shape), None)


def read_by_numpy(function: Callable[..., np.ndarray], array: Any, index: Any, axis: int | None) -> Array | None:
    """Read elements at a few known indices along an axis by a NumPy function.

    None while tracing, where arrays are not NumPy's, and if an index is outside.
    """
    if type(array) is not ConcreteArray or current_trace() is not EVAL:
        return None
    buffer, at = array._buffer, index._buffer if type(index) is ConcreteArray else index
    if type(buffer) is not np.ndarray or type(at) is not np.ndarray or at.dtype.kind != "i" or at.size > _FEW:
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
    shape = array.shape
    dim = axis if axis is not None else 0 if len(shape) == 1 else -1
    if current_trace() is not EVAL or index.dtype.kind not in "iu" or not 0 <= dim < len(shape) or not index.size or settings.permissive:
        return None
    at = known_array(index, dim, shape)
    numbers, sizes = _slices_along(shape, dim, index.ndim)
    return bind(gather_p, array, reshape(at, (*at.shape, 1)), dimension_numbers=numbers, slice_sizes=sizes, mode=PROMISE, fill_value=None)


@lru_cache(maxsize=1024)
def _slices_along(shape: Shape, dim: int, rank: int) -> tuple[GatherDimensionNumbers, Shape]:
    """Return the windows of a gather of slices at index arrays of a rank."""
    offsets = tuple([d if d < dim else d - 1 + rank for d in range(len(shape)) if d != dim])
    return GatherDimensionNumbers(offsets, (dim,), (dim,)), tuple([1 if d == dim else size for d, size in enumerate(shape)])


@lru_cache(maxsize=1024)
def _spec_with_shape(spec: ArraySpec, shape: Shape) -> ArraySpec:
    device = spec.device if spec.device.sharding is None else spec.device.home  # type: ignore[attr-defined]  # of a group
    return array_spec(spec.aval.update(shape=shape), device)


def read(value: Array, entries: Sequence[Entry], mode: GatherScatterMode | None, fill_value: Any = None) -> Array:
    """Return the elements at the entries.

    Indices that may be out of range are treated by `mode` (None: CLIP).
    """
    points = [e for e in entries if type(e) is Point]
    filling = mode is FILL and any(not (type(p.index) is int and 0 <= p.index < value.shape[p.dim]) for p in points)
    if filling or any(isinstance(e, (Indices, Flag)) for e in entries):
        return _gathered(value, entries, mode, fill_value)
    sizes = [e.size if isinstance(e, Span) else 1 for e in entries if isinstance(e, (Span, NewAxis))]
    return reshape(_slide(_cut(value, entries), points), sizes)


def _gathered(value: Array, entries: Sequence[Entry], mode: GatherScatterMode | None, fill_value: Any) -> Array:
    value = _cut(value, [e for e in entries if type(e) is Span])
    windows = window_numbers([Span(e.dim, 0, 1, e.size) if type(e) is Span else e for e in entries], value.shape)
    if not math.prod(windows.shape):
        return broadcast(as_value(np.zeros((), value.dtype)), windows.shape)
    if any(not value.shape[dim] for dim in windows.numbers.collapsed_slice_dims):
        raise OutOfBoundsError(
            f"an array of shape {value.shape} has no elements, so an index along its dimensions of size 0 has no meaning"
        )
    gather_mode = mode or (PROMISE if windows.is_constant and not settings.permissive else CLIP)
    out = gather(value, windows.indices, windows.numbers, windows.sizes, mode=gather_mode, fill_value=fill_value)
    return reshape(out, windows.shape)


def _cut(value: Array, entries: Sequence[Entry]) -> Array:
    """Apply slices and known points to `value` as one slice.

    Points leave size 1; negative steps are reversed afterwards.
    """
    starts, limits, steps, reversed_dims = [0] * value.ndim, list(value.shape), [1] * value.ndim, []
    for e in entries:
        if type(e) is Point and type(e.index) is int:
            starts[e.dim] = min(max(e.index, 0), value.shape[e.dim] - 1)
            limits[e.dim] = starts[e.dim] + 1
        elif type(e) is Span:
            starts[e.dim], limits[e.dim] = _bounds(e)
            steps[e.dim] = abs(e.step)
            reversed_dims += [e.dim] if e.step < 0 else []
    if limits != list(value.shape) or any(starts) or steps != [1] * value.ndim:
        value = slice_(value, starts, limits, steps)
    return rev(value, reversed_dims)


def _bounds(span: Span) -> tuple[int, int]:
    """Return the least index of a slice and the one after its greatest."""
    if not span.size:
        return 0, 0
    first, last = sorted((span.start, span.start + span.step * (span.size - 1)))
    return first, last + 1


def _slide(value: Array, points: Sequence[Point]) -> Array:
    """Slice `value` to size 1 along the dimension of each traced point."""
    traced = {p.dim: p.index for p in points if type(p.index) is not int}
    if not traced:
        return value
    if any(not value.shape[dim] for dim in traced):
        raise OutOfBoundsError(
            f"an array of shape {value.shape} has no elements, so an index along its dimensions of size 0 has no meaning"
        )
    starts = [as_value(traced.get(dim, np.int32(0))) for dim in range(value.ndim)]
    sizes = tuple([1 if dim in traced else n for dim, n in enumerate(value.shape)])
    return bind(dynamic_slice_p, value, *starts, slice_sizes=sizes)


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


class _Layout(NamedTuple):
    """A builder of `Windows`."""

    sizes: list[int]
    shape: list[int]
    compact: list[int]
    batch: list[int]
    offsets: list[int]
    collapsed: list[int]
    reversed_dims: list[int]
    #: (dimension, its indices, the batch dimension after the last one that they run along)
    columns: list[tuple[int, Any, int]]

    def pick(self, dim: int, indices: Any, end: int) -> None:
        """Give windows size 1 along `dim`, at `indices`."""
        self.sizes[dim] = 1
        self.collapsed.append(dim)
        self.columns.append((dim, indices, end))

    def extend(self, sizes: Shape) -> None:
        """Add batch dimensions, next in the result."""
        for extended in (self.batch, self.compact, self.shape):
            extended.extend(sizes)

    def span(self, span: Span, full: int) -> None:
        """Add a slice.

        Neighboring elements are a range of the window; others are indices along a batch dimension of their own.
        """
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
    layout = _Layout([0] * len(shape), [], [], [], [], [], [], [])
    end = 0
    for i, e in enumerate(entries):
        if i == position:
            layout.extend(together)
            end = len(layout.batch)
        if isinstance(e, Span):
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
        aligned = [values.reshape(_spread(values.shape, end, rank)) for values, (_, end) in zip(constants, columns, strict=True)]
        stacked = [np.broadcast_to(column, batch) for column in aligned]
        if len(stacked) == 1 and current_trace() is EVAL:  # which are read at once, and need no copy
            return stacked[0][..., np.newaxis].astype(dtype, copy=False)
        return np.stack(stacked, axis=-1).astype(dtype) if stacked else np.zeros((*batch, 0), dtype)
    arrays = []
    for values, end in columns:
        array = convert_element_type(values, dtype) if isinstance(values, Array) else as_value(np.asarray(values, dtype))
        column = reshape(array, (*_spread(array.shape, end, rank), 1))
        arrays.append(broadcast_to(column, (*batch, 1)))
    return concatenate(arrays, rank)


def _spread(shape: Shape, end: int, rank: int) -> Shape:
    """Pad a shape with ones to `rank`, its last dimension before `end`."""
    return (1,) * (end - len(shape)) + shape + (1,) * (rank - end)


attach("__getitem__", get_item)
