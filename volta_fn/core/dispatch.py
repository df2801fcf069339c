"""Finding functions by the types of arrays, in machine code where there is some.

An eager call looks up what to run by the specs of its arrays. In Python that takes longer than adding a thousand numbers. The CPU's
machine code brings a built-in for it, when the first program is compiled; until then, and without it, Python's own lookups serve.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: Runs what a dict has for the specs of the arguments, as a tuple; for arguments of another kind, or while tracing, the second function.
Finder = Callable[..., Any]
MakeFinder = Callable[[dict[Any, Callable[..., Any]], Callable[..., Any]], Finder]

_lock = threading.Lock()
_make: MakeFinder | None = None
_waiting: list[Callable[[MakeFinder], None]] = []


def when_available(install: Callable[[MakeFinder], None]) -> None:
    """Call `install` with the maker of finders, as soon as there is one."""
    with _lock:
        if _make is None:
            _waiting.append(install)
            return
    install(_make)


def provide(make: MakeFinder) -> None:
    """Give the maker of finders to all who wait for it."""
    global _make
    with _lock:
        _make = make
        waiting = _waiting[:]
        _waiting.clear()
    for install in waiting:
        install(make)
