"""The cache on disk: its folder, and sealed files in it."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from volta_fn.lazy_imports import deferred
from volta_fn.settings import value_of

#: Loaded on first use: they take long to import.
_HASHLIB = deferred("hashlib")
_LOGGING = deferred("logging")

# The folder of the cache on disk, which later processes reuse.
#
# VOLTA_CACHE_DIR names it; the default is ``volta_fn`` in the user's cache folder. An empty VOLTA_CACHE_DIR switches caching off.
#
# The cache holds machine code, so the folder is used only if no other user can have written to it: it and all folders above it belong to
# this user or root, and others cannot write to them (or, above it, cannot replace their entries, as in ``/tmp``). On Windows it must lie in
# the user's profile.


@functools.cache
def cache_dir() -> Path | None:
    """Return the folder; None if caching is off or the folder cannot be trusted.

    A folder that cannot be trusted is logged, once.
    """
    try:
        chosen = os.environ.get("VOLTA_CACHE_DIR")
        if chosen is not None:
            folder = Path(chosen) if chosen else None
        elif sys.platform == "darwin":
            folder = Path.home() / "Library" / "Caches" / "volta_fn"
        elif sys.platform == "win32":
            folder = Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "volta_fn" / "cache"
        else:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "volta_fn"
        fault = None if folder is None else _create(folder)
    except RuntimeError:
        fault = "this user has no home folder"
    except OSError:  # it cannot be created or read
        return None
    if fault is None:
        return folder and Path(os.path.realpath(folder))
    _LOGGING.getLogger("volta_fn").warning(
        "compiled programs are not kept on disk: %s; VOLTA_CACHE_DIR names another folder, or none if it is empty", fault
    )
    return None


def _create(folder: Path) -> str | None:
    """Create the folder unless it exists; return why it cannot be trusted, or None."""
    for missing in [*reversed(folder.parents), folder]:
        if not missing.exists():
            missing.mkdir(0o700, exist_ok=True)
    if sys.platform == "win32":
        return fault_outside_profile(folder)
    first, *above = [Path(os.path.realpath(folder)), *Path(os.path.realpath(folder)).parents]
    fault = fault_of(first.stat(), first)
    return fault or next(filter(None, [fault_of(path.stat(), path) for path in above if not path.stat().st_mode & stat.S_ISVTX]), None)


def fault_outside_profile(folder: Path) -> str | None:
    """Return why other users of Windows may write to a folder, or None."""
    # Python does not read Windows's lists of permissions. Those of a user's profile let no other user but administrators in.
    real = Path(os.path.realpath(folder))
    profiles = [Path(os.path.realpath(profile)) for profile in (os.environ.get("LOCALAPPDATA"), Path.home()) if profile]
    if any(real.is_relative_to(profile) for profile in profiles):
        return None
    return f"{real} is not in this user's profile folder, {profiles[-1]}, so other users may write to it"


def user() -> int | None:
    """Return the number of this process's user; None where users have none."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def fault_of(status: os.stat_result, path: Path) -> str | None:
    """Return why another user may have changed a file or folder, or None."""
    me = user()
    if me is None:
        return None
    if status.st_uid not in (me, 0):
        return f"{path} belongs to user {status.st_uid}, not to {me}"
    is_private_group = status.st_gid == status.st_uid  # where each user has a group with no other members
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not is_private_group):
        return f"users other than {me} can write to {path}"
    return None


# The files of the cache on disk: sealed, private to the user, and bounded.
#
# An entry is a file named by a hash of its key. It begins with a checksum of its name and contents, so that neither a damaged entry nor
# one under another's name is used. Entries are written under another name and then renamed: readers never see incomplete ones.

_MAGIC = b"volta_fn object 4\n"
_DIGEST = 32
_START = len(_MAGIC) + _DIGEST
_TEMPORARY = ".tmp-"
#: Flags with which files are opened: links are not followed, and pipes not waited for.
_OWN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
#: The limit of all entries' bytes, the fraction of it that eviction leaves, and the seconds between two checks.
_LIMIT, _LEFT, _EVICTION_INTERVAL_S = 1 << 30, 0.75, 3600
#: The age in seconds from which a temporary file counts as left behind, and the seconds between two updates of an entry's last use.
_STALE, _NOTED = 3600, 24 * 3600


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    size: int
    #: When it was last used, to a day, in seconds since 1970.
    used: float


def limit() -> int:
    """Return the most bytes of entries: VOLTA_CACHE_BYTES, or 1 GiB."""
    setting: int | None = value_of("VOLTA_CACHE_BYTES")
    return _LIMIT if setting is None else setting


