"""The canonical correlation (see `convolution.py`) by shifting instead of gathering, for shapes whose patches would cost too much.

With few outputs, a patch repeats each of many channels once per tap, to produce little. It is cheaper to multiply the input by all weights
in one matrix product, and to add the products where they belong, shifted by their taps. In a depthwise convolution there is no matrix
product to speak of, and with the channels last in memory a patch is slow to gather: elements are multiplied and added tap by tap, or, if
the window is large and positions are few as in the gradient by the weights, multiplied and summed position by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from volta_fn.targets.numpy.blocks import Scratch
from volta_fn.targets.numpy.contraction import product_for, working_dtype
from volta_fn.targets.numpy.conv_tiling import tile_elements
from volta_fn.targets.numpy.sliding import Block, Window, meeting, sliding_blocks

__all__ = ["by_positions", "by_taps", "multiply_then_shift"]

_WHOLE = Window(1, 1, 0)  # along an axis that no window slides over

Index = tuple[slice, ...]


def multiply_then_shift(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    """Write the correlation y, whose outputs per group are few, with one matrix product per block."""
    groups, outputs, channels, *taps = w.shape
    factors = w.transpose(0, *range(3, w.ndim), 1, 2).reshape(groups, 1, prod(taps) * outputs, channels)
    share = max(channels, prod(taps) * outputs)
    for block, g, n in _input_blocks(x, y, windows, taps, tile_elements(y.dtype) // share):
        with Scratch() as scratch:
            part = x[g, n, :, *block.source]
            size = part.shape[3:]
            products = _multiply(factors[g], part.reshape(*part.shape[:3], prod(size)), y.dtype, scratch)
            products = products.reshape(*part.shape[:2], prod(taps), outputs, *size)
            given = y[g, n, :, *block.places]
            total = scratch.array(given.shape, working_dtype(y.dtype))
            total[...] = 0
            for i, tap in enumerate(product(*map(range, taps))):
                places, met = _meetings(tap, block, total.shape[3:], size)
                total[:, :, :, *places] += products[:, :, i][:, :, :, *met]
            given[...] = total


def _multiply(lhs: np.ndarray, rhs: np.ndarray, dtype: np.dtype, scratch: Scratch) -> np.ndarray:
    """A stack of products for results of a dtype."""
    multiply = product_for(lhs.dtype, rhs.dtype, dtype)
    if multiply is not np.matmul:
        return multiply(lhs, rhs)
    return np.matmul(lhs, rhs, out=scratch.array((*rhs.shape[:2], lhs.shape[2], rhs.shape[3]), rhs.dtype))


def by_taps(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    """Write the correlation y, with one channel and one output per group, tap by tap."""
    x, y, taps = x[:, :, 0], y[:, :, 0], w.shape[3:]
    working = working_dtype(y.dtype)
    weights = w.reshape(len(w), prod(taps), *(1,) * (y.ndim - 1)).astype(working, copy=False)
    for block, g, n in _input_blocks(x, y, windows, taps, tile_elements(y.dtype) // 8):
        part = x[g, n, *block.source].astype(working, copy=False)
        given = y[g, n, *block.places]
        total = given if y.dtype == working else np.empty_like(given, working)
        total[...] = 0
        for i, tap in enumerate(product(*map(range, taps))):
            places, met = _meetings(tap, block, total.shape[2:], part.shape[2:])
            total[:, :, *places] += part[:, :, *met] * weights[g, i]
        if total is not given:
            given[...] = total


def by_positions(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    """Write the correlation y, with one batch element and one output per group, position by position."""
    x, w, y = x[:, 0], w[:, 0], y[:, 0, 0]
    places = y.shape[1:]
    total = np.zeros((len(y), prod(places)), working_dtype(y.dtype))
    swapped = [Window(window.dilation, window.stride, window.low) for window in windows]
    axes = list(range(w.ndim))
    for block, g, c in _input_blocks(x, w, swapped, places, tile_elements(y.dtype) // 8):
        part = x[g, c, *block.source].astype(total.dtype, copy=False)
        weights = w[g, c, *block.places].astype(total.dtype, copy=False)
        for i, place in enumerate(product(*map(range, places))):
            taps, met = _meetings(place, block, weights.shape[2:], part.shape[2:])
            total[g, i] += np.einsum(part[:, :, *met], axes, weights[:, :, *taps], axes, axes[:1])
    y[...] = total.reshape(y.shape)


def _input_blocks(
    x: np.ndarray, out: np.ndarray, windows: Sequence[Window], taps: Sequence[int], capacity: int
) -> Iterator[tuple[Block, slice, slice]]:
    """Blocks of positions with the slices of the two leading axes, which `x` and `out` share.

    Cut first are axes along which blocks meet no element twice, and of these the ones that are far apart in memory.
    """
    axes = (0, 1, *range(out.ndim - len(windows), out.ndim))
    counts, sizes = [[array.shape[axis] for axis in axes] for array in (out, x)]
    lengths = (1, 1, *taps)
    cut = sorted(range(len(axes)), key=lambda i: (lengths[i] > 1, -abs(out.strides[axes[i]])))
    for places, source, slid in sliding_blocks(counts, (_WHOLE, _WHOLE, *windows), lengths, sizes, capacity, cut):
        yield Block(places[2:], source[2:], slid[2:]), places[0], places[1]


def _meetings(tap: Sequence[int], block: Block, counts: Sequence[int], sizes: Sequence[int]) -> tuple[Index, Index]:
    """The positions of a block at which a tap meets the input, and the elements that it meets."""
    met = [meeting(*axis) for axis in zip(tap, block.windows, counts, sizes, strict=True)]
    return tuple([places for places, _ in met]), tuple([elements for _, elements in met])
