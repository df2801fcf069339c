"""Reductions, cumulative reductions, windows, and sorting in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypedDict, Unpack

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.contractions import SlidingWindow, phases
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Primitive, evaluation_of, reduction_of
from volta_fn.primitives.convolution import Ints, Padding, counts_of_windows
from volta_fn.primitives.cumulative import sum_dtype
from volta_fn.primitives.elementwise.selection import choose
from volta_fn.primitives.reduction import highest, lowest
from volta_fn.targets.numpy.convolution import meeting, sliding_blocks
from volta_fn.targets.numpy.linalg import working_dtype
from volta_fn.targets.numpy.memory import Scratch

# Cumulative results have the operand's dtype. Sums of floats accumulate in float64, other operations on float16 and bfloat16 in float32.
# ``reverse`` accumulates from the end of the axis.

#: The number of elements per index of an axis from which on they accumulate together.
_ROW = 64
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
#: The terms from which on a sum is one of blocks: NumPy's own may add up the rounding errors of all.
_MANY = 256
#: Dtypes that NumPy compares slowly, or wrongly, and which are sorted by ranks.
_RANKED = dtypes.STORAGE | frozenset(_HALF)


def cumulative(operand: np.ndarray, *, name: str, axis: int, reverse: bool) -> np.ndarray:
    """Evaluate a cumulative primitive by its step's ufunc: integers wrap, NaN stays."""
    step = reduction_of(name).step
    ufunc, wide = PRIMITIVES[step].evaluate, sum_dtype(step, operand.dtype)
    assert isinstance(ufunc, np.ufunc)
    x = np.flip(operand, axis) if reverse else operand
    x = x.astype(wide, copy=False)
    if ufunc is np.add and wide in dtypes.INEXACT:
        x = x + wide.type(0)  # sums begin with 0, to which -0.0 adds nothing
    if math.prod(x.shape[axis + 1 :]) >= _ROW:
        # Accumulate rows across the axis, where NumPy would stride through memory.
        out = x.copy()
        rows = np.moveaxis(out, axis, 0)
        for i in range(1, len(rows)):
            ufunc(rows[i - 1], rows[i], out=rows[i])
    else:
        out = ufunc.accumulate(x, axis=axis, dtype=wide)
    out = out.astype(operand.dtype, copy=False)
    return np.flip(out, axis) if reverse else out


def typed_reductions() -> dict[Primitive, Callable[..., Callable[..., np.ndarray]]]:
    """Return makers of the kernels of reductions that NumPy computes precisely.

    Their step is a ufunc that rounds nothing, or adds (which NumPy does pairwise).
    """
    steps: dict[Primitive, Any] = {
        p: PRIMITIVES[p.reduction.step].evaluate for p in PRIMITIVES.values() if p.reduction and not p.reduction.index_of
    }
    return {p: partial(_typed, p, step) for p, step in steps.items() if step in (np.add, np.maximum, np.minimum)}


def _typed(primitive: Primitive, step: np.ufunc, operand: ShapedArray, *, axes: tuple[int, ...]) -> Callable[..., np.ndarray]:
    evaluate: Any = evaluation_of(primitive)
    terms = math.prod([operand.shape[axis] for axis in axes])
    is_precise = step is not np.add or terms < _MANY
    if operand.dtype.itemsize > 2 and operand.dtype in dtypes.INEXACT and operand.size and terms != 1 and is_precise:
        return partial(step.reduce, axis=axes)
    return partial(evaluate, axes=axes)


# Sorting, the greatest k, and the indices of extremes in NumPy.
#
# The order of floating-point numbers is total: -inf < numbers < inf < NaN, with -0.0 equal to 0.0 and every NaN equal to every other.
# A *rank* is an integer that orders as its number does, so that sorting ranks sorts in that order and the complement ``~rank`` sorts in
# the opposite one. NumPy sorts integers by vector instructions but not stably; ranks that leave room for their position in
# 64 bits are therefore sorted together with it.


