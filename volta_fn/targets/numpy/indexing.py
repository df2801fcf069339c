"""Gather, scatter and dynamic slices in NumPy; random bits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from volta_fn import dtypes
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers, default_fill
from volta_fn.primitives.formulas.ciphers import FEW, encipher, encipher_one

# Gather, scatter and dynamic slices in NumPy.
#
# A *window* is the block of the operand that one index vector (a *start*) addresses; a start is *valid* if its window lies wholly inside
# the operand. The starts of a call are one integer array, (addressed dimensions, *batch), and both kernels look at the operand through
# `_windows`, a strided view that starts index: only the indexed elements are copied.

Dims = tuple[int, ...]

#: Windows of at least this many elements are combined one by one, smaller ones element by element, at most `_BLOCK` elements at once:
#: NumPy's `ufunc.at` is fast in one dimension only, and beats sorting the indices by far there.
_LARGE_WINDOW = 1 << 10
_BLOCK = 1 << 17

_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def gather(
    operand: np.ndarray,
    indices: np.ndarray,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Dims,
    mode: GatherScatterMode,
    fill_value: Any = None,
) -> np.ndarray:
    """Return the operand's windows at ``indices``, in the result's layout.

    Under FILL_OR_DROP an invalid window is full of ``fill_value``; None means NaN, or the least signed integer, the greatest unsigned
    one, or True. Under the other modes an invalid window moves to the nearest valid start.
    """
    numbers = dimension_numbers
    dims = numbers.operand_batching_dims + numbers.start_index_map
    absent = numbers.operand_batching_dims + numbers.collapsed_slice_dims
    fills = mode is GatherScatterMode.FILL_OR_DROP
    fill = default_fill(operand.dtype) if fill_value is None else fill_value
    if math.prod(indices.shape[:-1]) == 1:
        return _read_one(operand, indices, numbers, slice_sizes, absent, not fills, fill)
    if _is_along_axis(operand, indices, numbers):
        result = _read_along_axis(operand, indices[..., 0], numbers.start_index_map[0], fills)
        if result is not None:
            return result
    starts = _starts(indices, numbers.start_indices_batching_dims)
    limits = _limits(operand, dims, slice_sizes, starts.ndim)
    inside = _clamp(starts, limits)
    if _selects_elements(operand, dims, slice_sizes):
        read, lead = _read_elements(operand, dims, absent, inside)
    else:
        read, lead = _read_windows(operand, dims, slice_sizes, absent, inside), 0
    if fills:
        invalid = _invalid(starts, limits)
        if invalid.any():
            read = read.copy()
            read[(slice(None),) * lead + (invalid,)] = fill
    # The dimensions of windows go to ``offset_dims``; ``lead`` precede the batch.
    batch_rank = starts.ndim - 1
    window_axes = iter([*range(lead), *range(lead + batch_rank, read.ndim)])
    batch_axes = iter(range(lead, lead + batch_rank))
    return read.transpose([next(window_axes if dim in numbers.offset_dims else batch_axes) for dim in range(read.ndim)])


def scatter(
    operand: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    *,
    dimension_numbers: ScatterDimensionNumbers,
    mode: GatherScatterMode,
    unique_indices: bool = False,
    combine: str = "set",
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Return the operand with ``updates`` combined into its windows at ``indices``.

    They are combined in the order of the indices. ``combine`` is "set" (of several updates of one element the last one stays), "add",
    "mul", "min" or "max"; float16 and bfloat16 combine in float32. Under CLIP an invalid window moves to the nearest valid start, otherwise
    its update is dropped. ``unique_indices`` promises that no two windows overlap, which brings nothing here. ``out`` may be the operand,
    to be updated in place.
    """
    out = _own(operand, out, indices, updates)
    numbers = dimension_numbers
    dims = numbers.operand_batching_dims + numbers.scatter_dims_to_operand_dims
    absent = numbers.operand_batching_dims + numbers.inserted_window_dims
    clips = mode is GatherScatterMode.CLIP
    if math.prod(indices.shape[:-1]) == 1:
        return _update_one(out, indices, updates, numbers, absent, clips, combine)
    starts = _starts(indices, numbers.scatter_indices_batching_dims)
    starts = np.ascontiguousarray(starts).reshape(len(dims), math.prod(starts.shape[1:]))
    # The updates as (number of windows, *window):
    batch_dims = [dim for dim in range(updates.ndim) if dim not in numbers.update_window_dims]
    count = math.prod(updates.shape[dim] for dim in batch_dims)
    windows = updates.transpose([*batch_dims, *numbers.update_window_dims]).reshape(
        count, *(updates.shape[dim] for dim in numbers.update_window_dims)
    )
    sizes = _window_sizes(operand.ndim, absent, windows.shape[1:])
    limits = _limits(operand, dims, sizes, starts.ndim)
    if clips:
        starts = _clamp(starts, limits)
    else:
        valid = ~_invalid(starts, limits)
        if not valid.all():
            starts, windows = starts[:, valid], windows[valid]
    if combine == "set":
        _set_windows(_windows(out, dims, sizes, absent), starts, windows)
        return out
    wide = np.dtype(np.float32) if operand.dtype in _HALF else operand.dtype
    out = out.astype(wide, order="C", copy=False)
    windows = windows.astype(wide, copy=False)
    if math.prod(sizes) >= _LARGE_WINDOW:
        _combine_windows(_COMBINE[combine], _windows(out, dims, sizes, absent), starts, windows)
    elif windows.size:
        _combine_elements(_COMBINE[combine], out, dims, sizes, starts, windows)
    return out.astype(operand.dtype, copy=False)


