"""Changes of colours (brightness, contrast, hue, …); blurs, sharpening, erasing.

The results of bytes are torchvision's: sums are truncated, not rounded, to the images' dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import INDEX, narrowed, operand, wide
from volta_fn.transforms.vmap import vmap

__all__ = [
    "adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue", "adjust_saturation", "adjust_sharpness", "autocontrast",
    "equalize", "erase", "gaussian_blur", "invert", "posterize", "rgb_to_grayscale", "solarize",
]  # fmt: skip


def as_images(function: str, images: Any, channels: tuple[int, ...] = ()) -> Array:
    """Return images as an array, after a check of axes, dtype and channels."""
    value = operand(function, "images", images)
    if value.ndim < 3:
        raise ShapeError(f"{function}: images are (…, channels, height, width), got shape {value.shape}")
    if value.dtype not in dtypes.REALS:
        raise DTypeError(f"{function}: images are integers or real floats, got {value.aval}")
    if channels and value.shape[-3] not in channels:
        raise ShapeError(f"{function}: images have {' or '.join(map(str, channels))} channels, got shape {value.shape}")
    return value


def height_and_width(function: str, argument: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return a size of images or bins as two positive numbers."""
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    if len(sizes) != 2 or min(sizes) < 1:
        raise ArgumentError(f"{function}: {argument} is a positive number or two of them, (height, width), got {size!r}")
    return sizes[0], sizes[1]


def largest(dtype: np.dtype) -> float:
    """Return the number that stands for white."""
    return 1.0 if dtype in dtypes.FLOATS else int(np.iinfo(dtype).max)


def as_floats(images: Array) -> Array:
    """Return images as float32, or as float64 if they are, in their own range."""
    return wide(images) if images.dtype in dtypes.FLOATS else images.astype(np.float32)


def clipped(values: Array, like: Array) -> Array:
    """Return numbers in the range and dtype of images; fractions are cut off."""
    inside = vnp.clip(values, 0, largest(like.dtype))
    return narrowed(inside, like) if like.dtype in dtypes.FLOATS else inside.astype(like.dtype)


def restored(values: Array, like: Array) -> Array:
    """Return means of pixels in the dtype of images; integers are rounded and clipped."""
    if like.dtype in dtypes.FLOATS:
        return narrowed(values, like)
    limits = dtypes.iinfo(like.dtype)
    return vnp.clip(vnp.round(values), limits.min, limits.max).astype(like.dtype)


def _unit(images: Array) -> Array:
    """Return images as floats from 0 to 1."""
    values = as_floats(images)
    return values if images.dtype in dtypes.FLOATS else values / largest(images.dtype)


def _from_unit(values: Array, like: Array) -> Array:
    """Return floats from 0 to 1 in the dtype of images.

    Each integer stands for an equal share of the floats.
    """
    return narrowed(values, like) if like.dtype in dtypes.FLOATS else (values * (largest(like.dtype) + 1.0 - 1e-3)).astype(like.dtype)


def blend(images: Array, others: Array, factor: Any) -> Array:
    """Return ``factor * images + (1 - factor) * others``, clipped."""
    return clipped(as_floats(images) * factor + others * (1 - factor), images)


def _gray(images: Array) -> Array:
    """Return the luminance of ITU-R 601 as floats in the images' range."""
    red, green, blue = (as_floats(images)[..., i : i + 1, :, :] for i in range(3))
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _truncated(values: Array, images: Array) -> Array:
    """Round down what is computed of integers."""
    return values if images.dtype in dtypes.FLOATS else vnp.floor(values)


def rgb_to_grayscale(images: Any, num_output_channels: int = 1) -> Array:
    """Return the luminance of colour images.

    `images` have 3 channels, or 1 that is gray already; the result has `num_output_channels`, 1 or 3.

    >>> vf.vision.transforms.rgb_to_grayscale(vf.numpy.full((3, 1, 1), 100, "uint8"))
    Array([[[99]]], dtype=uint8)
    """
    value = as_images("rgb_to_grayscale", images, (1, 3))
    check_option(num_output_channels, "rgb_to_grayscale: num_output_channels", (1, 3))
    gray = value if value.shape[-3] == 1 else clipped(_gray(value), value)
    return vnp.broadcast_to(gray, (*gray.shape[:-3], num_output_channels, *gray.shape[-2:]))


