"""Run tasks on threads, a limited number ahead of their consumer."""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from volta_fn.errors import VoltaError
from volta_fn.source import user_location

T = TypeVar("T")

_THREADS = "volta_fn.data"
_log = logging.getLogger("volta_fn")


def prefetched(tasks: Iterator[Callable[[], T]], workers: int, ahead: int) -> Generator[T, None, None]:
    """Yield the results of the tasks in order.

    With workers, that many threads run up to `ahead` tasks before their results are needed.

    Each task runs in a copy of the consumer's context, so that context variables such as the default device reach it. A task's exception
    is raised when its result is due, with the traceback of the thread. No thread remains when the iterator ends, for whatever reason.
    """
    if workers == 0:
        for task in tasks:
            yield task()
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix=_THREADS)

    def submit(task: Callable[[], T]) -> Future[T]:
        try:
            return pool.submit(contextvars.copy_context().run, task)
        except RuntimeError:  # there are no threads, as in browsers, or none anymore, as the main one has ended
            _log.info("no thread can be started, so that batches are loaded when they are needed")
            return _done_now(task)

    try:
        pending = deque(submit(task) for task in itertools.islice(tasks, ahead))
        while pending:
            result = _result(pending.popleft())
            pending.extend(submit(task) for task in itertools.islice(tasks, 1))
            yield result
            del result  # so that its memory is free while the next one is awaited
    finally:
        # The garbage collector may close the iterator in one of its own threads, which cannot wait for itself.
        by_worker = threading.current_thread().name.startswith(_THREADS)
        pool.shutdown(wait=not by_worker, cancel_futures=True)


def _done_now(task: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(task())
    except Exception as error:  # raised when the result is due
        future.set_exception(error)
    return future


def _result(future: Future[T]) -> T:
    """Return a task's result; a typed error gets the consumer's line if it has none."""
    try:
        return future.result()
    except VoltaError as error:
        error.location = error.location or user_location()
        raise
