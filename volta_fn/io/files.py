"""Saving and loading safetensors files, whole or in shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from volta_fn.io.sharded import INDEX_SUFFIX, ShardedSafetensors, find_checkpoint, write_shards
from volta_fn.io.state_dict import state_dict
from volta_fn.io.tensor_file import SafetensorsFile, write_tensors


def save_safetensors(
    path: str | os.PathLike[str], tree: Any, metadata: Mapping[str, str] | None = None, *, max_shard_size: int | str | None = None
) -> None:
    """Write the arrays of a tree, by the names of `state_dict`, to a safetensors file; every dtype stays as it is.

    The file appears whole or, if something fails, not at all.

    Args:
        path: the file.
        tree: a model, or arrays by name.
        metadata: notes to keep in the file, text by name.
        max_shard_size: the most bytes of one file, a number or a text such as "5GB". More are spread over several files beside `path`,
            with an index, as Hugging Face does: `model-00001-of-00002.safetensors`, …, `model.safetensors.index.json`. An array that
            is larger by itself gets a file of its own.

    Raises:
        DTypeError: an array is of complex128, which the format has not.
        SerializationError: the file cannot be written, or a name cannot be stored.
        ArgumentTypeError: a leaf is no array, or the metadata is no text. ArgumentError: `max_shard_size` is no size.

    >>> import tempfile, volta_fn as vf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_safetensors(f"{folder}/model.safetensors", {"w": vf.numpy.ones(2, "bfloat16")})
    ...     load_safetensors(f"{folder}/model.safetensors")
    {'w': Array([1, 1], dtype=bfloat16)}
    """
    arrays = state_dict(tree)
    if max_shard_size is None:
        write_tensors(Path(path), arrays, metadata)
    else:
        write_shards(Path(path), arrays, metadata, max_shard_size)


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile | ShardedSafetensors:
    """A safetensors file, the index of a sharded checkpoint, or a folder with one of them, as a mapping from names to arrays.

    Arrays are made when they are asked for. On the CPU they are views of the file, of which nothing is copied. Those of a dtype that
    arrays have not (float8) come as NumPy arrays.

    Raises:
        CorruptFileError: a file is damaged, cut short or made to do harm.
        DTypeError: a tensor's dtype is not known here.
        SerializationError: a shard is absent, or a folder holds several checkpoints or none.
        FileNotFoundError: there is no such file.

    >>> import tempfile, volta_fn as vf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_safetensors(f"{folder}/model.safetensors", {"w": vf.numpy.ones(2)}, {"trained on": "nothing"})
    ...     file = open_safetensors(f"{folder}/model.safetensors")
    >>> file.metadata, list(file), file["w"]
    ({'trained on': 'nothing'}, ['w'], Array([1., 1.], dtype=float32))
    """
    found = find_checkpoint(Path(path))
    return ShardedSafetensors(found) if found.name.endswith(INDEX_SUFFIX) else SafetensorsFile(found)


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """All the arrays of a file, of an index's files, or of the checkpoint in a folder, by their names; see `open_safetensors`.

    >>> import tempfile, volta_fn as vf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.safetensors"
    ...     save_safetensors(path, {"a": vf.numpy.ones(2), "b": vf.numpy.zeros(3)}, max_shard_size=8)
    ...     sorted(load_safetensors(folder))
    ['a', 'b']
    """
    return dict(open_safetensors(path))
