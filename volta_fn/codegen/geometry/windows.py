"""Sliding windows over rows of contiguous elements.

The axes of an operand are merged into an *outer* one that no window slides over, *vertical* ones, and the one *across*, which is
contiguous: the last one, or all those after the last that windows slide over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.primitives.geometry import counts_of_windows


class Axis(NamedTuple):
    """An axis on which windows slide.

    At position p, tap k meets the element (p * stride + k * dilation - low) / base, if there is one.
    """

    size: int
    taps: int
    stride: int
    low: int
    base: int
    dilation: int
    positions: int

    @property
    def plain(self) -> bool:
        """True if every element is a window of its own."""
        return self.taps == self.stride == self.base == 1 and self.low == 0 and self.positions == self.size

    @property
    def inside(self) -> bool:
        """True if every tap of every window meets an element."""
        reach = (self.positions - 1) * self.stride + (self.taps - 1) * self.dilation - self.low
        return self.low <= 0 and self.base == 1 and reach < self.size


class Windows(NamedTuple):
    """The windows on an operand."""

    outer: int
    vertical: tuple[Axis, ...]
    across: Axis

    @property
    def rows(self) -> int:
        """Rows of the operand for each index of the outer axis."""
        return math.prod(axis.size for axis in self.vertical)

    @property
    def results(self) -> int:
        """Rows of windows for each index of the outer axis."""
        return math.prod(axis.positions for axis in self.vertical)

    @property
    def taps(self) -> int:
        """The number of taps of a window."""
        return self.across.taps * math.prod(axis.taps for axis in self.vertical)

    def upright(self) -> Windows:
        """Return the same windows with all their axes vertical, and rows of one element."""
        return self if self.across.plain else Windows(self.outer, (*self.vertical, self.across), Axis(1, 1, 1, 0, 1, 1, 1))


def windows_of(shape: Sequence[int], params: dict[str, Any]) -> Windows:
    """Return the windows of a window primitive's parameters."""
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    taps, strides, padding, bases, dilations = (params[name] for name in names)
    counts = counts_of_windows(tuple(shape), params)
    lows = [low for low, _ in padding]
    axes = [Axis(*axis) for axis in zip(shape, taps, strides, lows, bases, dilations, counts, strict=True)]
    slid = [d for d, axis in enumerate(axes) if not axis.plain]
    first, last = (slid[0], slid[-1]) if slid else (len(axes), len(axes) - 1)
    outer, after = math.prod(shape[:first]), math.prod(shape[last + 1 :])
    if after > 1 or not slid:
        return Windows(outer, tuple(axes[first : last + 1]), Axis(after, 1, 1, 0, 1, 1, after))
    return Windows(outer, tuple(axes[first:last]), axes[last])
