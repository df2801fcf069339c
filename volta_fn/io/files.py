"""Save and load safetensors files, single or sharded."""

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
    """Write the arrays of a tree to a safetensors file, by the names of `state_dict`.

    The file is written atomically, and keeps every dtype.

    Args:
        path: the file.
        tree: a model, or arrays by name.
        metadata: texts by name, kept in the file.
        max_shard_size: the most bytes of one file, a number or a text such as "5GB". Larger trees are split into several files next to
            `path`, with an index, as Hugging Face does: `model-00001-of-00002.safetensors`, …, `model.safetensors.index.json`. A larger
            array has a file of its own.

    Raises:
        DTypeError: an array has dtype complex128, which the format does not support.
        SerializationError: the file cannot be written, or a name cannot be stored.
        ArgumentTypeError: a leaf is not an array, or the metadata are not texts. ArgumentError: `max_shard_size` is not a size.

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
    """Open a safetensors file, a sharded checkpoint, or a folder with one of them.

    The result is a mapping from names to arrays.

    Arrays are made on demand. On the CPU they are views of the file, without a copy. Tensors of dtypes that arrays do not support
    (float8) are NumPy arrays.

    Raises:
        CorruptFileError: a file is damaged, truncated or malicious.
        DTypeError: a tensor's dtype is unknown.
        SerializationError: a shard is missing, or a folder holds several checkpoints or none.
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
    """Load all arrays by name; `path` is one that `open_safetensors` takes.

    >>> import tempfile, volta_fn as vf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.safetensors"
    ...     save_safetensors(path, {"a": vf.numpy.ones(2), "b": vf.numpy.zeros(3)}, max_shard_size=8)
    ...     sorted(load_safetensors(folder))
    ['a', 'b']
    """
    return dict(open_safetensors(path))
