"""Blurring, sharpening and erasing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import INDEX
from volta_fn.vision.transforms.color import as_floats, as_images, clipped

__all__ = ["adjust_sharpness", "erase", "gaussian_blur"]


def gaussian_blur(images: Any, kernel_size: int | Sequence[int], sigma: Any = None) -> Array:
    """Blur images by Gaussian weights; edges are reflected.

    Args:
        images: (…, channels, height, width).
        kernel_size: the pixels that are averaged, an odd number or (along the width, along the height).
        sigma: the standard deviation in pixels, a number or a pair like `kernel_size`; by default ``0.15 * size + 0.35``.

    Integers are rounded. Raises `ArgumentError` for even sizes and `ShapeError` for images that are too small to be reflected.

    >>> vf.vision.transforms.gaussian_blur(vf.numpy.array([[[0.0, 1.0, 0.0]]]), (3, 1), 0.5).round(3)
    Array([[[0.213, 0.787, 0.213]]], dtype=float32)
    """
    value = as_images("gaussian_blur", images)
    sizes = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2 or any(size < 1 or size % 2 == 0 for size in sizes):
        raise ArgumentError(f"gaussian_blur: kernel_size is an odd number or two of them, got {kernel_size!r}")
    sigmas = [0.15 * size + 0.35 for size in sizes] if sigma is None else sigma if isinstance(sigma, Sequence) else [sigma, sigma]
    if any(isinstance(s, (int, float)) and not s > 0 for s in sigmas):
        raise ArgumentError(f"gaussian_blur: sigma is positive, got {sigma!r}")
    blurred = as_floats(value)
    for axis, size, deviation in zip((-1, -2), sizes, sigmas, strict=True):
        blurred = _blurred(blurred, axis, size, deviation)
    return _rounded(blurred, value)


def _blurred(x: Array, axis: int, size: int, deviation: Any) -> Array:
    """Return the weighted means of `size` neighbours along an axis."""
    radius = size // 2
    if radius >= x.shape[axis] and 0 not in x.shape:
        raise ShapeError(f"gaussian_blur: a kernel of {size} pixels does not fit {x.shape[axis]} pixels, whose edges are reflected")
    offsets = np.arange(-radius, radius + 1, dtype=np.float32)
    weights = vnp.exp(-((vnp.asarray(offsets) / deviation) ** 2) / 2)
    weights = (weights / vnp.sum(weights)).astype(x.dtype)
    sides = [(radius, radius) if i == x.ndim + axis else (0, 0) for i in range(x.ndim)]
    padded = vnp.pad(x, sides, mode="reflect") if radius else x
    window = [slice(None)] * x.ndim
    total: Any = 0
    for number in range(size):
        window[axis] = slice(number, number + x.shape[axis])
        total = total + weights[number] * padded[tuple(window)]
    return total


def _rounded(values: Array, like: Array) -> Array:
    """Return values in the dtype of images, rounded if that has no fractions."""
    return values.astype(like.dtype) if like.dtype in dtypes.FLOATS else clipped(vnp.round(values), like)


def adjust_sharpness(images: Any, sharpness_factor: Any) -> Array:
    """Move images away from a blurred image by a factor; 0 gives that, 1 the image.

    A blurred pixel is the mean of nine, of which its own counts five times. Pixels at the edges stay.

    >>> vf.vision.transforms.adjust_sharpness(vf.numpy.zeros((1, 3, 3)).at[0, 1, 1].set(0.13), 0.0)[0, 1].round(4)
    Array([0.  , 0.05, 0.  ], dtype=float32)
    """
    value = as_images("adjust_sharpness", images)
    if isinstance(sharpness_factor, (int, float)) and not sharpness_factor >= 0:
        raise ArgumentError(f"adjust_sharpness: the factor is not negative, got {sharpness_factor}")
    height, width = value.shape[-2:]
    if min(height, width) < 3:
        return value
    x = as_floats(value)
    windows = [x[..., i : i + height - 2, j : j + width - 2] for i in range(3) for j in range(3)]
    inner = windows[4]
    blurred = (sum(windows[1:], start=windows[0]) + 4 * inner) / 13
    if value.dtype not in dtypes.FLOATS:
        blurred = vnp.round(blurred)
    sharp = clipped(inner + (blurred - inner) * (1 - sharpness_factor), value)
    return value.at[..., 1:-1, 1:-1].set(sharp)


def erase(images: Any, i: Any, j: Any, h: Any, w: Any, v: Any) -> Array:
    """Set a rectangle of images to a value.

    Args:
        images: (…, channels, height, width).
        i, j, h, w: the upper row, the left column, the height and the width of the rectangle.
        v: a number, or values that broadcast to the images, such as ``(channels, 1, 1)``; they are cast to the images' dtype.

    >>> vf.vision.transforms.erase(vf.numpy.ones((1, 2, 3)), 0, 1, 1, 2, 0.0)
    Array([[[1., 0., 0.],
            [1., 1., 1.]]], dtype=float32)
    """
    value = as_images("erase", images)
    rows, columns = (vnp.arange(size, dtype=INDEX) for size in value.shape[-2:])
    inside = ((rows >= i) & (rows < i + h))[:, None] & ((columns >= j) & (columns < j + w))
    if isinstance(v, (int, float)) and math.isnan(v):
        raise ArgumentError("erase: the value is a number, got NaN")
    return vnp.where(inside, vnp.asarray(v).astype(value.dtype), value)
