"""Tiling of a correlation by im2col into matrix products.

Axes are numbered as those of the patch array (`conv_im2col`): group, batch, channel, positions, taps. *Rows* are the axes that the result
keeps apart from the output channel, *terms* those that are summed, the *stack* those along which matrix products are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.sliding_windows import SlidingWindow
from volta_fn.targets.numpy.contraction import working_dtype

_TILE_BYTES = 4 << 20  # of one operand of one product: a handful of them stays far below 32 MiB
_INTEGER_BYTES = 32  # an integer takes as many during its exact product (see `contraction.py`)
_STACKED_POSITIONS = 64  # with fewer positions than this, one product per batch element would be too narrow for BLAS
_RUN_COST, _ELEMENT_COST, _STRIDED_COST = 10.0, 0.1, 0.5  # nanoseconds to start a run of copies, and for each element in it


class Tiling(NamedTuple):
    """The axes of stack, rows and terms in merging order, and the lengths of blocks."""

    stack: tuple[int, ...]
    rows: tuple[int, ...]
    terms: tuple[int, ...]
    rows_last: bool  # a patch is stored as [terms, rows], else as [rows, terms]
    outputs_last: bool  # a block of the result is [rows, outputs], else [outputs, rows]
    lengths: tuple[int, ...]
    outputs: int


def tile_elements(dtype: np.dtype) -> int:
    """Return the most elements of an operand of a product with a result of `dtype`."""
    working = working_dtype(dtype)
    return max(_TILE_BYTES // (_INTEGER_BYTES if working.kind in "iub" else working.itemsize), 1)


def tiling_of(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> Tiling:
    """Choose the tiling of the correlation y of x and w."""
    positions, taps = y.shape[3:], w.shape[3:]
    strides = patch_strides(x, windows, positions, taps)
    sizes = (*x.shape[:3], *positions, *taps)
    return choose_tiling(sizes, y.shape[2], strides, y.strides, tuple(windows), x.itemsize, tile_elements(y.dtype))


@lru_cache(maxsize=1024)  # small convolutions would spend more time on this than on anything else
def choose_tiling(
    sizes: tuple[int, ...],
    outputs: int,
    patch_strides: tuple[int, ...],
    out_strides: tuple[int, ...],
    windows: tuple[SlidingWindow, ...],
    itemsize: int,
    capacity: int,
) -> Tiling:
    """Choose blocks such that all arrays involved have at most `capacity` elements.

    These are a patch, what it reaches of the input, its weights and its result. `sizes` and `patch_strides` run over the axes of the patch
    array; `out_strides` over (group, batch, output channel, *positions).
    """
    positions, taps = tuple(range(3, 3 + len(windows))), tuple(range(3 + len(windows), len(sizes)))
    row_strides = {axis: out_strides[axis] for axis in (1, *positions)}
    outputs_last = all(out_strides[2] <= stride for stride in row_strides.values())
    stacked = not outputs_last and out_strides[1] > out_strides[2] and _count(sizes, positions) >= _STACKED_POSITIONS
    stack = (0, 1) if stacked else (0,)
    rows = tuple(sorted(positions if stacked else row_strides, key=lambda axis: -row_strides[axis]))
    terms = tuple(sorted((2, *taps), key=lambda axis: -abs(patch_strides[axis])))
    row_limit, term_limit, output_limit = _balance((_count(sizes, rows), _count(sizes, terms), outputs), capacity)
    lengths = [1] * len(sizes)
    row_count, term_count = _fill(lengths, sizes, rows, row_limit), _fill(lengths, sizes, terms, term_limit)
    output_count = _even_length(outputs, output_limit)
    _fill(lengths, sizes, stack, capacity // max(row_count * term_count, row_count * output_count, term_count * output_count))
    _shrink(lengths, windows, capacity)
    by_rows, by_terms = (_gathering_cost(axes, lengths, patch_strides, itemsize) for axes in (rows, terms))
    return Tiling(stack, rows, terms, by_rows <= by_terms, outputs_last, tuple(lengths), output_count)


def _count(sizes: Sequence[int], axes: Sequence[int]) -> int:
    return prod(sizes[axis] for axis in axes)


def _balance(counts: tuple[int, int, int], capacity: int) -> tuple[int, ...]:
    """Return limits for three counts, the product of any two at most `capacity`."""
    side = isqrt(capacity)
    capped = [min(count, side) for count in counts]
    others = [max(capped[:i] + capped[i + 1 :]) for i in range(3)]
    return tuple(min(count, side if other == side else capacity // other) for count, other in zip(counts, others, strict=True))


def _fill(lengths: list[int], sizes: Sequence[int], axes: Sequence[int], limit: int) -> int:
    """Set block lengths, innermost first, up to `limit` elements; return how many."""
    count = 1
    for axis in reversed(axes):
        lengths[axis] = _even_length(sizes[axis], max(1, limit // count))
        count *= lengths[axis]
    return count


def _even_length(size: int, limit: int) -> int:
    """Return the length of even blocks, as many as blocks of `limit` would be."""
    number = -(-size // limit)
    return -(-size // number)


def _shrink(lengths: list[int], windows: Sequence[SlidingWindow], capacity: int) -> None:
    """Halve blocks of positions and taps until what they reach of the input fits.

    Strides and dilations leave gaps between elements.
    """
    spatial = len(windows)

    def reached() -> int:
        spans = (
            (lengths[3 + i] - 1) * window.stride + (lengths[3 + spatial + i] - 1) * window.dilation + 1 for i, window in enumerate(windows)
        )
        return prod(lengths[:3]) * prod(spans)

    while reached() > capacity:
        longest = max(range(3, 3 + 2 * spatial), key=lengths.__getitem__)
        lengths[longest] = -(-lengths[longest] // 2)


def _gathering_cost(axes: Sequence[int], lengths: Sequence[int], strides: Sequence[int], itemsize: int) -> float:
    """Estimate the nanoseconds per element of gathering a patch with `axes` innermost."""
    run = 1
    for axis in reversed(axes):
        if lengths[axis] > 1 and strides[axis] != run * itemsize:
            break
        run *= lengths[axis]
    if run > 1:
        return _RUN_COST / run + _ELEMENT_COST
    innermost = next((lengths[axis] for axis in reversed(axes) if lengths[axis] > 1), 1)
    return _RUN_COST / innermost + _STRIDED_COST


def patch_strides(x: np.ndarray, windows: Sequence[SlidingWindow], positions: Sequence[int], taps: Sequence[int]) -> tuple[int, ...]:
    """Return the strides in bytes of the patch array over `x`, or over a padded copy."""
    spans = [reach(window, slice(0, size), slice(0, count)) for window, size, count in zip(windows, positions, taps, strict=True)]
    padded = any(start < 0 or stop > size for (start, stop), size in zip(spans, x.shape[3:], strict=True))
    strides = _strides_like(x, (*x.shape[:3], *(stop - start for start, stop in spans))) if padded else x.strides
    return patch_strides_over(strides, windows)


def _strides_like(x: np.ndarray, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array of another shape with the same order in memory."""
    strides, step = [0] * x.ndim, x.itemsize
    for axis in sorted(range(x.ndim), key=lambda axis: (abs(x.strides[axis]), -axis)):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def patch_strides_over(strides: Sequence[int], windows: Sequence[SlidingWindow]) -> tuple[int, ...]:
    """Return the strides of the patch array over an array of the given strides."""
    positions = (stride * window.stride for stride, window in zip(strides[3:], windows, strict=True))
    taps = (stride * window.dilation for stride, window in zip(strides[3:], windows, strict=True))
    return (*strides[:3], *positions, *taps)


def reach(window: SlidingWindow, positions: slice, taps: slice) -> tuple[int, int]:
    """Return where the elements that these taps meet at these positions begin and end."""
    start = positions.start * window.stride + taps.start * window.dilation - window.low
    return start, (positions.stop - 1) * window.stride + (taps.stop - 1) * window.dilation - window.low + 1
