"""The number of threads, and calls on threads of Python."""

from __future__ import annotations

import _thread
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from volta_fn.settings import value_of

# Threads are plain ones: `concurrent.futures` starts none once the main thread has ended, though other threads go on.

T = TypeVar("T")


def thread_count() -> int:
    """Return VOLTA_NUM_THREADS, else the number of CPUs that the process may run on."""
    setting: int | None = value_of("VOLTA_NUM_THREADS")
    return cpu_count() if setting is None else setting


def cpu_count() -> int:
    """Return the number of CPUs that the process may run on, else of all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AwaitedCall:
    """A call on some thread, whose result other threads wait for.

    Unlike a `Future`, it stays usable if a signal's handler raises in a thread that waits.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        """Prepare a call in a copy of this thread's context."""
        self._function = functools.partial(contextvars.copy_context().run, function, *args)
        self._result: Any = None
        self._error: BaseException | None = None
        self._unfinished = threading.Lock()
        self._unfinished.acquire()
        #: The process whose thread makes the call; a forked one has no such thread.
        self.process = os.getpid()
        #: Whether a thread waits for the result of this background call.
        self.awaited = False

    def run(self) -> None:
        """Call the function, in this thread."""
        try:
            self._result = self._function()
        except BaseException as error:  # raised where the result is asked for
            self._error = error
        finally:
            self._unfinished.release()

    def done(self) -> bool:
        """Return True if the function has returned."""
        return not self._unfinished.locked()

    def error(self) -> BaseException | None:
        """Wait for the call, and return its exception, or None."""
        with self._unfinished:
            return self._error

    def result(self) -> Any:
        """Wait for the call, and return its result or raise its exception."""
        error = self.error()
        if error is not None:
            raise error
        return self._result


def has_started(call: AwaitedCall) -> bool:
    """Make a call on a new thread; return False if no thread can be started.

    The thread does not keep the process alive. Browsers have no threads, and a process that ends starts none.
    """
    try:
        _thread.start_new_thread(call.run, ())
    except RuntimeError:
        return False
    return True


def on_own_thread(function: Callable[..., Any], *args: Any) -> AwaitedCall:
    """Call a function on a new thread, or at once if no thread can be started."""
    call = AwaitedCall(function, *args)
    if not has_started(call):
        call.run()
    return call


def run_together(tasks: Sequence[Callable[[], T]], most: int | None = None) -> list[T]:
    """Run tasks at the same time, at most `most` at once, one of them in this thread.

    Returns their results in order. When all have ended, raises the exception of the first task that failed.
    """
    calls = [AwaitedCall(task) for task in tasks]
    waiting = iter(calls)

    def work() -> None:
        for call in waiting:
            call.run()

    helpers = [on_own_thread(work) for _ in range(min(most or len(calls), len(calls)) - 1)]
    work()
    for helper in helpers:
        helper.result()
    errors = [call.error() for call in calls]
    for error in filter(None, errors):
        raise error
    return [call.result() for call in calls]
