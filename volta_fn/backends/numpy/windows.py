"""Sliding windows reduced, and the derivatives of such reductions: pooling.

Windows run over every axis of the operand (with one tap along axes that are not pooled). A tap meets a strided view of the operand, so
windows are reduced by combining as many views as they have taps, along one axis after another. Padding is never made: positions at which
a tap would leave the operand are left out. A block of positions at a time keeps intermediate results in the caches.

Maxima and minima have a *winner*: the first element of a window, in row-major order, that equals its extremum (NaN wins over numbers).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from volta_fn.backends.numpy.contraction import working_dtype
from volta_fn.backends.numpy.sliding import Window, meeting, phases, sliding_blocks
from volta_fn.primitives.geometry import Ints, Padding, counts_of_windows
from volta_fn.primitives.reduction import highest, lowest
from volta_fn.primitives.selection import choose

__all__ = ["Geometry", "reduce_window", "select_and_gather_add", "select_and_scatter_add"]

Part = tuple[Any, ...]  # slices, one per axis, and an Ellipsis, so that indexing gives a view even of a 0-d array

_BLOCK_ELEMENTS = 1 << 17  # of the operand, that one block of positions meets


class Geometry(TypedDict):
    """How windows lie on the operand, per axis."""

    window_dimensions: Ints
    window_strides: Ints
    padding: Padding
    base_dilation: Ints
    window_dilation: Ints


class _Block(NamedTuple):
    """Some windows: where their results are, which part of the operand they meet, and how they lie on that part."""

    places: Part
    source: Part
    taps: Ints
    windows: tuple[Window, ...]


def reduce_window(operand: np.ndarray, *, op: str, **geometry: Unpack[Geometry]) -> np.ndarray:
    """The "sum", "max" or "min" of every window; of no element that is 0, the dtype's least or its greatest value."""
    out = np.empty(counts_of_windows(operand.shape, geometry), operand.dtype)
    for block in _blocks(operand.shape, out.shape, geometry):
        out[block.places] = _reduce(_values(operand, block), out[block.places].shape, block, op)
    return out


def select_and_gather_add(tangents: np.ndarray, operand: np.ndarray, *, select: str, **geometry: Unpack[Geometry]) -> np.ndarray:
    """For every window the tangent of its winner, of the maximum ("ge") or minimum ("le"); 0 where a window meets no element."""
    out = np.zeros(counts_of_windows(operand.shape, geometry), tangents.dtype)
    for block in _blocks(operand.shape, out.shape, geometry):
        chosen, rates = out[block.places], tangents[block.source]
        for places, source, wins in _winners(_values(operand, block), chosen.shape, block, select):
            np.copyto(chosen[places], rates[source], where=wins)
    return out


def select_and_scatter_add(source: np.ndarray, operand: np.ndarray, *, select: str, **geometry: Unpack[Geometry]) -> np.ndarray:
    """An array like the operand that holds, at the winner of each window, the sum of what `source` has for the windows it wins."""
    out, zero = np.zeros(operand.shape, working_dtype(source.dtype)), np.zeros((), source.dtype)
    for block in _blocks(operand.shape, source.shape, geometry):
        sums, given = out[block.source], source[block.places]
        for places, met, wins in _winners(_values(operand, block), given.shape, block, select):
            sums[met] += choose(wins, zero, given[places])
    return out.astype(source.dtype, copy=False)


def _values(operand: np.ndarray, block: _Block) -> np.ndarray:
    """What a block meets, in the dtype in which it is compared and summed."""
    return operand[block.source].astype(working_dtype(operand.dtype), copy=False)


def _blocks(shape: Ints, counts: Ints, geometry: Geometry) -> Iterator[_Block]:
    """All windows, a block at a time, and each phase of a dilated operand by itself."""
    lows = [low for low, _ in geometry["padding"]]
    whole = map(Window, geometry["window_strides"], geometry["window_dilation"], lows)
    for phase in product(*map(phases, whole, geometry["base_dilation"], geometry["window_dimensions"], counts)):
        taps = tuple([len(range(size)[p.taps]) for size, p in zip(geometry["window_dimensions"], phase, strict=True)])
        places = [range(size)[p.places] for size, p in zip(counts, phase, strict=True)]
        windows = [p.window for p in phase]
        for block in sliding_blocks([len(p) for p in places], windows, taps, shape, _BLOCK_ELEMENTS):
            here = [_as_slice(place[part]) for place, part in zip(places, block.places, strict=True)]
            yield _Block((*here, ...), (*block.source, ...), taps, block.windows)


def _as_slice(places: range) -> slice:
    return slice(places.start, places.stop, places.step)


_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _identity(op: str, dtype: np.dtype) -> np.ndarray:
    start = {"sum": lambda _: 0, "max": lowest, "min": highest}[op]
    return np.asarray(start(dtype), dtype)


def _reduce(x: np.ndarray, counts: Ints, block: _Block, op: str) -> np.ndarray:
    """Windows reduced along one axis after another."""
    for axis, (count, taps, window) in enumerate(zip(counts, block.taps, block.windows, strict=True)):
        if (taps, window, count) != (1, Window(1, window.dilation, 0), x.shape[axis]):
            x = _reduce_first(x.swapaxes(0, axis), count, taps, window, op).swapaxes(0, axis)
    return x


def _reduce_first(x: np.ndarray, count: int, taps: int, window: Window, op: str) -> np.ndarray:
    """Windows reduced along the first axis."""
    combine, start = _UFUNCS[op], _identity(op, x.dtype)
    if count == 1:
        _, met = meeting(0, Window(window.dilation, 0, window.low), taps, len(x))
        return combine.reduce(x[met], axis=0, keepdims=True, dtype=x.dtype, initial=start)
    out = None
    for tap in range(taps):
        places, met = meeting(tap, window, count, len(x))
        if out is not None:
            combine(out[places], x[met], out=out[places])
        elif places == slice(0, count):
            out = x[met].copy()
        else:
            out = np.full((count, *x.shape[1:]), start)
            out[places] = x[met]
    return np.full((count, *x.shape[1:]), start) if out is None else out


def _winners(x: np.ndarray, counts: Ints, block: _Block, select: str) -> Iterator[tuple[Part, Part, np.ndarray]]:
    """For every tap, in row-major order: positions, the elements of `x` that it meets there, and which of these win."""
    best = _reduce(x, counts, block, "max" if select == "ge" else "min")
    undecided = np.ones(counts, bool)
    has_nan = best.dtype.kind == "f" and bool(np.isnan(best).any())
    for taps in product(*map(range, block.taps)):
        met = [meeting(*axis) for axis in zip(taps, block.windows, counts, x.shape, strict=True)]
        places: Part = (*[m[0] for m in met], ...)
        source: Part = (*[m[1] for m in met], ...)
        values, extrema = x[source], best[places]
        wins = values == extrema
        if has_nan:
            wins |= np.isnan(values) & np.isnan(extrema)
        wins &= undecided[places]
        undecided[places] ^= wins
        yield places, source, wins
