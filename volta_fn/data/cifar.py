"""CIFAR-10, binary format: a label's byte and 3,072 bytes of RGB planes per image."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from volta_fn.core.array import Array
from volta_fn.data.dataset import ArrayDataset
from volta_fn.data.files import Path, class_labels, open_data
from volta_fn.errors import ArgumentError, CorruptFileError, DataError

_RECORD = 1 + 3 * 32 * 32
_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}


class CIFAR10(ArrayDataset[tuple[Array, Array]]):
    """Small photographs of ten kinds of objects (Krizhevsky 2009).

    Examples are (image, label): uint8 of shape (3, 32, 32), and int32 from 0 to 9, which stands for `CIFAR10.classes[label]`.
    `path` is the folder of the binary version's files, with `split` "train" (the default) or "test", or a single file of the format.
    `images` and `labels` are the arrays of all examples. Raises `CorruptFileError` for a damaged file, `DataError` for a missing one
    or a label beyond 9.
    """

    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def __init__(self, path: Path, split: Literal["train", "test"] | None = None) -> None:
        records = [_read_records(file) for file in _files(path, split)]
        super().__init__(*(np.concatenate(arrays) for arrays in zip(*records, strict=True)))
        self.images, self.labels = self.arrays


def _files(path: Path, split: str | None) -> list[str]:
    if not os.path.isdir(path):
        if split is not None:
            raise ArgumentError(f"CIFAR10: split={split!r} chooses among the files of a folder, but {os.fspath(path)} is not a folder")
        return [os.fspath(path)]
    if split not in (None, *_FILES):
        raise ArgumentError(f"CIFAR10: split is 'train' or 'test', got {split!r}")
    files = [os.path.join(path, name) for name in _FILES[split or "train"]]
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise DataError(f"CIFAR10: {', '.join(missing)} missing; give the folder of the binary version's files, or one of them")
    return files


def _read_records(path: str) -> tuple[np.ndarray, np.ndarray]:
    with open_data(path) as file:
        content = file.read()
    if not content or len(content) % _RECORD:
        raise CorruptFileError(
            f"{path} has {len(content):,} bytes, not a multiple of a record's {_RECORD:,}: truncated, or not CIFAR-10's binary format"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), class_labels(records[:, 0], 10, path)
