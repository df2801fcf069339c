"""The number of threads, and threads of Python for what releases its lock.

They are plain threads: `concurrent.futures` starts none once the main thread has ended, though other threads go on.
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from volta_fn.runtime.variables import value_of

T = TypeVar("T")


def thread_count() -> int:
    """Return VOLTA_NUM_THREADS, else the number of CPUs that the process may run on."""
    wanted: int | None = value_of("VOLTA_NUM_THREADS")
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return wanted


class AwaitedCall:
    """A function that some thread calls, whose result others wait for.

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
        #: Whether a thread waits for it, of those that make calls in the background.
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
        """Wait for the call, and return what it raised."""
        with self._unfinished:
            return self._error

    def result(self) -> Any:
        """Wait for the call, and return its result or raise what it raised."""
        error = self.error()
        if error is not None:
            raise error
        return self._result


def has_started(call: AwaitedCall) -> bool:
    """Make a call on a new thread, and return True if there is one.

    The thread does not keep the process alive. There is none in browsers, nor in a process that ends.
    """
    try:
        _thread.start_new_thread(call.run, ())
    except RuntimeError:
        return False
    return True


def on_own_thread(function: Callable[..., Any], *args: Any) -> AwaitedCall:
    """Call a function on a new thread, or at once if there can be none."""
    call = AwaitedCall(function, *args)
    if not has_started(call):
        call.run()
    return call


def run_together(tasks: Sequence[Callable[[], T]], most: int | None = None) -> list[T]:
    """Run tasks at the same time, at most `most` at once, one of them in this thread.

    Returns their results in order. Raises what the first task that fails raises, when all have ended.
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


class Background:
    """Calls on threads of their own, one at a time, that give way to urgent ones.

    One begins while no urgent call is made, or when a thread waits for its result.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._changed = threading.Condition()  # which a signal's handler may enter, too
        self._urgent, self._busy = 0, False

    def submit(self, function: Callable[..., Any], *args: Any) -> AwaitedCall:
        """Have a thread call a function when it may begin."""
        call = AwaitedCall(function, *args)
        if not has_started(AwaitedCall(self._alone, call)):
            call.run()
        return call

    def _alone(self, call: AwaitedCall) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and (self._urgent <= 0 or call.awaited))
            self._busy = True
        call.run()
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def result(self, call: AwaitedCall) -> Any:
        """Wait for a submitted call; return its result or raise its error."""
        if not call.done():
            with self._changed:
                call.awaited = True
                self._changed.notify_all()
        return call.result()

    def urgent(self, function: Callable[..., T], *args: Any) -> T:
        """Make an urgent call."""
        self._count(1)
        try:
            return function(*args)
        finally:
            self._count(-1)

    def _count(self, count: int) -> None:
        with self._changed:
            self._urgent += count
            if self._urgent <= 0:
                self._changed.notify_all()
