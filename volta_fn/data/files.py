"""Data files, plain or gzipped: IDX, CIFAR, CSV."""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import io
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.data.dataset import ArrayDataset
from volta_fn.errors import ArgumentError, CorruptFileError, DataError

Path: TypeAlias = str | os.PathLike[str]

_CHUNK = 1 << 22
#: The most that a gzip file may expand: this multiple of its size, and at least so many bytes. Data compress 3 to 30 times; only files that
#: repeat one byte, made to exhaust the memory, compress a thousand times.
_EXPANSION, _ALWAYS = 64, 1 << 22


class _Bounded(gzip.GzipFile):
    """A gzip file that does not expand beyond `_EXPANSION`."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(fileobj=file)
        self._path, self._most = path, max(_ALWAYS, _EXPANSION * os.fstat(file.fileno()).st_size)

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes; raise `CorruptFileError` if there are too many."""
        remaining = self._most - self.tell() + 1
        content = super().read(remaining if size is None or size < 0 else min(size, remaining))
        if len(content) == remaining:
            raise CorruptFileError(
                f"{os.fspath(self._path)} expands to more than {_EXPANSION} times its size, {self._most:,} bytes; if that is right, "
                "decompress it first"
            )
        return content


@contextlib.contextmanager
def open_data(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes; gzip files are recognised and decompressed.

    Raises `CorruptFileError` if the compressed data are damaged or end too soon, OSError if the file cannot be opened.
    """
    with open(path, "rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        try:
            with _Bounded(file, path) as content:
                yield content  # type: ignore[misc]  # it reads like a BinaryIO, but is no subclass
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptFileError(f"{os.fspath(path)}: the gzip file is damaged or truncated: {error}") from error


def read_exactly(file: BinaryIO, path: Path, count: int, name: str) -> bytes:
    """Read the next `count` bytes; `CorruptFileError` calls them `name` if they lack."""
    content = bytearray()
    while len(content) < count and (chunk := file.read(min(count - len(content), _CHUNK))):
        content += chunk
    if len(content) < count:
        raise CorruptFileError(f"{os.fspath(path)} is truncated: {name} should take {count:,} bytes, but only {len(content):,} are left")
    return bytes(content)


def expect_end(file: BinaryIO, path: Path) -> None:
    """Raise `CorruptFileError` if there is more in the file."""
    if file.read(1):
        raise CorruptFileError(f"{os.fspath(path)} has more data than its header says")


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    r"""Read a text file, plain or gzipped, with ``\n`` at the end of each line.

    The encoding is UTF-8, with or without a byte order mark, by default.

    Raises `CorruptFileError` with the position of the first byte that is not valid in the encoding.
    """
    with open_data(path) as file:
        content = file.read()
    try:
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            f"{os.fspath(path)} is not {encoding} text: {error.reason} at byte {error.start:,}; name its encoding, such as latin-1"
        ) from error


def class_labels(labels: np.ndarray, classes: int, where: str) -> np.ndarray:
    """Return labels as int32; raise `DataError` for one beyond `classes`."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise DataError(f"{where}: label {labels[wrong[0]]} at position {wrong[0]:,} is not one of 0 … {classes - 1}")
    return labels.astype(np.int32)


# IDX, the format of MNIST.
#
# Two zero bytes, a byte for the dtype, one for the rank, big-endian sizes, then the elements, big-endian.

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIX = {"train": "train", "test": "t10k"}


def read_idx(path: Path) -> np.ndarray:
    """Read the array in an IDX file, plain or gzipped.

    Dtypes are uint8, int8, int16, int32, float32 and float64.

    Raises `CorruptFileError` if it is not an IDX file, is too short or too long.
    """
    with open_data(path) as file:
        dtype, rank = _parse_magic(path, read_exactly(file, path, 4, "the magic number"))
        sizes = np.frombuffer(read_exactly(file, path, 4 * rank, f"the {rank} sizes"), ">u4").tolist()
        name = f"the data, {dtype.name} of shape {tuple(sizes)},"
        content = read_exactly(file, path, math.prod(sizes) * dtype.itemsize, name)
        expect_end(file, path)
    try:
        values = np.frombuffer(content, dtype).reshape(sizes)
    except ValueError as error:
        raise CorruptFileError(f"{os.fspath(path)}: an array cannot have the shape {tuple(sizes)}: {error}") from error
    return values.astype(dtype.newbyteorder("="), copy=False)


def _parse_magic(path: Path, magic: bytes) -> tuple[np.dtype, int]:
    if magic[:2] != b"\0\0" or magic[2] not in _DTYPES:
        codes = ", ".join(f"{code:02x}" for code in _DTYPES)
        raise CorruptFileError(
            f"{os.fspath(path)} is not an IDX file: it starts with {magic.hex(' ')}, expected 00 00, a dtype (one of {codes}) and the rank"
        )
    return np.dtype(_DTYPES[magic[2]]), magic[3]


class MNIST(ArrayDataset[tuple[Array, Array]]):
    """Handwritten digits (LeCun, Cortes and Burges), or data in files of these names.

    Examples are (image, label): uint8 of shape (1, 28, 28), and int32 from 0 to 9. `split` is "train" (60,000 images) or "test"
    (10,000); `folder` holds the files, plain or with ".gz". `images` and `labels` are the arrays of all examples.
    Raises `CorruptFileError` for a damaged file, `DataError` for files that are missing or do not fit one another.
    """

    def __init__(self, folder: Path, split: Literal["train", "test"] = "train") -> None:
        check_option(split, "MNIST: split", _PREFIX)
        image_path = _find(folder, f"{_PREFIX[split]}-images-idx3-ubyte")
        label_path = _find(folder, f"{_PREFIX[split]}-labels-idx1-ubyte")
        images, labels = _read_bytes(image_path, 3), _read_bytes(label_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{image_path} holds {len(images):,} images, but {label_path} holds {len(labels):,} labels")
        super().__init__(images[:, None], class_labels(labels, 10, label_path))
        self.images, self.labels = self.arrays


def _find(folder: Path, name: str) -> str:
    for candidate in (name, f"{name}.gz"):
        path = os.path.join(folder, candidate)
        if os.path.exists(path):
            return path
    raise DataError(f"{os.fspath(folder)} holds neither {name} nor {name}.gz; give the folder of MNIST's four IDX files")


def _read_bytes(path: str, rank: int) -> np.ndarray:
    """Read an IDX file that must hold bytes and have the given rank."""
    values = read_idx(path)
    if values.dtype != np.uint8 or values.ndim != rank:
        raise DataError(f"{path} should hold uint8 of rank {rank}, but holds {values.dtype} of shape {values.shape}")
    return values


# CIFAR-10, binary format: a label's byte and 3,072 bytes of RGB planes per image.

_RECORD = 1 + 3 * 32 * 32
_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}


class CIFAR10(ArrayDataset[tuple[Array, Array]]):
    """Small photographs of ten kinds of objects (Krizhevsky 2009).

    Examples are (image, label): uint8 of shape (3, 32, 32), and int32 from 0 to 9, which stands for `CIFAR10.classes[label]`.
    `path` is the folder of the binary version's files, with `split` "train" (the default) or "test", or a single file of the format.
    `images` and `labels` are the arrays of all examples. Raises `CorruptFileError` for a damaged file, `DataError` for a missing one
    or a label beyond 9.
    """

    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def __init__(self, path: Path, split: Literal["train", "test"] | None = None) -> None:
        records = [_read_records(file) for file in _files(path, split)]
        super().__init__(*(np.concatenate(arrays) for arrays in zip(*records, strict=True)))
        self.images, self.labels = self.arrays


def _files(path: Path, split: str | None) -> list[str]:
    if not os.path.isdir(path):
        if split is not None:
            raise ArgumentError(f"CIFAR10: split={split!r} chooses among the files of a folder, but {os.fspath(path)} is not a folder")
        return [os.fspath(path)]
    check_option(split, "CIFAR10: split", (None, *_FILES))
    files = [os.path.join(path, name) for name in _FILES[split or "train"]]
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise DataError(f"CIFAR10: {', '.join(missing)} missing; give the folder of the binary version's files, or one of them")
    return files


def _read_records(path: str) -> tuple[np.ndarray, np.ndarray]:
    with open_data(path) as file:
        content = file.read()
    if not content or len(content) % _RECORD:
        raise CorruptFileError(
            f"{path} has {len(content):,} bytes, not a multiple of a record's {_RECORD:,}: truncated, or not CIFAR-10's binary format"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), class_labels(records[:, 0], 10, path)


# Tables from CSV files: columns are arrays, and missing values are never guessed.


class CSV(ArrayDataset):
    r"""A table from a CSV file, plain or gzipped.

    Examples are dicts from column names to numbers.

    `arrays` has the columns. `categories` has, for each column of categories, the names of its numbers (int32).
    Empty lines are skipped; ends of lines within quotes are read as ``\n``.

    Args:
        path: the file.
        columns: names to types, for the columns that are wanted: `float`, `int` or any dtype of theirs, "category" for names that
            are numbered in sorted order, or the sequence of the names. By default all columns, each of ints if all its values
            are, else of floats if all are, else of categories.
        missing: how to treat missing values: "error", "drop" (the row), or a value to use, such as `math.nan`; or a mapping
            from column names to one of those, with "error" for the rest.
        missing_values: the fields that mean a missing value.
        header: whether the first line has the names; or the names, if it has none.
        delimiter: the character between fields.
        encoding: of the file; the default is UTF-8, with or without a byte order mark.

    Raises:
        CorruptFileError: too many or too few fields in a line, broken quotes, bytes that are not of the encoding.
        DataError: a field that is not of its column's type, a missing value, no rows at all; the message names line and column.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+", suffix=".csv") as file:
    ...     _ = file.write("price,rooms,city\n1.5,3,Rome\n,2,Oslo\n")
    ...     file.flush()
    ...     table = vf.data.CSV(file.name, missing={"price": 0.0})
    >>> table[1], table.categories
    ({'price': np.float32(0.0), 'rooms': np.int32(2), 'city': np.int32(0)}, {'city': ('Oslo', 'Rome')})
    """

    categories: dict[str, tuple[str, ...]]

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, Any] | None = None,
        *,
        missing: Any = "error",
        missing_values: Collection[str] = ("",),
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        encoding: str = "utf-8-sig",
    ) -> None:
        table = _read(path, header, delimiter, encoding, frozenset(missing_values))
        kinds: Mapping[str, Any] = dict.fromkeys(table) if columns is None else columns
        fills = dict(missing) if isinstance(missing, Mapping) else dict.fromkeys(kinds, missing)
        _check_names(path, "columns", kinds, table)
        _check_names(path, "missing", fills, kinds)
        chosen = _drop_rows([table[name] for name in kinds], {name for name in kinds if fills.get(name) == "drop"})
        self.categories = {}
        arrays = {column.name: self._array(column, kinds[column.name], fills.get(column.name, "error")) for column in chosen}
        super().__init__(arrays)

    def _array(self, column: _Column, kind: Any, fill: Any) -> np.ndarray:
        """Convert a column to numbers, and record the names of its categories."""
        kind = _inferred(column, fill) if kind is None else kind
        if not isinstance(kind, (list, tuple)) and kind != "category":
            return _numbers(column, dtypes.as_dtype(kind), fill)
        names = column.filled(fill, str)
        self.categories[column.name] = tuple(sorted(set(names)) if kind == "category" else kind)
        codes = {name: code for code, name in enumerate(self.categories[column.name])}
        return np.array([column.parse(codes.__getitem__, i, name, f"one of {kind}") for i, name in enumerate(names)], np.int32)


