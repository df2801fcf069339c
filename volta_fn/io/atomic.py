"""Atomic writes: write a temporary file, flush it to the disk, rename it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from volta_fn.errors import SerializationError

_SUFFIX = ".tmp"
_TEMPORARY = re.compile(rf"\.(.+)\.[0-9a-f]{{8}}{re.escape(_SUFFIX)}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` unless the block raises.

    Raises `SerializationError` if it cannot be written.
    """
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
    """Remove temporary files for files of such names that killed processes left.

    No other process may be writing.
    """
    for leftover in directory.glob(f".*{_SUFFIX}"):
        found = _TEMPORARY.fullmatch(leftover.name)
        if found and names.fullmatch(found[1]) and leftover.is_file():
            leftover.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
