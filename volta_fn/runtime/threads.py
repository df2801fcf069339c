"""Threads, and compilations that no signal, fork or exit cuts short."""

from __future__ import annotations

import _thread
import atexit
import contextvars
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn.lazy_imports import deferred, is_installed, load
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


# Whether programs become machine code.


def may_compile() -> bool:
    """Return True if llvmlite is installed and VOLTA_NATIVE is not 0."""
    return _is_enabled() and is_installed("llvmlite")


def lacks_compiler() -> bool:
    """Return True if only llvmlite is missing for machine code."""
    return _is_enabled() and not is_installed("llvmlite")


def _is_enabled() -> bool:
    # Windows of other processors than x86 has another calling convention, loader and table of symbols.
    return os.environ.get("VOLTA_NATIVE", "1") != "0" and deferred("sysconfig").get_platform() not in ("win32", "win-arm64")


# Compilations in progress, which no signal, fork or exit cuts short.
#
# llvmlite has a lock that stays held if a signal's handler raises while it is acquired; a forked process inherits all locks, but not the
# threads that hold them; and LLVM ends a process that ends while it compiles. So
#
# - compilations of the main thread run on another thread, as signal handlers run on the main one, which only waits;
# - a fork waits until nothing is being compiled, and compilations that start meanwhile wait for the fork;
# - the end of the process waits, too, also for traces, which call C++ code that must not end half-way; threads that would trace or
#   compile after that (only daemons are left) wait for ever.

