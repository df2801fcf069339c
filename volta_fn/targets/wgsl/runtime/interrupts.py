"""Ctrl-C at times when it does no harm.

An exception between two statements would lose commands of earlier steps that are being submitted, and one in a function that the library
calls back is swallowed. So Ctrl-C is held back meanwhile, and its handler is called afterwards.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from volta_fn.lazy_imports import load

#: What is behind the functions of `signal`. Those look every handler up in an enumeration, in vain: 8 µs in place of half a microsecond.
_plain: Any = load("_signal")


class HeldBack:
    """``with held_back:`` holds Ctrl-C back until the end. It may be nested; in other threads than the main one nothing is to be done."""

    def __init__(self) -> None:
        self.depth = 0
        self.handler: Any = None
        self.pending: tuple[int, FrameType | None] | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = (number, frame)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if not self.depth and callable(_plain.getsignal(signal.SIGINT)):
            self.handler = _plain.signal(signal.SIGINT, self._note)
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth -= 1
        if not self.depth and self.handler is not None:
            handler, self.handler = self.handler, None
            _plain.signal(signal.SIGINT, handler)
            if self.pending is not None:
                self._deliver(handler)

    def let_through(self) -> None:
        """Call the handler now if Ctrl-C was pressed: for loops that wait."""
        if self.pending is not None and threading.current_thread() is threading.main_thread():
            self._deliver(self.handler or _plain.getsignal(signal.SIGINT))

    def _deliver(self, handler: Any) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            handler(*pending)


#: The process has one Ctrl-C.
held_back = HeldBack()


class Lock:
    """A reentrant lock, within which Ctrl-C is held back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        held_back.__enter__()
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()
        held_back.__exit__()

    def keep(self, timeout: float) -> bool:
        """Take the lock for good, if nobody else holds it for so many seconds."""
        return self._lock.acquire(timeout=timeout)