@dataclass(frozen=True)
class _Column:
    """A column's fields, with None for missing values, and their line numbers."""

    path: str
    name: str
    fields: list[str | None]
    line_numbers: list[int]

    def error(self, row: int, message: str) -> DataError:
        return DataError(f"{self.path}, line {self.line_numbers[row]}, column {self.name!r}: {message}")

    def filled(self, fill: Any, kind: type) -> list[Any]:
        """Return the fields, with `fill`, which must be of that kind, for missing ones."""
        if None not in self.fields:
            return self.fields
        row = self.fields.index(None)
        if isinstance(fill, str) and fill == "error":
            raise self.error(row, f"the value is missing; missing={{{self.name!r}: 'drop'}} drops such rows, any other value replaces it")
        if not isinstance(fill, kind):
            raise self.error(row, f"the value is missing, and {fill!r}, which should replace it, is no {kind.__name__}")
        return [fill if field is None else field for field in self.fields]

    def parse(self, parser: Callable[[Any], Any], row: int, field: Any, expected: str) -> Any:
        """Return `parser(field)`; its error becomes a `DataError` with the position."""
        try:
            return parser(field)
        except (ValueError, KeyError):
            raise self.error(row, f"{field!r} is not {expected}") from None


def _read(path: Path, header: bool | Sequence[str], delimiter: str, encoding: str, missing_values: frozenset[str]) -> dict[str, _Column]:
    line_numbers, rows = _read_rows(path, delimiter, encoding)
    if header is True and rows:
        names, line_numbers, rows = rows[0], line_numbers[1:], rows[1:]
    elif isinstance(header, bool):
        names = [str(i) for i in range(len(rows[0]))] if rows else []
    else:
        names = list(header)
    if not rows:
        raise DataError(f"{os.fspath(path)} has no rows of data")
    if len(set(names)) < len(names):
        raise DataError(f"{os.fspath(path)}: two columns have the same name: {names}")
    for line_no, row in zip(line_numbers, rows, strict=True):
        if len(row) != len(names):
            raise CorruptFileError(f"{os.fspath(path)}, line {line_no}: {len(row)} fields for {len(names)} columns ({', '.join(names)})")
    present = [[None if field in missing_values else field for field in fields] for fields in zip(*rows, strict=True)]
    return {name: _Column(os.fspath(path), name, fields, line_numbers) for name, fields in zip(names, present, strict=True)}


