"""Mixing the images of a batch with each other, and their labels alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.data.transforms import RandomTransform
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.activations import one_hot
from volta_fn.numpy.arguments import INDEX, operand
from volta_fn.vision.transforms.color import as_images
from volta_fn.vision.transforms.filters import erase

__all__ = ["cutmix", "mixup"]


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
