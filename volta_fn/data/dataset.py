"""Datasets: sequences of examples, subsets, concatenations, splits."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, overload

import numpy as np

from volta_fn import advice, dtypes, random, tree
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ArgumentError, ArgumentTypeError, DataError, DTypeError, OutOfBoundsError
from volta_fn.random.keys import as_key

# Datasets: sequences of examples, and how to make batches of them.
#
# An *example* is a pytree of arrays and scalars; a *batch* is the same pytree with a new first dimension. Whatever has `__len__` and
# `__getitem__` is a dataset. One that also has `gather(indices) -> batch` makes a batch at once, which is faster than stacking examples;
# the datasets here define it where it is faster. Datasets are NumPy arrays in the host's memory; `DataLoader` moves batches to the device.

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # whose variables have defaults

    from volta_fn.core.arrays.array import Array

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
