"""How sliding windows meet an axis: the arithmetic that convolution and window reductions share.

A window has *taps*; it stands at *positions*; at position p its tap k meets the input element `p * stride + k * dilation - low`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import NamedTuple

__all__ = ["Block", "Phase", "Window", "blocks", "meeting", "phases", "sliding_blocks", "span"]


class Window(NamedTuple):
    """How positions and taps meet the input along one axis: at `position * stride + tap * dilation - low`."""

    stride: int
    dilation: int
    low: int


class Phase(NamedTuple):
    """Some taps and some positions of one axis, and how they meet the undilated input."""

    taps: slice
    places: slice
    window: Window


def phases(window: Window, base: int, taps: int, positions: int) -> list[Phase]:
    """Take one axis apart whose input is dilated by `base` (has base - 1 holes between its elements), so that no hole is ever met.

    Position r + m j and tap k meet input coordinate ((r + m j) stride + k dilation - low) / base, if that is whole. With
    m = base / gcd(stride, base) that depends on r and k alone, and the taps that fit a given r are an arithmetic progression.
    """
    if base == 1:
        return [Phase(slice(None), slice(None), window)]
    place_step, tap_step = base // gcd(window.stride, base), base // gcd(window.dilation, base)
    found = []
    for r in range(min(place_step, positions)):
        start = r * window.stride - window.low
        first = next((k for k in range(min(tap_step, taps)) if (start + k * window.dilation) % base == 0), taps)
        low = -(start + first * window.dilation) // base
        reduced = Window(window.stride * place_step // base, window.dilation * tap_step // base, low)
        found.append(Phase(slice(first, None, tap_step), slice(r, None, place_step), reduced))
    return found


@lru_cache(maxsize=4096)  # loops over taps ask the same questions for every block
def meeting(tap: int, window: Window, count: int, size: int) -> tuple[slice, slice]:
    """The positions, of `count`, at which a tap meets one of `size` elements, and those elements."""
    offset = tap * window.dilation - window.low
    first = max(-(offset // window.stride), 0)
    last = min((size - 1 - offset) // window.stride, count - 1)
    start = first * window.stride + offset
    return slice(first, max(first, last + 1)), slice(start, start + max(last - first + 1, 0) * window.stride, window.stride)


def span(block: slice, window: Window, taps: int, size: int) -> tuple[slice, Window]:
    """The part of an axis that a block of positions meets, and the window from the first of these positions over that part."""
    start = max(block.start * window.stride - window.low, 0)
    stop = min((block.stop - 1) * window.stride + (taps - 1) * window.dilation - window.low + 1, size)
    return slice(start, max(start, stop)), window._replace(low=window.low - block.start * window.stride + start)


class Block(NamedTuple):
    """Some positions, the part of the input that their windows meet, and how they meet it."""

    places: tuple[slice, ...]
    source: tuple[slice, ...]
    windows: tuple[Window, ...]


def sliding_blocks(
    counts: Sequence[int], windows: Sequence[Window], taps: Sequence[int], sizes: Sequence[int], capacity: int, cut: Sequence[int] = ()
) -> Iterator[Block]:
    """All positions, in blocks that meet at most `capacity` elements of an input of the given sizes. Axes are cut in the order `cut`."""
    lengths = _block_lengths(counts, windows, taps, sizes, capacity, cut or range(len(counts)))
    for places in blocks(tuple(counts), tuple(lengths)):
        spans = [span(*axis) for axis in zip(places, windows, taps, sizes, strict=True)]
        yield Block(places, tuple([s for s, _ in spans]), tuple([w for _, w in spans]))


@lru_cache(maxsize=256)
def blocks(sizes: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[tuple[slice, ...], ...]:
    """The blocks of an index space, as tuples of slices."""
    axes = [[slice(i, min(i + n, size)) for i in range(0, size, n)] for size, n in zip(sizes, lengths, strict=True)]
    return tuple(product(*axes))


def _block_lengths(
    counts: Sequence[int], windows: Sequence[Window], taps: Sequence[int], sizes: Sequence[int], capacity: int, cut: Sequence[int]
) -> list[int]:
    lengths = [max(count, 1) for count in counts]

    def reach() -> int:
        axes = zip(lengths, windows, taps, sizes, strict=True)
        return prod(min((n - 1) * w.stride + (k - 1) * w.dilation + 1, size) for n, w, k, size in axes if k)

    for axis in cut:
        while reach() > capacity and lengths[axis] > 1:
            lengths[axis] = -(-lengths[axis] // 2)
    return lengths
