"""The number of threads, threads of Python, and numbers that users set."""

from __future__ import annotations

import _thread
import contextvars
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from volta_fn.errors import ArgumentError

# Variables of the environment that users set, and their admissible values.
#
# All are checked when the CPU is first used, so that a wrong value is reported even if the program never uses its variable.

#: The most threads and devices: more take minutes to start, and gain nothing.
_MOST_THREADS, _MOST_DEVICES = 1024, 256


class _Kind(NamedTuple):
    """The admissible values of a variable."""

    expected: str
    #: Converts a text to the value, or raises ValueError.
    parse: Callable[[str], Any]
    least: float = -math.inf
    most: float = math.inf


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def _count(of: str, least: int = 0, most: int = 2**63 - 1) -> _Kind:
    return _Kind(f"a number of {of}, from {least} to {most}", _digits, least, most)


def _one_of(*words: str) -> _Kind:
    return _Kind(" or ".join(map(repr, words)), {word: word for word in words}.__getitem__)


_SECONDS, _FLAG = _Kind("a number of seconds, at least 0", float, 0), _one_of("0", "1")
_KINDS = {
    "VOLTA_CACHE_BYTES": _count("bytes"),
    "VOLTA_CHECK_INDICES": _FLAG,
    "VOLTA_COLLECTIVE_TIMEOUT": _SECONDS,
    "VOLTA_CPU_DEVICES": _count("devices", 1, _MOST_DEVICES),
    "VOLTA_GPU_CHECKS": _FLAG,
    "VOLTA_GPU_DEBUG": _FLAG,
    "VOLTA_GPU_DRIVER": _one_of("nvidia", "wgpu"),
    "VOLTA_GPU_LIMITS": _one_of("webgpu"),
    "VOLTA_GPU_MEMORY": _count("bytes"),
    "VOLTA_GPU_TIMEOUT": _SECONDS,
    "VOLTA_GPU_TUNE": _FLAG,
    "VOLTA_MEMORY": _count("bytes"),
    "VOLTA_NATIVE": _FLAG,
    "VOLTA_NUMPY_DTYPE_PROMOTION": _one_of("standard", "strict"),
    "VOLTA_NUM_THREADS": _count("threads", 1, _MOST_THREADS),
    "VOLTA_PEER_MEMORY": _FLAG,
    "VOLTA_TRACEBACK_FILTERING": _one_of("on", "off"),
    "VOLTA_VECTOR_BYTES": _one_of("16", "32", "64"),
    "VOLTA_VERIFY": _FLAG,
}


def value_of(variable: str) -> Any:
    """Return the value of a variable; None if it is not set, or empty.

    Raises `ArgumentError` for an inadmissible value.
    """
    text = os.environ.get(variable)
    return _checked(variable, text) if text else None


def _checked(variable: str, text: str) -> Any:
    kind = _KINDS[variable]
    try:
        value = kind.parse(text)
        if not isinstance(value, str) and not kind.least <= value <= kind.most:  # nor NaN
            raise ValueError(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"{variable} is {text!r:.80}, but must be {kind.expected}") from None
    return value


def check_device_count(count: int) -> int:
    """Return a number of CPU devices; raise `ArgumentError` if it is not admissible."""
    return int(_checked("VOLTA_CPU_DEVICES", str(count)))


def check_all() -> None:
    """Raise `ArgumentError` for the first variable with an inadmissible value."""
    for variable in _KINDS:
        value_of(variable)


# The number of threads, and threads of Python for code that releases its lock.
#
# They are plain threads: `concurrent.futures` starts none once the main thread has ended, though other threads go on.

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


class Background:
    """Background calls, each on a separate thread, one at a time, after urgent calls.

    A call begins while no urgent call is made, or when a thread waits for its result.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._changed = threading.Condition()  # which a signal's handler may enter, too
        self._urgent, self._busy = 0, False

    def submit(self, function: Callable[..., Any], *args: Any) -> AwaitedCall:
        """Submit a call, which a thread makes when it may begin."""
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
