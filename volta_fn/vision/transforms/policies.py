"""AutoAugment, RandAugment and TrivialAugment: random operations.

Each image has operations of its own. A batch is changed image by image, so that only the operation that was drawn is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.data.transforms import RandomTransform
from volta_fn.errors import ArgumentError
from volta_fn.vision.transforms.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    as_images,
    autocontrast,
    equalize,
    invert,
    largest,
    posterize,
    solarize,
)
from volta_fn.vision.transforms.geometry import affine

__all__ = ["auto_augment", "rand_augment", "trivial_augment_wide"]

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
    if policy not in _POLICIES:
        raise ArgumentError(f"auto_augment: policy is one of {', '.join(map(repr, _POLICIES))}, got {policy!r}")
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
