"""The number of threads, and threads of Python for what releases its lock."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from volta_fn.errors import ArgumentError


def thread_count() -> int:
    """Return VOLTA_NUM_THREADS, else the number of CPUs that the process may run on."""
    wanted = os.environ.get("VOLTA_NUM_THREADS")
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdigit() or int(wanted) < 1:
        raise ArgumentError(f"VOLTA_NUM_THREADS is {wanted!r}; give a number of threads, at least 1")
    return int(wanted)


class Threads:
    """Threads that start when they are needed; a forked process starts its own."""

    def __init__(self, name: str, count: Callable[[], int]) -> None:
        self.name, self.count = name, count
        self._lock = threading.Lock()
        #: The executor of this process, which is another one after a fork.
        self.pool: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock, self.pool = threading.Lock(), None

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Have a function called by a thread, in a copy of this thread's context."""
        with self._lock:
            if self.pool is None:
                self.pool = ThreadPoolExecutor(self.count(), self.name)
            return self.pool.submit(contextvars.copy_context().run, function, *args)


_THREADS = Threads("volta_fn-host", thread_count)


def run_together(tasks: Sequence[Callable[[], Any]]) -> None:
    """Run tasks at the same time, the first of them in this thread.

    Raises what the first task that fails raises, when all have ended.
    """
    first, *others = tasks
    futures = [_THREADS.submit(task) for task in others]
    try:
        first()
    finally:
        errors = [future.exception() for future in futures]
    for error in filter(None, errors):
        raise error
