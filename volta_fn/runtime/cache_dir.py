"""The folder in which targets cache what later processes can reuse.

VOLTA_CACHE_DIR names it; the default is ``volta_fn`` in the user's cache folder. An empty VOLTA_CACHE_DIR switches caching off.

What is cached is machine code, so the folder is used only if no other user could have put something there: it, and all folders above it,
belong to this user or root, and others cannot write to them (or, above it, not replace what is in them, as in ``/tmp``).
"""

from __future__ import annotations

import functools
import logging
import os
import stat
import sys
from pathlib import Path

_log = logging.getLogger("volta_fn")


@functools.cache
def cache_dir() -> Path | None:
    """Return the folder; None if caching is off or the folder cannot be trusted.

    A folder that cannot be trusted is logged, once.
    """
    try:
        folder = _chosen()
        fault = None if folder is None else _made(folder)
    except RuntimeError:
        fault = "this user has no home folder"
    except OSError:  # it cannot be made or read
        return None
    if fault is None:
        return folder and Path(os.path.realpath(folder))
    _log.warning("compiled programs are not kept on disk: %s; VOLTA_CACHE_DIR names another folder, or none if it is empty", fault)
    return None


def _chosen() -> Path | None:
    chosen = os.environ.get("VOLTA_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "volta_fn"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "volta_fn" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "volta_fn"


def _made(folder: Path) -> str | None:
    """Make the folder if need be; return why it cannot be trusted, or None."""
    for missing in [*reversed(folder.parents), folder]:
        if not missing.exists():
            missing.mkdir(0o700, exist_ok=True)
    first, *above = [Path(os.path.realpath(folder)), *Path(os.path.realpath(folder)).parents]
    found = fault_of(first.stat(), first)
    return found or next(filter(None, [fault_of(path.stat(), path) for path in above if not path.stat().st_mode & stat.S_ISVTX]), None)


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
    own_group = status.st_gid == status.st_uid  # which has this user alone, where users have groups of their own
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not own_group):
        return f"users other than {me} can write to {path}"
    return None
