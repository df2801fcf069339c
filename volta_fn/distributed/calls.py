"""What this process is waiting for: read by the thread that watches it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

Group = tuple[int, ...]


class Call(NamedTuple):
    """A call that waits for other processes."""

    description: str
    ranks: Group
    #: What numbers its calls for each group: the "program", its sums in the "background", or the "control" of all.
    thread: str
    number: int
    since: float


class Calls:
    """The collectives under way, and how many there were in each group."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Group, str], int] = {}
        self._current: dict[str, Call] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def waiting(self, ranks: Group, thread: str, description: str) -> Iterator[None]:
        """Count a call, and note that it is under way in a ``with`` block."""
        with self._lock:
            number = self._counts[ranks, thread] = self._counts.get((ranks, thread), 0) + 1
            self._current[thread] = Call(description, ranks, thread, number, time.monotonic())
        try:
            yield
        finally:
            self._current.pop(thread, None)

    def count(self, ranks: Group, thread: str) -> int:
        """Return how many calls have begun in a group."""
        return self._counts.get((ranks, thread), 0)

    def current(self) -> list[Call]:
        """Return the calls under way."""
        return list(self._current.copy().values())