scatter_add, scatter_mul, scatter_min, scatter_max = (partial(scatter, combine=how) for how in _COMBINE)


def dynamic_slice(operand: np.ndarray, *start_indices: np.ndarray, slice_sizes: Dims) -> np.ndarray:
    """Return the block at the start, clamped so that it lies inside: a view."""
    return operand[_block(operand.shape, start_indices, slice_sizes)]


def dynamic_update_slice(operand: np.ndarray, update: np.ndarray, *start_indices: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the operand with ``update`` written at the start, clamped to lie inside.

    ``out`` may be the operand, to be updated in place.
    """
    result = _own(operand, out, update)
    result[_block(operand.shape, start_indices, update.shape)] = update
    return result


def _own(operand: np.ndarray, out: np.ndarray | None, *others: np.ndarray) -> np.ndarray:
    """Return ``out``, equal to the operand, unless it overlaps `others`; else a copy."""
    if out is None or any(np.may_share_memory(out, other) for other in others):
        return np.array(operand)  # of a NumPy scalar, too
    return np.asarray(out)


def _block(shape: Dims, starts: tuple[np.ndarray, ...], sizes: Dims) -> tuple[Any, ...]:
    clamped = [min(max(int(start), 0), dim - size) for start, dim, size in zip(starts, shape, sizes, strict=True)]
    return (*(slice(start, start + size) for start, size in zip(clamped, sizes, strict=True)), ...)  # `...` makes it an array always.


# One window: a basic slice.


def _one_window(operand: np.ndarray, indices: np.ndarray, addressed: Dims, sizes: Dims, clips: bool) -> tuple[Any, ...] | None:
    """Return the only window's slices; an invalid one is clamped, or None."""
    starts = [0] * operand.ndim
    for dim, start in zip(addressed, indices.reshape(-1).tolist(), strict=True):
        limit = operand.shape[dim] - sizes[dim]
        if not 0 <= start <= limit:
            if not clips:
                return None
            start = min(max(start, 0), limit)
        starts[dim] = start
    return (*(slice(start, start + size) for start, size in zip(starts, sizes, strict=True)), ...)


def _read_one(
    operand: np.ndarray, indices: np.ndarray, numbers: GatherDimensionNumbers, sizes: Dims, absent: Dims, clips: bool, fill: Any
) -> np.ndarray:
    window = iter([size for dim, size in enumerate(sizes) if dim not in absent])
    rank = len(numbers.offset_dims) + indices.ndim - 1
    shape = [next(window) if dim in numbers.offset_dims else 1 for dim in range(rank)]
    window_slices = _one_window(operand, indices, numbers.start_index_map, sizes, clips)
    return np.full(shape, fill, operand.dtype) if window_slices is None else operand[window_slices].reshape(shape)


def _update_one(
    out: np.ndarray, indices: np.ndarray, updates: np.ndarray, numbers: ScatterDimensionNumbers, absent: Dims, clips: bool, combine: str
) -> np.ndarray:
    sizes = _window_sizes(out.ndim, absent, tuple([updates.shape[dim] for dim in numbers.update_window_dims]))
    window_slices = _one_window(out, indices, numbers.scatter_dims_to_operand_dims, sizes, clips)
    if window_slices is not None:
        window = updates.reshape(sizes)
        wide = np.float32 if out.dtype in _HALF else out.dtype
        out[window_slices] = (
            window if combine == "set" else _COMBINE[combine](out[window_slices].astype(wide, copy=False), window.astype(wide, copy=False))
        )
    return out


# Starts and windows, for both.


def _starts(indices: np.ndarray, batching: Dims) -> np.ndarray:
    """Return the starts, addressed dimensions first.

    These are the operand's batching dimensions, counted up, then the index vectors.
    """
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.intp).max))
    starts = indices.astype(np.intp, copy=False).transpose(indices.ndim - 1, *range(indices.ndim - 1))
    if not batching:
        return starts
    batch = starts.shape[1:]
    counts = [np.arange(batch[dim]).reshape([-1 if d == dim else 1 for d in range(len(batch))]) for dim in batching]
    return np.concatenate([np.broadcast_to(count, (1, *batch)) for count in counts] + [starts])


