"""Ctrl-C while a compiled program is between two of Python's functions: it ends the program, and nothing is printed or lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.targets.cpu.runtime import program

pytestmark = [
    pytest.mark.usefixtures("default_interrupt_handler"),
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals cannot be sent to a process here"),
]


def test_an_interrupt_of_machine_code_between_two_calls() -> None:
    started, seen = threading.Event(), list[str]()

    def first(x: Any) -> Any:
        seen.append("first")
        started.set()
        return x

    def second(x: Any) -> Any:
        seen.append("second")
        return x

    @vf.jit
    def f(x: Any) -> Any:
        x = vf.pure_callback(first, x, x)
        for _ in range(20):
            x = jnp.tanh(x @ x)  # long enough that Python's lock is released
        return vf.pure_callback(second, x, x)

    def press(main: int) -> None:
        started.wait()
        while not (over := pressed.is_set()):
            if sys._current_frames()[main].f_code is program._execute.__code__:
                break
        if not over:
            os.kill(os.getpid(), signal.SIGINT)

    x, interrupts = jnp.full((300, 300), 0.01), 0
    expected = np.asarray(f(x))
    for _ in range(20):  # whether the program is faster than the thread
        started.clear()
        seen.clear()
        pressed = threading.Event()
        presses = threading.Thread(target=press, args=(threading.get_ident(),))
        presses.start()
        try:
            f(x)
            pressed.set()
            presses.join()
        except KeyboardInterrupt:
            interrupts += 1
            presses.join()
            assert seen == ["first"]
            break
    assert interrupts
    np.testing.assert_array_equal(f(x), expected)


def test_a_function_that_is_interrupted_ends_the_program() -> None:
    def waits(x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the handler has not raised")

    f = vf.jit(lambda x: vf.pure_callback(waits, x, x) + 1)
    with pytest.raises(KeyboardInterrupt):
        f(jnp.ones(3))


def test_handlers_wait_in_protected_functions_only() -> None:
    calls: list[str] = []

    @program.protected
    def protected() -> None:
        signal.raise_signal(signal.SIGINT)
        calls.append("protected")

    def enter(*arrays: Any) -> int:
        protected()
        with pytest.raises(KeyboardInterrupt):
            program.deliver()
        protected()  # what still waits is delivered at the program's end
        return 0

    with pytest.raises(KeyboardInterrupt):
        program.interruptible(enter)()
    assert calls == ["protected", "protected"]
    assert not program._waiting


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no signals for users")
def test_handlers_of_other_signals_that_pass_on_an_interrupt_wait_too() -> None:
    ended = []

    @program.protected
    def protected() -> None:
        signal.raise_signal(signal.SIGUSR1)
        ended.append(True)

    def enter(*arrays: Any) -> int:
        protected()
        return 0

    before = signal.signal(signal.SIGUSR1, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            program.interruptible(enter)()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended
