"""Modules as text: functions that are called often."""

from __future__ import annotations

import re

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.runtime.llvm import text
from volta_fn.runtime.llvm.text import Function, Module, Value
from volta_fn.targets.cpu.scalars.values import Lanes, inlined

pytest.importorskip("llvmlite")


def module(lines: int, calls: int) -> str:
    """Return a function of so many instructions, called so often."""

    def long(x: Lanes) -> Lanes:
        for _ in range(lines):
            x = x * 0.5
        return x

    f = Function(Module(), "run", [Value("float", "%x")])
    x = Lanes(f, f.parameters[0])
    for _ in range(calls):
        x = inlined("long", long, x)
    f.finish()
    return str(f.module)


def test_long_functions_that_are_called_often_are_not_copied() -> None:
    often, long = text._MOST_COPIES + 1, text._SHORT + 1
    kinds = {(lines, calls): re.search(r"@vf.long.*? (\w+inline) ", module(lines, calls)) for lines in (2, long) for calls in (3, often)}
    assert {size: result and result[1] for size, result in kinds.items()} == {
        (2, 3): "alwaysinline",
        (2, often): "alwaysinline",
        (long, 3): "alwaysinline",
        (long, often): "noinline",
    }


def test_programs_of_many_calls_give_the_right_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(x: vf.Array) -> vf.Array:
        for number in range(24):
            x = jnp.sin(x) + 0.01 * number
        return x

    x = np.linspace(-3, 3, 999, dtype=np.float32)
    backend = vf.devices("cpu")[0].backend
    monkeypatch.setattr(backend, "native", True)
    called = np.asarray(vf.jit(chain)(x))
    expected = x.astype(np.float64)
    for number in range(24):
        expected = np.sin(expected) + 0.01 * number
    np.testing.assert_allclose(called, expected, rtol=1e-5)