def path_of(folder: Path, name: str) -> Path:
    """Return the file of an entry."""
    # In one of 16 folders, as making a folder takes longer than making a file.
    return folder / name[:1] / name


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | _OWN_FILE, 0o600)


def read(folder: Path, name: str) -> bytes | None:
    """Return the contents of an entry; None if there is none.

    An entry is deleted that is damaged, or that others could have written.
    """
    path = path_of(folder, name)
    try:
        with open(path, "rb", opener=_open_own) as file:
            status = os.fstat(file.fileno())
            data = file.read() if stat.S_ISREG(status.st_mode) and fault_of(status, path) is None else b""
    except FileNotFoundError:
        return None
    except OSError:  # a link or a folder
        delete(path)
        return None
    if not (data.startswith(_MAGIC) and _digest(name, data[_START:]) == data[len(_MAGIC) : _START]):
        delete(path)
        return None
    if time.time() - status.st_mtime > _NOTED:
        with contextlib.suppress(OSError):
            os.utime(path)
    return data[_START:]


def write(folder: Path, name: str, contents: bytes) -> None:
    """Write an entry, if there are room and permission for it."""
    target = path_of(folder, name)
    temporary = target.with_name(f"{_TEMPORARY}{os.urandom(8).hex()}")
    with contextlib.suppress(OSError):
        if not os.path.isdir(target.parent):
            target.parent.mkdir(0o700, parents=True, exist_ok=True)
        try:
            with open(temporary, "xb", opener=_open_own) as file:
                file.write(_MAGIC + _digest(name, contents) + contents)
            os.replace(temporary, target)
        except BaseException:
            delete(temporary)
            raise
        _evict_sometimes(folder)


def _digest(name: str, contents: bytes) -> bytes:
    return _HASHLIB.sha256(name.encode() + b"\n" + contents).digest()


def delete(path: Path) -> None:
    """Delete an entry, if that is permitted."""
    with contextlib.suppress(OSError):
        path.unlink()


def entries(folder: Path) -> Iterator[Entry]:
    """Yield the entries in the folder, those of processes that still write too."""
    for path in (*folder.glob("[0-9a-f]/*"), *folder.glob("[0-9a-f][0-9a-f]/*")):  # the latter are of earlier versions
        with contextlib.suppress(OSError):  # another process has deleted it
            status = path.lstat()
            yield Entry(path, status.st_size, status.st_mtime)


def is_temporary(entry: Entry) -> bool:
    """Return True for a file that a process is writing, or left unfinished."""
    return entry.path.name.startswith(_TEMPORARY)


def evict(folder: Path, most: int) -> None:
    """Delete the least recently used entries if all take more than `most` bytes."""
    files = sorted(entries(folder), key=lambda entry: entry.used)
    total, now = sum(entry.size for entry in files), time.time()
    goal = _LEFT * most if total > most else most
    for entry in files:
        if is_temporary(entry) and now - entry.used > _STALE:
            delete(entry.path)
        elif total > goal and not is_temporary(entry):
            delete(entry.path)
            total -= entry.size


def _evict_sometimes(folder: Path) -> None:
    """Evict entries, unless a process has done so recently."""
    mark = folder / "looked"
    with contextlib.suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime < _EVICTION_INTERVAL_S:
            return
    mark.touch(0o600)
    evict(folder, limit())


# The state of the package, which is part of the key of everything that it compiles.

#: Seconds after which writing a file again changes its time.
_SETTLED = 2.0


def sources_digest(root: Path, folder: Path | None) -> str:
    """Hash the sources of a package, and the data beside them, by their contents."""
    # Reading them takes a while, so the hash is kept in the cache folder, by what changes whenever a file is written or replaced: its
    # number and the time of its last change (which, unlike that of its contents, cannot be set). Windows has its creation instead.
    folder = None if sys.platform == "win32" else folder
    files, newest = [], 0.0
    for directory, _, names in os.walk(root):
        for path in [os.path.join(directory, name) for name in names if name.endswith((".py", ".json"))]:
            status = os.stat(path)
            newest = max(newest, status.st_ctime)
            files.append((path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    name = _HASHLIB.sha256(repr(sorted(files)).encode()).hexdigest()
    cached = None if folder is None else read(folder, name)
    if cached is not None:
        return cached.decode()
    digest = _HASHLIB.sha256()
    for path, *_ in sorted(files):
        with open(path, "rb", 0) as file:
            content = file.read()
        digest.update(f"{path.removeprefix(str(root))} {len(content)}\n".encode() + content)
    if folder is not None and time.time() - newest > _SETTLED:
        write(folder, name, digest.hexdigest().encode())
    return digest.hexdigest()
