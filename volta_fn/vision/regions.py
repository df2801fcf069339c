"""Pooling of regions: what lies within boxes of feature maps, at a fixed size.

Each box is divided into *bins*. `roi_align` averages samples between pixels (He et al. 2017), `roi_pool` takes the largest pixel of a bin
(Girshick 2015), and the position-sensitive variants read each bin from channels of its own (Dai et al. 2016). Derivatives are those by the
feature maps, as in torchvision: the boxes count as constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.jit import jit
from volta_fn.numpy.arguments import INDEX, narrowed, operand, wide
from volta_fn.transforms.implicit import linear_call
from volta_fn.transforms.jacobian import linear_transpose
from volta_fn.vision.boxes import as_boxes
from volta_fn.vision.color import height_and_width

__all__ = ["ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool"]


def roi_align(
    input: Any,
    boxes: Any,
    output_size: int | Sequence[int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Array:
    """Return means of samples in the bins of boxes, of shape (K, C, height, width).

    Args:
        input: feature maps of shape (N, C, H, W), floats.
        boxes: of shape (K, 5), the number of the map followed by a box of the format "xyxy"; or a sequence of N arrays of shape (L, 4),
            the boxes of each map.
        output_size: (height, width), the number of bins along each side, or one number for both.
        spatial_scale: the factor from the boxes' coordinates to the maps'.
        sampling_ratio: the samples along each side of a bin; if it is not positive, one for each pixel that a bin covers.
        aligned: whether pixels have their centres at half coordinates, so that boxes are moved by half a pixel. Without it boxes are at
            least 1 wide and high.

    It is differentiable by `input`. Raises `ShapeError` and `DTypeError` for other arguments.

    >>> image = vf.numpy.arange(16.0).reshape(1, 1, 4, 4)
    >>> vf.vision.ops.roi_align(image, vf.numpy.array([[0.0, 0.0, 0.0, 2.0, 2.0]]), 2, sampling_ratio=1)
    Array([[[[2.5, 3.5],
             [6.5, 7.5]]]], dtype=float32)
    """
    maps, rois, bins = _arguments("roi_align", input, boxes, output_size)
    corners = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    extent = corners[:, 2:] - corners[:, :2]
    axes = _sampled_axes(corners, extent if aligned else vnp.maximum(extent, 1), bins, sampling_ratio)
    return _means(maps, rois, axes, sampling_ratio, (1, 1))


def ps_roi_align(input: Any, boxes: Any, output_size: int | Sequence[int], spatial_scale: float = 1.0, sampling_ratio: int = -1) -> Array:
    """Return means of samples, those of each bin from channels of its own.

    Arguments are those of `roi_align`, with ``aligned=True``. `input` has C * height * width channels, of which output channel c reads
    number ``(c * height + i) * width + j`` for bin (i, j).

    >>> maps = vf.numpy.arange(4.0).reshape(1, 4, 1, 1)
    >>> vf.vision.ops.ps_roi_align(maps, vf.numpy.array([[0.0, 0.0, 0.0, 1.0, 1.0]]), 2)
    Array([[[[0., 1.],
             [2., 3.]]]], dtype=float32)
    """
    maps, rois, bins = _arguments("ps_roi_align", input, boxes, output_size, position_sensitive=True)
    corners = rois[:, 1:] * spatial_scale - 0.5
    axes = _sampled_axes(corners, corners[:, 2:] - corners[:, :2], bins, sampling_ratio)
    return _means(maps, rois, axes, sampling_ratio, bins)


def ps_roi_pool(input: Any, boxes: Any, output_size: int | Sequence[int], spatial_scale: float = 1.0) -> Array:
    """Return the mean of the pixels in each bin, each from channels of its own.

    Arguments are those of `roi_align`, channels those of `ps_roi_align`. The edges of boxes are rounded to whole pixels; bins without
    pixels give 0. torchvision leaves out the last row and column of the maps here, but not in its derivative.

    >>> maps = vf.numpy.arange(4.0).reshape(1, 4, 1, 1)
    >>> vf.vision.ops.ps_roi_pool(maps, vf.numpy.array([[0.0, 0.0, 0.0, 1.0, 1.0]]), 2)
    Array([[[[0., 1.],
             [2., 3.]]]], dtype=float32)
    """
    maps, rois, bins = _arguments("ps_roi_pool", input, boxes, output_size, position_sensitive=True)
    corners = _rounded(rois[:, 1:] * spatial_scale)
    axes = _pixel_axes(corners, vnp.maximum(corners[:, 2:] - corners[:, :2], 1), bins, maps.shape[2:])
    return _means(maps, rois, axes, 0, bins)


def roi_pool(input: Any, boxes: Any, output_size: int | Sequence[int], spatial_scale: float = 1.0) -> Array:
    """Return the largest pixel in each bin of boxes, of shape (K, C, height, width).

    Arguments are those of `roi_align`. The edges of boxes are rounded to whole pixels, and both belong to the box; bins without pixels
    give 0. The derivative goes to the first of equally large pixels.

    >>> image = vf.numpy.arange(16.0).reshape(1, 1, 4, 4)
    >>> vf.vision.ops.roi_pool(image, vf.numpy.array([[0.0, 0.0, 0.0, 3.0, 3.0]]), 2)
    Array([[[[ 5.,  7.],
             [13., 15.]]]], dtype=float32)
    """
    maps, rois, bins = _arguments("roi_pool", input, boxes, output_size)
    corners = _rounded(rois[:, 1:] * spatial_scale)
    axes = _pixel_axes(corners, vnp.maximum(corners[:, 2:] - corners[:, :2] + 1, 1), bins, maps.shape[2:])
    return _maxima(maps, rois, axes)


def _arguments(
    function: str, input: Any, boxes: Any, output_size: int | Sequence[int], position_sensitive: bool = False
) -> tuple[Array, Array, tuple[int, int]]:
    """Return the feature maps, the boxes as (K, 5), and the numbers of bins."""
    maps = operand(function, "input", input)
    if maps.ndim != 4 or 0 in maps.shape[2:]:
        raise ShapeError(f"{function}: the input has axes (N, C, H, W) and at least one pixel, got shape {maps.shape}")
    if maps.dtype not in FLOATS:
        raise DTypeError(f"{function}: the input has floats, got {maps.aval}; convert it, as in x.astype('float32')")
    size = height_and_width(function, "output_size", output_size)
    if position_sensitive and maps.shape[1] % (size[0] * size[1]):
        raise ShapeError(f"{function}: the channels are a multiple of the {size[0]} * {size[1]} bins, got shape {maps.shape}")
    dtype = accumulator(maps.dtype)
    return maps, lax.stop_gradient(_rois(function, boxes, maps.shape[0]).astype(dtype)), size


def _rois(function: str, boxes: Any, count: int) -> Array:
    """Return boxes with the numbers of their maps, of shape (K, 5)."""
    if isinstance(boxes, (list, tuple)):
        if len(boxes) != count:
            raise ShapeError(f"{function}: boxes are a sequence of {count} arrays, one for each map of the input, got {len(boxes)}")
        arrays = [as_boxes(function, part) for part in boxes]
        return vnp.concatenate([vnp.pad(part, ((0, 0), (1, 0)), constant_values=number) for number, part in enumerate(arrays)])
    rois = operand(function, "boxes", boxes)
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise ShapeError(f"{function}: boxes are of shape (K, 5), or a sequence of arrays of shape (L, 4), got {rois.shape}")
    return rois


# Samples of bins.


class _Samples(NamedTuple):
    """Positions along an axis, of shape (K, bins).

    Number i is ``first + i * step``, for i below `total`.
    """

    first: Array
    step: Array
    total: Array


#: The samples of rows and of columns.
Axes = tuple[_Samples, _Samples]


def _sampled_axes(corners: Array, extent: Array, bins: tuple[int, int], ratio: int) -> Axes:
    """Return equidistant positions in the bins, of rows and of columns."""
    axes = []
    for axis, number in ((1, bins[0]), (0, bins[1])):
        size = extent[:, axis : axis + 1] / number
        count = vnp.full(size.shape, ratio, INDEX) if ratio > 0 else vnp.maximum(vnp.ceil(size), 0).astype(INDEX)
        step = size / vnp.maximum(count, 1)
        first = corners[:, axis : axis + 1] + vnp.arange(number, dtype=size.dtype) * size + step / 2
        axes.append(_Samples(first, *[vnp.broadcast_to(x, first.shape) for x in (step, count)]))
    return axes[0], axes[1]


def _pixel_axes(corners: Array, extent: Array, bins: tuple[int, int], sizes: Sequence[int]) -> Axes:
    """Return the whole pixels that bins touch, of rows and of columns."""
    axes = []
    for axis, number, size in ((1, bins[0], sizes[0]), (0, bins[1], sizes[1])):
        width = extent[:, axis : axis + 1] / number
        numbers, start = vnp.arange(number, dtype=width.dtype), corners[:, axis : axis + 1]
        low = vnp.clip(vnp.floor(numbers * width) + start, 0, size)
        high = vnp.clip(vnp.ceil((numbers + 1) * width) + start, 0, size)
        axes.append(_Samples(low, vnp.ones_like(low), (high - low).astype(INDEX)))
    return axes[0], axes[1]


def _rounded(x: Array) -> Array:
    """Round to the nearest whole number, halves away from 0, as C does."""
    return vnp.trunc(x + vnp.copysign(0.5, x).astype(x.dtype))


# Means of samples.


@jit(static_argnames=("ratio", "groups"))
def _means(maps: Array, rois: Array, axes: Axes, ratio: int, groups: tuple[int, int]) -> Array:
    """Return means of samples, of shape (K, C, bins of rows, bins of columns).

    The channels are those of ``groups = (rows, columns)`` of bins, one after another: (1, 1) if all bins read the same.
    """
    count, channels, *sizes = maps.shape
    layout = wide(maps).reshape(count, channels // (groups[0] * groups[1]), *groups, *sizes).transpose(0, 2, 3, 4, 5, 1)
    numbers = rois[:, 0].astype(INDEX)
    if ratio > 0:
        every = vnp.arange(ratio, dtype=INDEX)
        sums = _sum(numbers, axes, every, every, layout)
    else:
        # The number of samples depends on the boxes. Reverse mode does not pass such loops, but a transpose is a loop again.
        sums = linear_call(_sum_all, functools.partial(_scatter_all, layout.shape), (numbers, axes), layout)
    area = vnp.maximum(axes[0].total[:, :, None] * axes[1].total[:, None, :], 1)
    return narrowed((sums / area[..., None].astype(sums.dtype)).transpose(0, 3, 1, 2), maps)


def _sum(numbers: Array, axes: Axes, rows: Array, columns: Array, layout: Array) -> Array:
    """Return the sums of samples `rows` times `columns` of every bin.

    They are of shape (K, rows of bins, columns of bins, C).
    `layout` has the axes of maps, of two groups, of rows, columns and channels: a pixel's channels are neighbours.
    """
    y, down = _taps(axes[0], rows, layout.shape[3])
    x, right = _taps(axes[1], columns, layout.shape[4])
    group_rows, group_columns = (vnp.arange(n, dtype=INDEX) for n in layout.shape[1:3])
    values = layout[
        numbers[:, None, None, None, None],
        group_rows[None, :, None, None, None],
        group_columns[None, None, None, :, None],
        y[:, :, :, None, None],
        x[:, None, None, :, :],
    ]
    weights = down[:, :, :, None, None] * right[:, None, None, :, :]
    return vnp.sum(values * weights[..., None].astype(values.dtype), (2, 4))


def _taps(axis: _Samples, samples: Array, size: int) -> tuple[Array, Array]:
    """Return the pixels next to some samples of each bin, and their weights.

    Both are of shape (K, bins, 2 * samples).
    Samples more than a pixel outside the map have no weight.
    """
    position = axis.first[..., None] + axis.step[..., None] * samples
    valid = (position >= -1) & (position <= size) & (samples < axis.total[..., None])
    position = vnp.clip(position, 0, size - 1)
    low = vnp.floor(position)
    fraction, near = position - low, low.astype(INDEX)
    weights = [vnp.where(valid, weight, 0) for weight in (1 - fraction, fraction)]
    return vnp.concatenate([near, vnp.minimum(near + 1, size - 1)], -1), vnp.concatenate(weights, -1)


def _sum_all(residuals: tuple[Array, Axes], layout: Array) -> Array:
    numbers, axes = residuals
    shape = (numbers.shape[0], axes[0].first.shape[1], axes[1].first.shape[1], layout.shape[-1])

    def add(row: Array, column: Array, total: Array) -> Array:
        return total + _sum(numbers, axes, row, column, layout)

    return _over_samples(axes, add, vnp.zeros(shape, layout.dtype))


def _scatter_all(shape: tuple[int, ...], residuals: tuple[Array, Axes], cotangent: Array) -> Array:
    numbers, axes = residuals
    like = ShapeDtypeStruct(shape, cotangent.dtype)

    def add(row: Array, column: Array, total: Array) -> Array:
        (part,) = linear_transpose(functools.partial(_sum, numbers, axes, row, column), like)(cotangent)
        return total + part

    return _over_samples(axes, add, vnp.zeros(shape, cotangent.dtype))


def _over_samples(axes: Axes, body: Callable[[Array, Array, Any], Any], start: Any) -> Any:
    """Call ``body(row, column, carry)`` for all samples, arrays of shape (1,)."""
    most, across = (vnp.max(axis.total, initial=0) for axis in axes)

    def step(number: Array, carry: Any) -> Any:
        row, column = number // vnp.maximum(across, 1), number % vnp.maximum(across, 1)
        return body(row[None], column[None], carry)

    return lax.fori_loop(0, most * across, step, start)


@jit
def _maxima(maps: Array, rois: Array, axes: Axes) -> Array:
    """Return the largest pixel of each bin, 0 where it has none."""
    layout, numbers = maps.transpose(0, 2, 3, 1), rois[:, 0].astype(INDEX)[:, None, None]
    constant = lax.stop_gradient(layout)
    width = maps.shape[3]
    shape = (numbers.shape[0], axes[0].first.shape[1], axes[1].first.shape[1], maps.shape[1])

    def compare(row: Array, column: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        best, position = state
        y, x = (axis.first.astype(INDEX) + number for axis, number in zip(axes, (row, column), strict=True))
        valid = (row < axes[0].total)[:, :, None] & (column < axes[1].total)[:, None, :]
        y, x = vnp.minimum(y, maps.shape[2] - 1)[:, :, None], vnp.minimum(x, width - 1)[:, None, :]
        value = constant[numbers, y, x]
        larger = valid[..., None] & ((value > best) | (position < 0))
        return vnp.where(larger, value, best), vnp.where(larger, (y * width + x)[..., None], position)

    start = (vnp.full(shape, -np.inf, maps.dtype), vnp.full(shape, -1, INDEX))
    _, position = _over_samples(axes, compare, start)
    y, x = vnp.maximum(position, 0) // width, vnp.maximum(position, 0) % width
    values = layout[numbers[..., None], y, x, vnp.arange(shape[-1], dtype=INDEX)]
    return vnp.where(position < 0, 0, values).transpose(0, 3, 1, 2)
