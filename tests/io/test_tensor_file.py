"""Safetensors files: exchanged with the library, for every dtype and shape."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import volta_fn as vf
from tests.data_files import data_dir
from volta_fn import io
from volta_fn.errors import ArgumentTypeError, CorruptFileError, DTypeError, SerializationError, TracerError
from volta_fn.io.files import DTYPES

STORABLE = sorted(set(DTYPES.values()), key=lambda dtype: dtype.name)
FLOAT8 = [dtype for dtype in STORABLE if dtype.name.startswith("float8")]


def bits_of(shape: tuple[int, ...], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    """Return an array of random bits: NaNs, infinities and negative zeros, too."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    flat = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return flat.view(dtype).reshape(shape)


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize("dtype", STORABLE, ids=lambda dtype: dtype.name)
def test_bits_come_back_in_every_dtype(dtype, tmp_path):
    arrays = {str(shape): bits_of(shape, dtype) for shape in [(3, 5), (), (0,), (2, 0, 3), (1,), (7,)]}
    io.save_safetensors(tmp_path / "x.safetensors", arrays)
    loaded = io.load_safetensors(tmp_path / "x.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, values in arrays.items():
        assert_same_bits(loaded[name], values)
        assert isinstance(loaded[name], vf.Array)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")


@pytest.mark.wide
@settings(max_examples=40)
@given(st.dictionaries(names, st.tuples(shapes, st.sampled_from(STORABLE)), max_size=5), st.dictionaries(names, names, max_size=2))
def test_any_arrays_under_any_names_come_back(tmp_path_factory, specs, notes):
    path = tmp_path_factory.mktemp("x") / "x.safetensors"
    arrays = {name: bits_of(shape, dtype, i) for i, (name, (shape, dtype)) in enumerate(specs.items())}
    io.save_safetensors(path, arrays, notes)
    file = io.open_safetensors(path)
    assert (file.metadata, file.keys()) == (notes, arrays.keys())
    for name in arrays:
        assert_same_bits(file.host(name), arrays[name])
    with safe_open(path, "np") as theirs:
        assert set(theirs.keys()) == set(arrays)


@pytest.mark.parametrize("dtype", sorted(set(STORABLE) - set(FLOAT8), key=lambda dtype: dtype.name), ids=lambda dtype: dtype.name)
def test_the_library_reads_what_is_written_and_the_reverse(dtype, tmp_path):
    arrays = {"a": bits_of((2, 3), dtype), "b": bits_of((), dtype)}
    io.save_safetensors(tmp_path / "ours.safetensors", arrays)
    save_file(arrays, tmp_path / "theirs.safetensors")
    ours, theirs = load_file(tmp_path / "ours.safetensors"), io.load_safetensors(tmp_path / "theirs.safetensors")
    for name, values in arrays.items():
        assert_same_bits(ours[name], values)
        assert_same_bits(theirs[name], values)


@pytest.mark.wide
def test_files_of_torch_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    kinds = [torch.bool, torch.int8, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in [*kinds, torch.float8_e4m3fn, torch.float8_e5m2]}
    save_torch(tensors, tmp_path / "x.safetensors")
    loaded = io.load_safetensors(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        assert np.asarray(loaded[name]).dtype.name == name.removeprefix("torch.")
        np.testing.assert_array_equal(np.asarray(loaded[name]).astype(np.complex64), tensor.to(torch.complex64).numpy())


@pytest.mark.usefixtures("on_cpu")  # whose memory the file is
def test_arrays_view_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    io.save_safetensors(path, {"a": np.arange(1000, dtype=np.float32), "b": np.ones(3, np.float64)})
    a = io.load_safetensors(path)["a"]
    assert a[0].item() == 0
    with open(path, "r+b") as file:  # written in place only to see that the array looks through to the file
        file.seek(-4000, os.SEEK_END)
        file.write(np.float32(42).tobytes())
    assert a[0].item() == 42
    assert not a.host().flags.writeable


def test_viewing_arrays_survive_donation_and_a_new_file_of_that_name(tmp_path):
    path = tmp_path / "x.safetensors"
    io.save_safetensors(path, {"a": np.ones(1000, np.float32)})
    file = io.open_safetensors(path)
    result = vf.jit(lambda x: x + 1, donate_argnums=0)(file["a"])
    io.save_safetensors(path, {"a": np.zeros(1000, np.float32)})
    assert (result.sum().item(), file["a"].sum().item(), io.load_safetensors(path)["a"].sum().item()) == (2000, 1000, 0)


def test_only_asked_for_tensors_are_touched(tmp_path):
    """Check a bool tensor on access, so that an invalid one does not affect others."""
    path = tmp_path / "x.safetensors"
    save_file({"flags": np.ones(8, bool), "a": np.ones(2, np.float32)}, path)
    raw = bytearray(path.read_bytes())
    raw[-1] = 7
    path.write_bytes(raw)
    file = io.open_safetensors(path)
    assert file["a"].sum().item() == 2
    with pytest.raises(CorruptFileError, match=r"'flags'.*other than 0 and 1"):
        file["flags"]
    with pytest.raises(KeyError):
        file["absent"]
    assert "absent" not in file and file.info("a").shape == (2,)


def test_tensors_at_odd_offsets_are_aligned(tmp_path):
    path = tmp_path / "x.safetensors"
    header = b'{"flag":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\7" + np.float32([1, 2]).tobytes())
    file = io.open_safetensors(path)
    assert file["a"].tolist() == [1, 2] and file.host("a").flags.aligned


def test_arrays_of_any_layout_are_written(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {"t": x.transpose(2, 0, 1), "s": x[:, ::-2, ::2], "b": np.broadcast_to(np.float32(3), (2, 2)), "v": vf.numpy.asarray(x).T}
    io.save_safetensors(tmp_path / "x.safetensors", {**arrays, "swapped": x.astype(">f4")})
    loaded = io.load_safetensors(tmp_path / "x.safetensors")
    for name, values in {**arrays, "swapped": x}.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(values))


@pytest.mark.wide
def test_an_opened_file_can_be_saved_again(tmp_path):
    io.save_safetensors(tmp_path / "a.safetensors", {"x": {"w": np.ones(2)}})
    io.save_safetensors(tmp_path / "b.safetensors", io.open_safetensors(tmp_path / "a.safetensors"))
    assert list(io.load_safetensors(tmp_path / "b.safetensors")) == ["x.w"]


@pytest.mark.wide
def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.safetensors"
    io.save_safetensors(path, {"a": np.ones(2)})
    before = path.read_bytes()
    for tree, error in [
        ({"a": np.ones(2, np.complex128)}, DTypeError),
        ({"a": np.ones(2, ml_dtypes.int4)}, DTypeError),
        ({"a": np.array(["text"])}, DTypeError),
        ({"a": 1.5}, ArgumentTypeError),
        ({"a": None, "b": len}, ArgumentTypeError),
        ({"__metadata__": np.ones(2)}, SerializationError),
        ({"\ud800": np.ones(2)}, SerializationError),
    ]:
        with pytest.raises(error):
            io.save_safetensors(path, tree)
    with pytest.raises(ArgumentTypeError, match="metadata"):
        io.save_safetensors(path, {"a": np.ones(2)}, {"epoch": 3})
    with pytest.raises(TracerError):
        vf.jit(lambda x: io.save_safetensors(path, {"a": x}))(1.0)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.safetensors"]


def test_a_file_that_cannot_be_written_is_named_by_its_path(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(SerializationError, match=re.escape(f"{tmp_path / 'x.safetensors'} cannot be written")):
        io.save_safetensors(tmp_path / "x.safetensors", {"2.bias": np.ones(2)})
    with pytest.raises(SerializationError, match=re.escape(f"{tmp_path / 'y.safetensors'} cannot be written")):
        io.save_safetensors(tmp_path / "y.safetensors", {"2.bias\ud800": np.ones(2)})


@pytest.mark.wide
def test_folders_that_do_not_exist(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    writers: list[Callable[[Path], Any]] = [
        lambda path: io.save_safetensors(path, {"a": np.ones(2)}),
        lambda path: io.save_safetensors(path, {"a": np.ones(20), "b": np.ones(20)}, max_shard_size=90),
        lambda path: io.save_gguf(path, {"a": np.ones(2, "float32")}),
        lambda path: vf.onnx.save(lambda w, x: w * x, vf.numpy.ones(2), (vf.numpy.ones(2),), path),
        lambda path: vf.export_web(path, state={}, functions={"f": vf.web.Function(vf.numpy.sin, [1.0], "y")}),
    ]
    for folder, problem in (("none", "does not exist"), ("none/either", "does not exist"), ("file", "is not a folder")):
        path = tmp_path / folder / "x.safetensors"
        for write in writers:
            with pytest.raises(SerializationError, match=re.escape(f" cannot be written: the folder {path.parent} {problem}")):
                write(path)
    assert os.listdir(tmp_path) == ["file"]
    io.Checkpointer(tmp_path / "none" / "either").save(0, {"a": np.ones(2)})
    with pytest.raises(FileNotFoundError):
        io.open_safetensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", ["resnet20_cifar10", "silero_vad"])
def test_pretrained_weights_are_read_as_the_library_reads_them(name):
    path = data_dir("models") / name / "weights.safetensors"
    ours, theirs = io.load_safetensors(path), load_file(path)
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        assert_same_bits(ours[key], values)
