"""Where the maxima of windows are, counted row by row through the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.barriers import stop_gradient


def positions_of_maxima(x: Array, taps: Sequence[Any]) -> Array:
    """Return the position of each window's first maximum in (N, C, *spatial).

    `taps` has for each spatial axis the positions of each window's elements: integers of shape (windows, taps), or (N, C, windows, taps)
    where they differ from channel to channel. A window's elements are in ascending order, and may repeat. The result has shape
    (N, C, *windows). Since windows are products of windows of each axis, the axes are searched one after another, starting with the last;
    so the first of equal elements wins, and NaN wins over all.
    """
    values = stop_gradient(x)
    positions = vnp.broadcast_to(vnp.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:]), x.shape)
    for axis in reversed(range(2, x.ndim)):
        candidates = _windows(values, taps[axis - 2], axis)
        first = vnp.expand_dims(vnp.argmax(candidates, axis + 1), axis + 1)
        values = _chosen(candidates, first, axis + 1)
        positions = _chosen(_windows(positions, taps[axis - 2], axis), first, axis + 1)
    return positions


def at_positions(x: Array, positions: Array) -> Array:
    """Return the elements of (N, C, *spatial) at `positions`, which have as many axes."""
    flat = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    index = positions.reshape(*positions.shape[:2], math.prod(positions.shape[2:]))
    return vnp.take_along_axis(flat, index, 2).reshape(positions.shape)


def _windows(x: Array, taps: Any, axis: int) -> Array:
    """Return the elements of windows along `axis`, which becomes two: windows, taps."""
    if taps.ndim == 2:
        return vnp.take(x, np.asarray(taps), axis)
    index = taps.reshape(*taps.shape[:2], *[1] * (axis - 2), taps.shape[2] * taps.shape[3], *[1] * (x.ndim - axis - 1))
    found = vnp.take_along_axis(x, index, axis)
    return found.reshape(*x.shape[:axis], *taps.shape[2:], *x.shape[axis + 1 :])


def _chosen(candidates: Array, first: Array, axis: int) -> Array:
    return vnp.squeeze(vnp.take_along_axis(candidates, first, axis), axis)
