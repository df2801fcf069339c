"""Transforms of examples or batches: pure functions of arrays.

Random transforms take a key first.

Images are (…, channels, height, width), with any number of leading dimensions. Transforms consist of array functions, so they run in
a loader's workers, in `Dataset.map`, and in a jitted training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from volta_fn import dtypes, lax, nn, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, ConcreteArray, as_value
from volta_fn.data.combine import as_key
from volta_fn.errors import ArgumentError, DataError, DTypeError, ShapeError
from volta_fn.transforms.vmap import vmap

Transform: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class RandomTransform:
    """A random transform: a function of a key (or an integer seed) and a value."""

    function: Callable[[Any, Any], Any]

    def __call__(self, key: Any, x: Any) -> Any:
        """Return the transformed `x`, the same for the same key."""
        return self.function(as_key(key), x)


def compose(*transforms: Transform | RandomTransform) -> Any:
    """Chain transforms, the first one first.

    The chain is a `RandomTransform` if one of them is; each has a key of its own.

    >>> import numpy as np, volta_fn as vf
    >>> prepare = vf.data.compose(vf.data.to_float, vf.data.normalize(0.5, 0.25))
    >>> prepare(np.array([0, 255], np.uint8))
    Array([-2.,  2.], dtype=float32)
    >>> augment = vf.data.compose(prepare, vf.data.random_horizontal_flip())
    >>> augment(0, np.zeros((8, 3, 4, 4), np.uint8)).shape
    (8, 3, 4, 4)
    """

    def apply(key: Any, x: Any) -> Any:
        for number, transform in enumerate(transforms):
            x = transform(random.fold_in(key, number), x) if isinstance(transform, RandomTransform) else transform(x)
        return x

    if any(isinstance(transform, RandomTransform) for transform in transforms):
        return RandomTransform(apply)
    return lambda x: apply(None, x)


def to_float(x: Any) -> Array:
    """Convert unsigned integers, such as bytes of images, to float32 from 0 to 1.

    Raises `DTypeError` for other dtypes.

    >>> import numpy as np, volta_fn as vf
    >>> vf.data.to_float(np.array([0, 51, 255], np.uint8))
    Array([0. , 0.2, 1. ], dtype=float32)
    """
    values = as_value(x)
    if values.dtype not in dtypes.UNSIGNED:
        raise DTypeError(f"to_float: maps the range of an unsigned integer dtype to 0 … 1, got {values.aval}")
    return values.astype(np.float32) / float(np.iinfo(values.dtype).max)


def normalize(mean: Any, std: Any, axis: int = -3) -> Transform:
    """Make the transform ``(x - mean) / std`` of floats.

    `mean` and `std` are numbers, or sequences with one for each index of `axis`.

    The default axis is that of images' channels. Raises `ArgumentError` for a std that is not positive; the transform raises
    `DTypeError` for arrays of integers and `ShapeError` for a size of the axis that is not the sequences' length.

    >>> import numpy as np, volta_fn as vf
    >>> vf.data.normalize([1.0, 2.0], [1.0, 10.0], axis=-1)(np.float32([[3, 22]]))
    Array([[2., 2.]], dtype=float32)
    """
    means, stds = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if means.ndim > 1 or stds.ndim > 1 or not np.all(stds > 0):
        raise ArgumentError(f"normalize: mean and std are numbers or rows of numbers, std positive, got {mean!r} and {std!r}")
    sizes = {len(numbers) for numbers in (means, stds) if numbers.ndim}
    if len(sizes) > 1:
        raise ArgumentError(f"normalize: mean has {means.size} numbers, std has {stds.size}")

    def transform(x: Any) -> Array:
        values = as_value(x)
        if values.dtype not in dtypes.FLOATS:
            raise DTypeError(f"normalize: takes floats, got {values.aval}; to_float converts bytes")
        if sizes and not (-values.ndim <= axis < values.ndim and {values.shape[axis]} == sizes):
            raise ShapeError(f"normalize: axis {axis} should have size {max(sizes)}, one for each mean and std; got shape {values.shape}")
        return (values - _along(values, axis, means)) / _along(values, axis, stds)

    return transform


def _along(values: Array, axis: int, numbers: np.ndarray) -> Array:
    """Reshape numbers for an axis of `values`, in the dtype of these."""
    shape = [-1 if i in (axis, axis + values.ndim) else 1 for i in range(values.ndim)] if numbers.ndim else []
    return vnp.asarray(numbers.reshape(shape), values.dtype)


def one_hot(num_classes: int, dtype: Any = None) -> Transform:
    """Make the transform of integer labels to one-hot rows, float32 by default.

    It is `nn.one_hot` with a check: a label that is not in 0 … num_classes - 1 raises `DataError` (unless it is traced).

    >>> import numpy as np, volta_fn as vf
    >>> vf.data.one_hot(3)(np.int32([2, 0]))
    Array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """

    def transform(labels: Any) -> Array:
        values = as_value(labels)
        if values.dtype not in dtypes.INTEGERS:
            raise DTypeError(f"one_hot: labels are integers, got {values.aval}")
        if isinstance(values, ConcreteArray):
            numbers = values.host()
            wrong = numbers[(numbers < 0) | (numbers >= num_classes)]
            if wrong.size:
                raise DataError(f"one_hot: label {wrong.flat[0]} is not one of 0 … {num_classes - 1}")
        return nn.one_hot(values, num_classes, dtype=dtype)

    return transform


def random_horizontal_flip(probability: float = 0.5) -> RandomTransform:
    """Make the random transform that mirrors images left to right.

    >>> import numpy as np, volta_fn as vf
    >>> vf.data.random_horizontal_flip(1.0)(0, np.float32([[[0, 1, 2]]]))
    Array([[[2., 1., 0.]]], dtype=float32)
    """
    if not 0 <= probability <= 1:
        raise ArgumentError(f"random_horizontal_flip: a probability is between 0 and 1, got {probability}")

    def transform(key: Any, x: Any) -> Array:
        images = _images("random_horizontal_flip", x)
        flipped = random.bernoulli(key, probability, (*images.shape[:-3], 1, 1, 1))
        return vnp.where(flipped, images[..., ::-1], images)

    return RandomTransform(transform)


def random_crop(padding: int, size: Sequence[int] | None = None, fill: float = 0) -> RandomTransform:
    """Make the random transform that pads images and cuts out a window.

    Images are padded by `padding` pixels of `fill` on all sides.

    The window's position is uniform; its size, (height, width), is by default the image's. The transform raises `ShapeError` if it is
    larger than the padded image, `ArgumentError` if the images' dtype lacks the value `fill`.

    >>> import numpy as np, volta_fn as vf
    >>> vf.data.random_crop(4)(0, np.ones((16, 3, 32, 32), np.uint8)).shape
    (16, 3, 32, 32)
    """
    if padding < 0:
        raise ArgumentError(f"random_crop: padding is not negative, got {padding}")

    def transform(key: Any, x: Any) -> Array:
        images = _images("random_crop", x)
        channels, height, width = images.shape[-3:]
        window = (height, width) if size is None else (size[0], size[1])
        room = (height + 2 * padding - window[0], width + 2 * padding - window[1])
        if min(room) < 0 or min(window) < 1:
            raise ShapeError(f"random_crop: a window of {window} does not fit images of {(height, width)} padded by {padding}")
        if images.dtype not in dtypes.INEXACT and np.asarray(fill).astype(images.dtype) != fill:
            raise ArgumentError(f"random_crop: fill={fill} is not a value of {images.dtype}, the images' dtype")
        sides = [(0, 0)] * (images.ndim - 2) + [(padding, padding)] * 2
        padded = vnp.pad(images, sides, constant_values=fill).reshape(-1, channels, height + 2 * padding, width + 2 * padding)
        corners = random.randint(key, (padded.shape[0], 2), 0, np.asarray(room, np.int32) + 1)

        def cut(image: Array, corner: Array) -> Array:
            return lax.dynamic_slice(image, (0, corner[0], corner[1]), (channels, *window))

        return vmap(cut)(padded, corners).reshape(*images.shape[:-2], *window)

    return RandomTransform(transform)


def _images(function: str, x: Any) -> Array:
    values = as_value(x)
    if values.ndim < 3:
        raise ShapeError(f"{function}: images are (…, channels, height, width), got shape {values.shape}")
    return values
