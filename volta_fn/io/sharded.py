"""Checkpoints in several safetensors files, in the layout of Hugging Face.

The *shards*, `model-00001-of-00003.safetensors` and so on, have an *index*, `model.safetensors.index.json`, from tensors to shards.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from volta_fn.errors import ArgumentError, CorruptFileError, SerializationError
from volta_fn.io.arrays import on_host
from volta_fn.io.atomic import replacing, to_disk, write_text
from volta_fn.io.header import LONGEST_HEADER, parse_json
from volta_fn.io.tensor_file import SafetensorsFile, write_file, write_tensors

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "B": 1}


class ShardedSafetensors(Mapping[str, Any]):
    """Several safetensors files with an index, as one mapping from names to arrays."""

    def __init__(self, index: str | os.PathLike[str]) -> None:
        """Open an index and its shards.

        Raises `CorruptFileError` if one is invalid, or the index names a shard in another folder,
        and `SerializationError` if one cannot be opened: it is missing, or there are more than a process may have open.
        """
        self._path = Path(index)
        self._shard_of, self._metadata = _read_index(self._path)
        self._shards = {shard: _open_shard(self._path, shard) for shard in sorted(set(self._shard_of.values()))}
        self._check_agreement()

    def __getitem__(self, name: str) -> Any:
        return self._shards[self._shard_of[name]][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard_of)

    def __len__(self) -> int:
        return len(self._shard_of)

    def __contains__(self, name: object) -> bool:
        return name in self._shard_of

    def __repr__(self) -> str:
        return f"ShardedSafetensors({str(self._path)!r}, {len(self)} tensors in {len(self._shards)} shards)"

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata in the index."""
        return dict(self._metadata)

    def _check_agreement(self) -> None:
        for shard, file in self._shards.items():
            listed = {name for name, other in self._shard_of.items() if other == shard}
            if absent := sorted(listed - set(file)):
                raise CorruptFileError(f"{self._path}: the tensors {absent} should be in {shard}, but are not")
            if extra := sorted(set(file) - listed):
                raise CorruptFileError(f"{self._path}: {shard} holds the tensors {extra}, which the index does not know")


def _read_index(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    if path.stat().st_size > LONGEST_HEADER:
        raise CorruptFileError(f"{path}: an index of more than {LONGEST_HEADER} bytes is not read")
    content = parse_json(path.read_bytes(), f"{path}: the index")
    shard_of, metadata = content.get("weight_map"), content.get("metadata", {})
    if not isinstance(shard_of, dict) or not isinstance(metadata, dict) or not all(isinstance(p, str) for p in shard_of.values()):
        raise CorruptFileError(f"{path}: an index must have a weight_map from tensors' names to files' names")
    for shard in shard_of.values():
        if shard.strip(".") == "" or any(sign in shard for sign in "/\\:\0"):
            raise CorruptFileError(f"{path}: {shard!r:.80} is refused: shards must be in the folder of their index")
    return shard_of, metadata


def _open_shard(index: Path, shard: str) -> SafetensorsFile:
    try:
        return SafetensorsFile(index.with_name(shard))
    except FileNotFoundError:
        raise SerializationError(f"{index}: its shard {shard!r:.80} is not there") from None
    except OSError as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError(f"{index}: its shard {shard!r:.80} cannot be opened: {error.strerror}{_advice(error)}") from error


def _advice(error: OSError) -> str:
    """Return what to do where a process has too many files open."""
    if error.errno != errno.EMFILE:
        return ""
    return "; every shard stays open, so raise the limit (ulimit -n), or save with a larger max_shard_size"


def find_checkpoint(path: Path) -> Path:
    """Return the file to open: `path`, or the only index or file in a folder."""
    if not path.is_dir():
        return path
    found = sorted(path.glob(f"*{INDEX_SUFFIX}")) or sorted(path.glob(f"*{SUFFIX}"))
    if len(found) != 1:
        names = [file.name for file in found]
        raise SerializationError(f"{path}: expected one safetensors file or index in the folder, found {names}; name the one to open")
    return found[0]


def write_shards(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None, max_shard_size: int | str) -> None:
    """Write `path` if all arrays fit one file, else shards and an index next to it.

    Files that an earlier call left in the other layout are removed.

    The index is written last, so that readers never find it without its shards.
    """
    if path.suffix != SUFFIX:
        raise ArgumentError(f"{path}: sharded checkpoints are named after a file that ends in {SUFFIX}")
    shards = list(_split(arrays, _bytes_in(max_shard_size)))
    index = path.with_name(path.stem + INDEX_SUFFIX)
    if len(shards) == 1:
        write_tensors(path, shards[0], metadata)
        index.unlink(missing_ok=True)
        return
    names = [f"{path.stem}-{number:05}-of-{len(shards):05}{SUFFIX}" for number in range(1, len(shards) + 1)]
    with contextlib.ExitStack() as files:  # none is renamed before all are written
        for name, shard in zip(names, shards, strict=True):
            temporary = files.enter_context(replacing(path.with_name(name)))
            write_file(temporary, shard, metadata, str(path.with_name(name)))
            to_disk(temporary)
    total = sum(on_host(value).nbytes for value in arrays.values())
    shard_of = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    write_text(index, json.dumps({"metadata": {**(metadata or {}), "total_size": total}, "weight_map": shard_of}, indent=2) + "\n")
    path.unlink(missing_ok=True)


def _split(arrays: Mapping[str, Any], limit: int) -> Iterator[dict[str, Any]]:
    """Yield groups of arrays of at most `limit` bytes, or of one larger array."""
    shard: dict[str, Any] = {}
    size = 0
    for name, value in arrays.items():
        if shard and size + value.nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = value
        size += value.nbytes
    yield shard


def _bytes_in(size: int | str) -> int:
    """Parse a number of bytes, or a text like "5GB" or "200 MiB"."""
    text = str(size).strip().upper()
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    digits = text.removesuffix(unit).strip()
    if isinstance(size, bool) or not digits.isdecimal() or int(digits) == 0:
        raise ArgumentError(f'max_shard_size is a number of bytes or a text such as "5GB" or "200MiB", got {size!r}')
    return int(digits) * _UNITS.get(unit, 1)
