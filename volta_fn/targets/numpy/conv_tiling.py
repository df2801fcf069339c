"""How a canonical correlation is cut into matrix products: arithmetic with sizes and strides.

Axes are numbered as those of the patch array (`patches.py`): group, batch, channel, positions, taps. *Rows* are the axes that the result
keeps besides the output channel, *terms* those that are summed, the *stack* those along which whole matrix products are repeated.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod
from typing import NamedTuple

import numpy as np

from volta_fn.targets.numpy.contraction import working_dtype
from volta_fn.targets.numpy.conv_patches import patch_strides
from volta_fn.targets.numpy.sliding import Window

__all__ = ["Tiling", "choose_tiling", "copy_cost", "even_length", "tile_elements", "tiling_of"]

_TILE_BYTES = 4 << 20  # of one operand of one product: a handful of them stays far below 32 MiB
_INTEGER_BYTES = 32  # an integer takes as many during its exact product (see `contraction.py`)
_STACKED_POSITIONS = 64  # with fewer positions than this, one product per batch element would be too narrow for BLAS
_RUN_COST, _ELEMENT_COST, _STRIDED_COST = 10.0, 0.1, 0.5  # nanoseconds to start a run of copies, and for each element in it


class Tiling(NamedTuple):
    """The axes of stack, rows and terms in the order in which they merge, and the length of a block along each axis and of outputs.

    `cost` is the estimated time to gather an element of a patch, in nanoseconds.
    """

    stack: tuple[int, ...]
    rows: tuple[int, ...]
    terms: tuple[int, ...]
    rows_last: bool  # a patch is stored as [terms, rows], else as [rows, terms]
    outputs_last: bool  # a block of the result is [rows, outputs], else [outputs, rows]
    lengths: tuple[int, ...]
    outputs: int
    cost: float


def tile_elements(dtype: np.dtype) -> int:
    """How many elements an operand of a product whose result is of `dtype` may have."""
    working = working_dtype(dtype)
    return max(_TILE_BYTES // (_INTEGER_BYTES if working.kind in "iub" else working.itemsize), 1)


def tiling_of(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> Tiling:
    """How the correlation y of x and w is cut."""
    places, taps = y.shape[3:], w.shape[3:]
    strides = patch_strides(x, windows, places, taps)
    sizes = (*x.shape[:3], *places, *taps)
    return choose_tiling(sizes, y.shape[2], strides, y.strides, tuple(windows), x.itemsize, tile_elements(y.dtype))


@lru_cache(maxsize=1024)  # small convolutions would spend more time on this than on anything else
def choose_tiling(
    sizes: tuple[int, ...],
    outputs: int,
    patch_strides: tuple[int, ...],
    out_strides: tuple[int, ...],
    windows: tuple[Window, ...],
    itemsize: int,
    capacity: int,
) -> Tiling:
    """Choose axes and blocks such that a patch, what it reaches of the input, its weights and its result have at most `capacity` elements.

    `sizes` and `patch_strides` run over the axes of the patch array; `out_strides` over (group, batch, output channel, *positions).
    """
    places, taps = tuple(range(3, 3 + len(windows))), tuple(range(3 + len(windows), len(sizes)))
    row_strides = {axis: out_strides[axis] for axis in (1, *places)}
    outputs_last = all(out_strides[2] <= stride for stride in row_strides.values())
    stacked = not outputs_last and out_strides[1] > out_strides[2] and _count(sizes, places) >= _STACKED_POSITIONS
    stack = (0, 1) if stacked else (0,)
    rows = tuple(sorted(places if stacked else row_strides, key=lambda axis: -row_strides[axis]))
    terms = tuple(sorted((2, *taps), key=lambda axis: -abs(patch_strides[axis])))
    row_limit, term_limit, output_limit = _balance((_count(sizes, rows), _count(sizes, terms), outputs), capacity)
    lengths = [1] * len(sizes)
    row_count, term_count = _fill(lengths, sizes, rows, row_limit), _fill(lengths, sizes, terms, term_limit)
    output_count = even_length(outputs, output_limit)
    _fill(lengths, sizes, stack, capacity // max(row_count * term_count, row_count * output_count, term_count * output_count))
    _shrink(lengths, windows, capacity)
    by_rows, by_terms = (_gathering_cost(axes, lengths, patch_strides, itemsize) for axes in (rows, terms))
    return Tiling(stack, rows, terms, by_rows <= by_terms, outputs_last, tuple(lengths), output_count, min(by_rows, by_terms))


def _count(sizes: Sequence[int], axes: Sequence[int]) -> int:
    return prod(sizes[axis] for axis in axes)


def _balance(counts: tuple[int, int, int], capacity: int) -> tuple[int, ...]:
    """Limits for three counts under which the product of any two is at most `capacity`."""
    side = isqrt(capacity)
    capped = [min(count, side) for count in counts]
    others = [max(capped[:i] + capped[i + 1 :]) for i in range(3)]
    return tuple(min(count, side if other == side else capacity // other) for count, other in zip(counts, others, strict=True))


def _fill(lengths: list[int], sizes: Sequence[int], axes: Sequence[int], limit: int) -> int:
    """Set block lengths, from the innermost axis out, so that a block has at most `limit` elements; return how many it has."""
    count = 1
    for axis in reversed(axes):
        lengths[axis] = even_length(sizes[axis], max(1, limit // count))
        count *= lengths[axis]
    return count


def even_length(size: int, limit: int) -> int:
    """The shortest block that takes as few blocks to cover `size` as blocks of `limit` do."""
    number = -(-size // limit)
    return -(-size // number)


def _shrink(lengths: list[int], windows: Sequence[Window], capacity: int) -> None:
    """Halve blocks of positions and taps until what they reach of the input fits: wide strides and dilations leave gaps between."""
    spatial = len(windows)

    def reach() -> int:
        spans = (
            (lengths[3 + i] - 1) * window.stride + (lengths[3 + spatial + i] - 1) * window.dilation + 1 for i, window in enumerate(windows)
        )
        return prod(lengths[:3]) * prod(spans)

    while reach() > capacity:
        longest = max(range(3, 3 + 2 * spatial), key=lengths.__getitem__)
        lengths[longest] = -(-lengths[longest] // 2)


def copy_cost(run: int) -> float:
    """The estimated time per element of copying runs of so many elements, which lie one after another in both arrays."""
    return _RUN_COST / run + _ELEMENT_COST


def _gathering_cost(axes: Sequence[int], lengths: Sequence[int], strides: Sequence[int], itemsize: int) -> float:
    """The estimated time per element of gathering a patch whose innermost axes are `axes`."""
    run = 1
    for axis in reversed(axes):
        if lengths[axis] > 1 and strides[axis] != run * itemsize:
            break
        run *= lengths[axis]
    if run > 1:
        return copy_cost(run)
    innermost = next((lengths[axis] for axis in reversed(axes) if lengths[axis] > 1), 1)
    return _RUN_COST / innermost + _STRIDED_COST