def sort(*operands: np.ndarray, dimension: int, is_stable: bool, num_keys: int) -> tuple[np.ndarray, ...]:
    """Return the operands, permuted alike along ``dimension`` so that the keys ascend.

    The keys are the first ``num_keys`` operands, compared in order. Complex numbers compare by real part, then by imaginary part. Several
    operands are always sorted stably.
    """
    if len(operands) == 1 and operands[0].dtype.kind in "biuf" and operands[0].dtype not in _RANKED:
        return (_sort_values(operands[0], dimension, is_stable),)
    keys = [real for key in operands[:num_keys] for real in _real_keys(np.moveaxis(key, dimension, -1))]
    order = stable_order(keys[0]) if len(keys) == 1 else np.lexsort(keys[::-1], axis=-1)
    order = np.moveaxis(order, -1, dimension)
    return tuple(np.take_along_axis(operand, order, dimension) for operand in operands)


def top_k(operand: np.ndarray, *, k: int, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``k`` greatest along ``axis``, descending, and int32 indices.

    Of equals the lower index comes first. NaN counts as greater than infinity.
    """
    last = np.moveaxis(operand, axis, -1)
    falling = ~rank(last)
    if 0 < k * 8 < last.shape[-1]:
        # The indices of the `k` least, ascending. Of equals to the greatest of them, the first ones are taken.
        threshold = np.partition(falling, k - 1, axis=-1)[..., k - 1 : k]
        below, equal = falling < threshold, falling == threshold
        missing = k - below.sum(axis=-1, keepdims=True)
        chosen = below | (equal & (equal.cumsum(axis=-1) <= missing))
        chosen = np.nonzero(chosen)[-1].reshape(*falling.shape[:-1], k)
        indices = np.take_along_axis(chosen, stable_order(np.take_along_axis(falling, chosen, -1)), -1)
    else:
        indices = stable_order(falling)[..., :k]
    values = np.take_along_axis(last, indices, -1)
    return np.moveaxis(values, -1, axis), np.moveaxis(indices.astype(np.int32), -1, axis)


def argmax(operand: np.ndarray, *, axes: tuple[int, ...], index_dtype: Any) -> np.ndarray:
    """Return the index of the first greatest element along an axis; NaN wins."""
    return _extreme(np.argmax, operand, axes, index_dtype)


def argmin(operand: np.ndarray, *, axes: tuple[int, ...], index_dtype: Any) -> np.ndarray:
    """Return the index of the first least element along an axis; NaN wins."""
    return _extreme(np.argmin, operand, axes, index_dtype)


def rank(x: np.ndarray) -> np.ndarray:
    """Return integers that are ordered as the elements of ``x`` are.

    They have its width, those of dtypes of storage more.
    """
    if x.dtype in dtypes.STORAGE:
        return rank(x.astype(np.float32 if x.dtype in dtypes.STORAGE_FLOATS else np.int8))
    if x.dtype.kind in "iu":
        return x
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    canonical = np.where(np.isnan(x), np.array(np.nan, x.dtype), x + np.zeros((), x.dtype))
    bits = canonical.view(f"i{x.dtype.itemsize}")
    return bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def stable_order(keys: np.ndarray) -> np.ndarray:
    """Return the indices that sort along the last axis, equals in their order."""
    size = keys.shape[-1]
    if keys.dtype.itemsize == 8 or size >= 1 << 31:
        return np.argsort(keys, axis=-1, kind="stable")
    packed = (rank(keys).astype(np.int64) << 31) | np.arange(size)
    packed.sort(axis=-1)
    return packed & ((1 << 31) - 1)


def _sort_values(x: np.ndarray, axis: int, is_stable: bool) -> np.ndarray:
    """Sort one operand: among its equals only zeros of either sign differ."""
    if not is_stable or x.dtype.kind != "f":
        return np.sort(x, axis=axis)
    if x.ndim == 1:
        result = x.copy()
        result.sort()
        second = int(result.searchsorted(x.dtype.type(0))) + 1
        several = second < result.size and result[second] == 0
        return np.sort(x, kind="stable") if several and _has_negative_zero(x) else result
    return np.sort(x, axis=axis, kind="stable" if _has_negative_zero(x) else None)


def _has_negative_zero(x: np.ndarray) -> bool:
    zeros = x == 0
    return bool(zeros.any()) and bool(np.signbit(x[zeros]).any())


def _real_keys(key: np.ndarray) -> list[np.ndarray]:
    if key.dtype.kind == "c":
        return [key.real, key.imag]
    return [rank(key) if key.dtype in _RANKED else key]


def _extreme(find: Callable[..., Any], operand: np.ndarray, axes: tuple[int, ...], index_dtype: Any) -> np.ndarray:
    (axis,) = axes
    x = operand.astype(np.float32) if operand.dtype in _RANKED else operand
    return np.asarray(find(x, axis=axis)).astype(index_dtype)


# Sliding windows reduced, and the derivatives of such reductions: pooling.
#
# Windows run over every axis of the operand (with one tap along axes that are not pooled). A tap meets a strided view of the operand,
# so windows are reduced by combining one view per tap, along one axis after another. Padding is never built: positions at
# which a tap would leave the operand are left out. A block of positions at a time keeps intermediate results in the caches.
#
# Maxima and minima have a *winner*: the first element of a window, in row-major order, that equals its extremum (NaN wins over numbers).

Slices = tuple[Any, ...]  # slices, one per axis, and an Ellipsis, so that indexing gives a view even of a 0-d array

_BLOCK_ELEMENTS = 1 << 18  # of the operand, that one block of positions meets


class Geometry(TypedDict):
    """The geometry of windows on the operand, per axis."""

    window_dimensions: Ints
    window_strides: Ints
    padding: Padding
    base_dilation: Ints
    window_dilation: Ints


class _Block(NamedTuple):
    """Slices of the results and of the operand for some windows."""

    positions: Slices
    source: Slices
    taps: Ints
    windows: tuple[SlidingWindow, ...]


def reduce_window(operand: np.ndarray, *, op: str, out: np.ndarray | None = None, **geometry: Unpack[Geometry]) -> np.ndarray:
    """Return the "sum", "max" or "min" of every window.

    For windows without elements these are 0, the dtype's least and its greatest value.
    """
    if out is None:
        out = np.empty(counts_of_windows(operand.shape, geometry), operand.dtype)
    for block in _blocks(operand.shape, out.shape, geometry):
        with Scratch() as scratch:
            out[block.positions] = _reduce(_values(operand, block), out[block.positions].shape, block, op, scratch)
    if op == "sum" and out.dtype in dtypes.INEXACT:
        out += out.dtype.type(0)  # as in cumulative sums
    return out


def select_and_gather_add(tangents: np.ndarray, operand: np.ndarray, *, select: str, **geometry: Unpack[Geometry]) -> np.ndarray:
    """Return for every window the tangent of its winner.

    That is its maximum ("ge") or minimum ("le"). The tangent is 0 where a window meets no element.
    """
    out = np.zeros(counts_of_windows(operand.shape, geometry), tangents.dtype)
    for block in _blocks(operand.shape, out.shape, geometry):
        with Scratch() as scratch:
            chosen, rates = out[block.positions], tangents[block.source]
            for positions, source, wins in _winners(_values(operand, block), chosen.shape, block, select, scratch):
                np.copyto(chosen[positions], rates[source], where=wins)
    return out


def select_and_scatter_add(
    source: np.ndarray, operand: np.ndarray, *, select: str, out: np.ndarray | None = None, **geometry: Unpack[Geometry]
) -> np.ndarray:
    """Return at each window's winner the sum of `source` over the windows it wins."""
    if out is None:
        out = np.empty(operand.shape, source.dtype)
    with Scratch() as scratch:
        working = working_dtype(source.dtype)
        sums = out if working == source.dtype else scratch.array(operand.shape, working)
        sums[...] = 0
        for block in _blocks(operand.shape, source.shape, geometry):
            _scatter(source[block.positions], _values(operand, block), sums[block.source], block, select)
        if sums is not out:
            out[...] = sums
    return out


def _scatter(cotangents: np.ndarray, values: np.ndarray, sums: np.ndarray, block: _Block, select: str) -> None:
    """Add the cotangents of a block's windows to the sums at their winners."""
    with Scratch() as scratch:
        zero, room = np.zeros((), cotangents.dtype), scratch.array(cotangents.shape, cotangents.dtype)
        for positions, met, wins in _winners(values, cotangents.shape, block, select, scratch):
            sums[met] += choose(wins, zero, cotangents[positions], out=room[positions])


def _values(operand: np.ndarray, block: _Block) -> np.ndarray:
    """Return the elements of a block, in the dtype of comparisons and sums."""
    return operand[block.source].astype(working_dtype(operand.dtype), copy=False)


def _blocks(shape: Ints, counts: Ints, geometry: Geometry) -> Iterator[_Block]:
    """Yield blocks of windows, each phase of a dilated operand by itself."""
    lows = [low for low, _ in geometry["padding"]]
    full = map(SlidingWindow, geometry["window_strides"], geometry["window_dilation"], lows)
    for phase in product(*map(phases, full, geometry["base_dilation"], geometry["window_dimensions"], counts)):
        taps = tuple([len(range(size)[p.taps]) for size, p in zip(geometry["window_dimensions"], phase, strict=True)])
        positions = [range(size)[p.positions] for size, p in zip(counts, phase, strict=True)]
        windows = [p.window for p in phase]
        for block in sliding_blocks([len(p) for p in positions], windows, taps, shape, _BLOCK_ELEMENTS):
            slices = [
                _as_slice(axis_positions[block_slice]) for axis_positions, block_slice in zip(positions, block.positions, strict=True)
            ]
            yield _Block((*slices, ...), (*block.source, ...), taps, block.windows)


def _as_slice(positions: range) -> slice:
    return slice(positions.start, positions.stop, positions.step)


_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _identity(op: str, dtype: np.dtype) -> np.ndarray:
    start = {"sum": lambda _: 0, "max": lowest, "min": highest}[op]
    return np.asarray(start(dtype), dtype)


def _reduce(x: np.ndarray, counts: Ints, block: _Block, op: str, scratch: Scratch) -> np.ndarray:
    """Reduce windows along one axis after another; may return x itself."""
    for axis, (count, taps, window) in enumerate(zip(counts, block.taps, block.windows, strict=True)):
        if (taps, window, count) != (1, SlidingWindow(1, window.dilation, 0), x.shape[axis]):
            out = scratch.array((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)
            _reduce_axis(x, axis, taps, window, op, out)
            x = out
    return x


def _reduce_axis(x: np.ndarray, axis: int, taps: int, window: SlidingWindow, op: str, out: np.ndarray) -> None:
    """Reduce windows along one axis."""
    combine, start, before = _UFUNCS[op], _identity(op, x.dtype), (slice(None),) * axis
    count = out.shape[axis]
    if count == 1:
        _, met = meeting(0, SlidingWindow(window.dilation, 0, window.low), taps, x.shape[axis])
        combine.reduce(x[*before, met], axis=axis, keepdims=True, dtype=x.dtype, initial=start, out=out)
        return
    meetings = [meeting(tap, window, count, x.shape[axis]) for tap in range(taps)]
    full = [met for positions, met in meetings if positions == slice(0, count)][:2]
    if len(full) == 2:
        combine(x[*before, full[0]], x[*before, full[1]], out=out)
    else:
        out[...] = x[*before, full[0]] if full else start
    for positions, met in meetings:
        if met not in full:
            target = out[*before, positions]
            combine(target, x[*before, met], out=target)


def _winners(x: np.ndarray, counts: Ints, block: _Block, select: str, scratch: Scratch) -> Iterator[tuple[Slices, Slices, np.ndarray]]:
    """Yield for every tap its positions, the elements that it meets, and which win.

    Taps come in row-major order; the arrays are valid until the next.
    """
    best = _reduce(x, counts, block, "max" if select == "ge" else "min", scratch)
    undecided, equal = (scratch.array(counts, np.dtype(bool)) for _ in range(2))
    undecided[...] = True
    has_nan = best.dtype.kind == "f" and bool(np.isnan(best).any())
    for taps in product(*map(range, block.taps)):
        met = [meeting(*axis) for axis in zip(taps, block.windows, counts, x.shape, strict=True)]
        positions: Slices = (*[m[0] for m in met], ...)
        source: Slices = (*[m[1] for m in met], ...)
        values, extrema = x[source], best[positions]
        wins = np.equal(values, extrema, out=equal[positions])
        if has_nan:
            wins |= np.isnan(values) & np.isnan(extrema)
        wins &= undecided[positions]
        undecided[positions] ^= wins
        yield positions, source, wins
