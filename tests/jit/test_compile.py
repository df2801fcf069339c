"""The cyclic garbage collector is paused while programs are made."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.jit import compile as compilation
from volta_fn.jit.compile import gc_paused


@pytest.mark.parametrize("wanted", [True, False])
def test_it_is_left_as_it_was(wanted: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if wanted else gc.disable)()
        with pytest.raises(ValueError, match="inside"), gc_paused():
            assert not gc.isenabled()
            raise ValueError("inside")
        assert gc.isenabled() == wanted
    finally:
        (gc.enable if before else gc.disable)()


def test_a_pause_that_begins_as_another_ends_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    other, asked, ended = threading.Event(), threading.Event(), threading.Event()

    class Collector:
        """A garbage collector that answers another thread only when the first pause has ended."""

        enabled = True

        def isenabled(self) -> bool:
            answer = self.enabled
            if other.is_set():
                asked.set()
                assert ended.wait(10)
            return answer

        def disable(self) -> None:
            self.enabled = False

        def enable(self) -> None:
            self.enabled = True

    collector = Collector()
    monkeypatch.setattr(compilation, "gc", collector)

    def pause() -> None:
        with gc_paused():
            asked.set()
            assert ended.wait(10)

    thread = threading.Thread(target=pause)
    with gc_paused():
        other.set()
        thread.start()
        assert asked.wait(10)
    ended.set()
    thread.join()
    assert collector.enabled


def test_functions_are_traced_without() -> None:
    seen = []

    @vf.jit
    def f(x: vf.Array) -> vf.Array:
        seen.append(gc.isenabled())
        return x + 1

    assert gc.isenabled()
    f(1.0)
    assert seen == [False]
    assert gc.isenabled()


def test_functions_are_traced_without_after_one_that_they_call() -> None:
    seen = []

    @vf.jit
    def inner(x: vf.Array) -> vf.Array:
        return x + 1

    @vf.jit
    def outer(x: vf.Array) -> vf.Array:
        y = inner(x)
        seen.append(gc.isenabled())
        return y

    outer(1.0)
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("native", [False, True])
def test_jitted_functions_nest_deeply(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", native)
    before = sys.getrecursionlimit()

    def f(x: vf.Array) -> vf.Array:
        return x + 1

    for _ in range(100):
        f = vf.jit(lambda x, f=f: f(x) + 1)
    assert f(jnp.zeros(2)).tolist() == [101.0, 101.0]
    assert float(vf.grad(lambda x: f(x).sum())(jnp.zeros(2))[0]) == 1.0
    assert sys.getrecursionlimit() == before


def test_functions_that_call_themselves_for_ever_raise() -> None:
    before = sys.getrecursionlimit()

    @vf.jit
    def endless(x: vf.Array) -> vf.Array:
        return endless(x + 1)

    with pytest.raises(RecursionError):
        endless(jnp.zeros(2))
    assert sys.getrecursionlimit() == before
    assert vf.jit(lambda x: x + 1)(1.0) == 2.0
