"""Run tasks on threads, a limited number ahead of their consumer."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

from volta_fn.errors import VoltaError
from volta_fn.runtime.compiling import included
from volta_fn.runtime.threads import AwaitedCall, has_started
from volta_fn.source import user_location

T = TypeVar("T")

_log = logging.getLogger("volta_fn")


class _Worker(threading.local):
    """Whether this thread is a worker."""

    now = False


_worker = _Worker()


def prefetched(tasks: Iterator[Callable[[], T]], workers: int, ahead: int) -> Generator[T, None, None]:
    """Yield the results of the tasks in order.

    With workers, that many threads run up to `ahead` tasks before their results are needed.

    Each task runs in a copy of the consumer's context, so that context variables such as the default device reach it. A task's exception
    is raised when its result is due, with the traceback of the thread. No thread remains when the iterator ends, unless a signal's handler
    raises again while it waits for them: then they end after the tasks that they are in.
    """
    if workers == 0:
        for task in tasks:
            yield task()
        return
    threads = _Workers(workers)
    try:
        pending = deque(threads.submit(task) for task in itertools.islice(tasks, ahead))
        while pending:
            result = threads.result(pending.popleft())
            pending.extend(threads.submit(task) for task in itertools.islice(tasks, 1))
            yield result
            del result  # so that its memory is free while the next one is awaited
    finally:
        # No function of Python does this, as a signal's handler may raise when one begins.
        threads.closed = True
        threads.calls.put(None)
        threads.join()


class _Workers:
    """Threads that make calls, and do not keep the process alive.

    A signal's handler may raise anywhere in here: no lock of Python's is used, which would stay held.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: list[AwaitedCall] = []
        #: What is to be called; None, which remains here, when there is nothing more.
        self.calls: SimpleQueue[AwaitedCall | None] = SimpleQueue()
        #: Whether calls that have not begun are dropped.
        self.closed = False

    def submit(self, task: Callable[[], T]) -> AwaitedCall:
        """Have a thread run a task; without threads, `result` does so."""
        call = AwaitedCall(task)
        self.calls.put(call)
        if len(self._threads) < self._most:
            self._start()
        return call

    def _start(self) -> None:
        thread = AwaitedCall(self._work)
        # Browsers have no threads. After the main thread has ended, those that wait for the end of the process cannot be relied upon.
        if threading.main_thread().is_alive() and has_started(thread):
            self._threads.append(thread)
        else:
            self._most = len(self._threads)
            _log.info(
                "no thread can be started, so that %s", "fewer load batches" if self._most else "batches are loaded when they are needed"
            )

    def _work(self) -> None:
        _worker.now = True
        while (call := self.calls.get()) is not None and not self.closed:
            included(call.run)
            del call  # so that its result is free while the next one is awaited
        self.calls.put(None)

    def result(self, call: AwaitedCall) -> Any:
        """Return a call's result; a typed error gets the consumer's line if it has none."""
        if not self._threads:
            call.run()
        try:
            return call.result()
        except VoltaError as error:
            error.location = error.location or user_location()
            raise

    def join(self) -> None:
        """Wait for the threads, which have been told to end.

        The garbage collector may close the iterator in one of the threads, which cannot wait for itself, and at the end of the process,
        which has stopped them.
        """
        if _worker.now or not threading.main_thread().is_alive():
            return
        for thread in self._threads:
            if thread.process == os.getpid():
                thread.result()
