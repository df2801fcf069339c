"""The cache of compiled programs on disk, and a command for it.

``python -m volta_fn.cache [show | verify | clear]``: `show` prints its folder and size, `verify` checks every entry and
deletes those that are damaged or that another user could have written, and `clear` deletes all. VOLTA_CACHE_DIR names the folder,
VOLTA_CACHE_BYTES limits it (default: 1 GiB).

>>> from volta_fn import cache
>>> cache.show().entries >= 0
True
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir
from volta_fn.signals import run

__all__ = ["CacheState", "clear", "show", "verify"]


class CacheState(NamedTuple):
    """The cache on disk."""

    #: The folder; None if there is none, or other users can write to it.
    folder: Path | None
    entries: int
    bytes: int
    #: The most bytes that entries may take.
    limit: int


def show() -> CacheState:
    """Return the folder, the number of entries, and the size of the cache."""
    folder = cache_dir()
    files = [] if folder is None else list(caches.entries(folder))
    return CacheState(folder, len(files), sum(entry.size for entry in files), caches.limit())


def verify() -> list[Path]:
    """Check every entry, delete those that must not be used, and return their paths."""
    folder = cache_dir()
    if folder is None:
        return []
    paths = [entry.path for entry in caches.entries(folder) if not caches.is_temporary(entry)]
    return [path for path in paths if caches.read(folder, path.name) is None]


def clear() -> CacheState:
    """Delete all entries, and return the state of the cache afterwards."""
    folder = cache_dir()
    for entry in [] if folder is None else list(caches.entries(folder)):
        caches.delete(entry.path)
    return show()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m volta_fn.cache", description="Show, verify or clear the cache of compiled programs.")
    parser.add_argument("command", nargs="?", choices=["show", "verify", "clear"], default="show")
    command = parser.parse_args().command
    if command == "verify":
        for path in verify():
            print(f"deleted {path}")
    state = clear() if command == "clear" else show()
    print(f"{state.folder or 'no folder'}: {state.entries} entries, {state.bytes:,} of {state.limit:,} bytes")


if __name__ == "__main__":
    run(main)
