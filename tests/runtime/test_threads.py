"""The number of threads, and functions that run at the same time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from volta_fn.errors import ArgumentError
from volta_fn.runtime.threads import Background, run_together, thread_count


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


def test_calls_in_the_background_give_way_to_urgent_ones() -> None:
    background, done = Background(), list[str]()

    def first() -> None:
        calls = [background.submit(done.append, name) for name in ("later", "awaited")]
        background.result(calls[1])
        done.append("urgent")
        later.append(calls[0])

    later: list[Any] = []
    background.urgent(first)
    background.result(later[0])
    assert done == ["awaited", "urgent", "later"]


def test_calls_in_the_background_are_one_at_a_time_and_may_fail() -> None:
    background, busy = Background(), threading.Lock()

    def alone(number: int) -> int:
        assert busy.acquire(blocking=False)
        sum(range(10_000))
        busy.release()
        return 6 // number

    calls = [background.submit(alone, number) for number in range(4)]
    with pytest.raises(ZeroDivisionError):
        background.result(calls[0])
    assert [background.result(call) for call in calls[1:]] == [6, 3, 2]
    with pytest.raises(ZeroDivisionError):
        background.urgent(alone, 0)
    assert background.result(background.submit(alone, 3)) == 2
