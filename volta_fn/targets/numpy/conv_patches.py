"""Windows over an array: blocks of the *patch array* `x[g, n, c, p * stride + k * dilation - low]`, with zeros outside x.

The patch array is never made as a whole; its axes are numbered 0 for the group g, 1 for the batch n, 2 for the channel c, then come the
positions p, then the taps k.
"""

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.lib.stride_tricks import as_strided

from volta_fn.targets.numpy.sliding import Window

__all__ = ["patch_block", "patch_strides", "without_gaps"]


def without_gaps(
    x: np.ndarray, windows: Sequence[Window], positions: Sequence[int], taps: Sequence[int]
) -> tuple[np.ndarray, tuple[Window, ...]]:
    """The subgrid of the spatial axes of `x` that windows can meet at all, and the windows over it.

    A stride of 2 with a single tap, say, meets every other element: over that subgrid the stride is 1.
    """
    subgrid, reduced = [], []
    for window, places, count in zip(windows, positions, taps, strict=True):
        stride = window.stride if places > 1 else window.dilation
        dilation = window.dilation if count > 1 else stride
        step = gcd(stride, dilation)
        start = -window.low % step
        subgrid.append(slice(start, None, step))
        reduced.append(Window(stride // step, dilation // step, (window.low + start) // step))
    return x[:, :, :, *subgrid], tuple(reduced)


def patch_strides(x: np.ndarray, windows: Sequence[Window], positions: Sequence[int], taps: Sequence[int]) -> tuple[int, ...]:
    """The strides in bytes of the patch array over `x`, or over a padded copy if windows leave it."""
    spans = [_reach(window, slice(0, places), slice(0, count)) for window, places, count in zip(windows, positions, taps, strict=True)]
    padded = any(start < 0 or stop > size for (start, stop), size in zip(spans, x.shape[3:], strict=True))
    strides = _strides_like(x, (*x.shape[:3], *(stop - start for start, stop in spans))) if padded else x.strides
    return _sliding(strides, windows)


def _strides_like(x: np.ndarray, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array of another shape whose axes are in the same order in memory (see `np.empty_like`)."""
    strides, step = [0] * x.ndim, x.itemsize
    for axis in sorted(range(x.ndim), key=lambda axis: (abs(x.strides[axis]), -axis)):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _sliding(strides: Sequence[int], windows: Sequence[Window]) -> tuple[int, ...]:
    """The strides of the patch array over an array of the given strides."""
    places = (stride * window.stride for stride, window in zip(strides[3:], windows, strict=True))
    taps = (stride * window.dilation for stride, window in zip(strides[3:], windows, strict=True))
    return (*strides[:3], *places, *taps)


def _reach(window: Window, places: slice, taps: slice) -> tuple[int, int]:
    """Where what some taps meet at some positions begins and ends."""
    start = places.start * window.stride + taps.start * window.dilation - window.low
    return start, (places.stop - 1) * window.stride + (taps.stop - 1) * window.dilation - window.low + 1


def patch_block(x: np.ndarray, windows: Sequence[Window], places: Sequence[slice], taps: Sequence[slice]) -> np.ndarray:
    """The patch array of the given positions and taps: a view of `x`, or of a padded copy of what they reach."""
    x = _span(x, [_reach(*axis) for axis in zip(windows, places, taps, strict=True)])
    shape = (*x.shape[:3], *(s.stop - s.start for s in places), *(s.stop - s.start for s in taps))
    return as_strided(x, shape, _sliding(x.strides, windows), writeable=False)


def _span(x: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """The part of `x` from start to stop along each spatial axis, padded with zeros where it leaves `x`; the order in memory stays."""
    inside = [slice(max(start, 0), max(min(stop, size), 0)) for (start, stop), size in zip(spans, x.shape[3:], strict=True)]
    if all((s.start, s.stop) == span for s, span in zip(inside, spans, strict=True)):
        return x[:, :, :, *inside]
    padded = np.zeros_like(x, shape=(*x.shape[:3], *(stop - start for start, stop in spans)), subok=False)
    if all(s.start < s.stop for s in inside):
        destination = [slice(s.start - start, s.stop - start) for s, (start, _) in zip(inside, spans, strict=True)]
        padded[:, :, :, *destination] = x[:, :, :, *inside]
    return padded
