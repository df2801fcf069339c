"""The manifest of a checkpoint: for each leaf of the saved tree what it was, so that it comes back as it was.

It is a JSON text among the notes of a safetensors file. Whole numbers and texts stand in it themselves, all else is a tensor of the file.
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

#: The notes that hold the manifest and the sum of its bytes (CRC-32).
NOTE = "volta_fn.checkpoint"
NOTE_OF_SUM = "volta_fn.checkpoint.sum"
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
    """What a leaf was: its kind; for an int or str its text; for all else, a tensor, dtype, shape, weak type and the sum of its bytes."""

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
        """Whether it may take the place of a template's leaf: of the same shape and, unless one is a Python number, dtype."""
        other = describe(leaf)
        if other is None or "str" in (self.kind, other.kind):
            return other is not None and self.kind == other.kind
        free = self.kind in _PYTHON.values() or other.kind in _PYTHON.values()
        return self.shape == other.shape and (free or self.dtype == other.dtype)


def describe(leaf: Any) -> Entry | None:
    """The entry for a leaf, as far as its type tells; None if it is of no kind that can be saved."""
    if type(leaf) in _PYTHON:
        return Entry(kind := _PYTHON[type(leaf)], dtype=_TENSORS.get(kind))
    kind = "numpy" if isinstance(leaf, np.ndarray) else "numpy scalar" if isinstance(leaf, np.generic) else "array"
    if not isinstance(leaf, (Array, np.ndarray, np.generic, ShapeDtypeStruct)):
        return None
    return Entry(kind, "", np.dtype(leaf.dtype), tuple(leaf.shape), bool(getattr(leaf, "weak_type", False)))


def write_manifest(entries: Mapping[str, Entry]) -> dict[str, str]:
    """The notes for a file."""
    text = json.dumps({name: _as_json(entry) for name, entry in entries.items()})
    return {NOTE: text, NOTE_OF_SUM: _sum_of(text)}


def read_manifest(file: SafetensorsFile) -> dict[str, Entry]:
    """The entries in a file, checked against its tensors.

    Raises `CheckpointError` if there is no manifest, `CorruptFileError` if it is not in order.
    """
    if NOTE not in file.metadata:
        raise CheckpointError(f"{file} is no checkpoint but another safetensors file; io.load_safetensors reads it")
    text = file.metadata[NOTE]
    if file.metadata.get(NOTE_OF_SUM) != _sum_of(text):
        raise CorruptFileError(f"{file}: the manifest is damaged: the sum of its bytes is not the one that was noted")
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
    """The dtype and shape that a tensor has in the file: its own, or those of its bytes if the format does not know the dtype."""
    return (dtype, shape) if dtype in STORABLE else (np.dtype(np.uint8), (math.prod(shape) * dtype.itemsize,))


def _check_tensor(name: str, entry: Entry, dtype: np.dtype, file: SafetensorsFile) -> None:
    info = file.info(name)
    fixed = _TENSORS[entry.kind]
    if _stored_as(dtype, entry.shape) != (info.dtype, info.shape):
        raise CorruptFileError(f"{file}: the tensor {name!r} is not what the manifest says, {dtype.name}{list(entry.shape)}")
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
    raise CorruptFileError(f"{where} is not in order: {value!r:.120}")