def adjust_brightness(images: Any, brightness_factor: Any) -> Array:
    """Multiply images by a factor that is not negative; 0 gives black.

    >>> vf.vision.transforms.adjust_brightness(vf.numpy.full((1, 1, 2), 101, "uint8"), 1.5)
    Array([[[151, 151]]], dtype=uint8)
    """
    value = as_images("adjust_brightness", images)
    return clipped(as_floats(value) * _factor("adjust_brightness", brightness_factor), value)


def adjust_contrast(images: Any, contrast_factor: Any) -> Array:
    """Move images away from their mean gray by a factor; 0 gives gray, 1 the image.

    `images` have 1 or 3 channels.

    >>> vf.vision.transforms.adjust_contrast(vf.numpy.array([[[0.25, 0.75]]]), 2.0)
    Array([[[0., 1.]]], dtype=float32)
    """
    value = as_images("adjust_contrast", images, (1, 3))
    gray = _truncated(_gray(value) if value.shape[-3] == 3 else as_floats(value), value)
    return blend(value, vnp.mean(gray, (-3, -2, -1), keepdims=True), _factor("adjust_contrast", contrast_factor))


def adjust_saturation(images: Any, saturation_factor: Any) -> Array:
    """Move images away from gray by a factor; 0 gives gray, 1 the image.

    `images` have 3 channels; with 1 they are returned as they are.

    >>> vf.vision.transforms.adjust_saturation(vf.numpy.array([1.0, 0.0, 0.0]).reshape(3, 1, 1), 0.0).ravel()
    Array([0.2989, 0.2989, 0.2989], dtype=float32)
    """
    value = as_images("adjust_saturation", images, (1, 3))
    factor = _factor("adjust_saturation", saturation_factor)
    return value if value.shape[-3] == 1 else blend(value, _truncated(_gray(value), value), factor)


def adjust_hue(images: Any, hue_factor: Any) -> Array:
    """Turn the hue by a factor of the full circle, from -0.5 to 0.5.

    `images` have 3 channels; with 1 they are returned as they are.

    >>> vf.vision.transforms.adjust_hue(vf.numpy.array([1.0, 0.0, 0.0]).reshape(3, 1, 1), 1 / 3).ravel().round(3)
    Array([0., 1., 0.], dtype=float32)
    """
    value = as_images("adjust_hue", images, (1, 3))
    if isinstance(hue_factor, (int, float)) and not -0.5 <= hue_factor <= 0.5:
        raise ArgumentError(f"adjust_hue: hue_factor is from -0.5 to 0.5, got {hue_factor}")
    if value.shape[-3] == 1:
        return value
    hue, saturation, brightness = _to_hsv(_unit(value))
    return _from_unit(_from_hsv((hue + hue_factor) % 1.0, saturation, brightness), value)


def _to_hsv(images: Array) -> tuple[Array, Array, Array]:
    """Return hue, saturation and value, each from 0 to 1, without an axis of channels."""
    red, green, blue = (images[..., i, :, :] for i in range(3))
    top, low = vnp.max(images, -3), vnp.min(images, -3)
    flat = top == low
    span = vnp.where(flat, 1, top - low)
    r, g, b = ((top - x) / span for x in (red, green, blue))
    sixth = vnp.where(top == red, b - g, vnp.where(top == green, 2 + r - b, 4 + g - r))
    return vnp.where(flat, 0, vnp.fmod(sixth / 6 + 1, 1)), (top - low) / vnp.where(flat, 1, top), top


def _from_hsv(hue: Array, saturation: Array, value: Array) -> Array:
    """Return the image of hue, saturation and value."""
    # Channel n is at its top for a third of the circle, at its low for a third, and a slope of a sixth lies between them.
    turns = (vnp.fmod(n + hue * 6, 6) for n in (5, 3, 1))
    return vnp.stack([value - value * saturation * vnp.clip(vnp.minimum(k, 4 - k), 0, 1) for k in turns], -3)


def adjust_gamma(images: Any, gamma: Any, gain: Any = 1) -> Array:
    """Raise images, as numbers from 0 to 1, to a power, and multiply them by `gain`.

    >>> vf.vision.transforms.adjust_gamma(vf.numpy.array([[[0.25, 1.0]]]), 0.5)
    Array([[[0.5, 1. ]]], dtype=float32)
    """
    value = as_images("adjust_gamma", images)
    return _from_unit(vnp.clip(_unit(value) ** _factor("adjust_gamma", gamma) * gain, 0, 1), value)


