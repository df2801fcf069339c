"""Ctrl-C in programs that call Python's functions.

A handler that raises at the first instruction of such a function, or after its last one, would end nothing: ctypes prints the exception and
returns an undefined status to the program. So the handler waits while Python is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from volta_fn.interrupts import SIGINT, get_handler, set_handler, valid_signals

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
        if threading.get_ident() != threading.main_thread().ident or not callable(handler := get_handler(SIGINT)):
            return enter(*arrays)

        def handle(number: int, frame: FrameType | None) -> None:
            if _is_protected(frame):
                _waiting.append((handler, number, frame))
            else:
                handler(number, frame)

        set_handler(SIGINT, handle)
        try:
            return _execute(enter, arrays)
        finally:
            set_handler(SIGINT, handler)
            deliver()

    return call


def _is_protected(frame: FrameType | None) -> bool:
    """Tell whether a signal came in protected code.

    It may have been passed on by the handler of another signal that came there.
    """
    if frame is None or frame.f_code in _protected:
        return frame is not None
    handlers = {getattr(get_handler(number), "__code__", None) for number in valid_signals()}
    while frame is not None and frame.f_code in handlers:
        frame = frame.f_back
    return frame is not None and frame.f_code in _protected


def _execute(enter: Callable[..., int], arrays: tuple[Any, ...]) -> int:
    """Execute a program where handlers do not wait, so that they end its loops."""
    return enter(*arrays)
