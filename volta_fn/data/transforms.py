"""Transforms of examples and batches, and text as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from volta_fn import advice, dtypes, lax, nn, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.data.dataset import Dataset, Indices, position, positions
from volta_fn.errors import ArgumentError, ArgumentTypeError, DataError, DTypeError, OutOfBoundsError, ShapeError
from volta_fn.random.keys import as_key
from volta_fn.transforms.vmap import vmap

# Transforms of examples or batches: pure functions of arrays.
#
# Random transforms take a key first.
#
# Images are (…, channels, height, width), with any number of leading dimensions. Transforms consist of array functions, so they run in
# a loader's workers, in `Dataset.map`, and in a jitted training step.

Transform: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class RandomTransform:
    """A random transform: a function of a key (or an integer seed) and a value."""

    function: Callable[[Any, Any], Any]

    @advice.explained
    def __call__(self, key: Any, x: Any) -> Any:
        """Return the transformed `x`, the same for the same key."""
        return self.function(as_key(key), x)


def compose(*transforms: Transform | RandomTransform) -> Any:
    """Chain transforms, the first one first.

    The chain is a `RandomTransform` if one of them is; each has a key of its own. Raises `ArgumentTypeError` for what is no function.

    >>> import numpy as np, volta_fn as vf
    >>> prepare = vf.data.compose(vf.data.to_float, vf.data.normalize(0.5, 0.25))
    >>> prepare(np.array([0, 255], np.uint8))
    Array([-2.,  2.], dtype=float32)
    >>> augment = vf.data.compose(prepare, vf.data.random_horizontal_flip())
    >>> augment(0, np.zeros((8, 3, 4, 4), np.uint8)).shape
    (8, 3, 4, 4)
    """
    if wrong := [transform for transform in transforms if not callable(transform)]:
        raise ArgumentTypeError(f"compose: transforms are functions, one argument each, compose(first, second); got {wrong[0]!r:.60}")

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


@advice.explained
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


# Text as numbers: vocabularies of characters, and windows of a text.


class Vocabulary:
    """Numbers for characters: their indices in `symbols`.

    >>> from volta_fn import data
    >>> letters = data.Vocabulary("abc")
    >>> letters.encode("cab")
    array([2, 0, 1], dtype=int32)
    >>> letters.decode([0, 1, 1, 0])
    'abba'

    Raises `ArgumentError` for symbols that repeat or are not single characters.
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        if not self.symbols or any(len(symbol) != 1 for symbol in self.symbols) or len(set(self.symbols)) < len(self.symbols):
            raise ArgumentError(f"Vocabulary: symbols are different single characters, at least one, got {self.symbols!r:.200}")
        self._points = _code_points("".join(self.symbols))
        self._order = np.argsort(self._points)

    @classmethod
    def of(cls, text: str) -> Vocabulary:
        """Return the vocabulary of a text's characters, sorted.

        >>> from volta_fn import data
        >>> data.Vocabulary.of("hello").symbols
        ('e', 'h', 'l', 'o')
        """
        return cls(sorted(set(text)))

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.symbols == other.symbols

    def __hash__(self) -> int:
        return hash(self.symbols)

    def __repr__(self) -> str:
        return f"Vocabulary({''.join(self.symbols)!r})"

    def encode(self, text: str) -> np.ndarray:
        """Return a text's numbers as int32; raise `DataError` for unknown characters."""
        points = _code_points(text)
        slots = np.searchsorted(self._points, points, sorter=self._order)
        numbers = self._order[np.minimum(slots, len(self) - 1)]
        unknown = np.flatnonzero(self._points[numbers] != points)
        if unknown.size:
            raise DataError(
                f"the character {text[unknown[0]]!r} at position {unknown[0]:,} is not in the vocabulary of {len(self)} symbols"
            )
        return numbers.astype(np.int32)

    def decode(self, numbers: Any) -> str:
        """Return the text of some numbers, a sequence or an array of integers.

        Raises `ArgumentTypeError` for anything but integers, `OutOfBoundsError` for a number without symbol.
        """
        flat = np.ravel(np.asarray(numbers))
        if flat.size and flat.min() < 0:
            raise OutOfBoundsError(f"a vocabulary's numbers are 0 … {len(self) - 1}, got {flat.min()}")
        return "".join(self.symbols[i] for i in positions(flat, len(self)))


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class CharDataset(Dataset[tuple[Array, Array]]):
    """Windows of a text for learning to predict the next character.

    Example i is (inputs, targets), two int32 arrays of `length`.

    The targets are the inputs shifted by one character. Windows start at every `stride`-th character, so the default ones overlap
    and ``stride=length`` ones touch. `text` is a string, or an array of integers that are numbers already; `vocabulary` is by default
    that of the text. Raises `DataError` if the text is shorter than one window and its next character.

    >>> from volta_fn import data
    >>> windows = data.CharDataset("abcab", 3)
    >>> windows[1]
    (array([1, 2, 0], dtype=int32), array([2, 0, 1], dtype=int32))
    >>> len(windows), windows.vocabulary
    (2, Vocabulary('abc'))
    """

    def __init__(self, text: str | np.ndarray, length: int, *, vocabulary: Vocabulary | None = None, stride: int = 1) -> None:
        if length < 1 or stride < 1:
            raise ArgumentError(f"CharDataset: length and stride are at least 1, got {length} and {stride}")
        self.vocabulary = Vocabulary.of(text) if vocabulary is None and isinstance(text, str) and text else vocabulary
        self.numbers = _encoded(text, self.vocabulary)
        if len(self.numbers) <= length:
            raise DataError(f"CharDataset: a window of {length} characters and the next one need {length + 1}, got {len(self.numbers)}")
        self._windows = np.lib.stride_tricks.sliding_window_view(self.numbers, length + 1)[::stride]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, np.ndarray]:
        window = self._windows[position(index, len(self))]
        return window[:-1], window[1:]

    def gather(self, indices: Indices) -> tuple[np.ndarray, np.ndarray]:
        """Return the batch of the windows at these indices."""
        windows = self._windows[positions(indices, len(self))]
        return windows[:, :-1], windows[:, 1:]


def _encoded(text: str | np.ndarray, vocabulary: Vocabulary | None) -> np.ndarray:
    if isinstance(text, str):
        return vocabulary.encode(text) if vocabulary else np.zeros(0, np.int32)
    numbers = np.asarray(text)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ArgumentError(f"CharDataset: a text is a string or a row of integers, got {numbers.dtype} of shape {numbers.shape}")
    return numbers.astype(np.int32)
