"""The folder in which targets keep what later processes need not make again.

It is VOLTA_CACHE_DIR, else ``volta_fn`` in the user's cache folder; VOLTA_CACHE_DIR set to nothing keeps nothing.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path


@functools.cache
def folder() -> Path | None:
    """The folder, which need not exist; None if nothing is kept."""
    chosen = os.environ.get("VOLTA_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "volta_fn"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "volta_fn" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "volta_fn"
