"""Let traces nest deeper than the frames that Python allows by default."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: The frames that a level of nested traces is allowed, the levels that have them now, and the most that get them: functions that call
#: themselves for ever end in a RecursionError.
_FRAMES, _MOST_LEVELS = 16, 300
_levels = 0
_lock = threading.Lock()


@contextmanager
def deeper() -> Iterator[None]:
    """Allow the frames of a trace, about ten, in addition to those of its caller."""
    global _levels
    with _lock:
        allowed = _levels < _MOST_LEVELS
        if allowed:
            _levels += 1
            sys.setrecursionlimit(sys.getrecursionlimit() + _FRAMES)
    try:
        yield
    finally:
        if allowed:
            with _lock:
                _levels -= 1
                sys.setrecursionlimit(sys.getrecursionlimit() - _FRAMES)
