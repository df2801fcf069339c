"""Datasets, transforms of their examples and batches, and text as numbers."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, overload

import numpy as np

from volta_fn import advice, dtypes, lax, nn, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ArgumentError, ArgumentTypeError, DataError, DTypeError, OutOfBoundsError, ShapeError
from volta_fn.random.keys import as_key
from volta_fn.transforms.vmap import vmap

# Datasets: sequences of examples, and how to make batches of them.
#
# An *example* is a pytree of arrays and scalars; a *batch* is the same pytree with a new first dimension. Whatever has `__len__` and
# `__getitem__` is a dataset. One that also has `gather(indices) -> batch` makes a batch at once, which is faster than stacking examples;
# the datasets here define it where it is faster. Datasets are NumPy arrays in the host's memory; `DataLoader` moves batches to the device.

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # whose variables have defaults

    #: The type of a loader's batches: a pytree of arrays.
    Batch = TypeVar("Batch", default=Any)
    _Rows: TypeAlias = Array | np.ndarray[Any, Any]
else:
    from typing import TypeVar

    Batch = TypeVar("Batch")

Indices: TypeAlias = Sequence[int] | np.ndarray


class Examples(Protocol):
    """A dataset for the loader: anything with a length and examples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Dataset(Generic[Batch]):
    """A base class for datasets, which need to define only a length and examples.

    Inheriting from it is optional.

    >>> from volta_fn import data
    >>> class Squares(data.Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return index**2
    >>> Squares().gather([1, 4])
    array([ 1, 16], dtype=int32)
    """

    def __len__(self) -> int:
        raise ArgumentTypeError(f"{type(self).__name__} does not define __len__, the number of its examples")

    def __getitem__(self, index: int, /) -> Any:
        raise ArgumentTypeError(f"{type(self).__name__} does not define __getitem__, which gives an example by its number")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} examples)"

    def gather(self, indices: Indices) -> Any:
        """Return the batch of the examples at these indices."""
        return stack([self[int(i)] for i in indices])

    def map(self, function: Callable[[Any], Any], *, batched: bool = False) -> Mapped:
        """Return the dataset of `function(example)`, computed on demand.

        With `batched`, `function` takes batches, once each, and must treat their rows independently.

        >>> from volta_fn import data
        >>> data.ArrayDataset(np.array([1, 2, 3])).map(lambda x: 10 * x)[2]
        np.int64(30)
        """
        return Mapped(self, function, batched=batched)


class Mapped(Dataset):
    """A dataset with `function` applied to each example or batch; see `Dataset.map`."""

    def __init__(self, dataset: Examples, function: Callable[[Any], Any], *, batched: bool = False) -> None:
        self.dataset = dataset
        self.function = function
        self.batched = batched

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int, /) -> Any:
        if not self.batched:
            return self.function(self.dataset[index])
        return tree.map(lambda leaf: leaf[0], self.gather([position(index, len(self))]))

    def gather(self, indices: Indices) -> Any:
        """Return the batch of the examples at these indices."""
        return self.function(gather(self.dataset, indices)) if self.batched else super().gather(indices)


class ArrayDataset(Dataset[Batch]):
    """Arrays of equal first dimension, row i of each being example i.

    Examples are arrays for one array, tuples for several, and dicts (or any pytree) for one of arrays. `arrays` holds them, as
    NumPy arrays that cannot be written to; they are not copied. Raises `DataError` if lengths differ.

    >>> from volta_fn import data
    >>> points = data.ArrayDataset({"x": np.ones((4, 2), np.float32), "y": np.arange(4, dtype=np.int32)})
    >>> points[1]
    {'x': array([1., 1.], dtype=float32), 'y': np.int32(1)}
    >>> points.gather([3, 0])["y"]
    array([3, 0], dtype=int32)
    """

    arrays: Any

    @overload
    def __init__(self: ArrayDataset[Array], array: _Rows, /) -> None: ...
    @overload
    def __init__(self: ArrayDataset[tuple[Array, Array]], first: _Rows, second: _Rows, /) -> None: ...
    @overload
    def __init__(self: ArrayDataset[tuple[Array, Array, Array]], first: _Rows, second: _Rows, third: _Rows, /) -> None: ...
    @overload
    def __init__(self: ArrayDataset[dict[str, Array]], arrays: dict[str, _Rows], /) -> None: ...
    @overload
    def __init__(self: ArrayDataset[Any], *arrays: Any) -> None: ...
    def __init__(self, *arrays: Any) -> None:
        self.arrays = tree.map(_host_array, arrays[0] if len(arrays) == 1 else arrays)
        self._length = _common_length(self.arrays)

    def __repr__(self) -> str:
        types = tree.map(lambda rows: ShapedArray(rows.shape[1:], dtypes.canonical(rows.dtype)), self.arrays)
        return f"{type(self).__name__}({len(self):,} examples of {types})"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int, /) -> Any:
        row = position(index, self._length)
        return tree.map(lambda values: values[row], self.arrays)

    def gather(self, indices: Indices) -> Any:
        """Return the batch of the rows at these indices, by one lookup in each array."""
        rows = positions(indices, self._length)
        return tree.map(lambda values: np.take(values, rows, axis=0), self.arrays)


