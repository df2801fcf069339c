"""The safetensors format: what a file says of itself, read and checked before any number is believed.

A file is eight bytes (the header's length, little-endian), the *header* (JSON: each tensor's name, dtype, shape and the bytes that it takes
of what follows), then the *data*. Nothing in it is ever run. The header is refused unless it is exactly right: every tensor has as many
bytes as its shape asks for, and the tensors cover the data without gap or overlap. (Format: huggingface.co/docs/safetensors.)
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

#: The longest header that is read, in bytes: as long as the reference implementation allows.
LONGEST_HEADER = 100_000_000
#: The key under which a header holds the file's own notes, text by name.
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
    """What a header says of a tensor: its dtype, its shape, and the bytes `begin` to `end` of the data that hold it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was found in order: the tensors by name, the file's notes, and the place in the file where the data starts."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int


def header_length(prefix: bytes, file_size: int, path: str) -> int:
    """The header's length that a file's first eight bytes state, if it can be true."""
    if len(prefix) < LENGTH_BYTES:
        raise CorruptFileError(f"{path}: no safetensors file: it has {file_size} bytes, and the header's length alone takes {LENGTH_BYTES}")
    length = int.from_bytes(prefix, "little")
    if length > LONGEST_HEADER:
        raise CorruptFileError(f"{path}: no safetensors file: a header of {length} bytes is announced, the most is {LONGEST_HEADER}")
    if length > file_size - LENGTH_BYTES:
        raise CorruptFileError(
            f"{path}: cut short, or no safetensors file: a header of {length} bytes is announced, {file_size - LENGTH_BYTES} follow"
        )
    return length


def parse_header(text: bytes, data_size: int, path: str) -> Header:
    """The header of a file with `data_size` bytes of data. `path` is for messages.

    Raises `CorruptFileError` for one that breaks the rules, and `DTypeError` for a dtype that cannot be represented here.
    """
    if text[:1] != b"{":
        raise CorruptFileError(f"{path}: no safetensors file: its header does not start with '{{'")
    entries = parse_json(text, f"{path}: the header")
    metadata = _string_map(entries.pop(METADATA, {}), path)
    tensors = {name: _tensor_info(name, entry, path) for name, entry in entries.items()}
    _check_coverage(tensors, data_size, path)
    return Header(tensors, metadata, LENGTH_BYTES + len(text))


def parse_json(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `text`, none of whose keys comes twice. `what` names it in the `CorruptFileError` for anything else."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_int=_natural, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{what} is not in order: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{what} is not in order: it must be a JSON object, not {type(value).__name__}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        for text in filter(lambda item: isinstance(item, str), (name, value)):
            text.encode("utf-8")  # refuses halves of surrogate pairs, which no text can hold
        if name in found:
            raise ValueError(f"the key {name!r} comes twice")
        found[name] = value
    return found


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise ValueError(f"the number {digits} is negative")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _string_map(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CorruptFileError(f"{path}: {METADATA} must hold text by name, not {value!r:.80}")
    return value


def _tensor_info(name: str, entry: Any, path: str) -> TensorInfo:
    """One entry of the header, checked by itself."""
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptFileError(f"{where}: its entry must have a dtype, a shape and data_offsets, not {entry!r:.80}")
    shape, offsets = _naturals(entry["shape"], f"{where}: shape"), _naturals(entry["data_offsets"], f"{where}: data_offsets")
    dtype = _dtype(entry["dtype"], where)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptFileError(f"{where}: data_offsets must be a beginning and an end, not {list(offsets)}")
    if len(shape) > _MOST_AXES or math.prod(max(size, 1) for size in shape) * dtype.itemsize >= _MOST_BYTES:
        raise CorruptFileError(f"{where}: no array can have the shape {list(shape)!r:.80}")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise CorruptFileError(
            f"{where}: {entry['dtype']}{list(shape)} takes {needed} bytes, but {offsets[1] - offsets[0]} are given to it"
        )
    return TensorInfo(dtype, shape, *offsets)


def _naturals(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise CorruptFileError(f"{what} must be a list of whole numbers, not {value!r:.80}")
    return tuple(value)


def _dtype(name: Any, where: str) -> np.dtype:
    if not isinstance(name, str):
        raise CorruptFileError(f"{where}: its dtype must be a name, not {name!r:.80}")
    if name not in DTYPES:
        raise DTypeError(f"{where}: the dtype {name!r:.40} cannot be represented here; known are {', '.join(DTYPES)}")
    return DTYPES[name]


def _check_coverage(tensors: Mapping[str, TensorInfo], data_size: int, path: str) -> None:
    """Refuse gaps and overlaps."""
    end = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != end:
            fault = "overlaps the one before" if info.begin < end else "leaves a gap"
            raise CorruptFileError(f"{path}: tensor {name!r} starts at byte {info.begin} of the data, not {end}: it {fault}")
        end = info.end
    if end != data_size:
        raise CorruptFileError(f"{path}: cut short or too long: the tensors take {end} bytes, the file has {data_size} for them")


def check_storable(name: Any, dtype: np.dtype) -> None:
    """Refuse names and dtypes that the format cannot hold."""
    if not isinstance(name, str) or name == METADATA:
        raise SerializationError(f"a tensor's name is a text other than {METADATA!r}, got {name!r:.80}")
    if dtype not in STORABLE:
        raise DTypeError(f"tensor {name!r}: safetensors files have no dtype {dtype.name}; convert it first, or use io.Checkpointer")
