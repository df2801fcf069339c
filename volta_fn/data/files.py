"""Read data files, plain or gzipped, and never more bytes than expected."""

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
#: A gzip file may expand to so many times its size, and to so many bytes in any case. Data compress 3 to 30 times, and nothing but the same
#: byte over and over, as in a file that is to fill the memory, a thousand times.
_EXPANSION, _ALWAYS = 64, 1 << 22


class _Bounded(gzip.GzipFile):
    """A gzip file that does not expand beyond `_EXPANSION`."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(fileobj=file)
        self._path, self._most = path, max(_ALWAYS, _EXPANSION * os.fstat(file.fileno()).st_size)

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes; raise `CorruptFileError` if there are too many."""
        left = self._most - self.tell() + 1
        content = super().read(left if size is None or size < 0 else min(size, left))
        if len(content) == left:
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
