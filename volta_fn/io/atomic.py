"""Files that appear whole or not at all: written under another name beside the final one, forced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".tmp"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what is written there becomes the file `path` when the block ends, and is removed if it raises."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        yield temporary
        _to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere directories cannot be opened, and renaming is left to the system
        _to_disk(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(directory: Path) -> None:
    """Remove what killed processes have left half written. Nobody else may be writing there."""
    for leftover in directory.glob(f".*{_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
