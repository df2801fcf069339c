"""Deferred Ctrl-C, and commands whose output nobody reads.

An exception between two statements could lose commands that are being submitted to a GPU; one in a callback of a library is swallowed;
and registrations of a module remain when its import is interrupted. The handler of SIGINT runs after such a section.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import io
import os
import sys
import threading
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, NoReturn

#: `signal.getsignal` and `signal.signal` without the search for the handler in an enumeration: 0.5 µs instead of 8 µs.
get_handler, set_handler, valid_signals = _signal.getsignal, _signal.signal, _signal.valid_signals
SIGINT = _signal.SIGINT

#: The number of the main thread. Comparing numbers takes 0.05 µs, asking for the two threads 0.25.
_main = threading.main_thread().ident


def _forked() -> None:
    global _main
    _main = threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class InterruptDeferral:
    """A reentrant context that defers Ctrl-C to its end.

    It does nothing in threads other than the main one.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.handler: Any = None
        self.pending: tuple[int, FrameType | None] | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = (number, frame)

    def __enter__(self) -> None:
        if get_ident() != _main:
            return
        if not self.depth:
            self.pending = None  # of a section that another exception ended before the handler was called
            if callable(get_handler(SIGINT)):
                self.handler = set_handler(SIGINT, self._note)
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        if get_ident() != _main:
            return
        self.depth -= 1
        if not self.depth and self.handler is not None:
            handler, self.handler = self.handler, None
            set_handler(SIGINT, handler)
            if self.pending is not None:
                self._deliver(handler)

    def deliver_pending(self) -> None:
        """Call the handler now if Ctrl-C was pressed; for loops that wait."""
        if self.pending is not None and get_ident() == _main:
            self._deliver(self.handler or get_handler(SIGINT))

    def _deliver(self, handler: Any) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            handler(*pending)


#: The context of the process.
deferred_interrupts = InterruptDeferral()


class Lock:
    """A reentrant lock that defers Ctrl-C while it is held."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        deferred_interrupts.__enter__()
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()
        deferred_interrupts.__exit__()

    def keep(self, timeout: float) -> bool:
        """Acquire the lock for good, unless another thread holds it for `timeout` seconds."""
        return self._lock.acquire(timeout=timeout)


# The package's commands, `python -m volta_fn.…`, which end by SIGPIPE if nobody reads their output.

#: The exit status of a command that SIGPIPE has ended, as shells report it.
BROKEN_PIPE = 141


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its status.

    If its output goes to a program that has ended, as in ``… | head``, it ends silently with the status `BROKEN_PIPE`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":  # of Windows, where it is a pipe or a file
            stream.reconfigure(errors="replace")
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:
        if not is_broken_pipe(error):
            raise
        discard_output()
        status = BROKEN_PIPE
    sys.exit(status)


def is_broken_pipe(error: OSError) -> bool:
    """Return True if nobody reads; Windows calls that an invalid argument."""
    return isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL)


def discard_output() -> None:
    """Discard all further output.

    Otherwise Python fails again when it flushes the output at exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
