"""Safetensors files: written by the safetensors library, read by memory mapping.

Only the tensors that are used enter memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn.errors import ArgumentTypeError, CorruptFileError, SerializationError
from volta_fn.io.arrays import on_host, sharing
from volta_fn.io.atomic import replacing
from volta_fn.io.header import LENGTH_BYTES, Header, TensorInfo, check_storable, header_length, parse_header, serialized
from volta_fn.lazy_imports import load


class SafetensorsFile(Mapping[str, Any]):
    """A safetensors file as a mapping from names to arrays, made on demand.

    On the CPU an array is a view of the file: nothing is copied, and pages are read on first use. The file must not be truncated or
    written to while its arrays exist; saving a new file under its name is safe. `io.open_safetensors` opens one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file.

        Raises `CorruptFileError` if it is not a valid safetensors file, `DTypeError` for an unknown dtype.
        """
        self._path = os.fspath(path)
        self._header, self._file = _open(self._path)

    def __getitem__(self, name: str) -> Any:
        return sharing(self.host(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.tensors)

    def __len__(self) -> int:
        return len(self._header.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._header.tensors

    def __repr__(self) -> str:
        return f"SafetensorsFile({self._path!r}, {len(self)} tensors)"

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata in the file, texts by name."""
        return dict(self._header.metadata)

    def info(self, name: str) -> TensorInfo:
        """Return the dtype, shape and position of a tensor, without reading it."""
        return self._header.tensors[name]

    def host(self, name: str) -> np.ndarray:
        """Return a tensor as a read-only NumPy array."""
        info = self.info(name)
        count = (info.end - info.begin) // info.dtype.itemsize
        start = self._header.data_start + info.begin
        values = np.frombuffer(self._file, info.dtype, count, start) if count else np.empty(0, info.dtype)
        if info.dtype == np.bool_ and np.any(values.view(np.uint8) > 1):
            raise CorruptFileError(f"{self._path}: tensor {name!r} has dtype bool, but contains bytes other than 0 and 1")
        if not values.flags.aligned:  # which the format allows, but kernels do not
            values = values.copy()
        values = values.reshape(info.shape)
        values.flags.writeable = False
        return values


def _open(path: str) -> tuple[Header, mmap.mmap]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(file.read(LENGTH_BYTES), size, path)
        header = parse_header(file.read(length), size - LENGTH_BYTES - length, path)
        return header, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def write_tensors(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None) -> None:
    """Write a file atomically."""
    with replacing(path) as temporary:
        write_file(temporary, arrays, metadata, str(path))


def write_file(file: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None, name: str) -> None:
    """Write a file, which errors call `name`."""
    texts = dict(metadata or {})
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise ArgumentTypeError(f"the metadata of a safetensors file are texts by name, got {texts!r:.80}")
    hosts = {name: on_host(value) for name, value in arrays.items()}
    for name, host in hosts.items():
        check_storable(name, host.dtype)
    _write(file, hosts, texts, name)


def _write(file: Path, hosts: Mapping[str, np.ndarray], texts: dict[str, str], name: str) -> None:
    try:
        library, errors = load("safetensors.numpy"), load("safetensors")  # imported on first use, for shorter start-up
    except ImportError:  # as in browsers
        try:
            file.write_bytes(serialized(hosts, texts))
        except UnicodeEncodeError as error:
            raise SerializationError(f"{name} cannot be written: {error}") from error
        return
    try:
        library.save_file(hosts, file, texts or None)
    except (errors.SafetensorError, UnicodeEncodeError) as error:
        raise SerializationError(f"{name} cannot be written: {error}") from error
