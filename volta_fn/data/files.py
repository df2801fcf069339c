"""Reading files of data: plain ones and gzip's, and never more of them than was asked for, so that a damaged header costs nothing."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias

import numpy as np

from volta_fn.errors import CorruptFileError, DataError

Path: TypeAlias = str | os.PathLike[str]

_CHUNK = 1 << 22


@contextlib.contextmanager
def open_data(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed if gzip made it, which its first two bytes tell.

    Raises `CorruptFileError` if the compressed data are damaged or end too soon, OSError if the file cannot be opened.
    """
    with open(path, "rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as content:
                yield content  # type: ignore[misc]  # it reads like a BinaryIO, though no subclass of it
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptFileError(f"{os.fspath(path)}: the gzip file is damaged or cut off: {error}") from error


def read_exactly(file: BinaryIO, path: Path, count: int, what: str) -> bytes:
    """The next `count` bytes; `CorruptFileError`, naming them as `what`, if the file ends before."""
    content = bytearray()
    while len(content) < count and (chunk := file.read(min(count - len(content), _CHUNK))):
        content += chunk
    if len(content) < count:
        raise CorruptFileError(f"{os.fspath(path)} is cut off: {what} should take {count:,} bytes, but only {len(content):,} are left")
    return bytes(content)


def expect_end(file: BinaryIO, path: Path) -> None:
    """`CorruptFileError` if there is more in the file."""
    if file.read(1):
        raise CorruptFileError(f"{os.fspath(path)} goes on where it should end; its header does not fit its contents")


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """The text of a file, plain or gzipped, with every end of a line as ``\\n``; UTF-8 (with or without its mark) unless told otherwise.

    Raises `CorruptFileError` with the place of the first byte that is none of the encoding's.
    """
    with open_data(path) as file:
        content = file.read()
    try:
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            f"{os.fspath(path)} is no {encoding} text: {error.reason} at byte {error.start:,}; name its encoding, such as latin-1"
        ) from error


def class_labels(labels: np.ndarray, classes: int, where: str) -> np.ndarray:
    """Labels as int32; `DataError` for the first that is not in 0 … classes - 1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise DataError(f"{where}: label {labels[wrong[0]]} at position {wrong[0]:,} is not one of 0 … {classes - 1}")
    return labels.astype(np.int32)
