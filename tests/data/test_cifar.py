"""CIFAR-10's binary files: real, synthetic and damaged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data_files import data_dir
from volta_fn import data
from volta_fn.errors import ArgumentError, CorruptFileError, DataError


def record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_planes_are_channels(tmp_path):
    path = tmp_path / "two.bin"
    path.write_bytes(record(3, 10, 20, 30) + record(9, 1, 2, 3))
    pictures = data.CIFAR10(path)
    image, label = pictures[0]
    assert (image.shape, image.dtype, label, data.CIFAR10.classes[label]) == ((3, 32, 32), np.uint8, 3, "cat")
    assert [set(plane.ravel().tolist()) for plane in image] == [{10}, {20}, {30}]


def test_a_folder_has_splits(tmp_path):
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(record(i, 0, 0, 0))
    (tmp_path / "test_batch.bin").write_bytes(record(0, 0, 0, 0))
    assert data.CIFAR10(tmp_path).labels.tolist() == [1, 2, 3, 4, 5]
    assert data.CIFAR10(tmp_path, "test").labels.tolist() == [0]
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match="data_batch_4.bin missing"):
        data.CIFAR10(tmp_path, "train")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", CorruptFileError, "has 0 bytes"),
        (record(1, 2, 3, 4)[:-1], CorruptFileError, "3,072 bytes, not a multiple of a record's 3,073"),
        (record(1, 2, 3, 4) + record(10, 0, 0, 0), DataError, "label 10 at position 1"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, error, message):
    path = tmp_path / "bad.bin"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        data.CIFAR10(path)


def test_a_split_is_for_folders(tmp_path):
    with pytest.raises(ArgumentError, match="is not a folder"):
        data.CIFAR10(tmp_path / "one.bin", "test")
    with pytest.raises(ArgumentError, match="split must be None, 'train' or 'test'"):
        data.CIFAR10(tmp_path, "valid")


def test_the_real_images():
    path = data_dir("cifar10/test_batch_first1000.bin")
    pictures, raw = data.CIFAR10(path), path.read_bytes()
    assert (len(pictures), pictures.images.shape) == (1000, (1000, 3, 32, 32))
    for i in (0, 1, 999):
        start = 3073 * i
        assert pictures.labels[i] == raw[start]
        assert pictures.images[i].tobytes() == raw[start + 1 : start + 3073]
