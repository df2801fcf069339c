"""IDX, the format of MNIST.

Two zero bytes, a byte for the dtype, one for the rank, big-endian sizes, then the elements, big-endian.
"""

from __future__ import annotations

import math
import os
from typing import Literal

import numpy as np

from volta_fn.core.array import Array
from volta_fn.data.dataset import ArrayDataset
from volta_fn.data.files import Path, class_labels, expect_end, open_data, read_exactly
from volta_fn.errors import ArgumentError, CorruptFileError, DataError

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIX = {"train": "train", "test": "t10k"}


def read_idx(path: Path) -> np.ndarray:
    """Read the array in an IDX file, plain or gzipped.

    Dtypes are uint8, int8, int16, int32, float32 and float64.

    Raises `CorruptFileError` if it is not an IDX file, is too short or too long.
    """
    with open_data(path) as file:
        dtype, rank = _parse_magic(path, read_exactly(file, path, 4, "the magic number"))
        sizes = np.frombuffer(read_exactly(file, path, 4 * rank, f"the {rank} sizes"), ">u4").tolist()
        name = f"the data, {dtype.name} of shape {tuple(sizes)},"
        content = read_exactly(file, path, math.prod(sizes) * dtype.itemsize, name)
        expect_end(file, path)
    try:
        values = np.frombuffer(content, dtype).reshape(sizes)
    except ValueError as error:
        raise CorruptFileError(f"{os.fspath(path)}: an array cannot have the shape {tuple(sizes)}: {error}") from error
    return values.astype(dtype.newbyteorder("="), copy=False)


def _parse_magic(path: Path, magic: bytes) -> tuple[np.dtype, int]:
    if magic[:2] != b"\0\0" or magic[2] not in _DTYPES:
        codes = ", ".join(f"{code:02x}" for code in _DTYPES)
        raise CorruptFileError(
            f"{os.fspath(path)} is not an IDX file: it starts with {magic.hex(' ')}, expected 00 00, a dtype (one of {codes}) and the rank"
        )
    return np.dtype(_DTYPES[magic[2]]), magic[3]


class MNIST(ArrayDataset[tuple[Array, Array]]):
    """Handwritten digits (LeCun, Cortes and Burges), or data in files of these names.

    Examples are (image, label): uint8 of shape (1, 28, 28), and int32 from 0 to 9. `split` is "train" (60,000 images) or "test"
    (10,000); `folder` holds the files, plain or with ".gz". `images` and `labels` are the arrays of all examples.
    Raises `CorruptFileError` for a damaged file, `DataError` for files that are missing or do not fit one another.
    """

    def __init__(self, folder: Path, split: Literal["train", "test"] = "train") -> None:
        if split not in _PREFIX:
            raise ArgumentError(f"MNIST: split is 'train' or 'test', got {split!r}")
        image_path = _find(folder, f"{_PREFIX[split]}-images-idx3-ubyte")
        label_path = _find(folder, f"{_PREFIX[split]}-labels-idx1-ubyte")
        images, labels = _read_bytes(image_path, 3), _read_bytes(label_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{image_path} holds {len(images):,} images, but {label_path} holds {len(labels):,} labels")
        super().__init__(images[:, None], class_labels(labels, 10, label_path))
        self.images, self.labels = self.arrays


def _find(folder: Path, name: str) -> str:
    for candidate in (name, f"{name}.gz"):
        path = os.path.join(folder, candidate)
        if os.path.exists(path):
            return path
    raise DataError(f"{os.fspath(folder)} holds neither {name} nor {name}.gz; give the folder of MNIST's four IDX files")


def _read_bytes(path: str, rank: int) -> np.ndarray:
    """Read an IDX file that must hold bytes and have the given rank."""
    values = read_idx(path)
    if values.dtype != np.uint8 or values.ndim != rank:
        raise DataError(f"{path} should hold uint8 of rank {rank}, but holds {values.dtype} of shape {values.shape}")
    return values
