"""The canonical correlation (see `convolution.py`) with the images last in memory, for batches of small images.

A patch is gathered in runs of elements that lie one after another. Of small images these are short: ten elements of a row, where a 5x5
window slides over 14x14. With the images as innermost axis they are longer by the number of images. To bring the operands and the result
into that order costs little beside the patch, which has every element of x once for each tap.

The images then are one more axis of space, along which windows have one tap; in the gradient by the weights, where a correlation sums over
the images, windows are as long as there are images, and have one position. So every method takes the operands as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from volta_fn.targets.numpy.blocks import Scratch
from volta_fn.targets.numpy.contraction import working_dtype
from volta_fn.targets.numpy.conv_tiling import copy_cost, even_length, tile_elements, tiling_of
from volta_fn.targets.numpy.sliding import Window, blocks

__all__ = ["Method", "axis_of_images", "with_images_last"]

Method = Callable[[np.ndarray, np.ndarray, np.ndarray, Sequence[Window]], None]

_FEWEST, _IMAGES = 8, 64  # of fewer images no runs are long; of more at a time they are long enough
_MOVE_COST = 1.0  # nanoseconds to bring an element to its place in another order of the axes
_ALONG_IMAGES = Window(1, 1, 0)


def axis_of_images(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> int | None:
    """The axis of x that should be last in memory, 1 or (where the correlation sums over the images) 2; None if it pays for neither."""
    taps, places = w.shape[3:], y.shape[3:]
    if not windows or prod(taps) == 1 or prod(places) == 1:
        return None
    summed = prod(taps) > prod(places)
    axis, moved, row = (2, w, taps) if summed else (1, y, places)
    if x.shape[axis] < _FEWEST:
        return None
    tiling = tiling_of(x, w, y, windows)
    step = windows[-1].dilation if summed else windows[-1].stride
    run = min(x.shape[axis], _IMAGES) * (row[-1] if step == 1 else 1)
    gain = prod((*x.shape[:3], *places, *taps)) * (tiling.cost - copy_cost(run))
    return axis if gain > _MOVE_COST * (x.size + moved.size) else None


def with_images_last(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window], axis: int, method: Method) -> None:
    """Write the correlation y by a method that is given some images at a time, as innermost axis."""
    (_by_images if axis == 1 else _summed_over_images)(x, w, y, (*windows, _ALONG_IMAGES), method)


def _by_images(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window], method: Method) -> None:
    for images in _blocks_of_images(x, y, 1):
        with Scratch() as scratch:
            part = y[:, images]
            out = scratch.array((len(part), 1, *part.shape[2:], part.shape[1]), working_dtype(y.dtype))
            method(_moved(x[:, images], 1, scratch), w[..., None], out, windows)
            part[...] = np.moveaxis(out[:, 0], -1, 1)


def _summed_over_images(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window], method: Method) -> None:
    total = np.zeros((*y.shape, 1), working_dtype(y.dtype))
    for images in _blocks_of_images(x, w, 2):
        with Scratch() as scratch:
            out = scratch.array(total.shape, total.dtype)
            method(_moved(x[:, :, images], 2, scratch), _moved(w[:, :, images], 2, scratch), out, windows)
            np.add(total, out, out=total)
    y[...] = total[..., 0]


def _moved(array: np.ndarray, axis: int, scratch: Scratch) -> np.ndarray:
    """A copy with an axis last in memory, and one of length 1 where it was."""
    last = np.moveaxis(array, axis, -1)
    copy = scratch.array(last.shape, last.dtype)
    np.copyto(copy, last)
    return np.expand_dims(copy, axis)


def _blocks_of_images(x: np.ndarray, other: np.ndarray, axis: int) -> Iterator[slice]:
    """Blocks of images of x, and of what else has that axis, neither larger than the operand of a product."""
    count = x.shape[axis]
    fit = tile_elements(x.dtype) * count // max(x.size, other.size)
    return (images for (images,) in blocks((count,), (even_length(count, max(1, min(fit, _IMAGES))),)))
