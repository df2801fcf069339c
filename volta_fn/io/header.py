"""The header of a safetensors file, checked before any of its data is used.

A file consists of eight bytes (the header's length, little-endian), the *header* (JSON: each tensor's name, dtype, shape and range of
bytes), and the *data*. None of it is executed. The header must be exactly right: every tensor has as many bytes as its shape needs, and
the tensors cover the data without gap or overlap. (Format: huggingface.co/docs/safetensors.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from volta_fn.errors import CorruptFileError, DTypeError, SerializationError

#: The longest header in bytes, as in the reference implementation.
LONGEST_HEADER = 100_000_000
#: The key of a header's metadata, texts by name.
METADATA = "__metadata__"
LENGTH_BYTES = 8
_MOST_AXES = 64  # of a NumPy array
_MOST_BYTES = 2**63

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": np.bool_,
        **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
        **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
        **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
        "BF16": ml_dtypes.bfloat16,
        "C64": np.complex64,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }.items()
}
STORABLE = frozenset(DTYPES.values())


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's dtype and shape, and the range of bytes of the data that hold it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A valid header: the tensors and metadata by name, and the offset of the data."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int


def serialized(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with these arrays, those of wide dtypes first."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    chunks, position = [], 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        entries[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        chunks.append(np.ascontiguousarray(array).tobytes())
        position += array.nbytes
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(LENGTH_BYTES, "little"), header, *chunks])


def header_length(prefix: bytes, file_size: int, path: str) -> int:
    """Return the header's length in a file's first eight bytes, if it is possible."""
    if len(prefix) < LENGTH_BYTES:
        raise CorruptFileError(f"{path}: not a safetensors file: it has {file_size} bytes, but a file starts with {LENGTH_BYTES}")
    length = int.from_bytes(prefix, "little")
    if length > LONGEST_HEADER:
        raise CorruptFileError(f"{path}: not a safetensors file: its header would have {length} bytes, the limit is {LONGEST_HEADER}")
    if length > file_size - LENGTH_BYTES:
        raise CorruptFileError(
            f"{path}: truncated, or not a safetensors file: its header should have {length} bytes, but {file_size - LENGTH_BYTES} follow"
        )
    return length


def parse_header(text: bytes, data_size: int, path: str) -> Header:
    """Parse and check the header of a file with `data_size` bytes of data.

    `path` is for messages. Raises `CorruptFileError` for an invalid header, and `DTypeError` for a dtype that cannot be represented here.
    """
    if text[:1] != b"{":
        raise CorruptFileError(f"{path}: not a safetensors file: its header does not start with '{{'")
    entries = parse_json(text, f"{path}: the header")
    metadata = _string_map(entries.pop(METADATA, {}), path)
    tensors = {name: _tensor_info(name, entry, path) for name, entry in entries.items()}
    _check_coverage(tensors, data_size, path)
    return Header(tensors, metadata, LENGTH_BYTES + len(text))


def parse_json(text: bytes, name: str, *, naturals: bool = True) -> dict[str, Any]:
    """Parse a JSON object without duplicate keys; `CorruptFileError` calls it `name`.

    With `naturals`, its integers must not be negative.
    """
    as_int = _natural if naturals else int
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_int=as_int, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{name} is invalid: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{name} is invalid: it must be a JSON object, not {type(value).__name__}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        for text in filter(lambda item: isinstance(item, str), (name, value)):
            text.encode("utf-8")  # raises for unpaired surrogates
        if name in found:
            raise ValueError(f"the key {name!r} occurs twice")
        found[name] = value
    return found


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise ValueError(f"the number {digits} is negative")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _string_map(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CorruptFileError(f"{path}: {METADATA} must hold text by name, not {value!r:.80}")
    return value


def _tensor_info(name: str, entry: Any, path: str) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptFileError(f"{where}: its entry must have dtype, shape and data_offsets, got {entry!r:.80}")
    shape, offsets = _naturals(entry["shape"], f"{where}: shape"), _naturals(entry["data_offsets"], f"{where}: data_offsets")
    dtype = _dtype(entry["dtype"], where)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptFileError(f"{where}: data_offsets must be a start and an end, got {list(offsets)}")
    if len(shape) > _MOST_AXES or math.prod(max(size, 1) for size in shape) * dtype.itemsize >= _MOST_BYTES:
        raise CorruptFileError(f"{where}: an array cannot have the shape {list(shape)!r:.80}")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise CorruptFileError(f"{where}: {entry['dtype']}{list(shape)} needs {needed} bytes, but has {offsets[1] - offsets[0]}")
    return TensorInfo(dtype, shape, *offsets)


def _naturals(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise CorruptFileError(f"{name} must be a list of integers, not {value!r:.80}")
    return tuple(value)


def _dtype(name: Any, where: str) -> np.dtype:
    if not isinstance(name, str):
        raise CorruptFileError(f"{where}: its dtype must be a name, got {name!r:.80}")
    if name not in DTYPES:
        raise DTypeError(f"{where}: the dtype {name!r:.40} cannot be represented; supported are {', '.join(DTYPES)}")
    return DTYPES[name]


def _check_coverage(tensors: Mapping[str, TensorInfo], data_size: int, path: str) -> None:
    end = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != end:
            fault = "overlaps the previous one" if info.begin < end else "leaves a gap"
            raise CorruptFileError(f"{path}: tensor {name!r} starts at byte {info.begin} of the data, not {end}: it {fault}")
        end = info.end
    if end != data_size:
        raise CorruptFileError(f"{path}: truncated or too long: the tensors need {end} bytes, but the file has {data_size} of data")


def check_storable(name: Any, dtype: np.dtype) -> None:
    """Raise an error for names and dtypes that the format does not support."""
    if not isinstance(name, str) or name == METADATA:
        raise SerializationError(f"a tensor's name is a text other than {METADATA!r}, got {name!r:.80}")
    if dtype not in STORABLE:
        raise DTypeError(f"tensor {name!r}: safetensors files have no dtype {dtype.name}; convert it first, or use io.Checkpointer")
