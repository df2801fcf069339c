"""Changes of positions: sizes, crops, flips, affine and perspective maps.

A map takes each pixel of the result to a position in the image, and interpolates there. Positions count from the upper left corner of the
image, x to the right, and the centre of the first pixel is (0.5, 0.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused_by_results
from volta_fn.numpy.arguments import INDEX
from volta_fn.scipy.interpolation import cubic
from volta_fn.scipy.interpolation import resize as resampled
from volta_fn.vision.color import as_floats, as_images, height_and_width, restored

__all__ = [
    "affine", "center_crop", "crop", "horizontal_flip", "pad", "perspective", "resize", "resized_crop", "rotate", "vertical_flip",
]  # fmt: skip

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
Point = Sequence[Any]


# Flips, crops and borders.


def horizontal_flip(images: Any) -> Array:
    """Mirror images left to right.

    >>> vf.vision.transforms.horizontal_flip(vf.numpy.array([[[0, 1, 2]]]))
    Array([[[2, 1, 0]]], dtype=int32)
    """
    return as_images("horizontal_flip", images)[..., ::-1]


def vertical_flip(images: Any) -> Array:
    """Mirror images top to bottom.

    >>> vf.vision.transforms.vertical_flip(vf.numpy.array([[[0], [1]]]))
    Array([[[1],
            [0]]], dtype=int32)
    """
    return as_images("vertical_flip", images)[..., ::-1, :]


def pad(images: Any, padding: int | Sequence[int], fill: float = 0, padding_mode: str = "constant") -> Array:
    """Add pixels around images.

    Args:
        images: (…, channels, height, width).
        padding: the pixels on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: the value of constant pixels.
        padding_mode: "constant", "edge", "reflect" (without the edge's pixel) or "symmetric" (with it).

    >>> vf.vision.transforms.pad(vf.numpy.ones((1, 1, 1)), (1, 0))
    Array([[[0., 1., 0.]]], dtype=float32)
    """
    value = as_images("pad", images)
    sides = [padding] if isinstance(padding, int) else list(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        raise ArgumentError(f"pad: padding is a number that is not negative, two or four of them, got {padding!r}")
    left, top, right, bottom = sides * (4 // len(sides))
    check_option(padding_mode, "pad: padding_mode", ("constant", "edge", "reflect", "symmetric"))
    widths = [(0, 0)] * (value.ndim - 2) + [(top, bottom), (left, right)]
    return vnp.pad(value, widths, mode=padding_mode, **({"constant_values": fill} if padding_mode == "constant" else {}))


def crop(images: Any, top: int, left: int, height: int, width: int) -> Array:
    """Cut out a rectangle; what lies outside of the image is 0.

    >>> vf.vision.transforms.crop(vf.numpy.arange(6).reshape(1, 2, 3), 0, 2, 1, 2)
    Array([[[2, 0]]], dtype=int32)
    """
    value = as_images("crop", images)
    rows, columns = value.shape[-2:]
    borders = [max(-left, 0), max(-top, 0), max(left + width - columns, 0), max(top + height - rows, 0)]
    value = pad(value, borders) if any(borders) else value
    up, start = top + borders[1], left + borders[0]
    return value[..., up : up + height, start : start + width]


def center_crop(images: Any, output_size: int | Sequence[int]) -> Array:
    """Cut out the middle; zeros pad smaller images.

    `output_size` is (height, width), or the side of a square.

    >>> vf.vision.transforms.center_crop(vf.numpy.arange(9).reshape(1, 3, 3), 1)
    Array([[[4]]], dtype=int32)
    """
    value = as_images("center_crop", images)
    height, width = height_and_width("center_crop", "output_size", output_size)
    # torchvision pads first, and rounds halves to even.
    missing = [max(size - have, 0) for size, have in zip((height, width), value.shape[-2:], strict=True)]
    if any(missing):
        value = pad(value, (missing[1] // 2, missing[0] // 2, (missing[1] + 1) // 2, (missing[0] + 1) // 2))
    return crop(value, round((value.shape[-2] - height) / 2), round((value.shape[-1] - width) / 2), height, width)


# Sizes.


def resize(images: Any, size: int | Sequence[int], interpolation: Interpolation = "bilinear", antialias: bool = True) -> Array:
    """Resample images to another size.

    Args:
        images: (…, channels, height, width).
        size: (height, width); one number is the shorter side, and the longer one follows.
        interpolation: "bilinear", "bicubic", "nearest-exact", or "nearest", which takes the pixel left of and above the exact one.
        antialias: average over all pixels that a new one covers, where the image shrinks.

    Integers are rounded, once: torchvision rounds bytes after each axis. Raises `ArgumentError` for other arguments.

    >>> vf.vision.transforms.resize(vf.numpy.array([[[10, 20]]], "uint8"), (1, 4))
    Array([[[10, 12, 18, 20]]], dtype=uint8)
    """
    value = as_images("resize", images)
    rows, columns = value.shape[-2:]
    if isinstance(size, int) and size > 0 and 0 not in (rows, columns):
        height, width = (size, int(size * columns / rows)) if rows <= columns else (int(size * rows / columns), size)
    else:
        height, width = height_and_width("resize", "size", size)
    if (height, width) == (rows, columns):
        return value
    if interpolation == "nearest":
        vertical, horizontal = (np.arange(n) * have // n for n, have in ((height, rows), (width, columns)))
        return vnp.take(vnp.take(value, vertical, -2), horizontal, -1)
    methods = {"nearest-exact": "nearest", "bilinear": "linear", "bicubic": "cubic-pytorch"}
    if interpolation not in methods:
        raise ArgumentError(f"resize: interpolation is 'nearest' or one of {', '.join(map(repr, methods))}, got {interpolation!r}")
    shape = (*value.shape[:-2], height, width)
    if interpolation == "nearest-exact":
        return resampled(value, shape, "nearest")
    if antialias and value.dtype not in dtypes.FLOATS and 0 not in value.shape:  # floats have derivatives, which are faster by products
        return _resized_integers(value, height, width, interpolation)
    return restored(resampled(as_floats(value), shape, methods[interpolation], antialias), value)


def resized_crop(
    images: Any,
    top: Any,
    left: Any,
    height: Any,
    width: Any,
    size: int | Sequence[int],
    interpolation: Interpolation = "bilinear",
    antialias: bool = True,
) -> Array:
    """Cut out a rectangle and resample it.

    Args:
        images: (…, channels, height, width).
        top, left, height, width: the rectangle, which lies in the image. The numbers may be traced, as the size of the result does not
            depend on them.
        size: that of the result, (height, width) or the side of a square.
        interpolation: "nearest", "bilinear" or "bicubic"; the last one with antialias only.
        antialias: as for `resize`.

    >>> vf.vision.transforms.resized_crop(vf.numpy.arange(16.0).reshape(1, 4, 4), 1, 1, 2, 2, 1)
    Array([[[7.5]]], dtype=float32)
    """
    value = as_images("resized_crop", images)
    sizes = height_and_width("resized_crop", "size", size)
    if interpolation not in ("nearest", "bilinear", "bicubic") or (interpolation == "bicubic" and not antialias):
        raise ArgumentError(
            f"resized_crop: interpolation is 'nearest', 'bilinear', or 'bicubic' with antialias, got {interpolation!r} and {antialias}"
        )
    sides = ((-2, top, height, sizes[0]), (-1, left, width, sizes[1]))
    if interpolation == "nearest":
        for axis, start, extent, count in sides:
            positions = start + vnp.arange(count) * extent // count
            value = vnp.take(value, vnp.clip(positions, 0, value.shape[axis] - 1), axis)
        return value
    rows = _resampled_rows(value, *sides[0][1:], interpolation, antialias)
    weights = _crop_weights(vnp.arange(value.shape[-1], dtype=INDEX), *sides[1][1:], interpolation, antialias)
    return restored(vnp.matmul(rows, weights.astype(rows.dtype).T, precision="highest"), value)


#: The most rows that are added one by one.
_MOST_TAPS = 32


def _resampled_rows(images: Array, start: Any, extent: Any, count: int, interpolation: str, antialias: bool) -> Array:
    """Return weighted sums of the rows of a crop, `count` rows of floats.

    A new row is a sum of few old ones, whose numbers may be traced: adding them one by one takes half the time of a product with a matrix
    that is mostly zeros. Columns are added by such a product, since elements of a row at traced positions are slow to read.
    """
    pixels, radius = images.shape[-2], 1 if interpolation == "bilinear" else 2
    taps = 2 * math.ceil(radius * max(pixels / count, 1)) + 1
    if taps > _MOST_TAPS or not antialias:
        weights = _crop_weights(vnp.arange(pixels, dtype=INDEX), start, extent, count, interpolation, antialias)
        floats = as_floats(images)
        return vnp.matmul(weights.astype(floats.dtype), floats, precision="highest")
    scale = vnp.asarray(extent, np.float32) / count
    first = start + (vnp.arange(count, dtype=np.float32) + 0.5) * scale - radius * vnp.maximum(scale, 1)
    numbers = vnp.floor(first).astype(INDEX)[:, None] + np.arange(taps, dtype=np.int32)
    weights = _crop_weights(numbers, start, extent, count, interpolation, antialias)
    total: Any = 0
    for tap in range(taps):
        row = as_floats(vnp.take(images, vnp.clip(numbers[:, tap], 0, pixels - 1), -2, mode="clip"))
        total = total + row * weights[:, tap, None].astype(row.dtype)
    return total


@fused_by_results
def _resized_integers(images: Array, height: int, width: int, interpolation: str) -> Array:
    rows, columns = images.shape[-2:]
    changed = images if height == rows else _resampled_rows(images, 0, rows, height, interpolation, True)
    return restored(changed if width == columns else _resampled_columns(changed, width, interpolation), images)


#: New columns that a product computes at a time, at least, and the most such products.
_BLOCK, _MOST_BLOCKS = 32, 7


def _resampled_columns(images: Array, count: int, interpolation: str) -> Array:
    """Return weighted sums of the columns of images, `count` columns of floats.

    Nearby columns depend on few old ones, so that there is a product for each block of them.
    """
    pixels, radius = images.shape[-1], 1 if interpolation == "bilinear" else 2
    floats, scale = as_floats(images), pixels / count
    weights = _crop_weights(vnp.arange(pixels, dtype=INDEX), 0, pixels, count, interpolation, True).astype(floats.dtype)
    size = max(_BLOCK, math.ceil(count / _MOST_BLOCKS / _BLOCK) * _BLOCK)
    reach = radius * max(scale, 1) + 1
    blocks = []
    for start in range(0, count, size):
        end = min(start + size, count)
        first, last = max(0, math.floor(start * scale - reach)), min(pixels, math.ceil(end * scale + reach))
        blocks.append(vnp.matmul(floats[..., first:last], weights[start:end, first:last].T, precision="highest"))
    return vnp.concatenate(blocks, -1)


def _crop_weights(numbers: Array, start: Any, extent: Any, count: int, interpolation: str, antialias: bool) -> Array:
    """Return the weights of numbered pixels in a resampled crop, of shape (count, …).

    `numbers` are the same for all pixels of the crop, or rows for each.
    """
    scale = vnp.asarray(extent, np.float32) / count
    centres = start + (vnp.arange(count, dtype=np.float32) + 0.5) * scale
    stretch = vnp.maximum(scale, 1) if antialias else 1
    distance = vnp.abs(numbers + np.float32(0.5) - centres[:, None]) / stretch
    weights = vnp.maximum(1 - distance, 0) if interpolation == "bilinear" else cubic(-0.5)(distance)
    weights = vnp.where((numbers >= start) & (numbers < start + extent), weights, 0)
    return weights / vnp.sum(weights, 1, keepdims=True)


# Affine maps.


def affine(
    images: Any,
    angle: Any,
    translate: Point,
    scale: Any,
    shear: Any,
    interpolation: Literal["nearest", "bilinear"] = "nearest",
    fill: Any = 0,
    center: Point | None = None,
) -> Array:
    """Rotate, shear, scale and move images, in this order.

    Args:
        images: (…, channels, height, width).
        angle: degrees clockwise.
        translate: pixels to the right and down.
        scale: a positive factor.
        shear: degrees along x, or (along x, along y).
        interpolation: "nearest" or "bilinear".
        fill: what lies outside the image, a number or one for each channel.
        center: the point that stays, (x, y) from the upper left corner; by default the middle.

    The numbers may be traced. Integers are rounded.

    >>> vf.vision.transforms.affine(vf.numpy.array([[[1, 2, 3]]]), 0, (1, 0), 1.0, 0)
    Array([[[0, 1, 2]]], dtype=int32)
    """
    value = as_images("affine", images)
    if isinstance(scale, (int, float)) and not scale > 0:
        raise ArgumentError(f"affine: scale is positive, got {scale}")
    shears = shear if isinstance(shear, Sequence) else (shear, 0.0)
    if len(shears) != 2 or len(translate) != 2:
        raise ArgumentError(f"affine: translate and shear have two numbers, got {translate!r} and {shear!r}")
    source = _source_of(value, center, translate, _inverse(angle, scale, shears))
    return _mapped("affine", value, value.shape[-2:], source, interpolation, fill)


def _source_of(images: Array, center: Point | None, moved: Point, inverse: tuple[Point, Point]) -> Callable[..., tuple[Array, Array]]:
    """Return the map from the result to images that are turned and then moved.

    They are turned about a point, by default their middle.
    """
    about = (images.shape[-1] / 2, images.shape[-2] / 2) if center is None else center
    (a, b), (c, d) = inverse

    def source(x: Array, y: Array) -> tuple[Array, Array]:
        right, down = x - about[0] - moved[0], y - about[1] - moved[1]
        return a * right + b * down + about[0], c * right + d * down + about[1]

    return source


def _inverse(angle: Any, scale: Any, shear: Sequence[Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the inverse of the matrix of a rotation after shears, times a scale."""
    turn, x, y = (vnp.asarray(degrees, np.float32) * (math.pi / 180) for degrees in (angle, *shear))
    cos, sin = vnp.cos(turn - y) / vnp.cos(y), vnp.sin(turn - y) / vnp.cos(y)
    a, b = cos, -cos * vnp.tan(x) - vnp.sin(turn)
    c, d = sin, -sin * vnp.tan(x) + vnp.cos(turn)
    return (d / scale, -b / scale), (-c / scale, a / scale)


def rotate(
    images: Any,
    angle: Any,
    interpolation: Literal["nearest", "bilinear"] = "nearest",
    expand: bool = False,
    center: Point | None = None,
    fill: Any = 0,
) -> Array:
    """Rotate images by degrees counterclockwise.

    Args:
        images, interpolation, center, fill: as for `affine`.
        angle: degrees; a Python number if `expand` is true.
        expand: whether the result is as large as needed to hold all of the image, rotated around its middle.

    >>> vf.vision.transforms.rotate(vf.numpy.array([[[1, 2], [3, 4]]]), 90)
    Array([[[2, 4],
            [1, 3]]], dtype=int32)
    """
    value = as_images("rotate", images)
    size: tuple[int, ...] = value.shape[-2:]
    if expand and (not isinstance(angle, (int, float)) or center is not None):
        raise ArgumentError("rotate: with expand=True the angle is a Python number, which decides the size, and center is not given")
    quarters = angle % 360 / 90 if isinstance(angle, (int, float)) and center is None else 0.5
    if quarters in (0, 2) or (quarters in (1, 3) and (expand or size[0] == size[1])):
        return vnp.rot90(value, int(quarters), (-2, -1))  # exactly
    size = _rotated_size(angle, size) if expand else size
    moved = (size[1] - value.shape[-1]) / 2, (size[0] - value.shape[-2]) / 2
    source = _source_of(value, center, moved, _inverse(-angle, 1.0, (0.0, 0.0)))
    return _mapped("rotate", value, size, source, interpolation, fill)


def _rotated_size(angle: float, size: Sequence[int]) -> tuple[int, int]:
    """Return the size of the smallest image around a rotated one."""
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    middle = (size[1] / 2, size[0] / 2)
    corners = [
        (cos * x - sin * y + middle[0], sin * x + cos * y + middle[1]) for x in (-middle[0], middle[0]) for y in (-middle[1], middle[1])
    ]
    # Rounding errors below 1e-4 touch no further pixel.
    digits = [[round(corner[i], 4) for corner in corners] for i in (1, 0)]
    height, width = (math.ceil(max(side)) - math.floor(min(side)) for side in digits)
    return height, width


# Perspective maps.


def perspective(
    images: Any,
    startpoints: Any,
    endpoints: Any,
    interpolation: Literal["nearest", "bilinear"] = "bilinear",
    fill: Any = 0,
) -> Array:
    """Move four points of images to four others, and all else by the same perspective.

    Args:
        images: (…, channels, height, width).
        startpoints, endpoints: the upper left, upper right, lower right and lower left corners of a quadrilateral, (x, y) each: a
            sequence, or an array of shape (4, 2), which may be traced.
        interpolation, fill: as for `affine`.

    The map is a quotient of affine ones (Heckbert 1989). Raises `ShapeError` for other than four points.

    >>> corners = [[0, 0], [2, 0], [2, 2], [0, 2]]
    >>> moved = [[1, 0], [3, 0], [3, 2], [1, 2]]
    >>> vf.vision.transforms.perspective(vf.numpy.array([[[1.0, 2.0], [3.0, 4.0]]]), corners, moved)
    Array([[[0., 1.],
            [0., 3.]]], dtype=float32)
    """
    value = as_images("perspective", images)
    start, end = (_points(points) for points in (startpoints, endpoints))
    to_start, from_end = _of_square(start), _adjugate(_of_square(end))
    matrix = [[sum(to_start[i][k] * from_end[k][j] for k in range(3)) for j in range(3)] for i in range(3)]

    def source(x: Array, y: Array) -> tuple[Array, Array]:
        across, down, depth = (row[0] * x + row[1] * y + row[2] for row in matrix)
        return across / depth, down / depth

    return _mapped("perspective", value, value.shape[-2:], source, interpolation, fill)


def _points(points: Any) -> Array:
    values = vnp.asarray(points).astype(np.float32)
    if values.shape != (4, 2):
        raise ShapeError(f"perspective: startpoints and endpoints are four points (x, y), got shape {values.shape}")
    return values


def _of_square(corners: Array) -> list[list[Any]]:
    """Return the matrix that maps the unit square to a quadrilateral."""
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = ((corners[i, 0], corners[i, 1]) for i in range(4))
    dx1, dx2, dx3 = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    dy1, dy2, dy3 = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    area = dx1 * dy2 - dx2 * dy1
    g, h = (dx3 * dy2 - dx2 * dy3) / area, (dx1 * dy3 - dx3 * dy1) / area
    return [[x1 - x0 + g * x1, x3 - x0 + h * x3, x0], [y1 - y0 + g * y1, y3 - y0 + h * y3, y0], [g, h, 1.0]]


def _adjugate(m: list[list[Any]]) -> list[list[Any]]:
    """Return the inverse of a 3 by 3 matrix times its determinant."""

    def minor(i: int, j: int) -> Any:
        (a, b), (c, d) = ([m[k][n] for n in range(3) if n != j] for k in range(3) if k != i)
        return a * d - b * c

    return [[(-1) ** (i + j) * minor(j, i) for j in range(3)] for i in range(3)]


# Interpolation.


def _mapped(function: str, images: Array, size: Sequence[int], source: Any, interpolation: str, fill: Any) -> Array:
    """Return images of a size whose pixel at (x, y) is that at ``source(x, y)``."""
    check_option(interpolation, f"{function}: interpolation", ("nearest", "bilinear"))
    if 0 in images.shape:
        return vnp.zeros((*images.shape[:-2], *size), images.dtype)
    x, y = vnp.arange(size[1], dtype=np.float32) + 0.5, vnp.arange(size[0], dtype=np.float32)[:, None] + 0.5
    across, down = (vnp.broadcast_to(position - 0.5, size) for position in source(x, y))
    colour = vnp.asarray(fill).astype(as_floats(images).dtype)
    if colour.ndim and colour.shape != (images.shape[-3],):
        raise ShapeError(f"{function}: fill is a number or one for each of {images.shape[-3]} channels, got shape {colour.shape}")
    colour = colour[:, None, None] if colour.ndim else colour
    if interpolation == "nearest":
        pixels, inside = _pixels(images, vnp.round(across), vnp.round(down))
        return vnp.where(inside, pixels, colour.astype(images.dtype))
    left, top = vnp.floor(across), vnp.floor(down)
    total: Any = colour
    for column, horizontal in ((left, 1 - (across - left)), (left + 1, across - left)):
        for row, vertical in ((top, 1 - (down - top)), (top + 1, down - top)):
            pixels, inside = _pixels(images, column, row)
            total = total + (as_floats(pixels) - colour) * vnp.where(inside, horizontal * vertical, 0).astype(colour.dtype)
    return restored(total, images)


def _pixels(images: Array, column: Array, row: Array) -> tuple[Array, Array]:
    """Return the pixels at whole positions, and whether these are inside.

    The positions are shared by all images. `nn.grid_sample` computes them for each channel, which takes eight times as long.
    """
    height, width = images.shape[-2:]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    # NaN, of a perspective's horizon, is outside, and has to have a position.
    numbers = (vnp.clip(vnp.nan_to_num(p), 0, n - 1).astype(INDEX) for p, n in ((row, height), (column, width)))
    index = next(numbers) * width + next(numbers)
    flat = images.reshape(*images.shape[:-2], height * width)
    return vnp.take(flat, index.ravel(), -1, mode="clip").reshape(*images.shape[:-2], *index.shape), inside
