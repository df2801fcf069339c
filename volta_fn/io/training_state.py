"""Training states as tensors: pytrees that are restored bit by bit.

Each leaf is a tensor named by its path, or in the manifest. Nothing is pickled, so that reading a file runs none of its code.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import ConcreteArray, from_host
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.errors import ArgumentTypeError, CheckpointError, CorruptFileError, DTypeError
from volta_fn.io.arrays import on_host
from volta_fn.io.header import STORABLE
from volta_fn.io.manifest import DTYPES, Entry, describe, read_manifest
from volta_fn.io.state_dict import Mismatch, StateDictDiff
from volta_fn.io.tensor_file import SafetensorsFile

#: Leaves on the host, by path: the manifest's entry without a checksum, and the elements of arrays.
Captured = dict[str, tuple[Entry, np.ndarray | None]]


def capture(state: Any, *, copy: bool = False) -> Captured:
    """Return the leaves of a tree on the host, by path, without their checksums.

    If `copy`, the leaves that the caller may change, NumPy's arrays, are copied.

    Raises `ArgumentTypeError` for a leaf that cannot be saved, `DTypeError` for one of an unknown dtype.
    """
    return {name: _captured(name, leaf, copy) for name, leaf in _leaves_by_path(state).items()}


def _captured(name: str, leaf: Any, copy: bool) -> tuple[Entry, np.ndarray | None]:
    entry = describe(leaf)
    if entry is None or isinstance(leaf, ShapeDtypeStruct) or (entry.kind == "str" and not _is_text(leaf)):
        raise ArgumentTypeError(
            f"checkpoint: {name!r} is a {type(leaf).__name__}; a state consists of arrays, NumPy arrays, random keys, None and "
            "Python's bool, int, float, complex and str (without unpaired surrogates)"
        )
    if entry.dtype is None:
        return Entry(entry.kind, hex(leaf) if entry.kind == "int" else leaf), None
    values = on_host(leaf)
    if values.dtype not in DTYPES.values():
        raise DTypeError(f"checkpoint: {name!r} has the dtype {values.dtype}, which is not supported; convert it first")
    return entry, values.copy() if copy and isinstance(leaf, np.ndarray) else values


def encode(captured: Captured) -> tuple[dict[str, np.ndarray], dict[str, Entry]]:
    """Return the tensors and the manifest's entries of captured leaves."""
    tensors: dict[str, np.ndarray] = {}
    entries: dict[str, Entry] = {}
    for name, (entry, values) in captured.items():
        entries[name] = entry
        if values is not None:
            tensors[name] = values if values.dtype in STORABLE else _bytes(values)
            entries[name] = Entry(entry.kind, "", values.dtype, values.shape, entry.weak, _checksum(values))
    return tensors, entries


def decode(template: Any, file: SafetensorsFile) -> Any:
    """Return a tree like the template from a file.

    Raises `CheckpointError` if the template has other leaves than the file, `CorruptFileError` if the file is damaged.
    """
    entries, leaves = read_manifest(file), _leaves_by_path(template)
    wrong = [name for name in leaves if name in entries and not entries[name].fits(leaves[name])]
    diff = StateDictDiff(
        missing=tuple([name for name in leaves if name not in entries]),
        unexpected=tuple([name for name in entries if name not in leaves]),
        mismatched=tuple([Mismatch(name, _in_words(leaves[name]), str(entries[name])) for name in wrong]),
    )
    if diff:
        raise CheckpointError(f"{file} does not fit the template, which must have the structure of the saved tree\n{diff}")

    def restore(path: tree.KeyPath, leaf: Any) -> Any:
        name = tree.keystr(path)
        return _restored(name, entries[name], leaf, file)

    return tree.map_with_path(restore, template)


def _restored(name: str, entry: Entry, leaf: Any, file: SafetensorsFile) -> Any:
    """Restore a leaf; an array goes to the device of the template's."""
    if entry.kind == "str":
        return entry.text
    if entry.dtype is None:
        return _as_integer(name, entry.text, file)
    stored = file.host(name)
    values = stored if entry.dtype in STORABLE else stored.view(entry.dtype).reshape(entry.shape)
    if _checksum(values) != entry.checksum:
        raise CorruptFileError(f"{file}: the bytes of {name!r} are damaged: the checksum is wrong")
    match entry.kind:
        case "array":
            return from_host(values, entry.weak, leaf.device if isinstance(leaf, ConcreteArray) else None)
        case "numpy":
            return values.copy()
        case "numpy scalar":
            return values[()]
    return values.item()


def _as_integer(name: str, text: str, file: SafetensorsFile) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise CorruptFileError(f"{file}: {name!r} should be an integer, got {text!r:.40}") from error


def _leaves_by_path(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, leaf in tree.leaves_with_path(state):
        name = tree.keystr(path)
        if name in found:
            raise CheckpointError(f"two leaves of the tree have the path {name!r}")
        found[name] = leaf
    return found


def _is_text(value: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in value)


def _in_words(leaf: Any) -> str:
    entry = describe(leaf)
    return f"nothing like {type(leaf).__name__}" if entry is None else str(entry)


def _bytes(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(np.uint8)


def _checksum(values: np.ndarray) -> int:
    return zlib.crc32(_bytes(values).data)
