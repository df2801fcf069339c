"""Machine code kept on disk, so that a later process need not compile it again.

An entry is a file named by a hash of what it was compiled from: the routine, this package's version, the compiler's and the CPU. It holds a
checksum, so that a damaged entry is noticed, deleted and made anew, and what the runtime must know beside the code. Entries are
written under another name and then renamed: readers see whole ones only. The folder is VOLTA_CACHE_DIR, else ``volta_fn`` in the user's
cache folder; VOLTA_CACHE_DIR set to nothing keeps nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from volta_fn.backends.native.llvm.host import host, llvm

_MAGIC = b"volta_fn object 1\n"
_DIGEST = 32


class Compiled(NamedTuple):
    """A routine's object code, with its phases (symbol, tasks, cost) and the size of its workspace."""

    code: bytes
    phases: tuple[tuple[str, int, float], ...]
    workspace: int


@functools.cache
def folder() -> Path | None:
    """Where entries are, or None if none are kept."""
    chosen = os.environ.get("VOLTA_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "volta_fn"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "volta_fn" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "volta_fn"


@functools.cache
def _circumstances() -> bytes:
    try:
        version = importlib.metadata.version("volta-fn")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return repr((version, _sources(), llvm().llvm_version_info, host())).encode()


def _sources() -> str:
    """A hash of the code that writes machine code: an entry is of no use to another state of it."""
    root = Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        stat = path.stat()
        found.update(f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return found.hexdigest()


def name_of(key: str) -> str:
    """The name of the entry of a routine."""
    return hashlib.sha256(_circumstances() + b"\0" + key.encode()).hexdigest()


def read(name: str) -> Compiled | None:
    """An entry, or None if there is none that is whole; a damaged one is deleted."""
    where = folder()
    if where is None:
        return None
    path = where / name[:2] / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    found = _parsed(data)
    if found is None:
        with contextlib.suppress(OSError):
            path.unlink()
    return found


def _parsed(data: bytes) -> Compiled | None:
    start = len(_MAGIC) + _DIGEST
    if not data.startswith(_MAGIC) or hashlib.sha256(data[start:]).digest() != data[len(_MAGIC) : start]:
        return None
    header, _, code = data[start:].partition(b"\n")
    said: dict[str, Any] = json.loads(header)
    return Compiled(code, tuple([(s, t, c) for s, t, c in said["phases"]]), said["workspace"])


def write(name: str, compiled: Compiled) -> None:
    """Keep an entry; where that is impossible (no room, no right to write) nothing is kept."""
    where = folder()
    if where is None:
        return
    header = json.dumps({"phases": compiled.phases, "workspace": compiled.workspace}).encode()
    body = header + b"\n" + compiled.code
    target = where / name[:2]
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, target / name)
