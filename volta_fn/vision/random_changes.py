"""Random changes of images, each image by numbers of its own, and policies.

Each function makes a transform ``transform(key, images)``, whose distributions are those of torchvision's class of the same name in camel
case. The same key gives the same result, eagerly, jitted and in a loader's workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from volta_fn import dtypes, lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.data.dataset import RandomTransform
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.activations import one_hot
from volta_fn.numpy.arguments import INDEX, operand
from volta_fn.transforms.vmap import vmap
from volta_fn.vision.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    adjust_sharpness,
    as_images,
    autocontrast,
    equalize,
    erase,
    gaussian_blur,
    invert,
    largest,
    posterize,
    rgb_to_grayscale,
    solarize,
)
from volta_fn.vision.geometry import Interpolation, affine, perspective, resized_crop, vertical_flip

__all__ = [
    "auto_augment",
    "color_jitter",
    "cutmix",
    "mixup",
    "rand_augment",
    "random_affine",
    "random_apply",
    "random_erasing",
    "random_gaussian_blur",
    "random_grayscale",
    "random_perspective",
    "random_resized_crop",
    "random_rotation",
    "random_vertical_flip",
    "trivial_augment_wide",
]

Range = Sequence[float]

#: How often a rectangle is drawn until one fits, as in torchvision.
_ATTEMPTS = 10


def per_image(function: str, change: Callable[[Any, Array], Array]) -> RandomTransform:
    """Make the transform that changes each image by a key of its own."""

    def transform(key: Any, images: Any) -> Array:
        value = as_images(function, images)
        count = math.prod(value.shape[:-3])
        changed = vmap(change)(random.split(key, count), value.reshape(count, *value.shape[-3:]))
        return changed.reshape(*value.shape[:-3], *changed.shape[1:])

    return RandomTransform(transform)


def _probability(function: str, probability: float) -> float:
    if not 0 <= probability <= 1:
        raise ArgumentError(f"{function}: a probability is between 0 and 1, got {probability}")
    return probability


def _range(function: str, name: str, value: Any, low: float = -math.inf) -> tuple[float, float]:
    """Return the two ends of a range, which begins at `low` or above."""
    ends = tuple(value) if isinstance(value, Sequence) else ()
    if len(ends) != 2 or not low <= ends[0] <= ends[1]:
        least = "" if low == -math.inf else f", at least {low:g}"
        raise ArgumentError(f"{function}: {name} is a pair of ascending numbers{least}, got {value!r}")
    return float(ends[0]), float(ends[1])


def _symmetric(function: str, name: str, value: Any) -> tuple[float, float]:
    """Return a range, which may be given by its larger end alone."""
    return _range(function, name, (-value, value) if isinstance(value, (int, float)) else value)


def _uniform(key: Any, ends: tuple[float, float]) -> Array:
    return random.uniform(key, (), minval=ends[0], maxval=ends[1])


def random_apply(transform: Callable[..., Any], probability: float = 0.5) -> RandomTransform:
    """Make the transform that changes some of the images.

    `transform` is a function of images or a random transform, which keeps their shape; each image is changed with `probability`.

    >>> negative = vf.vision.transforms.random_apply(vf.vision.transforms.invert, 1.0)
    >>> negative(0, vf.numpy.array([[[0, 200]]], "uint8"))
    Array([[[255,  55]]], dtype=uint8)
    """
    _probability("random_apply", probability)

    def change(key: Any, image: Array) -> Array:
        drawn, rest = random.split(key)
        changed = transform(rest, image) if isinstance(transform, RandomTransform) else transform(image)
        if changed.shape != image.shape:
            raise ShapeError(f"random_apply: the transform keeps the shape of images, {image.shape}, got {changed.shape}")
        return vnp.where(random.bernoulli(drawn, probability), changed, image)

    return per_image("random_apply", change)


def random_vertical_flip(probability: float = 0.5) -> RandomTransform:
    """Make the transform that mirrors images top to bottom.

    >>> vf.vision.transforms.random_vertical_flip(1.0)(0, vf.numpy.array([[[0.0], [1.0]]]))
    Array([[[1.],
            [0.]]], dtype=float32)
    """
    return random_apply(vertical_flip, _probability("random_vertical_flip", probability))


def random_grayscale(probability: float = 0.1) -> RandomTransform:
    """Make the transform that makes images gray, with as many channels as they have.

    >>> gray = vf.vision.transforms.random_grayscale(1.0)
    >>> gray(0, vf.numpy.array([1.0, 0.0, 0.0]).reshape(3, 1, 1)).ravel()
    Array([0.2989, 0.2989, 0.2989], dtype=float32)
    """
    _probability("random_grayscale", probability)
    return random_apply(lambda image: rgb_to_grayscale(image, image.shape[0]), probability)


def random_gaussian_blur(kernel_size: int | Sequence[int], sigma: float | Range = (0.1, 2.0)) -> RandomTransform:
    """Make the transform that blurs images by a standard deviation from a range.

    Arguments are those of `gaussian_blur`, but for the range.

    >>> vf.vision.transforms.random_gaussian_blur(3)(0, vf.numpy.ones((2, 3, 8, 8))).shape
    (2, 3, 8, 8)
    """
    ends = _range("random_gaussian_blur", "sigma", (sigma, sigma) if isinstance(sigma, (int, float)) else sigma, 1e-6)
    return per_image("random_gaussian_blur", lambda key, image: gaussian_blur(image, kernel_size, _uniform(key, ends)))


# Colours.


def color_jitter(
    brightness: float | Range = 0, contrast: float | Range = 0, saturation: float | Range = 0, hue: float | Range = 0
) -> RandomTransform:
    """Make the transform that changes brightness, contrast, saturation and hue.

    Args:
        brightness, contrast, saturation: the range of the factor, or a number x for max(0, 1 - x) … 1 + x.
        hue: the range of the part of a circle, or a number x up to 0.5 for -x … x.

    The factors are drawn for each image, the order of the changes for each call.

    >>> jitter = vf.vision.transforms.color_jitter(brightness=0.4, hue=0.1)
    >>> jitter(0, vf.numpy.ones((2, 3, 4, 4), "uint8")).shape
    (2, 3, 4, 4)
    """
    settings = (
        (adjust_brightness, _factors("brightness", brightness)),
        (adjust_contrast, _factors("contrast", contrast)),
        (adjust_saturation, _factors("saturation", saturation)),
        (adjust_hue, _symmetric("color_jitter", "hue", hue)),
    )
    if not -0.5 <= settings[3][1][0] <= settings[3][1][1] <= 0.5:
        raise ArgumentError(f"color_jitter: hue is in the range -0.5 … 0.5, got {hue!r}")
    neutral = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
    changes = [(adjust, ends) for (adjust, ends), nothing in zip(settings, neutral, strict=True) if ends != nothing]

    def transform(key: Any, images: Any) -> Array:
        value = as_images("color_jitter", images, (1, 3))
        flat = value.reshape(-1, *value.shape[-3:])
        order_key, *keys = random.split(key, 1 + len(changes))
        branches = [_jitter(adjust, keys[i], ends, flat.shape[0]) for i, (adjust, ends) in enumerate(changes)]
        if not branches:
            return value
        order = random.permutation(order_key, len(branches))
        flat = lax.fori_loop(0, len(branches), lambda i, x: lax.switch(order[i], branches, x), flat)
        return flat.reshape(value.shape)

    return RandomTransform(transform)


def _factors(name: str, value: float | Range) -> tuple[float, float]:
    if not isinstance(value, (int, float)):
        return _range("color_jitter", name, value, 0)
    if value < 0:
        raise ArgumentError(f"color_jitter: {name} is not negative, got {value}")
    return max(0.0, 1.0 - value), 1.0 + value


def _jitter(adjust: Callable[[Any, Any], Array], key: Any, ends: tuple[float, float], count: int) -> Callable[[Array], Array]:
    factors = random.uniform(key, (count,), minval=ends[0], maxval=ends[1])
    return lambda images: vmap(adjust)(images, factors)


# Positions.


def random_resized_crop(
    size: int | Sequence[int],
    scale: Range = (0.08, 1.0),
    ratio: Range = (3 / 4, 4 / 3),
    interpolation: Interpolation = "bilinear",
    antialias: bool = True,
) -> RandomTransform:
    """Make the transform that cuts out a random rectangle and resamples it.

    Args:
        size: that of the results, (height, width) or the side of a square.
        scale: the range of the rectangle's share of the image's area.
        ratio: the range of its width by its height, whose logarithm is uniform.
        interpolation, antialias: as for `resized_crop`.

    If ten rectangles do not fit the image, the largest one in the middle with an allowed ratio is taken.

    >>> crop = vf.vision.transforms.random_resized_crop(16)
    >>> crop(0, vf.numpy.ones((2, 3, 40, 50), "uint8")).shape
    (2, 3, 16, 16)
    """
    shares = _range("random_resized_crop", "scale", scale, 0)
    ratios = _range("random_resized_crop", "ratio", ratio, 1e-6)

    def change(key: Any, image: Array) -> Array:
        rows, columns = image.shape[-2:]
        size_key, row_key, column_key = random.split(key, 3)
        widths, heights = _rectangles(size_key, rows * columns, shares, ratios)
        fits = (widths > 0) & (widths <= columns) & (heights > 0) & (heights <= rows)
        first = vnp.argmax(fits)
        middle = _largest_rectangle(rows, columns, ratios)
        height = vnp.where(fits[first], heights[first], middle[0])
        width = vnp.where(fits[first], widths[first], middle[1])
        top = vnp.where(fits[first], random.randint(row_key, (), 0, rows - height + 1), (rows - middle[0]) // 2)
        left = vnp.where(fits[first], random.randint(column_key, (), 0, columns - width + 1), (columns - middle[1]) // 2)
        return resized_crop(image, top, left, height, width, size, interpolation, antialias)

    return per_image("random_resized_crop", change)


def _rectangles(key: Any, area: int, shares: tuple[float, float], ratios: tuple[float, float]) -> tuple[Array, Array]:
    """Draw widths and heights of rectangles."""
    first, second = random.split(key)
    areas = area * random.uniform(first, (_ATTEMPTS,), minval=shares[0], maxval=shares[1])
    quotients = vnp.exp(random.uniform(second, (_ATTEMPTS,), minval=math.log(ratios[0]), maxval=math.log(ratios[1])))
    sides = vnp.sqrt(areas * quotients), vnp.sqrt(areas / quotients)
    return vnp.round(sides[0]).astype(INDEX), vnp.round(sides[1]).astype(INDEX)


def _largest_rectangle(rows: int, columns: int, ratios: tuple[float, float]) -> tuple[int, int]:
    if columns / rows < ratios[0]:
        return round(columns / ratios[0]), columns
    if columns / rows > ratios[1]:
        return rows, round(rows * ratios[1])
    return rows, columns


def random_rotation(
    degrees: float | Range,
    interpolation: Literal["nearest", "bilinear"] = "nearest",
    center: Sequence[float] | None = None,
    fill: Any = 0,
) -> RandomTransform:
    """Make the transform that rotates images by degrees from a range.

    `degrees` is a pair, or a number x for -x … x; the other arguments are those of `rotate`.

    >>> vf.vision.transforms.random_rotation(30)(0, vf.numpy.ones((2, 3, 8, 8))).shape
    (2, 3, 8, 8)
    """
    ends = _symmetric("random_rotation", "degrees", degrees)

    def change(key: Any, image: Array) -> Array:
        return affine(image, -_uniform(key, ends), (0, 0), 1.0, 0.0, interpolation, fill, center)

    return per_image("random_rotation", change)


def random_affine(
    degrees: float | Range,
    translate: Range | None = None,
    scale: Range | None = None,
    shear: float | Range | None = None,
    interpolation: Literal["nearest", "bilinear"] = "nearest",
    fill: Any = 0,
    center: Sequence[float] | None = None,
) -> RandomTransform:
    """Make the transform that rotates, moves, scales and shears images.

    Args:
        degrees: the range of the rotation, or a number x for -x … x.
        translate: the largest moves, as shares of (width, height); None for none.
        scale: the range of the factor; None for 1.
        shear: the range of degrees along x, or a number x for -x … x, or the ranges along x and y in four numbers; None for none.
        interpolation, fill, center: as for `affine`.

    >>> vf.vision.transforms.random_affine(10, translate=(0.1, 0.1), scale=(0.9, 1.1))(0, vf.numpy.ones((2, 3, 8, 8))).shape
    (2, 3, 8, 8)
    """
    name = "random_affine"
    turns = _symmetric(name, "degrees", degrees)
    moves = (0.0, 0.0) if translate is None else tuple(translate)
    if len(moves) != 2 or not all(0 <= share <= 1 for share in moves):
        raise ArgumentError(f"{name}: translate are two shares between 0 and 1, got {translate!r}")
    factors = (1.0, 1.0) if scale is None else _range(name, "scale", scale, 1e-6)
    if isinstance(shear, Sequence) and len(shear) == 4:
        shears = _range(name, "shear", shear[:2]), _range(name, "shear", shear[2:])
    else:
        shears = (0.0, 0.0) if shear is None else _symmetric(name, "shear", shear), (0.0, 0.0)

    def change(key: Any, image: Array) -> Array:
        keys = random.split(key, 6)
        sides = [share * size for share, size in zip(moves, image.shape[:-3:-1], strict=True)]
        shift = [vnp.round(_uniform(k, (-side, side))) for k, side in zip(keys[:2], sides, strict=True)]
        angles = [_uniform(k, ends) for k, ends in zip(keys[2:4], shears, strict=True)]
        return affine(image, _uniform(keys[4], turns), shift, _uniform(keys[5], factors), angles, interpolation, fill, center)

    return per_image(name, change)


def random_perspective(
    distortion_scale: float = 0.5,
    probability: float = 0.5,
    interpolation: Literal["nearest", "bilinear"] = "bilinear",
    fill: Any = 0,
) -> RandomTransform:
    """Make the transform that moves the corners of images inwards, with `probability`.

    Each corner moves by up to `distortion_scale` times half a side; the other arguments are those of `perspective`.

    >>> vf.vision.transforms.random_perspective(0.5, 1.0)(0, vf.numpy.ones((2, 3, 8, 8))).shape
    (2, 3, 8, 8)
    """
    if not 0 <= distortion_scale <= 1:
        raise ArgumentError(f"random_perspective: distortion_scale is between 0 and 1, got {distortion_scale}")

    def change(key: Any, image: Array) -> Array:
        height, width = image.shape[-2:]
        bounds = np.array([int(distortion_scale * (side // 2)) + 1 for side in (width, height)], np.int32)
        inwards = random.randint(key, (4, 2), 0, bounds)
        corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.int32)
        signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]], np.int32)
        return perspective(image, corners, corners + signs * inwards, interpolation, fill)

    return random_apply(per_image("random_perspective", change), _probability("random_perspective", probability))


def random_erasing(
    probability: float = 0.5, scale: Range = (0.02, 0.33), ratio: Range = (0.3, 3.3), value: float | Literal["random"] = 0
) -> RandomTransform:
    """Make the transform that erases a random rectangle (Zhong et al. 2020).

    Args:
        probability: that of an image to be changed.
        scale: the range of the rectangle's share of the image's area.
        ratio: the range of its height by its width, whose logarithm is uniform.
        value: what is written, or "random" for normal numbers, which need floats.

    An image that none of ten rectangles is smaller than stays.

    >>> vf.vision.transforms.random_erasing(1.0)(0, vf.numpy.ones((2, 3, 8, 8))).min()
    Array(0., dtype=float32)
    """
    name = "random_erasing"
    shares, ratios = _range(name, "scale", scale, 0), _range(name, "ratio", ratio, 1e-6)

    def change(key: Any, image: Array) -> Array:
        if value == "random" and image.dtype not in dtypes.FLOATS:
            raise ArgumentError(f"{name}: value='random' draws normal numbers for floats, got {image.dtype.name}")
        rows, columns = image.shape[-2:]
        size_key, row_key, column_key, value_key = random.split(key, 4)
        heights, widths = _rectangles(size_key, rows * columns, shares, ratios)
        fits = (widths < columns) & (heights < rows)
        first = vnp.argmax(fits)
        height, width = vnp.where(fits[first], heights[first], 0), vnp.where(fits[first], widths[first], 0)
        top = random.randint(row_key, (), 0, rows - height + 1)
        left = random.randint(column_key, (), 0, columns - width + 1)
        noise = random.normal(value_key, image.shape, image.dtype) if value == "random" else value
        return erase(image, top, left, height, width, noise)

    return random_apply(per_image(name, change), _probability(name, probability))


# Mixing images.


def mixup(num_classes: int, alpha: float = 1.0) -> RandomTransform:
    """Make the transform of batches that averages each image with the one before it.

    A batch is a pair (images, labels).

    Args:
        num_classes: the number of classes.
        alpha: the weight of a batch has the distribution Beta(alpha, alpha).

    Images are floats of shape (N, channels, height, width), labels integers of shape (N,) or probabilities of shape (N, num_classes). The
    result has labels of the latter kind, averaged with the same weight (Zhang et al. 2018).

    >>> images, labels = vf.numpy.ones((2, 1, 4, 4)), vf.numpy.array([0, 1])
    >>> mixed, targets = vf.vision.transforms.mixup(2)(0, (images, labels))
    >>> mixed.shape, targets.sum(1)
    ((2, 1, 4, 4), Array([1., 1.], dtype=float32))
    """

    def mix(key: Any, images: Array, others: Array, weight: Array) -> tuple[Array, Array]:
        if images.dtype not in dtypes.FLOATS:
            raise DTypeError(f"mixup: images are floats, got {images.aval}; data.to_float converts bytes")
        share = weight.astype(images.dtype)
        return share * images + (1 - share) * others, weight

    return _mixing("mixup", num_classes, alpha, mix)


def cutmix(num_classes: int, alpha: float = 1.0) -> RandomTransform:
    """Make the transform of batches that pastes a rectangle of the image before each.

    A batch is a pair (images, labels).

    Arguments, shapes and labels are those of `mixup`, but images may be integers. The rectangle covers a share of the image whose
    distribution is Beta(alpha, alpha), less what lies outside; labels have the weights of the areas (Yun et al. 2019).

    >>> images, labels = vf.numpy.arange(2.0).reshape(2, 1, 1, 1) * vf.numpy.ones((2, 1, 4, 4)), vf.numpy.array([0, 1])
    >>> mixed, targets = vf.vision.transforms.cutmix(2)(0, (images, labels))
    >>> vf.numpy.allclose(mixed.mean((1, 2, 3)), targets[:, 1])
    Array(True, dtype=bool)
    """

    def mix(key: Any, images: Array, others: Array, weight: Array) -> tuple[Array, Array]:
        height, width = images.shape[-2:]
        row_key, column_key = random.split(key)
        y, x = random.randint(row_key, (), 0, height), random.randint(column_key, (), 0, width)
        half = 0.5 * vnp.sqrt(1 - weight)
        half_height, half_width = ((half * side).astype(INDEX) for side in (height, width))
        top, bottom = vnp.maximum(y - half_height, 0), vnp.minimum(y + half_height, height)
        left, right = vnp.maximum(x - half_width, 0), vnp.minimum(x + half_width, width)
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return erase(images, top, left, bottom - top, right - left, others), share.astype(weight.dtype)

    return _mixing("cutmix", num_classes, alpha, mix)


def _mixing(function: str, num_classes: int, alpha: float, mix: Callable[..., tuple[Array, Array]]) -> RandomTransform:
    """Make the transform that mixes a batch with itself, rolled by one."""
    if not alpha > 0 or num_classes < 1:
        raise ArgumentError(f"{function}: alpha and num_classes are positive, got {alpha} and {num_classes}")

    def transform(key: Any, batch: Any) -> tuple[Array, Array]:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ArgumentTypeError(f"{function}: a batch is a pair (images, labels), got {type(batch).__name__}")
        images = as_images(function, batch[0])
        labels = _probabilities(function, operand(function, "labels", batch[1]), num_classes)
        if images.ndim != 4 or labels.shape != (images.shape[0], num_classes):
            raise ShapeError(
                f"{function}: images are (N, channels, height, width) and labels (N,) or (N, {num_classes}), got {images.shape} and "
                f"{labels.shape}"
            )
        weight_key, rest = random.split(key)
        weight = random.beta(weight_key, alpha, alpha, dtype=np.float32)
        mixed, share = mix(rest, images, vnp.roll(images, 1, 0), weight)
        share = share.astype(labels.dtype)
        return mixed, share * labels + (1 - share) * vnp.roll(labels, 1, 0)

    return RandomTransform(transform)


def _probabilities(function: str, labels: Array, num_classes: int) -> Array:
    if labels.dtype in dtypes.INTEGERS and labels.ndim == 1:
        return one_hot(labels, num_classes)
    if labels.dtype not in dtypes.FLOATS:
        raise DTypeError(f"{function}: labels are integers of shape (N,) or floats of shape (N, classes), got {labels.aval}")
    return labels


# Policies: AutoAugment, RandAugment and TrivialAugment.
#
# Each image has operations of its own. A batch is changed image by image, so that only the operation that was drawn is computed.


Mode = Literal["nearest", "bilinear"]
Operation = Callable[[Array, Any], Array]

#: The operations whose magnitude gets a random sign.
_SIGNED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")


def _operations(interpolation: Mode, fill: Any) -> dict[str, Operation]:
    """Return the functions of an image and a magnitude, by their names in the papers."""

    def moved(image: Array, angle: Any = 0.0, move: Any = (0, 0), shear: Any = (0.0, 0.0), center: Any = None) -> Array:
        return affine(image, angle, move, 1.0, shear, interpolation, fill, center)

    def degrees(slope: Any) -> Any:
        return vnp.arctan(slope) * (180 / math.pi)

    return {
        "Identity": lambda image, m: image,
        "ShearX": lambda image, m: moved(image, shear=(degrees(m), 0.0), center=(0, 0)),
        "ShearY": lambda image, m: moved(image, shear=(0.0, degrees(m)), center=(0, 0)),
        "TranslateX": lambda image, m: moved(image, move=(vnp.trunc(m), 0)),
        "TranslateY": lambda image, m: moved(image, move=(0, vnp.trunc(m))),
        "Rotate": lambda image, m: moved(image, -m),
        "Brightness": lambda image, m: adjust_brightness(image, 1 + m),
        "Color": lambda image, m: adjust_saturation(image, 1 + m),
        "Contrast": lambda image, m: adjust_contrast(image, 1 + m),
        "Sharpness": lambda image, m: adjust_sharpness(image, 1 + m),
        "Posterize": lambda image, m: posterize(image, vnp.asarray(m).astype(np.int32)),
        "Solarize": lambda image, m: solarize(image, largest(image.dtype) * m),
        "AutoContrast": lambda image, m: autocontrast(image),
        "Equalize": lambda image, m: equalize(image),
        "Invert": lambda image, m: invert(image),
    }


def _magnitudes(bins: int, shear: float, move: tuple[float, float], turn: float, factor: float, bits: float) -> dict[str, np.ndarray]:
    """Return the magnitudes of each operation, from the weakest to the strongest."""
    steps = np.linspace(0.0, 1.0, bins)
    ranges = {"ShearX": shear, "ShearY": shear, "TranslateX": move[0], "TranslateY": move[1], "Rotate": turn}
    ranges |= dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), factor)
    table = {name: top * steps for name, top in ranges.items()}
    # The last multiplication and division are in the order of torchvision's, whose halves are rounded to even.
    table["Posterize"] = np.round(8 - np.arange(bins) / ((bins - 1) / bits))
    return table | {"Solarize": 1 - steps}


def _apply(names: list[str], magnitudes: dict[str, np.ndarray], interpolation: Mode, fill: Any) -> Callable[..., Array]:
    """Return the function that applies an operation, by its number, to an image."""
    operations = _operations(interpolation, fill)
    bins = len(magnitudes["Rotate"])
    table = np.stack([magnitudes.get(name, np.zeros(bins)) for name in names]).astype(np.float32)
    signed = np.array([name in _SIGNED for name in names])

    def apply(key: Any, image: Array, number: Array, strength: Array) -> Array:
        magnitude = vnp.asarray(table)[number, strength]
        negative = random.bernoulli(key) & vnp.asarray(signed)[number]
        magnitude = vnp.where(negative, -magnitude, magnitude)
        return lax.switch(number, [operations[name] for name in names], image, magnitude)

    return apply


def _each(function: str, change: Callable[[Any, Array], Array]) -> RandomTransform:
    """Make the transform that changes one image after the other."""

    def transform(key: Any, images: Any) -> Array:
        value = as_images(function, images, (1, 3))
        count = math.prod(value.shape[:-3])
        flat = value.reshape(count, *value.shape[-3:])
        keys = random.key_data(random.split(key, count))
        changed = lax.map(lambda pair: change(random.wrap_key_data(pair[0]), pair[1]), (keys, flat))
        return changed.reshape(value.shape)

    return RandomTransform(transform)


def rand_augment(
    num_ops: int = 2,
    magnitude: int = 9,
    num_magnitude_bins: int = 31,
    interpolation: Mode = "nearest",
    fill: Any = 0,
) -> RandomTransform:
    """Make the transform of RandAugment: random operations of one strength.

    It is by Cubuk et al. (2020).

    Args:
        num_ops: how many operations change an image.
        magnitude: their strength, from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: the number of strengths.
        interpolation, fill: as for `affine`.

    Images are bytes or floats with 1 or 3 channels.

    >>> augment = vf.vision.transforms.rand_augment()
    >>> augment(0, vf.numpy.ones((2, 3, 16, 16), "uint8")).shape
    (2, 3, 16, 16)
    """
    if num_ops < 0 or num_magnitude_bins < 2 or not 0 <= magnitude < num_magnitude_bins:
        raise ArgumentError(
            f"rand_augment: num_ops is not negative, and magnitude below num_magnitude_bins, got {num_ops}, {magnitude} and "
            f"{num_magnitude_bins}"
        )
    names = [name for name in _operations(interpolation, fill) if name != "Invert"]

    def change(key: Any, image: Array) -> Array:
        height, width = image.shape[-2:]
        magnitudes = _magnitudes(num_magnitude_bins, 0.3, (150 / 331 * width, 150 / 331 * height), 30, 0.9, 4)
        apply = _apply(names, magnitudes, interpolation, fill)
        for step in random.split(key, num_ops):
            drawn, sign = random.split(step)
            image = apply(sign, image, random.randint(drawn, (), 0, len(names)), vnp.asarray(magnitude))
        return image

    return _each("rand_augment", change)


def trivial_augment_wide(num_magnitude_bins: int = 31, interpolation: Mode = "nearest", fill: Any = 0) -> RandomTransform:
    """Make the transform of TrivialAugment: one operation of random strength.

    The operations and strengths are those that Müller and Hutter (2021) call wide; arguments are those of `rand_augment`.

    >>> augment = vf.vision.transforms.trivial_augment_wide()
    >>> augment(0, vf.numpy.ones((3, 16, 16))).shape
    (3, 16, 16)
    """
    if num_magnitude_bins < 2:
        raise ArgumentError(f"trivial_augment_wide: num_magnitude_bins is at least 2, got {num_magnitude_bins}")
    names = [name for name in _operations(interpolation, fill) if name != "Invert"]
    apply = _apply(names, _magnitudes(num_magnitude_bins, 0.99, (32, 32), 135, 0.99, 6), interpolation, fill)

    def change(key: Any, image: Array) -> Array:
        drawn, strength, sign = random.split(key, 3)
        number = random.randint(drawn, (), 0, len(names))
        return apply(sign, image, number, random.randint(strength, (), 0, num_magnitude_bins))

    return _each("trivial_augment_wide", change)


#: The policies of AutoAugment: pairs of operations, each with its probability in tenths and its strength.
_POLICIES = {
    "imagenet": """
        Posterize 4 8  Rotate 6 9
        Solarize 6 5  AutoContrast 6 0
        Equalize 8 0  Equalize 6 0
        Posterize 6 7  Posterize 6 6
        Equalize 4 0  Solarize 2 4
        Equalize 4 0  Rotate 8 8
        Solarize 6 3  Equalize 6 0
        Posterize 8 5  Equalize 10 0
        Rotate 2 3  Solarize 6 8
        Equalize 6 0  Posterize 4 6
        Rotate 8 8  Color 4 0
        Rotate 4 9  Equalize 6 0
        Equalize 0 0  Equalize 8 0
        Invert 6 0  Equalize 10 0
        Color 6 4  Contrast 10 8
        Rotate 8 8  Color 10 2
        Color 8 8  Solarize 8 7
        Sharpness 4 7  Invert 6 0
        ShearX 6 5  Equalize 10 0
        Color 4 0  Equalize 6 0
        Equalize 4 0  Solarize 2 4
        Solarize 6 5  AutoContrast 6 0
        Invert 6 0  Equalize 10 0
        Color 6 4  Contrast 10 8
        Equalize 8 0  Equalize 6 0
    """,
    "cifar10": """
        Invert 1 0  Contrast 2 6
        Rotate 7 2  TranslateX 3 9
        Sharpness 8 1  Sharpness 9 3
        ShearY 5 8  TranslateY 7 9
        AutoContrast 5 0  Equalize 9 0
        ShearY 2 7  Posterize 3 7
        Color 4 3  Brightness 6 7
        Sharpness 3 9  Brightness 7 9
        Equalize 6 0  Equalize 5 0
        Contrast 6 7  Sharpness 6 5
        Color 7 7  TranslateX 5 8
        Equalize 3 0  AutoContrast 4 0
        TranslateY 4 3  Sharpness 2 6
        Brightness 9 6  Color 2 8
        Solarize 5 2  Invert 0 0
        Equalize 2 0  AutoContrast 6 0
        Equalize 2 0  Equalize 6 0
        Color 9 9  Equalize 6 0
        AutoContrast 8 0  Solarize 2 8
        Brightness 1 3  Color 7 0
        Solarize 4 5  AutoContrast 9 0
        TranslateY 9 9  TranslateY 7 9
        AutoContrast 9 0  Solarize 8 3
        Equalize 8 0  Invert 1 0
        TranslateY 7 9  AutoContrast 9 0
    """,
    "svhn": """
        ShearX 9 4  Invert 2 0
        ShearY 9 8  Invert 7 0
        Equalize 6 0  Solarize 6 6
        Invert 9 0  Equalize 6 0
        Equalize 6 0  Rotate 9 3
        ShearX 9 4  AutoContrast 8 0
        ShearY 9 8  Invert 4 0
        ShearY 9 5  Solarize 2 6
        Invert 9 0  AutoContrast 8 0
        Equalize 6 0  Rotate 9 3
        ShearX 9 4  Solarize 3 3
        ShearY 8 8  Invert 7 0
        Equalize 9 0  TranslateY 6 6
        Invert 9 0  Equalize 6 0
        Contrast 3 3  Rotate 8 4
        Invert 8 0  TranslateY 0 2
        ShearY 7 6  Solarize 4 8
        Invert 6 0  Rotate 8 4
        ShearY 3 7  TranslateX 9 3
        ShearX 1 6  Invert 6 0
        Solarize 7 2  TranslateY 6 7
        ShearY 8 4  Invert 8 0
        ShearX 7 9  TranslateY 8 3
        ShearY 8 5  AutoContrast 7 0
        ShearX 7 2  Invert 1 0
    """,
}


def auto_augment(
    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet", interpolation: Mode = "nearest", fill: Any = 0
) -> RandomTransform:
    """Make the transform of AutoAugment: a random pair of a learnt list of pairs.

    `policy` names the data that the list was learnt on (Cubuk et al. 2019); the other arguments are those of `rand_augment`.

    >>> augment = vf.vision.transforms.auto_augment("cifar10")
    >>> augment(0, vf.numpy.ones((2, 3, 16, 16), "uint8")).shape
    (2, 3, 16, 16)
    """
    check_option(policy, "auto_augment: policy", _POLICIES)
    words = np.array(_POLICIES[policy].split()).reshape(-1, 2, 3)
    names = sorted(set(words[..., 0].ravel()))
    numbers = np.array([names.index(word) for word in words[..., 0].ravel()], np.int32).reshape(-1, 2)
    chances, strengths = words[..., 1].astype(np.float32) / 10, words[..., 2].astype(np.int32)

    def change(key: Any, image: Array) -> Array:
        height, width = image.shape[-2:]
        apply = _apply(names, _magnitudes(10, 0.3, (150 / 331 * width, 150 / 331 * height), 30, 0.9, 4), interpolation, fill)
        drawn, *keys = random.split(key, 3)
        row = random.randint(drawn, (), 0, len(numbers))
        for step, column in zip(keys, range(2), strict=True):
            chance, sign = random.split(step)
            number, strength = vnp.asarray(numbers)[row, column], vnp.asarray(strengths)[row, column]
            applies = random.uniform(chance) <= vnp.asarray(chances)[row, column]
            image = lax.cond(applies, apply, lambda key, image, number, strength: image, sign, image, number, strength)
        return image

    return _each("auto_augment", change)
