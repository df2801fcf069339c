"""Sliding windows along one axis, and their phases where the input is dilated."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple


class SlidingWindow(NamedTuple):
    """The positions of windows: `position * stride + tap * dilation - low`."""

    stride: int
    dilation: int
    low: int


class Phase(NamedTuple):
    """The taps and positions of one phase, and their window over the undilated input."""

    taps: slice
    positions: slice
    window: SlidingWindow


def phases(window: SlidingWindow, base: int, taps: int, positions: int) -> list[Phase]:
    """Decompose windows over an input with holes into phases that meet no hole.

    The input has base - 1 holes between its elements. Position r + m j and tap k meet input coordinate ((r + m j) stride + k dilation -
    low) / base, if that is an integer. With m = base / gcd(stride, base) that depends on r and k alone, and the taps that fit a given r
    are an arithmetic progression.
    """
    if base == 1:
        return [Phase(slice(None), slice(None), window)]
    position_step, tap_step = base // gcd(window.stride, base), base // gcd(window.dilation, base)
    found = []
    for r in range(min(position_step, positions)):
        start = r * window.stride - window.low
        first = next((k for k in range(min(tap_step, taps)) if (start + k * window.dilation) % base == 0), taps)
        low = -(start + first * window.dilation) // base
        reduced = SlidingWindow(window.stride * position_step // base, window.dilation * tap_step // base, low)
        found.append(Phase(slice(first, None, tap_step), slice(r, None, position_step), reduced))
    return found
