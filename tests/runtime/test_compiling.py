"""Compilations: on which platforms there are any, and the order of those in the background."""

from __future__ import annotations

import sysconfig
import threading
from typing import Any

import pytest

from volta_fn.runtime import threads
from volta_fn.runtime.threads import Background, may_compile


@pytest.mark.parametrize(
    ("platform", "compiles"),
    [("win-amd64", True), ("win32", False), ("win-arm64", False), ("linux-x86_64", True), ("macosx-11.0-arm64", True)],
)
def test_machine_code_runs_where_its_calling_convention_is_known(platform: str, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOLTA_NATIVE", raising=False)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)
    assert may_compile() == compiles
    monkeypatch.setattr(threads, "is_installed", lambda name: False)
    assert threads.lacks_compiler() == compiles and not may_compile()


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