def _limits(operand: np.ndarray, dims: Dims, sizes: Dims, rank: int) -> np.ndarray:
    """Return the greatest valid starts, in a shape that broadcasts against starts."""
    limits = np.array([operand.shape[dim] - sizes[dim] for dim in dims], np.intp)
    return limits.reshape((len(dims),) + (1,) * (rank - 1))


def _clamp(starts: np.ndarray, limits: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(starts, 0), limits)


def _invalid(starts: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return which windows of the batch are not inside the operand."""
    return np.logical_or.reduce((starts < 0) | (starts > limits), axis=0)


def _windows(array: np.ndarray, dims: Dims, sizes: Dims, absent: Dims) -> np.ndarray:
    """Return the array as a view (valid starts, *window) of overlapping windows."""
    window = [dim for dim in range(array.ndim) if dim not in absent]
    shape = [array.shape[dim] - sizes[dim] + 1 for dim in dims] + [sizes[dim] for dim in window]
    bytes_ = array.view(np.uint8) if array.dtype in dtypes.STORAGE else array  # NumPy has no strided views of some of these
    return as_strided(bytes_, shape, [array.strides[dim] for dim in (*dims, *window)]).view(array.dtype)


# Gather.


def _is_along_axis(operand: np.ndarray, indices: np.ndarray, numbers: GatherDimensionNumbers) -> bool:
    """Return True if vectors along an axis have own indices, as for `take_along_axis`."""
    others = tuple([dim for dim in range(operand.ndim) if dim not in numbers.start_index_map])
    return (
        len(numbers.start_index_map) == 1
        and not numbers.offset_dims
        and indices.ndim == operand.ndim + 1
        and numbers.operand_batching_dims == numbers.start_indices_batching_dims == others
    )


def _read_along_axis(operand: np.ndarray, indices: np.ndarray, axis: int, fills: bool) -> np.ndarray | None:
    """Return the elements; None if some index lies outside and is to be filled."""
    inside = np.clip(indices, 0, operand.shape[axis] - 1)
    if fills and not np.array_equal(inside, indices):
        return None
    return np.take_along_axis(operand, inside.astype(np.intp, copy=False), axis)


def _selects_elements(operand: np.ndarray, dims: Dims, sizes: Dims) -> bool:
    """Return True if windows have one element along `dims`, and all along the others.

    The addressed dimensions are adjacent, and the operand is contiguous.
    """
    if not (dims and operand.flags.c_contiguous and sorted(dims) == list(range(min(dims), min(dims) + len(dims)))):
        return False
    return all(size == (1 if dim in dims else full) for dim, (size, full) in enumerate(zip(sizes, operand.shape, strict=True)))


def _read_elements(operand: np.ndarray, dims: Dims, absent: Dims, starts: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the windows by one `take`, and how many of their dimensions come first.

    They are (window dimensions before the addressed ones, *batch, the others).
    """
    first, last = min(dims), max(dims) + 1
    before, addressed, after = operand.shape[:first], operand.shape[first:last], operand.shape[last:]
    flat = starts[0] if len(dims) == 1 else np.ravel_multi_index([starts[dims.index(d)] for d in range(first, last)], addressed)
    read = operand.reshape(*before, math.prod(addressed), *after).take(flat.reshape(-1), axis=first, mode="clip")
    lead = [operand.shape[dim] for dim in range(first) if dim not in absent]
    rest = [1 if dim in dims else operand.shape[dim] for dim in range(first, operand.ndim) if dim not in absent]
    return read.reshape((*lead, *starts.shape[1:], *rest)), len(lead)


def _read_windows(operand: np.ndarray, dims: Dims, sizes: Dims, absent: Dims, starts: np.ndarray) -> np.ndarray:
    """Return the windows, as (*batch, *window)."""
    windows, batch = _windows(operand, dims, sizes, absent), starts.shape[1:]
    if not dims:
        return np.broadcast_to(windows, batch + windows.shape)
    return windows[tuple(starts)]


# Scatter.


def _window_sizes(rank: int, absent: Dims, window: Dims) -> Dims:
    """Return a window's size along every dimension of the operand."""
    sizes = iter(window)
    return tuple(1 if dim in absent else next(sizes) for dim in range(rank))


def _set_windows(view: np.ndarray, starts: np.ndarray, windows: np.ndarray) -> None:
    """Write the windows in order."""
    # NumPy keeps that order where the index arrays are one-dimensional and contiguous.
    if not len(starts):
        windows = windows[-1:]
    if windows.size:
        view[*starts, ...] = windows


def _combine_windows(ufunc: np.ufunc, view: np.ndarray, starts: np.ndarray, windows: np.ndarray) -> None:
    for start, window in zip(starts.T.tolist(), windows, strict=True):
        target = view[*start, ...]
        ufunc(target, window, out=target)


def _combine_elements(ufunc: np.ufunc, out: np.ndarray, dims: Dims, sizes: Dims, starts: np.ndarray, windows: np.ndarray) -> None:
    """Combine blocks of windows, element by element; ``out`` is C-contiguous."""
    steps = np.array(out.strides, np.intp) // out.itemsize
    within = np.zeros((), np.intp)
    for size, step in zip(sizes, steps, strict=True):
        within = within[..., None] + np.arange(size) * step
    first = steps[np.array(dims, np.intp)] @ starts
    count = max(1, _BLOCK // within.size)
    elements = out.reshape(-1)
    for i in range(0, len(first), count):
        flat = first[i : i + count, None] + within.reshape(-1)
        ufunc.at(elements, flat.reshape(-1), windows[i : i + count].reshape(-1))


# Arrays of random bits: element i is the cipher of the counter i.
#
# Any slice of them can therefore be computed anywhere, in any order.

_UINT32 = np.dtype(np.uint32)

#: Counters of a block: three arrays of this size fit the second-level cache.
_RANDOM_BLOCK = 1 << 15


def random_bits(key_data: np.ndarray, *, shape: tuple[int, ...], bit_width: int) -> np.ndarray:
    """Return unsigned integers of `bit_width` bits, an array of `shape` for every key.

    `bit_width` is 8, 16, 32 or 64; `key_data` is uint32 [..., 2]. Element i of an array, in row-major order, comes from the counter i
    alone.
    """
    keys = key_data.reshape(-1, 2)
    size = math.prod(shape)
    out = np.empty((len(keys), size), f"u{bit_width // 8}")
    if out.size <= FEW:
        pairs = [encipher_one(key[0], key[1], 0, count) for key in keys.tolist() for count in range(size)]
        values = [first << 32 | second if bit_width == 64 else (first ^ second) & (1 << bit_width) - 1 for first, second in pairs]
        return np.array(values, out.dtype).reshape(key_data.shape[:-1] + shape)
    rows = max(1, _RANDOM_BLOCK // max(size, 1))
    for start in range(0, len(keys), rows):
        some = keys[start : start + rows]
        _fill(some[:, :1], some[:, 1:], out[start : start + rows])
    return out.reshape(key_data.shape[:-1] + shape)


def _fill(k1: np.ndarray, k2: np.ndarray, out: np.ndarray) -> None:
    """Fill the last axis of `out` with the counters' bits, a row per key."""
    length = min(out.shape[-1], _RANDOM_BLOCK)
    counts = np.arange(length, dtype=_UINT32)
    blocks = [np.empty((*out.shape[:-1], length), _UINT32) for _ in range(3)]
    for start in range(0, out.shape[-1], _RANDOM_BLOCK):
        target = out[..., start : start + _RANDOM_BLOCK]
        first, second, scratch = (block[..., : target.shape[-1]] for block in blocks)
        # A block starts at a multiple of a power of two, so the upper word does not change within it.
        high, low = divmod(start, 1 << 32)
        first[...] = high
        np.add(counts[: target.shape[-1]], np.uint32(low), out=second)
        encipher(k1, k2, first, second, scratch)
        _join(first, second, target)


def _join(first: np.ndarray, second: np.ndarray, out: np.ndarray) -> None:
    """Join both words to one of 64 bits, or to their exclusive or."""
    if out.dtype.itemsize == 8:
        np.left_shift(first, 32, out=out, dtype=np.uint64)
        out |= second
    else:
        first ^= second
        out[...] = first
