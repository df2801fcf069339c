"""The number of threads, and functions that run at the same time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from volta_fn.errors import ArgumentError
from volta_fn.runtime.threads import run_together, thread_count


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOLTA_NUM_THREADS", raising=False)
    assert thread_count() >= 1
    monkeypatch.setenv("VOLTA_NUM_THREADS", "3")
    assert thread_count() == 3
    for bad in ("0", "many", "-1"):
        monkeypatch.setenv("VOLTA_NUM_THREADS", bad)
        with pytest.raises(ArgumentError, match="VOLTA_NUM_THREADS"):
            thread_count()


def test_tasks_run_at_the_same_time_and_fail_together() -> None:
    meeting = threading.Barrier(2, timeout=60)

    def wait() -> None:
        meeting.wait()

    run_together([wait, wait])

    done: list[int] = []

    def fail() -> None:
        raise KeyError("a task")

    with pytest.raises(KeyError, match="a task"):
        run_together([lambda: done.append(1), fail])
    assert done == [1]


def test_tasks_see_the_context_of_their_caller() -> None:
    numbers = np.full(3, 1e300)
    results: list[float] = []
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        run_together([lambda: None, lambda: results.extend(numbers * numbers)])
    with np.errstate(all="ignore"):
        run_together([lambda: None, lambda: results.extend(numbers * numbers)])
    assert results == [np.inf] * 3
