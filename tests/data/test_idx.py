"""IDX files: every dtype, plain and gzipped, real ones, and damaged ones."""

from __future__ import annotations

import contextlib
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.data_files import data_dir
from volta_fn import data
from volta_fn.errors import ArgumentError, CorruptFileError, DataError

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_bytes(values: np.ndarray) -> bytes:
    """Return the array, by the format's description."""
    header = bytes([0, 0, CODES[values.dtype.name], values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file-idx"


@given(values=st.sampled_from(sorted(CODES)).flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, min_side=0, max_side=5))))
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_reads_what_was_written(tmp_path_factory, compress, values):
    path = tmp_path_factory.getbasetemp() / "any-idx"
    path.write_bytes(compress(idx_bytes(values)))
    result = data.read_idx(path)
    assert result.dtype == values.dtype
    np.testing.assert_array_equal(result, values)


GOOD = idx_bytes(np.arange(12, dtype=np.int16).reshape(3, 4))
HUGE = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)
DAMAGED = {
    "empty": (b"", "truncated: the magic number"),
    "magic": (b"\x89PNG\r\n", "not an IDX file: it starts with 89 50 4e 47"),
    "dtype": (b"\0\0\x0a\1\0\0\0\0", "not an IDX file"),
    "sizes": (GOOD[:9], "truncated: the 2 sizes should take 8 bytes, but only 5 are left"),
    "elements": (GOOD[:-1], r"truncated: the data, int16 of shape \(3, 4\), should take 24 bytes, but only 23"),
    "longer": (GOOD + b"\0", "has more data than its header says"),
    "huge": (HUGE + b"abc", "but only 3 are left"),
    "overflow": (HUGE[:-4] + b"\0\0\0\0", "an array cannot have the shape"),
    "rank": (bytes([0, 0, 8, 200]) + struct.pack(">200I", *[1] * 200) + b"a", "an array cannot have the shape"),
    "gzip truncated": (gzip.compress(GOOD)[:-12], "damaged or truncated"),
    "gzip damaged": (gzip.compress(GOOD)[:-8] + bytes(8), "damaged or truncated"),
    "gzip header": (b"\x1f\x8b" + bytes(20), "damaged or truncated"),
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_damaged_files_are_refused(path, fault):
    content, message = DAMAGED[fault]
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=message) as caught:
        data.read_idx(path)
    assert str(path) in str(caught.value)


@given(content=st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: b"\0\0\x08" + rest))
def test_any_bytes_give_an_array_or_a_typed_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzzed-idx"
    path.write_bytes(content)
    with contextlib.suppress(CorruptFileError):
        assert isinstance(data.read_idx(path), np.ndarray)


def test_a_missing_file_is_an_os_error(path):
    with pytest.raises(FileNotFoundError):
        data.read_idx(path)


# MNIST


def write_mnist(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))


IMAGES, LABELS = np.arange(5 * 6, dtype=np.uint8).reshape(5, 2, 3), np.array([9, 0, 3, 3, 1], np.uint8)


def test_mnist_joins_images_and_labels(tmp_path):
    write_mnist(tmp_path, IMAGES, LABELS)
    digits = data.MNIST(tmp_path, "test")
    assert (len(digits), digits.images.dtype, digits.labels.dtype) == (5, np.uint8, np.int32)
    image, label = digits[2]
    np.testing.assert_array_equal(image, IMAGES[2][None])
    assert label == 3


@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (IMAGES, LABELS[:4], DataError, "5 images, but .*labels-idx1-ubyte.gz holds 4 labels"),
        (IMAGES, np.array([1, 2, 10, 3, 11], np.uint8), DataError, "label 10 at position 2 is not one of 0 … 9"),
        (IMAGES[0], LABELS, DataError, r"should hold uint8 of rank 3, but holds uint8 of shape \(2, 3\)"),
        (IMAGES, LABELS.astype(np.int32), DataError, "should hold uint8 of rank 1, but holds int32"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, images, labels, error, message):
    write_mnist(tmp_path, images, labels)
    with pytest.raises(error, match=message):
        data.MNIST(tmp_path, "test")


def test_mnist_says_which_file_it_misses(tmp_path):
    with pytest.raises(DataError, match="holds neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz"):
        data.MNIST(tmp_path)
    with pytest.raises(ArgumentError, match="split must be 'train' or 'test', got 'val'"):
        data.MNIST(tmp_path, "val")


@pytest.mark.parametrize(("split", "name", "count"), [("train", "train", 60_000), ("test", "t10k", 10_000)])
def test_the_real_mnist(split, name, count):
    folder = data_dir("mnist")
    digits = data.MNIST(folder, split)
    raw_images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    raw_labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
    assert digits.images.shape == (count, 1, 28, 28)
    assert digits.images.tobytes() == raw_images[16:]
    assert digits.labels.astype(np.uint8).tobytes() == raw_labels[8:]
