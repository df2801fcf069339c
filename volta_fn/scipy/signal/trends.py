"""Detrending: signals less their mean, or less a line fitted to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.numpy.arguments import axis_of, no_out, promote_inexact


def detrend(data: Any, axis: int = -1, type: str = "linear", bp: int | Sequence[int] = 0, overwrite_data: None = None) -> Array:
    """Subtract from a signal the line of least squares, or its mean.

    Args:
        data: numbers; integers become floats.
        axis: the axis along which the signal runs.
        type: "linear" for a line, "constant" for the mean.
        bp: break points: a line is fitted to each segment between them.
        overwrite_data: None; arrays are immutable.

    Raises `ArgumentError` for another type, and for break points outside of the signal; `ShapeError` if there is no such axis.

    >>> vf.scipy.signal.detrend(jnp.array([1.0, 2.0, 3.0, 5.0])).round(2)
    Array([ 0.2, -0.1, -0.4,  0.3], dtype=float32)
    """
    no_out("detrend", overwrite_data)
    (value,) = promote_inexact("detrend", data)
    dim = axis_of("detrend", axis, value.ndim)
    if type in ("constant", "c"):
        return value - value.mean(dim, keepdims=True)
    if type not in ("linear", "l"):
        raise ArgumentError(f"detrend: type must be 'linear' or 'constant', got {type!r}")
    signal = vnp.moveaxis(value, dim, -1)
    count = signal.shape[-1]
    breaks = np.unique([0, *np.ravel(bp), count]).astype(int)
    if breaks[0] < 0 or breaks[-1] > count:
        raise ArgumentError(f"detrend: the break points must lie between 0 and {count}, the signal's length, got {bp!r}")
    segments = [_residual(signal[..., start:end]) for start, end in itertools.pairwise(breaks)]
    return vnp.moveaxis(vnp.concatenate(segments, -1) if segments else signal, -1, dim)


def _residual(signal: Array) -> Array:
    """Subtract the projection on the space of lines along the last axis."""
    count = signal.shape[-1]
    ramps = np.stack([np.ones(count), np.arange(count) - (count - 1) / 2], 1)
    norms = np.linalg.norm(ramps, axis=0)
    basis = (ramps / np.where(norms == 0, 1, norms)).astype(signal.dtype)
    return signal - (signal @ basis) @ basis.T
