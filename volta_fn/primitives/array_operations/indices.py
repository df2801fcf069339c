"""Parsing and checking of index expressions ``x[…]``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape
from volta_fn.core.trace import Tracer, bind, concrete_or_raise, is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, OutOfBoundsError, TracerError, TracerMaskError
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.data_movement.dynamic_slicing import normalised
from volta_fn.primitives.data_movement.movement import reshape
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.settings import current as settings
from volta_fn.source import user_location

# Checks of indices: at once, or in a running program by VOLTA_CHECK_INDICES=1.
#
# A compiled program cannot raise by itself: it moves an index out of range inside, drops the update, or gives NaN. With the variable set
# while a function is traced, its program calls back to Python with each index, which costs time, and raises.

#: Loaded when a check is traced: it depends on indexing.
_CALLBACKS = deferred("volta_fn.primitives.callbacks")


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
        bind(_CALLBACKS.debug_callback_p, indices, callback=check)


# Parsing of index expressions ``x[…]`` into checked entries.
#
# The entries, each of which consumes one dimension of the array unless it says otherwise:
#
# - `Span`: a slice, resolved: ``start + step * i`` for i < size.
# - `Point`: one index.
# - `Indices`: an array of indices; a boolean mask becomes one per dimension it covers, all from its nonzero elements.
# - `Flag`: a bare True or False, which consumes no dimension and adds one of size 1 or 0 next to the indices.
# - `NewAxis`: None, which consumes no dimension and adds one.
# - `Gap`: an Ellipsis, after its spans; it consumes nothing and only separates its neighbours, which NumPy's placement rule asks about.
#
# Indices are *known* (Python ints, NumPy arrays, arrays that hold numbers) or traced. Known ones come out as NumPy integers, counted from
# the front; where bounds are `strict` one outside raises.


class Span(NamedTuple):
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


class Gap:
    """The position of an Ellipsis."""


_OUTSIDE = (
    "index {} is out of bounds for dimension {} of size {} (shape {}); "
    "where such indices are meant, say what they do: x.at[i].get(mode='fill'), x.at[i].set(v, mode='drop'), or mode='clip'"
)

Entry = Span | Point | Indices | Flag | NewAxis | Gap


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
    consumed = sum(map(_consumes, items))
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
        dim += sum(isinstance(entry, (Span, Point, Indices)) for entry in item_entries)
        entries += item_entries
    return entries if gaps else [entry for entry in entries if not isinstance(entry, Gap)]


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
            f"got {item!r:.80} of type {type(item).__name__}"
        )
    if item.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        raise DTypeError(f"an array used as an index must have integer or bool elements, got {item.dtype} of shape {item.shape}")
    if isinstance(item, Array) and is_concrete(item):
        item = np.asarray(item)
    if isinstance(item, Array):
        return item
    return item.item() if item.ndim == 0 else item


def _consumes(item: Any) -> int:
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
        yield from [Span(d, 0, 1, shape[d]) for d in range(dim, dim + rest)]
        yield Gap()
    elif isinstance(item, bool):
        yield Flag(int(item))
    elif isinstance(item, slice):
        yield _span(item, dim, shape[dim])
    elif isinstance(item, int):
        yield Point(dim, _known_point(item, dim, shape, strict, wrap))
    elif _is_mask(item):
        yield from _masked(item, dim, shape)
    elif isinstance(item, np.ndarray):
        yield Indices(dim, known_indices(item, dim, shape, strict, wrap))
    else:
        if strict:
            check_traced_indices(item, dim, shape, wrap)
        traced = normalised(item, shape[dim], wrap)
        yield Indices(dim, traced) if item.ndim else Point(dim, traced)


def _span(item: slice, dim: int, size: int) -> Span:
    try:
        start, stop, step = item.indices(size)
    except TracerError:  # whose message says more
        raise
    except TypeError:
        raise ArgumentTypeError(f"a slice must consist of integers or None, got {item}") from None
    except ValueError:
        raise ArgumentError(f"a slice's step must not be 0, got {item}") from None
    return Span(dim, start, step, len(range(start, stop, step)))


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


def _known_point(index: int, dim: int, shape: Shape, strict: bool, wrap: bool) -> int:
    """Normalise a known index to count from the front.

    One out of range raises or, if bounds are not strict, becomes -1 or the dimension's size.
    """
    size = shape[dim]
    front = index + size if wrap and index < 0 else index
    if not 0 <= front < size and (strict or (not size and settings.permissive)):  # JAX finds nothing to move it to, either
        raise _outside(index, dim, shape)
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
        raise _outside(int(indices[is_outside][0]), dim, shape)
    return np.clip(front, -1, size).astype(dtype)


def known_array(indices: Array, dim: int, shape: Shape) -> Array:
    """Normalise a known array of indices to count from the front.

    The array is returned as it is if they do already.
    """
    values = np.asarray(indices)
    front = known_indices(values, dim, shape, True, True)
    return indices if front is values else as_value(front)


def _outside(index: int, dim: int, shape: Shape) -> OutOfBoundsError:
    return OutOfBoundsError(_OUTSIDE.format(index, dim, shape[dim], shape))


def check_traced_indices(index: Array, dim: int, shape: Shape, wrap: bool = True) -> None:
    """Let a program with checks raise for indices outside of a dimension."""
    check_indices(index, -shape[dim] if wrap else 0, shape[dim], _OUTSIDE.format("{}", dim, shape[dim], shape))


def single_mask(index: Any) -> Any:
    """Return the mask if the index is a single boolean array; else None."""
    items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    return items[0] if len(items) == 1 and _is_mask(items[0]) and items[0].ndim else None
