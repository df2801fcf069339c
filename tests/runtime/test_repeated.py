"""Repeated functions are compiled when they have been called twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from volta_fn.runtime.threads import Repeated, shares_memory


def plain(x: Any) -> tuple[str, Any]:
    return "plain", x


def compiled(x: Any) -> tuple[str, Any]:
    return "compiled", x


def calls(function: Repeated, count: int = 4) -> list[str]:
    return [function(i)[0] for i in range(count)]


def test_the_third_call_is_compiled() -> None:
    threads: list[str] = []

    def make() -> Callable[..., Any]:
        threads.append(threading.current_thread().name)
        return compiled

    assert calls(Repeated(plain, make), 5) == ["plain", "plain", "compiled", "compiled", "compiled"]
    (thread,) = threads
    assert thread != threading.main_thread().name


def test_a_function_that_cannot_be_compiled_stays() -> None:
    def failing() -> Any:
        raise ValueError("cannot be compiled")

    assert calls(Repeated(plain, lambda: None)) == ["plain"] * 4
    assert calls(Repeated(plain, failing)) == ["plain"] * 4


def test_a_function_that_does_not_pay_is_not_compiled() -> None:
    compilations: list[str] = []
    assert calls(Repeated(plain, lambda: compilations.append("made") or compiled, pays=lambda result, x: False)) == ["plain"] * 4
    assert not compilations


def test_calls_within_uncompiled_calls_do_not_count() -> None:
    inner = Repeated(plain, lambda: compiled)
    outer = Repeated(lambda x: inner(x), lambda: compiled)
    assert calls(outer) == ["plain", "plain", "compiled", "compiled"]
    assert calls(inner) == ["plain", "plain", "compiled", "compiled"]


def test_an_error_of_an_early_call_is_the_callers() -> None:
    def fails_at_zero(x: int) -> Any:
        return plain(1 // x)

    function = Repeated(fails_at_zero, lambda: compiled)
    with pytest.raises(ZeroDivisionError):
        function(0)
    assert [function(1)[0] for _ in range(3)] == ["plain", "compiled", "compiled"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where another test has imported it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    go = threading.Event()
    function = Repeated(plain, lambda: go.wait(60) and compiled)
    function(0), function(1)
    child = os.fork()
    if child == 0:
        go.set()
        os._exit(0 if function(2)[0] == "compiled" else 1)
    _, status = os.waitpid(child, 0)
    go.set()
    assert status == 0 and function(2)[0] == "compiled"


def test_views_share_memory() -> None:
    x = np.arange(10)
    assert shares_memory(x[2:], [np.ones(3), x])
    assert not shares_memory(x + 1, [x])
    assert not shares_memory((x,), [x])
