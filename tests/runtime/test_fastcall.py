"""Programs as built-in functions, and by ctypes where NumPy's arrays are laid out in another way."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.errors import CallbackError
from volta_fn.runtime import fastcall
from volta_fn.runtime.fastcall import CtypesEntry, FastcallEntry
from volta_fn.targets.cpu.runtime import executor
from volta_fn.targets.cpu.runtime.program import Program

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(params=[FastcallEntry, CtypesEntry])
def entry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are called in either way."""
    monkeypatch.setattr(fastcall, "_knows_arrays", lambda: request.param is FastcallEntry)
    compiled = executor._start_support_code.__wrapped__()
    assert isinstance(compiled.functions, request.param)
    monkeypatch.setattr("volta_fn.targets.cpu.runtime.program.support_code_of_process", lambda: compiled)


def fails(x: np.ndarray) -> np.ndarray:
    if x[0] > 0:
        raise LookupError("not today")
    return x


@pytest.mark.usefixtures("entry", "default_interrupt_handler")
def test_the_exception_of_a_signal_is_raised() -> None:
    endless = vf.make_jaxpr(lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: (jnp.sin(c[0]) - 1, c[1] + 1), (x, x)))(np.float32(0))
    program = Program.of(endless, (), pipeline)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        program(False, np.array(0, np.float32))
    timer.join()
    np.testing.assert_array_equal(Program.of(vf.make_jaxpr(lambda x: x + 1)(X), (), pipeline)(False, X)[0], X + 1)


@pytest.mark.usefixtures("entry")
def test_calls() -> None:
    program = Program.of(vf.make_jaxpr(lambda x: (lax.scan(lambda c, r: (c @ c.T @ c + r, c.sum()), x, x), x * 2))(X), (), pipeline)
    expected = program.executable().run(False, X)
    scale = Program.of(vf.make_jaxpr(lambda x: x * 2)(X.T), (), pipeline)
    for _ in range(2):
        for actual, wanted in zip(program(False, X), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
        np.testing.assert_array_equal(scale(False, X.T)[0], 2 * X.T)
    callback = Program.of(vf.make_jaxpr(lambda x: vf.pure_callback(fails, x, x) + 1)(X[0]), (), pipeline)
    np.testing.assert_array_equal(callback(False, X[0])[0], X[0] + 1)
    with pytest.raises(CallbackError, match="not today"):
        callback(False, X[1])


def test_functions_outlive_what_made_them() -> None:
    """When a process ends, its modules are cleared before the last functions are collected."""
    addresses = fastcall.Addresses(0, 0, 0)
    functions = [FastcallEntry(addresses).function(np.zeros(1, np.int64)) for _ in range(100)]
    others = [bytearray(b"\xff" * size) for size in range(16, 128) for _ in range(100)]  # in memory that was freed
    assert {function.__name__ for function in functions} == {"program"}
    del others


def test_another_layout_of_arrays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastcall._knows_arrays()
    with monkeypatch.context() as patch:
        patch.setattr(fastcall, "_TYPE", 0)  # where a free-threaded Python has the number of a thread
        assert not fastcall._knows_arrays()
    monkeypatch.setattr(fastcall, "_FLAGS", fastcall._FLAGS - 8)
    assert not fastcall._knows_arrays()
    monkeypatch.setattr(fastcall, "_FLAGS", 1 << 20)
    assert not fastcall._knows_arrays()
