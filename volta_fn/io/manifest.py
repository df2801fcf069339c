"""The manifest of a checkpoint: the type of each leaf of the saved tree.

It is a JSON text in the metadata of a safetensors file. It contains integers and texts; other leaves are tensors of the file.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.errors import CheckpointError, CorruptFileError
from volta_fn.io.header import STORABLE, parse_json
from volta_fn.io.tensor_file import SafetensorsFile

#: Metadata: the manifest and its checksum (CRC-32).
MANIFEST = "volta_fn.checkpoint"
CHECKSUM = "volta_fn.checkpoint.sum"
DTYPES = {dtype.name: dtype for dtype in STORABLE | dtypes.ALL}
#: Kinds of leaves that are tensors, with their dtype if it is always the same.
_TENSORS = {
    "array": None,
    "numpy": None,
    "numpy scalar": None,
    "bool": np.dtype(np.bool_),
    "float": np.dtype(np.float64),
    "complex": np.dtype(np.complex128),
}
_TEXTS = ("int", "str")
_PYTHON = {bool: "bool", float: "float", complex: "complex", int: "int", str: "str"}


@dataclass(frozen=True, slots=True)
class Entry:
    """The type of a leaf, and the text of an int or str, or the checksum of a tensor."""

    kind: str
    text: str = ""
    dtype: np.dtype | None = None
    shape: tuple[int, ...] = ()
    weak: bool = False
    checksum: int = 0

    def __str__(self) -> str:
        if self.dtype is None or self.kind in _PYTHON.values():
            return self.kind
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def fits(self, leaf: Any) -> bool:
        """Return True if shape and dtype (except of Python numbers) fit a template's leaf."""
        other = describe(leaf)
        if other is None or "str" in (self.kind, other.kind):
            return other is not None and self.kind == other.kind
        free = self.kind in _PYTHON.values() or other.kind in _PYTHON.values()
        return self.shape == other.shape and (free or self.dtype == other.dtype)


def describe(leaf: Any) -> Entry | None:
    """Return the entry for a leaf, without its contents; None if it cannot be saved."""
    if type(leaf) in _PYTHON:
        return Entry(kind := _PYTHON[type(leaf)], dtype=_TENSORS.get(kind))
    kind = "numpy" if isinstance(leaf, np.ndarray) else "numpy scalar" if isinstance(leaf, np.generic) else "array"
    if not isinstance(leaf, (Array, np.ndarray, np.generic, ShapeDtypeStruct)):
        return None
    return Entry(kind, "", np.dtype(leaf.dtype), tuple(leaf.shape), bool(getattr(leaf, "weak_type", False)))


def write_manifest(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the metadata that hold the manifest."""
    text = json.dumps({name: _as_json(entry) for name, entry in entries.items()})
    return {MANIFEST: text, CHECKSUM: _sum_of(text)}


def read_manifest(file: SafetensorsFile) -> dict[str, Entry]:
    """Read the manifest of a file, and check it against the tensors.

    Raises `CheckpointError` if there is no manifest, `CorruptFileError` if it is invalid.
    """
    if MANIFEST not in file.metadata:
        raise CheckpointError(f"{file} is not a checkpoint but another safetensors file; io.load_safetensors reads it")
    text = file.metadata[MANIFEST]
    if file.metadata.get(CHECKSUM) != _sum_of(text):
        raise CorruptFileError(f"{file}: the manifest is damaged: its checksum is wrong")
    parsed = parse_json(text.encode(), f"{file}: the manifest")
    entries = {name: _from_json(value, f"{file}: the manifest's entry {name!r}") for name, value in parsed.items()}
    tensors = {name: entry.dtype for name, entry in entries.items() if entry.dtype is not None}
    if tensors.keys() != set(file):
        raise CorruptFileError(f"{file}: the manifest does not agree with the tensors about {sorted(tensors.keys() ^ set(file))}")
    for name, dtype in tensors.items():
        _check_tensor(name, entries[name], dtype, file)
    return entries


def _sum_of(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _stored_as(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """Return a tensor's dtype and shape in the file: bytes for unsupported dtypes."""
    return (dtype, shape) if dtype in STORABLE else (np.dtype(np.uint8), (math.prod(shape) * dtype.itemsize,))


def _check_tensor(name: str, entry: Entry, dtype: np.dtype, file: SafetensorsFile) -> None:
    info = file.info(name)
    fixed = _TENSORS[entry.kind]
    if _stored_as(dtype, entry.shape) != (info.dtype, info.shape):
        raise CorruptFileError(f"{file}: the tensor {name!r} is not as the manifest says, {dtype.name}{list(entry.shape)}")
    wrong = dtype not in dtypes.ALL if entry.kind == "array" else fixed not in (None, dtype)
    if wrong or (entry.shape and entry.kind not in ("array", "numpy")):
        raise CorruptFileError(f"{file}: {name!r} cannot be of kind {entry.kind!r} and {dtype.name}{list(entry.shape)}")


def _as_json(entry: Entry) -> dict[str, Any]:
    if entry.dtype is None:
        return {"kind": entry.kind, "text": entry.text}
    return {"kind": entry.kind, "dtype": entry.dtype.name, "shape": entry.shape, "weak": entry.weak, "checksum": entry.checksum}


def _from_json(value: Any, where: str) -> Entry:
    match value:
        case {"kind": str(kind), "text": str(text)} if kind in _TEXTS and len(value) == 2:
            return Entry(kind, text)
        case {"kind": str(kind), "dtype": str(name), "shape": [*shape], "weak": bool(weak), "checksum": int(checksum)}:
            if kind in _TENSORS and name in DTYPES and len(value) == 5 and all(type(size) is int for size in shape):
                return Entry(kind, "", DTYPES[name], tuple(shape), weak, checksum)
    raise CorruptFileError(f"{where} is invalid: {value!r:.120}")