def _read_rows(path: Path, delimiter: str, encoding: str) -> tuple[list[int], list[list[str]]]:
    """Return the line numbers and fields of the rows that are not empty."""
    reader = csv.reader(io.StringIO(read_text(path, encoding)), delimiter=delimiter, strict=True)
    line_numbers, rows, line_no = [], [], 1
    try:
        for row in reader:
            if row:
                line_numbers.append(line_no)
                rows.append(row)
            line_no = reader.line_num + 1
    except csv.Error as error:
        raise CorruptFileError(f"{os.fspath(path)}, line {line_no}: {error}") from error
    return line_numbers, rows


def _check_names(path: Path, argument: str, names: Collection[str], columns: Collection[str]) -> None:
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise ArgumentError(f"CSV: {argument} names {unknown}, but {os.fspath(path)} is read for the columns {list(columns)}")


def _drop_rows(columns: list[_Column], needed: set[str]) -> list[_Column]:
    """Drop the rows in which one of the `needed` columns has no value."""
    lacking = {row for column in columns if column.name in needed for row, field in enumerate(column.fields) if field is None}
    if not lacking:
        return columns
    keep = [row for row in range(len(columns[0].fields)) if row not in lacking]
    if not keep:
        raise DataError(f"{columns[0].path}: every row lacks a value of {sorted(needed)}, so none is left")
    return [_Column(c.path, c.name, [c.fields[row] for row in keep], [c.line_numbers[row] for row in keep]) for c in columns]


