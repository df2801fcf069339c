"""Ctrl-C at random instants: the next call is right, and nothing hangs."""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.stress.amount import rounds
from volta_fn import lax
from volta_fn.core.trace import EVAL, current_trace

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX's timers"),
    # Python prints an interrupt that comes in a finaliser or in a callback of the garbage collection, Hypothesis' for one.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

X = jnp.linspace(0.0, 1.0, 64)
#: Parts of the names of files in which signals come.
PACKAGES = ("volta_fn", "llvmlite")


def model(number: float) -> Any:
    def f(x: vf.Array) -> vf.Array:
        for _ in range(3):
            x = jnp.tanh(x * number) + jnp.sin(x)
        return lax.scan(lambda a, t: (a + t * number, a), x.sum(), x)[1] + jnp.cumsum(x)

    return f


def expected(number: float) -> np.ndarray:
    x = np.asarray(X, np.float64)
    for _ in range(3):
        x = np.tanh(x * number) + np.sin(x)
    return np.concatenate([[0], np.cumsum(x[:-1])]) * number + x.sum() + np.cumsum(x)


@pytest.fixture
def alarm() -> Iterator[None]:
    """A timer's signal that raises KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_leaves_nothing_behind(alarm: None) -> None:
    draw, seen = random.Random(1), Counter[str]()
    for attempt in range(rounds(16)):
        number = 1.25 + attempt / 64
        jitted = vf.jit(model(number)) if attempt % 2 else vf.jit(vf.value_and_grad(lambda x, f=model(number): f(x).sum()))
        try:
            signal.setitimer(signal.ITIMER_REAL, 10 ** draw.uniform(-4.0, -1.0))
            jitted(X)
            signal.setitimer(signal.ITIMER_REAL, 0)
            seen["finished first"] += 1
        except KeyboardInterrupt:
            seen["interrupted"] += 1
        assert current_trace() is EVAL
        assert gc.isenabled()
        begun = time.monotonic()
        result = jitted(X) if attempt % 2 else jitted(X)[0]
        wanted = expected(number) if attempt % 2 else expected(number).sum()
        np.testing.assert_allclose(result, wanted, rtol=1e-4)  # in float32, of sums of 64 numbers
        assert time.monotonic() - begun < 60  # it does not hang
    assert seen["interrupted"] > rounds(16) / 4


def test_traces_that_are_interrupted_are_over(alarm: None) -> None:
    draw = random.Random(2)
    square = vf.grad(lambda x: vf.jvp(lambda y: jnp.sum(jnp.sin(y) * y), (x,), (x,))[1])
    for _ in range(rounds(200)):
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 3e-3))
            vf.make_jaxpr(square)(X)
            vf.make_jaxpr(vf.vmap(square))(jnp.ones((2, 3)))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
        assert current_trace() is EVAL


class Profile:
    """Raises SIGINT at one of the points where Python calls handlers: where a function begins, and after a call of C."""

    def __init__(self, at: tuple[CodeType, int, str] | None = None) -> None:
        self.at = at
        #: The points that were passed, in order.
        self.points: dict[tuple[CodeType, int, str], None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or code.co_flags & CO_GENERATOR or not any(p in code.co_filename for p in PACKAGES):
            return  # a generator that ends early is entered, too, without a look at signals
        point = (code, frame.f_lasti, event)
        if point not in self.points:
            self.points[point] = None
            if point == self.at:
                signal.raise_signal(signal.SIGINT)


def passed(activity: Callable[[float], object], number: int, at: tuple[CodeType, int, str] | None = None) -> Profile:
    """Do something that is interrupted at a point."""
    profile = Profile(at)
    sys.setprofile(profile)
    try:
        activity(float(number))
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return profile


def traced(number: float) -> object:
    square = vf.grad(lambda x: vf.jvp(lambda y: jnp.sum(jnp.sin(y) * number), (x,), (x,))[1])
    return vf.make_jaxpr(vf.vmap(square))(jnp.ones((2, 3)))


def compiled(number: float) -> object:
    return vf.jit(lambda x: jnp.sin(x) * number)(X)


@pytest.mark.parametrize("activity", [traced, compiled])
def test_an_interrupt_at_any_point_leaves_nothing_behind(activity: Callable[[float], object]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(300, exit=True)
    try:
        activity(0.5)
        points = list(passed(activity, 1).points)
        for number, point in enumerate(points[:: max(3 // rounds(1), 1)], 2):
            passed(activity, number, point)
            assert current_trace() is EVAL, point
            assert gc.isenabled(), point
        with ThreadPoolExecutor(1) as pool:  # another thread waits for no lock
            result = pool.submit(compiled, 1000.25).result(60)
        np.testing.assert_allclose(result, np.sin(np.asarray(X)) * 1000.25, rtol=1e-5)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGINT, before)


#: Loops that do not end, and what they begin with: of single numbers, of one element, of vectors, of steps on several threads, and nested.
ENDLESS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "while": (lambda x: lax.while_loop(lambda s: s[1] > -1, lambda s: (s[0] + 1, s[1]), (x, x.sum())), X),
    "fori": (lambda x: lax.fori_loop(0, 1 << 50, lambda i, a: a * 0.5 + jnp.sum(a), x), X),
    "nested": (
        lambda x: lax.while_loop(lambda s: s.sum() > -1, lambda s: lax.fori_loop(0, 1 << 40, lambda i, a: jnp.sort(a) * 0.5, s), x),
        X,
    ),
    "number": (lambda x: lax.while_loop(lambda s: s > -1, lambda s: s * 0.5 + 1, x), 1.0),
    "counted": (lambda x: lax.fori_loop(0, 1 << 50, lambda i, a: a * 0.5 + 1, x), 1.0),
    "integer": (lambda x: lax.while_loop(lambda s: s >= 0, lambda s: (s + 1) & 7, x), 0),
    "element": (lambda x: lax.while_loop(lambda s: s[0] > -1, lambda s: s * 0.5 + 1, x), jnp.ones(1)),
    "branch": (lambda x: lax.cond(x > 0, lambda y: lax.while_loop(lambda s: s > -1, lambda s: s * 0.5 + 1, y), lambda y: y, x), 1.0),
    "inner": (lambda x: lax.fori_loop(0, 5, lambda i, y: lax.while_loop(lambda s: s > -1, lambda s: s * 0.5 + 1, y), x), 1.0),
    "products": (lambda x: lax.fori_loop(0, 1 << 50, lambda i, a: a @ a * 1e-3, x), np.ones((400, 400), np.float32)),
}


@pytest.mark.parametrize("loop", ENDLESS)
def test_an_endless_loop_ends(alarm: None, loop: str) -> None:
    endless, start = ENDLESS[loop]
    compiled = vf.jit(endless).lower(start).compile()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        compiled(start)
    np.testing.assert_allclose(vf.jit(lambda x: x + 1)(X), np.asarray(X) + 1)


@pytest.mark.parametrize("loop", ["number", "counted", "products"])
def test_an_endless_loop_ends_without_jit(alarm: None, loop: str) -> None:
    endless, start = ENDLESS[loop]
    signal.setitimer(signal.ITIMER_REAL, 2.0, 2.0)  # again, for where the first one ends the compilation
    with pytest.raises(KeyboardInterrupt):
        endless(start)
    signal.setitimer(signal.ITIMER_REAL, 0)
    np.testing.assert_allclose(X + 1, np.asarray(X) + 1)


def test_a_loop_goes_on_after_a_handler_that_returns(alarm: None) -> None:
    """And its result is that of a loop without signals."""
    count = jnp.asarray(0, jnp.uint32)
    steps = vf.jit(lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 3 + s[0]), (count, count)))
    steps(jnp.asarray(10, jnp.uint32))
    calls: list[float] = []
    signal.signal(signal.SIGALRM, lambda number, frame: calls.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    turns = 1 << 28
    while len(calls) < 2:  # a call takes 0.3 s
        result = steps(jnp.asarray(turns, jnp.uint32))[1]
    signal.setitimer(signal.ITIMER_REAL, 0)
    value = np.array([0, 0, 1], np.uint32)  # (sum, turn, 1) is multiplied by a matrix in each turn
    step, product = np.array([[3, 1, 0], [0, 1, 1], [0, 0, 1]], np.uint32), np.eye(3, dtype=np.uint32)
    for _ in range(28):
        step = step @ step
    assert result == (product @ step @ value)[0]
