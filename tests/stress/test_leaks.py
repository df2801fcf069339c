"""Functions that are dropped free their programs and their machine code."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz.programs import on_target
from tests.stress.amount import rounds
from volta_fn.core.caches import LruCache
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.runtime.llvm import machine
from volta_fn.targets.cpu.runtime import artifact, compile
from volta_fn.targets.cpu.runtime.compile import CodeCache

pytest.importorskip("llvmlite")


def test_code_of_dropped_functions_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[machine.LoadedCode] = weakref.WeakSet()
    load_objects = machine.load_objects

    def noted(*args: list[bytes]) -> machine.LoadedCode:
        loaded = load_objects(*args)  # type: ignore[arg-type]  # codes and symbols
        alive.add(loaded)
        return loaded

    monkeypatch.setattr("volta_fn.targets.cpu.runtime.compile.load_objects", noted)
    monkeypatch.setattr(artifact, "load_objects", noted)
    monkeypatch.setattr(artifact, "_recent", LruCache(4))
    codes = CodeCache()
    monkeypatch.setattr(codes, "_recent", LruCache(4))
    monkeypatch.setattr(compile, "CODE_CACHE", codes)
    x = jnp.linspace(0.0, 1.0, 64)
    retained = vf.jit(lambda x: x * 1234.5)
    first = retained(x).tolist()
    for number in range(rounds(20)):
        vf.jit(lambda x, number=number: x * (number + 0.125) + 0.0625)(x)
    gc.collect()
    assert len(alive) <= 12
    machine.load_objects([], [])  # frees what was dropped, and is dropped itself
    assert len(machine._engines._collected) <= 1
    assert retained(x).tolist() == first


@pytest.mark.parametrize("target, count", [("numpy", 200), ("native", 40)])
def test_programs_of_dropped_functions_are_gone(target: str, count: int) -> None:
    x = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    functions: list[weakref.ref[Any]] = []

    def one(number: int) -> None:
        inner = vf.jit(lambda x: jnp.sin(x) * number)
        step = lambda c, r: (jnp.tanh(c + r) * number, c * r)
        loss = lambda x: (inner(x) + vf.vmap(inner)(x)).sum() + vf.lax.scan(step, x[0], x)[1].sum()
        functions.extend([weakref.ref(f) for f in (inner, step, loss)])
        vf.jit(vf.value_and_grad(loss))(x)
        vf.grad(loss)(x)
        jitted = vf.jit(loss)
        functions.append(weakref.ref(jitted.lower(x).jaxpr))

    with on_target(target):
        for number in range(count):
            one(number)
        gc.collect()
        programs = sum(type(o) is ClosedJaxpr for o in gc.get_objects())
        for number in range(count, count + 10):
            one(number)
    gc.collect()
    assert [f for f in functions if f() is not None] == []
    assert sum(type(o) is ClosedJaxpr for o in gc.get_objects()) <= programs
