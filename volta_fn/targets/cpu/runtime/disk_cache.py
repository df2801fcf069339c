"""The cache on disk, of which the process keeps in memory what it has loaded.

There are three kinds of entries, each a file named by a hash of its key, the state of this package, the versions of what it uses, and the
CPU:

- an *object*: the machine code of one routine, by the routine's key (`code_cache`, which also keeps it loaded by key), or of a function
  that routines share, by its name, so that another program with the same kernel need not compile it;
- the *support code*: pool and executor (`support_code`);
- a *program*: its commands with all objects, by the text of the traced program (`program_cache`), so that a process that has the same
  program need not lower it. It loads in one read what would take as many as it has routines.

An entry holds a checksum, so that a damaged one is noticed, deleted and made anew, a row of JSON, and bytes. Entries are written under
another name and then renamed: readers never see incomplete ones.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.lazy_imports import is_installed
from volta_fn.runtime.cache_dir import cache_dir
from volta_fn.runtime.llvm.host import host, llvm

T = TypeVar("T")
_MAGIC = b"volta_fn object 3\n"
_DIGEST = 32
_START = len(_MAGIC) + _DIGEST


class Compiled(NamedTuple):
    """A routine's object code, launches, workspace and shared code.

    A launch is (symbol, tasks, cost); shared code is by entries' names.
    """

    code: bytes
    launches: tuple[tuple[str, int, float], ...] = ()
    workspace: int = 0
    shared: tuple[str, ...] = ()


@functools.cache
def _circumstances() -> bytes:
    versions = (sys.version, np.__version__, ml_dtypes.__version__, llvm().llvm_version_info, is_installed("scipy"))
    return repr((_sources(), versions, host())).encode()


def _sources() -> str:
    """Hash this package's files by names, sizes and times."""
    root, found = str(Path(__file__).parents[3]), []
    for directory, _, names in os.walk(root):
        for path in [os.path.join(directory, name) for name in names if name.endswith(".py")]:
            stat = os.stat(path)
            found.append(f"{path.removeprefix(root)} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def name_of(key: str) -> str:
    """Return the name of the entry for a key."""
    return hashlib.sha256(_circumstances() + b"\0" + key.encode()).hexdigest()


def read(name: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return what `parse` makes of an entry's header and bytes; None if there is none.

    A damaged entry is deleted.
    """
    where = cache_dir()
    if where is None:
        return None
    path = where / name[:2] / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if data.startswith(_MAGIC) and hashlib.sha256(data[_START:]).digest() == data[len(_MAGIC) : _START]:
        header, _, content = data[_START:].partition(b"\n")
        with contextlib.suppress(LookupError, TypeError, ValueError):  # it is intact, and of something else
            return parse(json.loads(header), content)
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def write(name: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    where = cache_dir()
    if where is None:
        return
    body = b"".join([json.dumps(header).encode(), b"\n", *contents])
    target = where / name[:2]
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, target / name)


def read_compiled(name: str) -> Compiled | None:
    """Return a routine from the disk, or None."""

    def parse(said: Any, code: bytes) -> Compiled:
        return Compiled(code, tuple([(s, t, c) for s, t, c in said["launches"]]), said["workspace"], tuple(said["shared"]))

    return read(name, parse)


def write_compiled(name: str, compiled: Compiled) -> None:
    """Write a routine to the disk."""
    header = {"launches": compiled.launches, "workspace": compiled.workspace, "shared": compiled.shared}
    write(name, header, [compiled.code])
