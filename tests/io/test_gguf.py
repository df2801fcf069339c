"""GGUF files: tensors of each format beside the package gguf's, files that are written, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import io, nn
from volta_fn.errors import ArgumentError, CorruptFileError, DTypeError, SerializationError

gguf = pytest.importorskip("gguf")

#: The bytes of a block.
BLOCKS = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


def random_blocks(kind: str, rows: int, size: int, seed: int = 0) -> np.ndarray:
    """Bytes of blocks with any codes, and scales that are finite."""
    rng = np.random.default_rng(seed)
    block = 32 if kind in ("Q8_0", "Q4_0", "Q4_1") else 256
    raw = rng.integers(0, 256, (rows, size // block, BLOCKS[kind])).astype(np.uint8)
    for at in {"Q8_0": [0], "Q4_0": [0], "Q6_K": [208]}.get(kind, [0, 2]):
        raw[..., at : at + 2] = rng.normal(size=(rows, size // block, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def write(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> None:
    writer = gguf.GGUFWriter(path, "test")
    writer.add_uint32("test.block_count", 3)
    writer.add_array("test.names", ["a", "b"])
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[kind] if kind else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", BLOCKS)
def test_quantised_tensors_have_the_numbers_of_the_file(tmp_path: Path, kind: str) -> None:
    raw = random_blocks(kind, 5, 512)
    write(tmp_path / "a.gguf", {"w": (raw, kind)})
    file = io.open_gguf(tmp_path / "a.gguf")
    w = file["w"]
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert isinstance(w, nn.QuantizedArray) and w.shape == (5, 512)
    np.testing.assert_allclose(w.dequantize(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    x = np.random.default_rng(1).normal(size=(2, 512)).astype(np.float32)
    np.testing.assert_allclose(nn.Linear(w.T)(x), x @ expected.T, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert w.data.nbytes <= 5 * 512


def test_floats_and_metadata(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    tensors = {"f32": x, "f16": x.astype(np.float16), "bf16": x.astype(ml_dtypes.bfloat16), "vector": x[0]}
    io.save_gguf(tmp_path / "a.gguf", tensors, {"general.architecture": "llama", "llama.block_count": 2, "eps": 0.5, "names": ["a", "b"]})
    file = io.open_gguf(tmp_path / "a.gguf")
    assert list(file) == list(tensors) and len(file) == 4
    for name, expected in tensors.items():
        assert file[name].dtype == expected.dtype
        np.testing.assert_array_equal(file[name], expected)
    assert file.metadata["general.architecture"] == "llama"
    assert (file.metadata["llama.block_count"], file.metadata["eps"], file.metadata["names"]) == (2, 0.5, ["a", "b"])


@pytest.mark.parametrize(("scheme", "symmetric", "kind"), [("int8", True, "Q8_0"), ("int4", True, "Q4_0"), ("int4", False, "Q4_1")])
def test_quantised_arrays_are_written(tmp_path: Path, scheme: Any, symmetric: bool, kind: str) -> None:
    x = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    w = nn.quantize_array(x, scheme, group_size=32, symmetric=symmetric, scale_dtype="float16")
    io.save_gguf(tmp_path / "a.gguf", {"w": w})
    (tensor,) = gguf.GGUFReader(tmp_path / "a.gguf").tensors
    assert tensor.tensor_type.name == kind
    expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    np.testing.assert_allclose(expected, w.dequantize(), rtol=1e-5, atol=1e-6 if symmetric else 2e-3)
    again = io.open_gguf(tmp_path / "a.gguf")["w"]
    np.testing.assert_array_equal(again.data, w.data)
    np.testing.assert_allclose(again.dequantize(), expected, rtol=1e-6, atol=1e-6)


#: The largest error of each format, relative to the largest number: half a step of its codes, and the rounding of scales to 6 or 8 bits.
@pytest.mark.parametrize(
    ("kind", "most"), [("Q8_0", 0.0045), ("Q4_0", 0.13), ("Q4_1", 0.07), ("Q4_K", 0.11), ("Q5_K", 0.06), ("Q6_K", 0.04)]
)
def test_floats_are_rounded_to_a_format(tmp_path: Path, kind: str, most: float) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (3, 2, 512)).astype(np.float32)
    x[0, 0, :256] = 0
    x[1, 1, :32] = 0.5
    io.save_gguf(tmp_path / "a.gguf", {"x": x, "y": x[0]}, formats={"x": kind})
    file = io.open_gguf(tmp_path / "a.gguf")
    (tensor,) = [t for t in gguf.GGUFReader(tmp_path / "a.gguf").tensors if t.name == "x"]
    assert tensor.tensor_type.name == kind
    expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(x.shape)
    np.testing.assert_allclose(file["x"].dequantize(), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - x).max() <= most
    if kind in ("Q8_0", "Q4_0", "Q4_1"):
        theirs = gguf.quants.dequantize(gguf.quants.quantize(x, tensor.tensor_type), tensor.tensor_type).reshape(x.shape)
        assert np.abs(expected - x).mean() <= 1.01 * np.abs(theirs - x).mean()
    np.testing.assert_array_equal(file["y"], x[0])


def test_formats_that_do_not_fit(tmp_path: Path) -> None:
    x = np.ones((2, 96), np.float32)
    for tensors, formats, message in (
        ({"x": x}, {"x": "Q3_K"}, "Q3_K"),
        ({"x": x}, {"x": "Q4_K"}, "256"),
        ({"x": x}, {"y": "Q8_0"}, "'y'"),
        ({"x": nn.quantize_array(x, "int8")}, {"x": "Q8_0"}, "dequantize"),
    ):
        with pytest.raises(ArgumentError, match=message):
            io.save_gguf(tmp_path / "a.gguf", tensors, formats=formats)


@pytest.mark.parametrize(("group_size", "symmetric"), [(64, True), (None, True), (64, False), (32, False)])
def test_blocks_of_larger_groups_share_their_scale(tmp_path: Path, group_size: int | None, symmetric: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 160)).astype(np.float32)
    options: dict[str, Any] = {"group_size": group_size, "symmetric": symmetric, "scale_dtype": "float16"}
    for scheme in ["int4", "int8"][: 1 + symmetric]:
        w = nn.quantize_array(x, scheme, **options)  # type: ignore[arg-type]  # one of two
        io.save_gguf(tmp_path / "a.gguf", {"w": w})
        again = io.open_gguf(tmp_path / "a.gguf")["w"]
        assert again.group_size == 32
        atol = 1e-7 if symmetric else 5e-3  # files have a group's least number, rounded to float16, instead of its offset
        np.testing.assert_allclose(again.dequantize(), w.dequantize(), rtol=1e-6, atol=atol)


def test_errors(tmp_path: Path) -> None:
    x = np.ones((2, 64), np.float32) / 3
    for w in (
        nn.quantize_array(x, "int8", group_size=16), nn.quantize_array(x, "nf4", group_size=32), nn.quantize_array(x[:, :40], "int8"),
        nn.quantize_array(x, "int4", group_size=32).T,
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="group_size=32"):
            io.save_gguf(tmp_path / "a.gguf", {"w": w})
    with pytest.raises(DTypeError, match="scale_dtype"):
        io.save_gguf(tmp_path / "a.gguf", {"w": nn.quantize_array(x, "int8", group_size=32)})
    with pytest.raises(DTypeError, match="float32"):
        io.save_gguf(tmp_path / "a.gguf", {"w": vf.numpy.arange(3)})
    with pytest.raises(ArgumentError, match="metadata"):
        io.save_gguf(tmp_path / "a.gguf", {}, {"a": None})
    assert not (tmp_path / "a.gguf").exists()
    with pytest.raises(SerializationError, match="exist"):
        io.open_gguf(tmp_path / "none.gguf")
    write(tmp_path / "b.gguf", {"w": (random_blocks("Q8_0", 2, 64), "Q8_0")})
    data = (tmp_path / "b.gguf").read_bytes()
    for cut in (b"", b"GGUF", b"nothing like it", data[:40], data[:-60]):
        (tmp_path / "c.gguf").write_bytes(cut)
        with pytest.raises(CorruptFileError, match="GGUF"):
            io.open_gguf(tmp_path / "c.gguf")
    q5 = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q5_0)
    write(tmp_path / "d.gguf", {"w": (q5, "Q5_0")})
    with pytest.raises(DTypeError, match="Q5_0"):
        io.open_gguf(tmp_path / "d.gguf")["w"]