def _host_array(leaf: Any) -> np.ndarray:
    """Return a read-only view of an array in the host's memory."""
    values = np.asarray(leaf)
    dtypes.as_dtype(values.dtype)  # raises DTypeError for unsupported dtypes
    view = values.view()
    view.flags.writeable = False
    return view


def _common_length(arrays: Any) -> int:
    named = [(tree.keystr(path) or "the array", values) for path, values in tree.leaves_with_path(arrays)]
    if not named:
        raise ArgumentError("ArrayDataset: no arrays were given")
    for name, values in named:
        if not values.ndim:
            raise DataError(
                f"ArrayDataset: {name} is a scalar, which has no rows. A list is a tree of several arrays: write np.asarray(list) for one."
            )
    lengths = {name: len(values) for name, values in named}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"ArrayDataset: all arrays need a row for each example, but their lengths differ: {lengths}. "
            "Check that they belong together, and cut the longer ones, as in labels[:n]."
        )
    return next(iter(lengths.values()))


def position(index: int, length: int) -> int:
    """Count `index` from the start; raise `OutOfBoundsError` for a missing example."""
    number = operator.index(index)
    if not -length <= number < length:
        raise OutOfBoundsError(f"there is no example {number} among {length:,}")
    return number % length


def positions(indices: Indices, length: int) -> np.ndarray:
    """Count `indices` from the start; raise `OutOfBoundsError` for missing examples."""
    numbers = np.asarray(indices)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ArgumentTypeError(f"examples are chosen by a sequence of integers, got an array of {numbers.dtype} of shape {numbers.shape}")
    wrong = numbers[(numbers < -length) | (numbers >= length)]
    if wrong.size:
        raise OutOfBoundsError(f"there is no example {wrong[0]} among {length:,}")
    numbers = numbers.astype(np.intp)
    return np.where(numbers < 0, numbers + length, numbers)


def gather(dataset: Examples, indices: Indices) -> Any:
    """Return the batch of a dataset's examples at these indices.

    The `gather` of the dataset makes it, if it has one.

    >>> from volta_fn import data
    >>> data.gather(["ab", "cd"], [0])
    Traceback (most recent call last):
    volta_fn.errors.DTypeError: stack: example 0 is of type str, not an array or a number...
    """
    method = getattr(dataset, "gather", None)
    return stack([example(dataset, int(i)) for i in indices]) if method is None else method(indices)


def example(dataset: Examples, index: int) -> Any:
    """Return an example; add its number to an exception."""
    try:
        return dataset[index]
    except Exception as error:
        error.add_note(f"while reading example {index}")
        raise


def stack(examples: Sequence[Any]) -> Any:
    """Stack examples of one structure along a new first dimension.

    This is the loader's default `collate`.

    Python's numbers become int32, float32, bool. Raises `TreeError` if structures differ, `DataError` if shapes or dtypes do.

    >>> from volta_fn import data
    >>> data.stack([(1, 0.5), (2, 1.5)])
    (array([1, 2], dtype=int32), array([0.5, 1.5], dtype=float32))
    """
    if not examples:
        raise DataError("stack: there are no examples")
    paths, treedef = tree.flatten_with_path(examples[0])
    rows = [tree.flatten_up_to(treedef, example, f"stack: example {i}") for i, example in enumerate(examples)]
    columns = zip(*rows, strict=True)
    return tree.unflatten(treedef, [_stack_leaf(tree.keystr(path), column) for (path, _), column in zip(paths, columns, strict=True)])


def _stack_leaf(path: str, leaves: Sequence[Any]) -> np.ndarray:
    where = f" at {path}" if path else ""
    arrays = [_leaf_array(leaf, f"stack: example {i}{where}") for i, leaf in enumerate(leaves)]
    first = arrays[0]
    for i, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise DataError(
                f"stack: example {i} has {array.dtype} of shape {array.shape}{where}, example 0 has {first.dtype} of shape {first.shape}. "
                "Make them alike in the dataset, or give the loader a collate function that pads."
            )
    return np.stack(arrays)


