"""The file of an exported function: a safetensors file with a manifest.

The constants are its tensors, so that any safetensors reader shows them, and `volta_fn.io.header` checks their names, dtypes, shapes
and offsets, as bytes whose dtypes and shapes the manifest has. The metadata has three texts:

- ``volta_fn.export``: the version of the format, a number.
- ``manifest``: the programs and structures, in JSON (docs/export.md describes it).
- ``blake2b``: the hash of the manifest and of the tensors' bytes, in hexadecimal digits.

Nothing in a file is code, and no name in it is imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.errors import ArgumentTypeError, CorruptFileError, SerializationError
from volta_fn.io.header import LENGTH_BYTES, Header, header_length, parse_header, parse_json, serialized

#: The version of the format that is written, and the newest that is read.
VERSION = 1
_VERSION, _MANIFEST, _HASH = "volta_fn.export", "manifest", "blake2b"
_NAME = "the exported function"


def pack(manifest: dict[str, Any], constants: Sequence[np.ndarray]) -> bytearray:
    """Return the bytes of a file."""
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False)
    arrays = {f"c{i:06}": np.frombuffer(np.ascontiguousarray(c).tobytes(), np.uint8) for i, c in enumerate(constants)}
    data = b"".join([a.tobytes() for a in arrays.values()])
    return bytearray(serialized(arrays, {_VERSION: str(VERSION), _MANIFEST: text, _HASH: _hash(text.encode(), data)}))


def unpack(blob: bytes | bytearray | memoryview) -> tuple[dict[str, Any], list[bytes]]:
    """Return the manifest of a file, and the bytes of its constants.

    Raises `CorruptFileError` for damage, and `SerializationError` for a newer version.
    """
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise ArgumentTypeError(f"deserialize takes the bytes of a file, got {type(blob).__name__}; read it with open(path, 'rb').read()")
    content = bytes(blob)
    start = LENGTH_BYTES + header_length(content[:LENGTH_BYTES], len(content), _NAME)
    header = parse_header(content[LENGTH_BYTES:start], len(content) - start, _NAME)
    _check_version(header)
    text = header.metadata.get(_MANIFEST, "").encode()
    if header.metadata.get(_HASH) != _hash(text, content[start:]):
        raise CorruptFileError(f"{_NAME} is damaged: its content does not have the hash that was saved with it")
    names = [f"c{number:06}" for number in range(len(header.tensors))]
    if set(names) != header.tensors.keys():
        raise CorruptFileError(f"{_NAME} is damaged: its tensors must be named c000000, c000001, …, got {sorted(header.tensors)!r:.80}")
    ranges = [header.tensors[name] for name in names]
    return parse_json(text, f"{_NAME}: the manifest", naturals=False), [content[start + t.begin : start + t.end] for t in ranges]


def _check_version(header: Header) -> None:
    given = header.metadata.get(_VERSION, "")
    if not given.isdecimal() or not given.isascii() or len(given) > 9:
        raise CorruptFileError(f"{_NAME} cannot be read: it is a safetensors file, but has no version of exported functions")
    if int(given) > VERSION:
        raise SerializationError(
            f"{_NAME} has format {given}, but this version of volta_fn reads formats up to {VERSION}: install a newer volta_fn"
        )


def _hash(text: bytes, data: bytes) -> str:
    digest = hashlib.blake2b(len(text).to_bytes(8, "little"), digest_size=32)
    digest.update(text)
    digest.update(data)
    return digest.hexdigest()
