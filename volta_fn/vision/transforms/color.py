"""Changes of colours: brightness, contrast, saturation, hue, levels.

The results of bytes are torchvision's: sums are truncated, not rounded, to the images' dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import narrowed, operand, wide
from volta_fn.transforms.vmap import vmap

__all__ = [
    "adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue", "adjust_saturation", "autocontrast", "equalize", "invert",
    "posterize", "rgb_to_grayscale", "solarize",
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


def _whole(values: Array, images: Array) -> Array:
    """Round down what is computed of integers."""
    return values if images.dtype in dtypes.FLOATS else vnp.floor(values)


def rgb_to_grayscale(images: Any, num_output_channels: int = 1) -> Array:
    """Return the luminance of colour images.

    `images` have 3 channels, or 1 that is gray already; the result has `num_output_channels`, 1 or 3.

    >>> vf.vision.transforms.rgb_to_grayscale(vf.numpy.full((3, 1, 1), 100, "uint8"))
    Array([[[99]]], dtype=uint8)
    """
    value = as_images("rgb_to_grayscale", images, (1, 3))
    if num_output_channels not in (1, 3):
        raise ArgumentError(f"rgb_to_grayscale: num_output_channels is 1 or 3, got {num_output_channels!r}")
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
    gray = _whole(_gray(value) if value.shape[-3] == 3 else as_floats(value), value)
    return blend(value, vnp.mean(gray, (-3, -2, -1), keepdims=True), _factor("adjust_contrast", contrast_factor))


def adjust_saturation(images: Any, saturation_factor: Any) -> Array:
    """Move images away from gray by a factor; 0 gives gray, 1 the image.

    `images` have 3 channels; with 1 they are returned as they are.

    >>> vf.vision.transforms.adjust_saturation(vf.numpy.array([1.0, 0.0, 0.0]).reshape(3, 1, 1), 0.0).ravel()
    Array([0.2989, 0.2989, 0.2989], dtype=float32)
    """
    value = as_images("adjust_saturation", images, (1, 3))
    factor = _factor("adjust_saturation", saturation_factor)
    return value if value.shape[-3] == 1 else blend(value, _whole(_gray(value), value), factor)


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
