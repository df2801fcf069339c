"""Safetensors files: single or sharded, read by memory maps, written atomically."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import mmap
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, DTypeError, SerializationError
from volta_fn.io.state_dict import on_host, sharing, state_dict
from volta_fn.lazy_imports import load

_SUFFIX = ".tmp"
_TEMPORARY = re.compile(rf"\.(.+)\.[0-9a-f]{{8}}{re.escape(_SUFFIX)}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` unless the block raises.

    Raises `SerializationError` if it cannot be written, and before the block if the folder does not exist.
    """
    if not path.parent.is_dir():
        problem = "is not a folder" if path.parent.exists() else "does not exist; os.makedirs creates it"
        raise SerializationError(f"{path} cannot be written: the folder {path.parent} {problem}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        try:
            yield temporary
            to_disk(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if os.name == "posix":  # other systems cannot open directories, and take care of renaming
            to_disk(path.parent)
    except OSError as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError(f"{path} cannot be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(directory: Path, names: re.Pattern[str]) -> None:
    """Remove temporary files that killed processes left, of files whose names match.

    No other process may be writing.
    """
    for leftover in directory.glob(f".*{_SUFFIX}"):
        match = _TEMPORARY.fullmatch(leftover.name)
        if match and names.fullmatch(match[1]) and leftover.is_file():
            leftover.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The header of a safetensors file, checked before any of its data is used.
#
# A file consists of eight bytes (the header's length, little-endian), the *header* (JSON: each tensor's name, dtype, shape and range of
# bytes), and the *data*. None of it is executed. The header must be exactly right: every tensor has as many bytes as its shape needs, and
# the tensors cover the data without gap or overlap. (Format: huggingface.co/docs/safetensors.)

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
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_int=as_int, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{name} is invalid: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{name} is invalid: it must be a JSON object, not {type(value).__name__}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        for text in filter(lambda item: isinstance(item, str), (name, value)):
            text.encode("utf-8")  # raises for unpaired surrogates
        if name in entries:
            raise ValueError(f"the key {name!r} occurs twice")
        entries[name] = value
    return entries


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise ValueError(f"the number {digits} is negative")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
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
    check_shape(where, dtype, shape)
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise CorruptFileError(f"{where}: {entry['dtype']}{list(shape)} needs {needed} bytes, but has {offsets[1] - offsets[0]}")
    return TensorInfo(dtype, shape, *offsets)


def check_shape(where: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise `CorruptFileError` for natural numbers that are no NumPy array's shape."""
    if len(shape) > _MOST_AXES or math.prod(max(size, 1) for size in shape) * dtype.itemsize >= _MOST_BYTES:
        raise CorruptFileError(f"{where}: an array cannot have the shape {list(shape)!r:.80}")


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


# Safetensors files: written by the safetensors library, read by memory mapping.
#
# Only the tensors that are used enter memory.


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
        if not values.flags.aligned:  # the format allows this, but kernels do not
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
    hosts = {tensor: on_host(value) for tensor, value in arrays.items()}
    for tensor, host in hosts.items():
        check_storable(tensor, host.dtype)
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


# Save and load safetensors files, single or sharded.


def save_safetensors(
    path: str | os.PathLike[str], tree: Any, metadata: Mapping[str, str] | None = None, *, max_shard_size: int | str | None = None
) -> None:
    """Write the arrays of a tree to a safetensors file, by the names of `state_dict`.

    The file is written atomically, and keeps every dtype. Where `path` was saved in shards before, the index and those shards are removed.

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

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_safetensors(f"{folder}/model.safetensors", {"w": vf.numpy.ones(2, "bfloat16")})
    ...     load_safetensors(f"{folder}/model.safetensors")
    {'w': Array([1, 1], dtype=bfloat16)}
    """
    if isinstance(tree, (str, os.PathLike)):
        raise ArgumentTypeError(f"save_safetensors: the path comes first: save_safetensors({tree!r}, tree)")
    arrays = state_dict(tree)
    if max_shard_size is None and Path(path).suffix != SUFFIX:
        write_tensors(Path(path), arrays, metadata)
    else:
        write_shards(Path(path), arrays, metadata, max_shard_size)


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile | ShardedSafetensors:
    """Open a safetensors file, a sharded checkpoint, or a folder with one of them.

    The result is a mapping from names to arrays.

    Arrays are made on demand. On the CPU they are views of the file, without a copy.

    Raises:
        CorruptFileError: a file is damaged, truncated or malicious.
        DTypeError: a tensor's dtype is unknown.
        SerializationError: a shard is missing, or a folder holds several checkpoints or none.
        FileNotFoundError: there is no such file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_safetensors(f"{folder}/model.safetensors", {"w": vf.numpy.ones(2)}, {"trained on": "nothing"})
    ...     file = open_safetensors(f"{folder}/model.safetensors")
    >>> file.metadata, list(file), file["w"]
    ({'trained on': 'nothing'}, ['w'], Array([1., 1.], dtype=float32))
    """
    file = find_checkpoint(Path(path))
    return ShardedSafetensors(file) if file.name.endswith(INDEX_SUFFIX) else SafetensorsFile(file)


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load all arrays by name; `path` is one that `open_safetensors` takes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.safetensors"
    ...     save_safetensors(path, {"a": vf.numpy.ones(2), "b": vf.numpy.zeros(3)}, max_shard_size=8)
    ...     sorted(load_safetensors(folder))
    ['a', 'b']
    """
    return dict(open_safetensors(path))


# Checkpoints in several safetensors files, in the layout of Hugging Face.
#
# The *shards*, `model-00001-of-00003.safetensors` and so on, have an *index*, `model.safetensors.index.json`, from tensors to shards.

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
    """Return advice for a process that has too many files open."""
    if error.errno != errno.EMFILE:
        return ""
    return "; every shard stays open, so raise the limit (ulimit -n), or save with a larger max_shard_size"


def find_checkpoint(path: Path) -> Path:
    """Return the file to open: `path`, or the only index or file in a folder."""
    if not path.is_dir():
        return path
    candidates = sorted(path.glob(f"*{INDEX_SUFFIX}")) or sorted(path.glob(f"*{SUFFIX}"))
    if len(candidates) != 1:
        names = [file.name for file in candidates]
        raise SerializationError(f"{path}: expected one safetensors file or index in the folder, found {names}; name the one to open")
    return candidates[0]


def write_shards(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None, max_shard_size: int | str | None) -> None:
    """Write `path` if all arrays fit one file, else shards and an index next to it.

    Files that an earlier call left are removed: those of the other layout, and shards that the new index does not name.

    The index is written last, so that readers never find it without its shards. Shards that it replaces keep their files until then: as
    many new ones have names that end in "-2", or again in none.
    """
    if path.suffix != SUFFIX:
        raise ArgumentError(f"{path}: sharded checkpoints are named after a file that ends in {SUFFIX}")
    shards = [arrays] if max_shard_size is None else list(_split(arrays, _bytes_in(max_shard_size)))
    index = path.with_name(path.stem + INDEX_SUFFIX)
    earlier = _shards_of(index)
    if len(shards) == 1:
        names: list[str] = []
        write_tensors(path, shards[0], metadata)
        index.unlink(missing_ok=True)
    else:
        names = _shard_names(path, len(shards))
        if earlier.intersection(names):
            names = _shard_names(path, len(shards), "-2")
        with contextlib.ExitStack() as files:  # none is renamed before all are written
            for name, shard in zip(names, shards, strict=True):
                temporary = files.enter_context(replacing(path.with_name(name)))
                write_file(temporary, shard, metadata, str(path.with_name(name)))
                to_disk(temporary)
        total = sum(on_host(value).nbytes for value in arrays.values())
        shard_of = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        write_text(index, json.dumps({"metadata": {**(metadata or {}), "total_size": total}, "weight_map": shard_of}, indent=2) + "\n")
        path.unlink(missing_ok=True)
    for name in earlier.difference(names):
        path.with_name(name).unlink(missing_ok=True)


def _shard_names(path: Path, count: int, ending: str = "") -> list[str]:
    return [f"{path.stem}-{number:05}-of-{count:05}{ending}{SUFFIX}" for number in range(1, count + 1)]


def _shards_of(index: Path) -> set[str]:
    """Return the shards that an index names; none if there is no valid one."""
    numbered = re.compile(rf"{re.escape(index.name.removesuffix(INDEX_SUFFIX))}-[0-9]{{5,}}-of-[0-9]{{5,}}(-2)?{re.escape(SUFFIX)}")
    try:
        return set(filter(numbered.fullmatch, _read_index(index)[0].values()))
    except (OSError, CorruptFileError):
        return set()


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
