"""The folder in which targets cache what later processes can reuse.

VOLTA_CACHE_DIR names it; the default is ``volta_fn`` in the user's cache folder. An empty VOLTA_CACHE_DIR switches caching off.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path


@functools.cache
def cache_dir() -> Path | None:
    """Return the folder, which may not exist yet; None if caching is off."""
    chosen = os.environ.get("VOLTA_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "volta_fn"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "volta_fn" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "volta_fn"
