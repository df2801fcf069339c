"""How sliding windows meet an axis, for convolutions and window reductions.

A window has *taps* and *positions*; at position p its tap k meets the input element `p * stride + k * dilation - low`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from volta_fn.compiler.contractions.sliding_windows import SlidingWindow


@lru_cache(maxsize=4096)  # loops over taps ask the same for every block
def meeting(tap: int, window: SlidingWindow, count: int, size: int) -> tuple[slice, slice]:
    """Return the positions at which a tap meets an element, and those elements.

    There are `count` positions and `size` elements.
    """
    offset = tap * window.dilation - window.low
    first = max(-(offset // window.stride), 0)
    last = min((size - 1 - offset) // window.stride, count - 1)
    start = first * window.stride + offset
    return slice(first, max(first, last + 1)), slice(start, start + max(last - first + 1, 0) * window.stride, window.stride)


def span(block: slice, window: SlidingWindow, taps: int, size: int) -> tuple[slice, SlidingWindow]:
    """Return the slice of an axis that a block of positions meets, and its window."""
    start = max(block.start * window.stride - window.low, 0)
    stop = min((block.stop - 1) * window.stride + (taps - 1) * window.dilation - window.low + 1, size)
    return slice(start, max(start, stop)), window._replace(low=window.low - block.start * window.stride + start)


class Block(NamedTuple):
    """Positions, the slice of the input met there, and the windows over it."""

    positions: tuple[slice, ...]
    source: tuple[slice, ...]
    windows: tuple[SlidingWindow, ...]


def sliding_blocks(
    counts: Sequence[int],
    windows: Sequence[SlidingWindow],
    taps: Sequence[int],
    sizes: Sequence[int],
    capacity: int,
    cut: Sequence[int] = (),
) -> Iterator[Block]:
    """Yield blocks of positions that meet at most `capacity` elements of the input.

    Axes are cut in the order `cut`.
    """
    lengths = _block_lengths(counts, windows, taps, sizes, capacity, cut or range(len(counts)))
    for positions in blocks(tuple(counts), tuple(lengths)):
        spans = [span(*axis) for axis in zip(positions, windows, taps, sizes, strict=True)]
        yield Block(positions, tuple([s for s, _ in spans]), tuple([w for _, w in spans]))


@lru_cache(maxsize=256)
def blocks(sizes: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[tuple[slice, ...], ...]:
    """Return the blocks of an index space, as tuples of slices."""
    axes = [[slice(i, min(i + n, size)) for i in range(0, size, n)] for size, n in zip(sizes, lengths, strict=True)]
    return tuple(product(*axes))


def _block_lengths(
    counts: Sequence[int], windows: Sequence[SlidingWindow], taps: Sequence[int], sizes: Sequence[int], capacity: int, cut: Sequence[int]
) -> list[int]:
    lengths = [max(count, 1) for count in counts]

    def reach() -> int:
        axes = zip(lengths, windows, taps, sizes, strict=True)
        return prod(min((n - 1) * w.stride + (k - 1) * w.dilation + 1, size) for n, w, k, size in axes if k)

    for axis in cut:
        while reach() > capacity and lengths[axis] > 1:
            lengths[axis] = -(-lengths[axis] // 2)
    return lengths