def _inferred(column: _Column, fill: Any) -> Any:
    """Return the narrowest of int, float and category for the fields and the `fill`."""
    fields = [str(fill) if field is None else field for field in column.fields if field is not None or fill not in ("error", "drop")]
    for kind, parser in ((int, _integer), (float, _real)):
        try:
            for field in fields:
                parser(field)
        except ValueError:
            continue
        return kind
    return "category"


def _numbers(column: _Column, dtype: np.dtype, fill: Any) -> np.ndarray:
    if dtype in dtypes.FLOATS:
        return _reals(column, dtype, fill)
    if dtype not in dtypes.INTEGERS:
        raise ArgumentError(f"CSV: a column is of floats, ints or categories, but {column.name!r} should be of {dtype}")
    limits = np.iinfo(dtype)
    values = [column.parse(_integer, i, field, "an integer") for i, field in enumerate(column.filled(fill, int))]
    for row, value in enumerate(values):
        if not limits.min <= value <= limits.max:
            raise column.error(row, f"{value} does not fit {dtype}; columns={{{column.name!r}: 'int64'}} has 64 bits")
    return np.array(values, dtype)


def _reals(column: _Column, dtype: np.dtype, fill: Any) -> np.ndarray:
    fill = float(fill) if isinstance(fill, int) else fill
    values = [column.parse(_real, i, field, "a number") for i, field in enumerate(column.filled(fill, float))]
    fields = column.filled(fill, float)
    wide = np.array(values, np.float64)
    for row in np.flatnonzero(np.isinf(wide)).tolist():
        if isinstance(fields[row], str) and "n" not in fields[row].lower():  # digits, and not the word "inf" or "infinity"
            raise column.error(row, f"{fields[row]:.40} does not fit {dtype}")
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    overflown = np.flatnonzero(np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64)))
    if overflown.size:
        raise column.error(int(overflown[0]), f"{values[overflown[0]]} does not fit {dtype}")
    return narrow


def _plain(kind: type, field: Any) -> Any:
    """Convert like Python's `int` or `float`, without underscores between digits."""
    if isinstance(field, str) and "_" in field:
        raise ValueError
    return kind(field)


_integer, _real = functools.partial(_plain, int), functools.partial(_plain, float)
