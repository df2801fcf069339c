"""The disk cache of the CPU.

A process keeps the entries that it has loaded in memory. There are three kinds of entries, each a file named by a hash of its key, the
state of this package, the versions of what it uses, and the CPU:

- an *object*: the machine code of one routine, by the routine's key (the process also keeps it loaded by key), or of a function
  that routines share, by its name, so that another program with the same kernel need not compile it;
- the *support code*: pool and executor (`support_code_of_process`);
- a *program*: its commands with all objects, by the fingerprint of the traced program (`artifact.py`), so that a process that has the same
  program need not lower it. One read loads it, instead of one for each of its routines.

An entry holds a row of JSON and bytes. The row begins with the CPU that the entry is for, although the hash of its name has it,
too: a file that came by its name in another way must not run on another CPU. `runtime.caches` keeps entries from damage and from other
users.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.lazy_imports import is_installed
from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir, sources_digest
from volta_fn.runtime.llvm.host import host, llvm

T = TypeVar("T")


class CompiledLaunch(NamedTuple):
    """A launch (`targets.cpu.routine.Launch`) by its symbol in an object."""

    symbol: str
    tasks: int
    cost: float
    restores: bool


class Compiled(NamedTuple):
    """A routine's object code, launches and workspace."""

    code: bytes
    launches: tuple[CompiledLaunch, ...] = ()
    workspace: int = 0
    #: The names of the entries of functions that it shares with others.
    shared: tuple[str, ...] = ()


@functools.cache
def _circumstances() -> bytes:
    versions = (sys.version, np.__version__, ml_dtypes.__version__, llvm().llvm_version_info, is_installed("scipy"))
    return repr((sources_digest(Path(__file__).parents[3], cache_dir()), versions, host())).encode()


def name_of(key: str) -> str:
    """Return the name of the entry for a key."""
    return hashlib.sha256(_circumstances() + b"\0" + key.encode()).hexdigest()


def _cpu() -> str:
    return f"{host().cpu} {host().vector_bytes}"


def read(name: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return an entry, parsed from its header and bytes; None if it is missing."""
    where = cache_dir()
    data = None if where is None else caches.read(where, name)
    if where is None or data is None:
        return None
    line, _, content = data.partition(b"\n")
    with contextlib.suppress(LookupError, TypeError, ValueError):  # an intact entry in another format
        cpu, header = json.loads(line)
        if cpu == _cpu():
            return parse(header, content)
    caches.delete(where / name[:2] / name)
    return None


def write(name: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    where = cache_dir()
    if where is not None:
        caches.write(where, name, b"".join([json.dumps([_cpu(), header]).encode(), b"\n", *contents]))


def read_compiled(name: str) -> Compiled | None:
    """Return a routine from the disk, or None."""

    def parse(header: Any, code: bytes) -> Compiled:
        launches = tuple([CompiledLaunch(*launch) for launch in header["launches"]])
        return Compiled(code, launches, header["workspace"], tuple(header["shared"]))

    return read(name, parse)


def write_compiled(name: str, compiled: Compiled) -> None:
    """Write a routine to the disk."""
    header = {"launches": compiled.launches, "workspace": compiled.workspace, "shared": compiled.shared}
    write(name, header, [compiled.code])
