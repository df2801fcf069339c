"""Sharded checkpoints: Hugging Face's layout, and wrong indices and shards."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from volta_fn import io
from volta_fn.errors import ArgumentError, CorruptFileError, SerializationError
from volta_fn.io import files

ARRAYS = {f"layer.{i}.weight": np.full((5, 5), i, np.float32) for i in range(5)}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path) -> Path:
    io.save_safetensors(tmp_path / "model.safetensors", ARRAYS, {"made by": "test"}, max_shard_size=250)
    return tmp_path


def assert_loaded(path) -> None:
    loaded = io.load_safetensors(path)
    assert loaded.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), values)


def test_layout_is_hugging_faces(folder):
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(folder)) == [*shards, INDEX]
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"] == {"made by": "test", "total_size": 500}
    assert index["weight_map"] == {name: shards[i // 2] for i, name in enumerate(ARRAYS)}
    assert [len(io.load_safetensors(folder / shard)) for shard in shards] == [2, 2, 1]


def test_index_and_folder_are_loaded(folder):
    assert_loaded(folder)
    assert_loaded(folder / INDEX)
    opened = io.open_safetensors(folder)
    assert opened.metadata["total_size"] == 500 and "layer.0.weight" in opened and "x" not in opened and len(opened) == 5
    with pytest.raises(KeyError):
        opened["x"]


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_a_save_that_fails_leaves_what_was_there(failing, again, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    if again:
        io.save_safetensors(path, ARRAYS, max_shard_size=250)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SerializationError, match="cannot be written: No space left on device"):
        io.save_safetensors(path, {name: value + 1 for name, value in ARRAYS.items()}, max_shard_size=250)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert after == before


def test_a_disk_that_is_full_before_the_last_shard_changes_nothing(tmp_path, monkeypatch):
    write, calls = files.write_file, []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(SerializationError, match="cannot be written: No space left on device"):
        io.save_safetensors(tmp_path / "model.safetensors", ARRAYS, max_shard_size=250)
    assert len(calls) == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [500, "500", "1KB", "1 kib", "5GB", "500B"])
def test_one_shard_needs_no_index(size, tmp_path):
    io.save_safetensors(tmp_path / "model.safetensors", ARRAYS, max_shard_size=size)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert_loaded(tmp_path)


@pytest.mark.parametrize("size", [0, -1, 1.5, "", "GB", "5 apples", "1.5GB", True, "-3GB"])
def test_sizes_that_are_none(size, tmp_path):
    with pytest.raises(ArgumentError, match="max_shard_size"):
        io.save_safetensors(tmp_path / "model.safetensors", ARRAYS, max_shard_size=size)


def test_a_large_array_gets_a_shard_of_its_own(tmp_path):
    io.save_safetensors(tmp_path / "model.safetensors", ARRAYS, max_shard_size=1)
    assert len(os.listdir(tmp_path)) == 6
    assert_loaded(tmp_path)
    io.save_safetensors(tmp_path / "e.safetensors", {}, max_shard_size=1)
    assert io.load_safetensors(tmp_path / "e.safetensors") == {}


@pytest.mark.wide
def test_saving_again_replaces_the_other_form(folder):
    io.save_safetensors(folder / "model.safetensors", {"x": np.ones(2)}, max_shard_size="1GB")
    assert list(io.load_safetensors(folder / "model.safetensors")) == ["x"] and not (folder / INDEX).exists()
    io.save_safetensors(folder / "model.safetensors", ARRAYS, max_shard_size=250)
    assert_loaded(folder)
    assert not (folder / "model.safetensors").exists()


def test_the_name_must_be_one_to_derive_others_from(tmp_path):
    with pytest.raises(ArgumentError, match="ends in .safetensors"):
        io.save_safetensors(tmp_path / "model.bin", ARRAYS, max_shard_size=1)


@pytest.mark.parametrize("names", [[], ["a.safetensors", "b.safetensors"]])
def test_folders_without_one_checkpoint(names, tmp_path):
    for name in names:
        io.save_safetensors(tmp_path / name, ARRAYS)
    with pytest.raises(SerializationError, match="one safetensors file"):
        io.load_safetensors(tmp_path)


OUTSIDE = [
    "../secret.safetensors",
    "/etc/passwd",
    "sub/x.safetensors",
    "..",
    ".",
    "",
    "..\\x.safetensors",
    "C:x.safetensors",
    "a\0b",
    "....",
]


@pytest.mark.wide
@pytest.mark.parametrize("shard", OUTSIDE)
def test_shards_in_other_folders_are_refused(shard, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    io.save_safetensors(tmp_path / "secret.safetensors", {"w": np.ones(2)})
    (inner / INDEX).write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(CorruptFileError, match="refused"):
        io.load_safetensors(inner)


INDICES = {
    "no JSON": "{",
    "a list": "[]",
    "no map": "{}",
    "map of numbers": '{"weight_map": {"w": 1}}',
    "map as list": '{"weight_map": ["w"]}',
    "notes as list": '{"weight_map": {}, "metadata": []}',
    "name twice": '{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}',
    "nested deeply": '{"weight_map":' * 50_000,
}


@pytest.mark.parametrize("fault", INDICES)
def test_faulty_indices_are_refused(fault, tmp_path):
    (tmp_path / INDEX).write_text(INDICES[fault])
    with pytest.raises(CorruptFileError, match="index"):
        io.load_safetensors(tmp_path / INDEX)


def test_an_index_of_no_reasonable_size_is_not_read(tmp_path):
    with open(tmp_path / INDEX, "wb") as file:
        file.truncate(10**8 + 1)  # sparse: takes no room on the disk
    with pytest.raises(CorruptFileError, match="not read"):
        io.load_safetensors(tmp_path)


def test_absent_and_truncated_shards(folder):
    second = folder / "model-00002-of-00003.safetensors"
    content = second.read_bytes()
    for length in (0, 7, 50, len(content) - 1):
        second.write_bytes(content[:length])
        with pytest.raises(CorruptFileError, match="00002"):
            io.load_safetensors(folder)
    second.unlink()
    with pytest.raises(SerializationError, match="not there"):
        io.load_safetensors(folder)


def test_index_and_shards_must_agree(folder):
    index = json.loads((folder / INDEX).read_text())
    shard_of = index["weight_map"]
    first = shard_of["layer.0.weight"]
    (folder / INDEX).write_text(json.dumps({"weight_map": {**shard_of, "more": first}}))
    with pytest.raises(CorruptFileError, match=r"\['more'\].*are not"):
        io.load_safetensors(folder)
    del shard_of["layer.0.weight"]
    (folder / INDEX).write_text(json.dumps({"weight_map": shard_of}))
    with pytest.raises(CorruptFileError, match=r"\['layer.0.weight'\].*does not know"):
        io.load_safetensors(folder)


def test_more_shards_than_a_process_may_open(folder):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 3, limits[1]))
    try:
        with pytest.raises(SerializationError, match=r"cannot be opened: Too many open files; .*\(ulimit -n\), or save with a larger max_"):
            io.open_safetensors(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert_loaded(folder)


def test_names_longer_than_a_file_system_allows(folder):
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], "x" * 300)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(SerializationError, match="File name too long"):
        io.open_safetensors(folder)


@pytest.mark.parametrize("size", [None, "1GB", 400])
def test_shards_of_an_earlier_save_go(folder, size):
    (folder / "other-00001-of-00003.safetensors").write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())
    new = {name: value + 1 for name, value in ARRAYS.items()}
    io.save_safetensors(folder / "model.safetensors", new, max_shard_size=size)
    (folder / "other-00001-of-00003.safetensors").unlink()  # of another model
    assert len(os.listdir(folder)) == (3 if size == 400 else 1)
    for name, value in io.load_safetensors(folder).items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(new[name]))


@pytest.mark.parametrize("renamed", range(4))
def test_a_save_that_ends_between_two_renames_leaves_one_whole_checkpoint(renamed, folder, monkeypatch):
    new, replace, names = {name: value + 1 for name, value in ARRAYS.items()}, os.replace, []

    def last(source, target):
        if len(names) == renamed:
            raise KeyboardInterrupt
        names.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", last)
    with pytest.raises(KeyboardInterrupt):
        io.save_safetensors(folder / "model.safetensors", new, max_shard_size=250)
    monkeypatch.undo()
    assert len(names) == renamed
    assert_loaded(folder)


def test_saving_again_and_again_leaves_no_other_files(folder):
    for count in range(4):
        new = {name: value + count for name, value in ARRAYS.items()}
        io.save_safetensors(folder / "model.safetensors", new, max_shard_size=250)
        ending = "" if count % 2 else "-2"
        assert sorted(os.listdir(folder)) == [*[f"model-0000{i}-of-00003{ending}.safetensors" for i in (1, 2, 3)], INDEX]
        for name, value in io.load_safetensors(folder).items():
            np.testing.assert_array_equal(np.asarray(value), new[name])
    io.save_safetensors(folder / "model.safetensors", ARRAYS)
    assert os.listdir(folder) == ["model.safetensors"]
