"""Running tasks on threads ahead of who needs their results, but only so far ahead."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from volta_fn.errors import VoltaError
from volta_fn.source import user_location

T = TypeVar("T")

_THREADS = "volta_fn.data"


def prefetched(tasks: Iterator[Callable[[], T]], workers: int, ahead: int) -> Generator[T, None, None]:
    """The results of the tasks, in their order. With workers, that many threads run up to `ahead` tasks before they are asked for.

    Each task runs in a copy of the consumer's context, so that context variables such as the default device reach it. A task's exception
    is raised in its turn, with the traceback of the thread. When the iterator ends, for whatever reason, no thread is left.
    """
    if workers == 0:
        for task in tasks:
            yield task()
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix=_THREADS)

    def submit(task: Callable[[], T]) -> Future[T]:
        return pool.submit(contextvars.copy_context().run, task)

    try:
        pending = deque(submit(task) for task in itertools.islice(tasks, ahead))
        while pending:
            result = _result(pending.popleft())
            pending.extend(submit(task) for task in itertools.islice(tasks, 1))
            yield result
            del result  # or it would stay alive while the next one is waited for
    finally:
        # An iterator that was forgotten may be collected by one of its own threads, which cannot wait for itself.
        by_worker = threading.current_thread().name.startswith(_THREADS)
        pool.shutdown(wait=not by_worker, cancel_futures=True)


def _result(future: Future[T]) -> T:
    """A task's result; a typed error from a thread that had no line of the user's gets the consumer's."""
    try:
        return future.result()
    except VoltaError as error:
        error.location = error.location or user_location()
        raise
