"""The cache on disk, of which the process keeps in memory what it has loaded.

There are three kinds of entries, each a file named by a hash of its key, the state of this package, the versions of what it uses, and the
CPU:

- an *object*: the machine code of one routine, by the routine's key (`code_cache`, which also keeps it loaded by key), or of a function
  that routines share, by its name, so that another program with the same kernel need not compile it;
- the *support code*: pool and executor (`support_code`);
- a *program*: its commands with all objects, by the text of the traced program (`program_cache`), so that a process that has the same
  program need not lower it. It loads in one read what would take as many as it has routines.

An entry holds the CPU that it is for, a row of JSON, and bytes; `runtime.cache_entries` keeps it from damage and from other users.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.lazy_imports import is_installed
from volta_fn.runtime import cache_entries
from volta_fn.runtime.cache_dir import cache_dir
from volta_fn.runtime.llvm.host import host, llvm

T = TypeVar("T")
#: Seconds after which a file that is written again has another time.
_SETTLED = 2.0


class Compiled(NamedTuple):
    """A routine's object code, launches, workspace and shared code.

    A launch is (symbol, tasks, cost, whether it restores); shared code is by entries' names.
    """

    code: bytes
    launches: tuple[tuple[str, int, float, bool], ...] = ()
    workspace: int = 0
    shared: tuple[str, ...] = ()


@functools.cache
def _circumstances() -> bytes:
    versions = (sys.version, np.__version__, ml_dtypes.__version__, llvm().llvm_version_info, is_installed("scipy"))
    return repr((sources_digest(Path(__file__).parents[3], cache_dir()), versions, host())).encode()


def sources_digest(root: Path, folder: Path | None) -> str:
    """Hash the sources of a package by their contents.

    Reading them takes a while, so the hash is kept in the cache folder, by what changes whenever a file is written or replaced: its number
    and the time of its last change (which, unlike that of its contents, cannot be set).
    """
    found, newest = [], 0.0
    for directory, _, names in os.walk(root):
        for path in [os.path.join(directory, name) for name in names if name.endswith(".py")]:
            status = os.stat(path)
            newest = max(newest, status.st_ctime)
            found.append((path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    name = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()
    known = None if folder is None else cache_entries.read(folder, name)
    if known is not None:
        return known.decode()
    digest = hashlib.sha256()
    for path, *_ in sorted(found):
        content = Path(path).read_bytes()
        digest.update(f"{path.removeprefix(str(root))} {len(content)}\n".encode() + content)
    if folder is not None and time.time() - newest > _SETTLED:
        cache_entries.write(folder, name, digest.hexdigest().encode())
    return digest.hexdigest()


def name_of(key: str) -> str:
    """Return the name of the entry for a key."""
    return hashlib.sha256(_circumstances() + b"\0" + key.encode()).hexdigest()


def _cpu() -> str:
    return f"{host().cpu} {host().vector_bytes}"


def read(name: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return what `parse` makes of an entry's header and bytes; None if there is none."""
    where = cache_dir()
    data = None if where is None else cache_entries.read(where, name)
    if where is None or data is None:
        return None
    header, _, content = data.partition(b"\n")
    with contextlib.suppress(LookupError, TypeError, ValueError):  # it is intact, and of something else
        cpu, said = json.loads(header)
        if cpu == _cpu():
            return parse(said, content)
    cache_entries.delete(where / name[:2] / name)
    return None


def write(name: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    where = cache_dir()
    if where is not None:
        cache_entries.write(where, name, b"".join([json.dumps([_cpu(), header]).encode(), b"\n", *contents]))


def read_compiled(name: str) -> Compiled | None:
    """Return a routine from the disk, or None."""

    def parse(said: Any, code: bytes) -> Compiled:
        return Compiled(code, tuple([(s, t, c, r) for s, t, c, r in said["launches"]]), said["workspace"], tuple(said["shared"]))

    return read(name, parse)


def write_compiled(name: str, compiled: Compiled) -> None:
    """Write a routine to the disk."""
    header = {"launches": compiled.launches, "workspace": compiled.workspace, "shared": compiled.shared}
    write(name, header, [compiled.code])
