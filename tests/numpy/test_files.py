"""Arrays in NumPy's files."""

from __future__ import annotations

import gc
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

import volta_fn.numpy as vnp
from volta_fn.dtypes import STORAGE
from volta_fn.errors import ArgumentTypeError, CorruptFileError
from volta_fn.numpy import creation


def test_bfloat16_comes_back_from_a_file() -> None:
    x = vnp.array([1.5, -2.0, np.inf], "bfloat16")
    file = io.BytesIO()
    vnp.save(file, x)
    file.seek(0)
    result = vnp.load(file)
    assert result.dtype == x.dtype
    assert result.tolist() == x.tolist()


def archive_of(compressed: bool = True, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def header_of(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


def test_an_archive_is_a_mapping_of_arrays() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.asarray(vnp.ones(3, "bfloat16"))
    for compressed in (True, False):
        with vnp.load(io.BytesIO(archive_of(compressed, x=x, y=y, z=np.zeros((0, 2), np.int8)))) as result:
            assert sorted(result) == sorted(result.files) == ["x", "y", "z"]
            assert len(result) == 3
            assert "x" in result
            assert "w" not in result
            assert result["y"].dtype == y.dtype
            np.testing.assert_array_equal(result["x"], x)
            np.testing.assert_array_equal(result.f.x, x)
            assert result["z"].shape == (0, 2)
            with pytest.raises(KeyError, match="w"):
                result["w"]


def test_an_array_of_an_archive_has_the_size_that_it_claims() -> None:
    for shape in ((10**12,), (2**40, 2**40), (3,), (1,)):
        result = vnp.load(io.BytesIO(zipped(header_of(shape) + bytes(8))))
        with pytest.raises(CorruptFileError, match=r"'x' of an archive claims \d+ bytes of elements, in a file of \d+"):
            result["x"]


def test_an_archive_does_not_expand_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_ANY_EXPANSION", 1 << 20)
    result = vnp.load(
        io.BytesIO(archive_of(bomb=np.zeros(1 << 20), fine=np.zeros(1 << 16), dense=np.random.default_rng(0).random(1 << 18)))
    )
    with pytest.raises(CorruptFileError, match="'bomb' of an archive claims 8388736 bytes, more than the 1048576"):
        result["bomb"]
    assert result["fine"].sum() == 0
    assert result["dense"].size == 1 << 18


@pytest.mark.parametrize("content", [b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{", b"\x93NUMPY\x09\x00abc", header_of((2,))[:-3]])
def test_a_damaged_array_of_an_archive_is_refused(content: bytes) -> None:
    result = vnp.load(io.BytesIO(zipped(content)))
    with pytest.raises(CorruptFileError):
        result["x"]


@pytest.mark.parametrize("content", [archive_of(x=np.ones(3))[:-9], b"PK\x03\x04", b"PK"])
def test_the_file_of_a_damaged_archive_is_closed(content: bytes, tmp_path: Path) -> None:
    """Python warns about a file that is left open, which fails a test."""
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        vnp.load(path)
    gc.collect()


def test_an_archive_closes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(archive_of(x=np.ones(3)))
    with vnp.load(str(path)) as result:
        file = result.fid
        assert result["x"].tolist() == [1, 1, 1]
    assert file.closed


def test_pickles_of_an_archive_are_refused() -> None:
    result = vnp.load(io.BytesIO(archive_of(x=np.array([{}], object))))
    with pytest.raises(CorruptFileError, match="allow_pickle=False"):
        result["x"]


@pytest.mark.parametrize("dtype", sorted(STORAGE, key=str), ids=str)
def test_dtypes_that_could_not_be_loaded_are_not_written(dtype: np.dtype) -> None:
    for write in (vnp.save, vnp.savez):
        file = io.BytesIO()
        with pytest.raises(ArgumentTypeError, match=f"{dtype.name}.*Checkpointer"):
            write(file, np.zeros(2, dtype))
        assert not file.getvalue()