def _leaf_array(leaf: Any, name: str) -> np.ndarray:
    if isinstance(leaf, (bool, int, float, complex)):
        return np.asarray(leaf, dtypes.scalar_dtype(leaf)[0])
    values = np.asarray(leaf)
    if values.dtype.kind in "OSUV" and values.dtype not in dtypes.ALL:
        raise DTypeError(
            f"{name} is of type {type(leaf).__name__}, not an array or a number; map it to numbers, or give a collate function"
        )
    return values


# Datasets made of datasets: subsets, concatenations, random splits.


class Subset(Dataset):
    """The examples of a dataset at the given indices, in that order.

    >>> from volta_fn import data
    >>> list(data.Subset("abcd", [3, 0]))
    ['d', 'a']

    Raises `OutOfBoundsError` for an index without example.
    """

    def __init__(self, dataset: Examples, indices: Indices) -> None:
        self.dataset = dataset
        self.indices = positions(indices, len(dataset))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> Any:
        return self.dataset[int(self.indices[position(index, len(self))])]

    def gather(self, indices: Indices) -> Any:
        """Return the batch of the examples at these indices."""
        return gather(self.dataset, self.indices[positions(indices, len(self))])


class ConcatDataset(Dataset):
    """The examples of several datasets, one after the other.

    They must agree in structure, shapes and dtypes.

    >>> from volta_fn import data
    >>> list(data.ConcatDataset("ab", "c"))
    ['a', 'b', 'c']
    """

    def __init__(self, *datasets: Examples) -> None:
        if not datasets:
            raise ArgumentError("ConcatDataset: no datasets were given")
        self.datasets = datasets
        self._ends = np.cumsum([len(dataset) for dataset in datasets])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _start(self, source: int) -> int:
        return int(self._ends[source - 1]) if source else 0

    def __getitem__(self, index: int, /) -> Any:
        number = position(index, len(self))
        source = int(np.searchsorted(self._ends, number, side="right"))
        return self.datasets[source][number - self._start(source)]

    def gather(self, indices: Indices) -> Any:
        """Return the batch of the examples at these indices, gathered from each dataset."""
        numbers = positions(indices, len(self))
        sources = np.searchsorted(self._ends, numbers, side="right")
        batches = [
            gather(self.datasets[source], numbers[sources == source] - self._start(source)) for source in np.unique(sources).tolist() or [0]
        ]
        order = np.argsort(np.argsort(sources, kind="stable"))
        return tree.map(lambda *leaves: _joined(leaves)[order], *batches)


def _joined(leaves: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(leaf) for leaf in leaves]
    kinds = {(array.dtype, array.shape[1:]) for array in arrays}
    if len(kinds) > 1:
        kinds_in_words = sorted(f"{dtype} of shape {shape}" for dtype, shape in kinds)
        raise DataError(f"ConcatDataset: the datasets' examples are not alike: {' and '.join(kinds_in_words)}")
    return np.concatenate(arrays)


@advice.explained
def random_split(key: Any, dataset: Examples, lengths: Sequence[int] | Sequence[float]) -> list[Subset]:
    """Split a dataset randomly in subsets of the given lengths or fractions.

    Fractions sum to 1; examples that remain by rounding go to the first subsets. `key` is a key or an integer seed, which determines the
    split. Raises `ArgumentError` if lengths do not sum to the dataset's length, or fractions to 1.

    >>> from volta_fn import data
    >>> train, held_out = data.random_split(0, range(10), [0.8, 0.2])
    >>> len(train), sorted([*train, *held_out]) == list(range(10))
    (8, True)
    """
    total = len(dataset)
    sizes = _sizes(lengths, total)
    order = np.asarray(random.permutation(as_key(key), total))
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _sizes(lengths: Sequence[int] | Sequence[float], total: int) -> list[int]:
    if any(not length >= 0 for length in lengths):
        raise ArgumentError(f"random_split: lengths and fractions are not negative, got {list(lengths)}")
    if all(isinstance(length, (int, np.integer)) for length in lengths):
        if sum(lengths) != total:
            raise ArgumentError(f"random_split: the lengths {list(lengths)} sum to {sum(lengths)}, but there are {total} examples")
        return [int(length) for length in lengths]
    if not math.isclose(sum(lengths), 1, abs_tol=1e-9):
        raise ArgumentError(f"random_split: fractions sum to 1, but {list(lengths)} sum to {sum(lengths)}")
    sizes = [int(total * fraction + 1e-9) for fraction in lengths]  # 0.29 * 100 is a little less than 29
    remaining = total - sum(sizes)
    return [size + (i < remaining) for i, size in enumerate(sizes)]


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

    >>> import numpy as np
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

    >>> import numpy as np
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

    >>> import numpy as np
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

    >>> import numpy as np
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

    >>> import numpy as np
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

    >>> import numpy as np
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