#: Seconds between two checks whether others have ended, and after which a compilation and a fork no longer wait. Then each waits for the
#: other: a callback of a program that is being compiled forks.
_PAUSE, _COMPILATION_WAITS, _FORK_WAITS = 0.001, 5.0, 30.0


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class _Compilations:
    """The traces and compilations in progress in this process."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._waits_before_optree = False
        self._reset()
        atexit.register(self._wait_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._wait_before_fork, after_in_parent=self._resume_after_fork, after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        #: The number of threads that trace or compile; the number of forks in progress, or waiting for them; whether the process ends.
        self._busy, self._forks, self._ended = 0, 0, False

    def call_uninterrupted(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that compiles, on a thread other than the main one."""
        if not _is_main():
            return self.call_counted(function, *args)
        result: T = on_own_thread(self._call_marked if self._ended else self.call_counted, function, *args).result()
        return result

    def call_counted(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that traces; the end of the process waits for it."""
        # In the main thread, which ends the process, this is a plain call.
        if _is_main() or getattr(self._thread, "busy", False):
            return function(*args)
        self._begin()
        try:
            return self._call_marked(function, *args)
        finally:
            with self._lock:
                self._busy -= 1

    def _call_marked(self, function: Callable[..., T], *args: Any) -> T:
        self._thread.busy = True
        try:
            return function(*args)
        finally:
            self._thread.busy = False

    def _begin(self) -> None:
        if not self._waits_before_optree:
            self._wait_before_optree()
        latest = time.monotonic() + _COMPILATION_WAITS
        while True:
            with self._lock:
                if not self._ended and (not self._forks or time.monotonic() > latest):
                    self._busy += 1
                    return
            time.sleep(_PAUSE)

    def _wait_before_optree(self) -> None:
        """Let the end of the process wait while optree still knows the classes of nodes.

        Exit handlers run in reverse order, and optree registers one that clears its registry when it is loaded.
        """
        with self._lock:
            registers, self._waits_before_optree = not self._waits_before_optree, True
        if registers:
            load("volta_fn.tree.registry")
            atexit.register(self._wait_at_exit)

    def _wait_before_fork(self) -> None:
        """Wait until nothing is being compiled, and delay further compilations."""
        with self._lock:
            self._forks += 1
        self._wait()

    def _resume_after_fork(self) -> None:
        with self._lock:
            self._forks -= 1

    def _wait_at_exit(self) -> None:
        with self._lock:
            self._ended = True
        self._wait()

    def _wait(self) -> None:
        latest = time.monotonic() + _FORK_WAITS
        while self._busy > getattr(self._thread, "busy", False) and time.monotonic() < latest:
            time.sleep(_PAUSE)


_compilations = _Compilations()


def compile_uninterrupted(function: Callable[..., T], *args: Any) -> T:
    """Call a function that compiles, on a thread that no signal interrupts.

    Forks and the end of the process wait for it. Any number of threads may compile at once.
    """
    return _compilations.call_uninterrupted(function, *args)


def hold_exit_during(function: Callable[..., T], *args: Any) -> T:
    """Call a function that traces or compiles; forks and the end of the process wait."""
    return _compilations.call_counted(function, *args)


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


# Functions that are compiled in the background once they have been called twice.
#
# Compiling takes longer than most calls, and many eager functions run once. So the first two calls of a `Repeated` function run it
# uncompiled. The second call submits its compilation to the background thread, and the third call waits for the end of that. The switch
# to the compiled function thus depends on the number of calls and not on time, so that a program gives the same bits in each run.
#
# Functions that are called during these two calls belong to the function, and are not counted separately.

#: Returns the compiled function, or None if the function shall stay uncompiled.
Make = Callable[[], Callable[..., Any] | None]


class _FirstCalls(threading.local):
    """Whether this thread is in one of the first calls of a repeated function."""

    now = False


_first_calls = _FirstCalls()
_background = Background()


def compile_in_foreground(function: Callable[..., T], *args: Any) -> T:
    """Call a function that traces and compiles, and that its thread waits for.

    Background compilations begin after it; forks and exits wait for it.
    """
    return _background.urgent(hold_exit_during, function, *args)


def shares_memory(result: Any, operands: Sequence[Any]) -> bool:
    """Return True if a NumPy array is a view of an operand."""
    return isinstance(result, np.ndarray) and any(np.may_share_memory(result, operand) for operand in operands)


class Repeated:
    """A function that is compiled once it has been called twice; see the module.

    `pays` decides by the second call's result and arguments whether compiling is worth its time. `on_settled` is called with the function
    that runs all later calls: the compiled one or, if there is none, the function itself. A caller may use it directly from then on.
    """

    __slots__ = ("_first", "_job", "_make", "_pays", "on_settled", "run")

    def __init__(self, first: Callable[..., Any], make: Make, pays: Callable[..., bool] = lambda result, *args: True) -> None:
        self._first, self._make, self._pays = first, make, pays
        #: The compilation.
        self._job: AwaitedCall | None = None
        #: The implementation of the next call.
        self.run: Callable[..., Any] = self._first_call
        self.on_settled: Callable[[Callable[..., Any]], None] = lambda function: None

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.run(*args)

    def _first_call(self, *args: Any) -> Any:
        if not _first_calls.now:
            self.run = self._second_call
        return self._run_uncompiled(args)

    def _second_call(self, *args: Any) -> Any:
        result = self._run_uncompiled(args)
        if not _first_calls.now:
            if self._pays(result, *args):
                self._job = _background.submit(self._compile)
                self.run = self._third_call
            else:
                self._run_from_now_on(self._first)
        return result

    def _compile(self) -> Callable[..., Any] | None:
        """Return the compiled function, or None if the process ends anyway."""
        return hold_exit_during(self._make) if threading.main_thread().is_alive() else None

    def _third_call(self, *args: Any) -> Any:
        job = self._job
        assert job is not None
        try:
            compiled = _background.result(job) if job.process == os.getpid() or job.done() else self._make()
        except Exception:
            deferred("logging").getLogger("volta_fn").debug("an eager function stays uncompiled", exc_info=True)
            compiled = None
        self._run_from_now_on(compiled or self._first)
        return self.run(*args)

    def _run_from_now_on(self, function: Callable[..., Any]) -> None:
        self.run = function
        self.on_settled(function)

    def _run_uncompiled(self, args: tuple[Any, ...]) -> Any:
        before, _first_calls.now = _first_calls.now, True
        try:
            return self._first(*args)
        finally:
            _first_calls.now = before
