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

from volta_fn.compiler.contractions.sliding_windows import SlidingWindow, phases
from volta_fn.primitives.elementwise.selection import choose
from volta_fn.primitives.geometry import Ints, Padding, counts_of_windows
from volta_fn.primitives.reduction import highest, lowest
from volta_fn.targets.numpy.blocks import Scratch
from volta_fn.targets.numpy.contraction import working_dtype
from volta_fn.targets.numpy.sliding import meeting, sliding_blocks

Slices = tuple[Any, ...]  # slices, one per axis, and an Ellipsis, so that indexing gives a view even of a 0-d array

_BLOCK_ELEMENTS = 1 << 18  # of the operand, that one block of positions meets


class Geometry(TypedDict):
    """How windows lie on the operand, per axis."""

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


def _scatter(given: np.ndarray, values: np.ndarray, sums: np.ndarray, block: _Block, select: str) -> None:
    """Add the values given for a block's windows to the sums at their winners."""
    with Scratch() as scratch:
        zero, room = np.zeros((), given.dtype), scratch.array(given.shape, given.dtype)
        for positions, met, wins in _winners(values, given.shape, block, select, scratch):
            sums[met] += choose(wins, zero, given[positions], out=room[positions])


def _values(operand: np.ndarray, block: _Block) -> np.ndarray:
    """Return what a block meets, in the dtype in which it is compared and summed."""
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
            here = [_as_slice(axis_positions[block_slice]) for axis_positions, block_slice in zip(positions, block.positions, strict=True)]
            yield _Block((*here, ...), (*block.source, ...), taps, block.windows)


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
    found = [meeting(tap, window, count, x.shape[axis]) for tap in range(taps)]
    full = [met for positions, met in found if positions == slice(0, count)][:2]
    if len(full) == 2:
        combine(x[*before, full[0]], x[*before, full[1]], out=out)
    else:
        out[...] = x[*before, full[0]] if full else start
    for positions, met in found:
        if met not in full:
            target = out[*before, positions]
            combine(target, x[*before, met], out=target)


def _winners(x: np.ndarray, counts: Ints, block: _Block, select: str, scratch: Scratch) -> Iterator[tuple[Slices, Slices, np.ndarray]]:
    """Yield for every tap positions, the elements that it meets, and which win.

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
