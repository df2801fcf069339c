"""Entries of the cache on disk that hold a row of JSON, arrays and other bytes.

An entry is a file of `runtime.caches`, named by a hash of its key and of the *circumstances*: the state of this package and the versions of
what it uses. The row begins with what the entry is for, such as a CPU, although the hash of its name has it, too: a file that came by its
name in another way must not be used elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.dtypes import ALL
from volta_fn.lazy_imports import is_installed
from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir, sources_digest

T = TypeVar("T")


@functools.cache
def circumstances() -> tuple[Any, ...]:
    """Return the state of this package, and the versions of what its compiler uses."""
    versions = sys.version, np.__version__, ml_dtypes.__version__, is_installed("scipy")
    return sources_digest(Path(__file__).parents[1], cache_dir()), *versions


def name_of(kind: Sequence[Any], key: str) -> str:
    """Return the name of the entry for a key, of a kind: for what it is."""
    return hashlib.sha256(f"{(*circumstances(), *kind)!r}\0{key}".encode()).hexdigest()


def read(folder: Path | None, name: str, purpose: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return an entry, parsed from its header and bytes; None if it is missing.

    It is deleted if it has another purpose or format.
    """
    data = None if folder is None else caches.read(folder, name)
    if folder is None or data is None:
        return None
    line, _, content = data.partition(b"\n")
    with contextlib.suppress(LookupError, TypeError, ValueError):  # an intact entry in another format
        actual, header = json.loads(line)
        if actual == purpose:
            return parse(header, content)
    caches.delete(folder / name[:2] / name)
    return None


def write(folder: Path | None, name: str, purpose: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    if folder is not None:
        caches.write(folder, name, b"".join([json.dumps([purpose, header]).encode(), b"\n", *contents]))


# Arrays in entries.
#
# Large constants that the traced program has too are not in the entry but are named by their numbers.

#: Larger constants are not written if the traced program has them; programs with more bytes of others are not written.
SMALL, LARGEST = 4096, 1 << 26
DTYPES = {dtype.name: dtype for dtype in ALL}


class NotCacheable(Exception):
    """A program has too many constants, or uncommon ones."""


def dtype_name(dtype: np.dtype) -> str:
    """Return the name of a dtype; raise `NotCacheable` for an uncommon one."""
    if dtype.name not in DTYPES:
        raise NotCacheable
    return dtype.name


class Contents:
    """The bytes of an entry, in the order in which they are written."""

    def __init__(self, constants: Sequence[Any]) -> None:
        """Take the traced program's constants: arrays, or buffers known by identity."""
        self.constants = {_identity(buffer): number for number, buffer in enumerate(constants) if _is_contiguous(buffer)}
        self.parts: list[bytes] = []
        self.size = 0

    def array(self, array: Any) -> Any:
        """Write an array, or the number of a constant; return its description."""
        is_array = isinstance(array, np.ndarray)
        if not is_array or (array.nbytes > SMALL and _is_contiguous(array)):
            number = self.constants.get(_identity(array))
            if number is not None:
                return number
        if not is_array:
            raise NotCacheable
        self.size += array.nbytes
        if self.size > LARGEST:
            raise NotCacheable
        self.parts.append(array.tobytes())
        return [dtype_name(array.dtype), array.shape]


def _is_contiguous(buffer: Any) -> bool:
    return not isinstance(buffer, np.ndarray) or buffer.flags.c_contiguous


def _identity(buffer: Any) -> Any:
    return (buffer.ctypes.data, buffer.dtype, buffer.shape) if isinstance(buffer, np.ndarray) else id(buffer)


class Reader:
    """An entry's bytes, read from the front."""

    def __init__(self, content: bytes, constants: Sequence[Any]) -> None:
        """Take the bytes, and the buffers of the traced program's constants."""
        self.content = content
        self.constants = constants
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        self.position += size
        return self.content[self.position - size : self.position]

    def array(self, description: Any) -> Any:
        """Return an array, or a constant's buffer, by its description in the header."""
        if isinstance(description, int):
            return self.constants[description]
        dtype, shape = DTYPES[description[0]], tuple(description[1])
        return np.ndarray(shape, dtype, bytearray(self.take(math.prod(shape) * dtype.itemsize)))
