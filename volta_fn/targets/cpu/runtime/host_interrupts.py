"""Ctrl-C in programs that call Python's functions.

A handler that raises at the first instruction of such a function, or after its last one, would end nothing: ctypes prints the exception and
returns an undefined status to the program. So the handler waits while Python is there.
"""

from __future__ import annotations

# Its functions look no handler up in an enumeration, as those of `signal` do: 0.5 µs instead of 8 µs.
import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

#: The code in which the handler waits.
_protected: set[CodeType] = set()
#: Handlers that wait in the main thread, with their arguments.
_waiting: list[tuple[Callable[..., Any], int, FrameType | None]] = []


def protected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have handlers wait while this function runs, but not those it calls."""
    _protected.add(function.__code__)
    return function


def deliver() -> None:
    """Call the handlers that wait."""
    while _waiting:
        handler, number, frame = _waiting.pop()
        handler(number, frame)


def interruptible(enter: Callable[..., int]) -> Callable[..., int]:
    """Return an entry of a program with calls of Python, which Ctrl-C ends."""

    @protected
    def call(*arrays: Any) -> int:
        if threading.get_ident() != threading.main_thread().ident or not callable(handler := _signal.getsignal(_signal.SIGINT)):
            return enter(*arrays)

        def handle(number: int, frame: FrameType | None) -> None:
            if frame is not None and frame.f_code in _protected:
                _waiting.append((handler, number, frame))
            else:
                handler(number, frame)

        _signal.signal(_signal.SIGINT, handle)
        try:
            return _execute(enter, arrays)
        finally:
            _signal.signal(_signal.SIGINT, handler)
            deliver()

    return call


def _execute(enter: Callable[..., int], arrays: tuple[Any, ...]) -> int:
    """Execute a program in a frame in which handlers do not wait.

    So they end its loops.
    """
    return enter(*arrays)
