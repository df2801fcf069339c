"""Compilations, which no signal, fork or end of the process cuts short.

llvmlite has a lock that stays held if a signal's handler raises while it is acquired; a forked process inherits all locks, but not the
threads that hold them; and LLVM ends a process that ends while it compiles. So

- what the main thread compiles is compiled on another thread, for handlers of signals run on the main one, which only waits;
- a fork waits until nothing is being compiled, and what would be compiled next waits for the fork;
- the end of the process waits, too, also for traces, in which C++ is called that must not end half-way; threads that would trace or compile
  after that (only daemons are left) wait for ever.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from volta_fn.runtime.threads import on_own_thread

T = TypeVar("T")

#: Seconds between two looks at whether others have ended, and after which a compilation and a fork no longer wait: then one waits for the
#: other, as when a callback of a program that is being compiled forks.
_PAUSE, _COMPILATION_WAITS, _FORK_WAITS = 0.001, 5.0, 30.0


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class _Compilations:
    """What is being traced and compiled in this process."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._forget()
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._hold, after_in_parent=self._go_on, after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        #: How many threads trace or compile; how many forks wait for them or happen; whether the process ends.
        self._busy, self._forks, self._ended = 0, 0, False

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that compiles, on a thread other than the main one."""
        if not _is_main():
            return self.include(function, *args)
        result: T = on_own_thread(self._inside if self._ended else self.include, function, *args).result()
        return result

    def include(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that traces; the end of the process waits for it.

        In the main thread, which ends the process, it is only called.
        """
        if _is_main() or getattr(self._own, "busy", False):
            return function(*args)
        self._begin()
        try:
            return self._inside(function, *args)
        finally:
            with self._lock:
                self._busy -= 1

    def _inside(self, function: Callable[..., T], *args: Any) -> T:
        self._own.busy = True
        try:
            return function(*args)
        finally:
            self._own.busy = False

    def _begin(self) -> None:
        latest = time.monotonic() + _COMPILATION_WAITS
        while True:
            with self._lock:
                if not self._ended and (not self._forks or time.monotonic() > latest):
                    self._busy += 1
                    return
            time.sleep(_PAUSE)

    def _hold(self) -> None:
        """Wait until nothing is being compiled, and hold up what comes next."""
        with self._lock:
            self._forks += 1
        self._wait()

    def _go_on(self) -> None:
        with self._lock:
            self._forks -= 1

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        self._wait()

    def _wait(self) -> None:
        latest = time.monotonic() + _FORK_WAITS
        while self._busy > getattr(self._own, "busy", False) and time.monotonic() < latest:
            time.sleep(_PAUSE)


_compilations = _Compilations()
#: Call a function that compiles, or that traces what is then compiled; see the module.
undisturbed, included = _compilations.run, _compilations.include
