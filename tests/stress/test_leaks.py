"""Functions that are dropped free their machine code."""

from __future__ import annotations

import gc
import weakref

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.stress.amount import rounds
from volta_fn.runtime.llvm import machine
from volta_fn.runtime.recent import Recent
from volta_fn.targets.cpu.runtime import compile, program_cache
from volta_fn.targets.cpu.runtime.code_cache import CodeCache

pytest.importorskip("llvmlite")


def test_code_of_dropped_functions_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[machine.LoadedCode] = weakref.WeakSet()
    load_objects = machine.load_objects

    def noted(*args: list[bytes]) -> machine.LoadedCode:
        loaded = load_objects(*args)  # type: ignore[arg-type]  # codes and symbols
        alive.add(loaded)
        return loaded

    monkeypatch.setattr("volta_fn.targets.cpu.runtime.code_cache.load_objects", noted)
    monkeypatch.setattr(program_cache, "load_objects", noted)
    monkeypatch.setattr(program_cache, "_recent", Recent(4))
    codes = CodeCache()
    monkeypatch.setattr(codes, "_recent", Recent(4))
    monkeypatch.setattr(compile, "CODE_CACHE", codes)
    x = jnp.linspace(0.0, 1.0, 64)
    kept = vf.jit(lambda x: x * 1234.5)
    first = kept(x).tolist()
    for number in range(rounds(20)):
        vf.jit(lambda x, number=number: x * (number + 0.125) + 0.0625)(x)
    gc.collect()
    assert len(alive) <= 12
    machine.load_objects([], [])  # frees what was dropped, and is dropped itself
    assert len(machine._engines._gone) <= 1
    assert kept(x).tolist() == first