def invert(images: Any) -> Array:
    """Return the negatives of images.

    >>> vf.vision.transforms.invert(vf.numpy.array([[[0, 200]]], "uint8"))
    Array([[[255,  55]]], dtype=uint8)
    """
    value = as_images("invert", images)
    return vnp.asarray(largest(value.dtype), value.dtype) - value


def posterize(images: Any, bits: Any) -> Array:
    """Keep the first `bits` bits of each number, from 0 to the dtype's.

    Floats are rounded down to multiples of ``2**-bits``.

    >>> vf.vision.transforms.posterize(vf.numpy.array([[[7, 200]]], "uint8"), 2)
    Array([[[  0, 192]]], dtype=uint8)
    """
    value = as_images("posterize", images)
    if value.dtype in dtypes.FLOATS:
        levels = vnp.exp2(vnp.asarray(bits, np.float32))
        return narrowed(vnp.clip(vnp.floor(as_floats(value) * levels), 0, levels - 1) / levels, value)
    width = int(largest(value.dtype)).bit_length()
    dropped = vnp.asarray(width - bits).astype(value.dtype)
    # A shift by all bits is 0 for no machine alike.
    shifted = (value >> vnp.minimum(dropped, width - 1)) << vnp.minimum(dropped, width - 1)
    return vnp.where(dropped >= width, 0, shifted).astype(value.dtype)


def solarize(images: Any, threshold: Any) -> Array:
    """Invert the numbers that are at least `threshold`.

    >>> vf.vision.transforms.solarize(vf.numpy.array([[[7, 200]]], "uint8"), 128)
    Array([[[ 7, 55]]], dtype=uint8)
    """
    value = as_images("solarize", images)
    return vnp.where(as_floats(value) >= threshold, invert(value), value)


def autocontrast(images: Any) -> Array:
    """Stretch each channel to the whole range; one of a single colour stays.

    >>> vf.vision.transforms.autocontrast(vf.numpy.array([[[50, 100, 150]]], "uint8"))
    Array([[[  0, 127, 255]]], dtype=uint8)
    """
    value = as_images("autocontrast", images)
    if 0 in value.shape:
        return value
    floats, bound = as_floats(value), largest(value.dtype)
    low, top = vnp.min(floats, (-2, -1), keepdims=True), vnp.max(floats, (-2, -1), keepdims=True)
    flat = low == top
    return clipped(vnp.where(flat, floats, (floats - low) * bound / vnp.where(flat, 1, top - low)), value)


def equalize(images: Any) -> Array:
    """Equalize the histogram of each channel, as PIL does.

    `images` are bytes, or floats, which are rounded to 256 levels.

    >>> levels = vf.numpy.arange(4, dtype="uint8").repeat(256).reshape(1, 32, 32)
    >>> vf.vision.transforms.equalize(levels)[0, ::8, 0]
    Array([  0,  85, 171, 255], dtype=uint8)
    """
    value = as_images("equalize", images)
    if value.dtype not in dtypes.FLOATS and value.dtype != np.uint8:
        raise DTypeError(f"equalize: images are bytes or floats, got {value.aval}")
    if 0 in value.shape:
        return value
    levels = _from_unit(_unit(value), vnp.zeros((), np.uint8)) if value.dtype in dtypes.FLOATS else value
    rows = levels.reshape(-1, value.shape[-2] * value.shape[-1]).astype(np.int32)
    result = vmap(_equalized)(rows).reshape(value.shape)
    return narrowed(result.astype(np.float32) / 255, value) if value.dtype in dtypes.FLOATS else result.astype(np.uint8)


def _equalized(pixels: Array) -> Array:
    """Return the levels of a channel by PIL's table."""
    counts = vnp.bincount(pixels, length=256)
    sums = vnp.cumsum(counts)
    step = (pixels.shape[0] - counts[vnp.max(pixels)]) // 255
    before = vnp.concatenate([vnp.zeros(1, sums.dtype), sums[:-1]])
    table = vnp.clip((before + step // 2) // vnp.maximum(step, 1), 0, 255)
    return vnp.where(step > 0, table[pixels], pixels)


def _factor(function: str, factor: Any) -> Any:
    """Check a factor that is a Python number."""
    if isinstance(factor, (int, float)) and not factor >= 0:
        raise ArgumentError(f"{function}: the factor is not negative, got {factor}")
    return factor


# Filters.


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
    return restored(blurred, value)


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
