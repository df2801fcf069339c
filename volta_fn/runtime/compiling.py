"""Compilations, also in the background, which no signal, fork or exit cuts short."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn.lazy_imports import deferred
from volta_fn.runtime.threads import AwaitedCall, Background, on_own_thread

# ------------------------------------------------------------------------------
# Compilations, which no signal, fork or end of the process cuts short.
#
# llvmlite has a lock that stays held if a signal's handler raises while it is acquired; a forked process inherits all locks, but not the
# threads that hold them; and LLVM ends a process that ends while it compiles. So
#
# - what the main thread compiles is compiled on another thread, for handlers of signals run on the main one, which only waits;
# - a fork waits until nothing is being compiled, and what would be compiled next waits for the fork;
# - the end of the process waits, too, also for traces, in which C++ is called that must not end half-way; threads that would trace or
#   compile after that (only daemons are left) wait for ever.
# ------------------------------------------------------------------------------

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


# ------------------------------------------------------------------------------
# Functions that are compiled in the background once they have been called twice.
#
# Compiling takes longer than most calls, and much of what runs eagerly runs once. So a `Repeated` function does its first two calls as
# it is. The second one has it compiled by the background thread, and the third one waits for what is left of that. When the compiled
# function takes over thus depends on the number of calls and not on time, so a program that is run again gives the same bits.
#
# What a function calls during its first two calls is part of it, and is not counted by itself.
# ------------------------------------------------------------------------------

#: Returns the compiled function, or None if the function is to stay as it is.
Make = Callable[[], Callable[..., Any] | None]


class _Inside(threading.local):
    """Whether this thread is in one of the first calls of a repeated function."""

    now = False


_inside = _Inside()
_background = Background()
#: Call a function that a thread waits for: compilations in the background begin after it.
urgent = _background.urgent


def shares_memory(result: Any, operands: Sequence[Any]) -> bool:
    """Return True if a NumPy array is a view of another one: nothing was computed."""
    return isinstance(result, np.ndarray) and any(np.may_share_memory(result, operand) for operand in operands)


class Repeated:
    """A function that is compiled once it has been called twice; see the module.

    `pays` tells, by the second call's result and arguments, whether it is worth compiling. `then` is given what does all later calls: the
    compiled function or, if there is none, the function itself. It may have the caller use that from then on.
    """

    __slots__ = ("_first", "_job", "_make", "_pays", "run", "then")

    def __init__(self, first: Callable[..., Any], make: Make, pays: Callable[..., bool] = lambda result, *args: True) -> None:
        self._first, self._make, self._pays = first, make, pays
        #: The compilation.
        self._job: AwaitedCall | None = None
        #: What a call does now.
        self.run: Callable[..., Any] = self._once
        self.then: Callable[[Callable[..., Any]], None] = lambda function: None

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.run(*args)

    def _once(self, *args: Any) -> Any:
        if not _inside.now:
            self.run = self._twice
        return self._uncompiled(args)

    def _twice(self, *args: Any) -> Any:
        result = self._uncompiled(args)
        if not _inside.now:
            if self._pays(result, *args):
                self._job = _background.submit(self._made)
                self.run = self._compiled
            else:
                self._settle(self._first)
        return result

    def _made(self) -> Callable[..., Any] | None:
        """Return the compiled function, or None if the process ends anyway."""
        return included(self._make) if threading.main_thread().is_alive() else None

    def _compiled(self, *args: Any) -> Any:
        job = self._job
        assert job is not None
        try:
            made = _background.result(job) if job.process == os.getpid() or job.done() else self._make()
        except Exception:
            deferred("logging").getLogger("volta_fn").debug("an eager function stays uncompiled", exc_info=True)
            made = None
        self._settle(made or self._first)
        return self.run(*args)

    def _settle(self, function: Callable[..., Any]) -> None:
        self.run = function
        self.then(function)

    def _uncompiled(self, args: tuple[Any, ...]) -> Any:
        before, _inside.now = _inside.now, True
        try:
            return self._first(*args)
        finally:
            _inside.now = before
