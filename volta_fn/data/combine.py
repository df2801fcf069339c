"""Datasets made of datasets: subsets, concatenations, random splits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import random, tree
from volta_fn.data.dataset import Dataset, Examples, Indices, gather, position, positions
from volta_fn.errors import ArgumentError, DataError


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
    left = total - sum(sizes)
    return [size + (i < left) for i, size in enumerate(sizes)]


def as_key(key: Any) -> Any:
    """Return a key as it is, or the key of an integer seed."""
    return random.key(key) if isinstance(key, (int, np.integer)) else key
