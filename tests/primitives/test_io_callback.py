"""`io_callback`: calls happen once, in order, whatever is done with the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, CallbackError, GradientError

FLOAT = vf.ShapeDtypeStruct((), "float32")


class Log:
    """Notes what it is called with, and returns its double."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, x: Any) -> Any:
        self.seen.append(float(x))
        return np.float32(2 * x)


@pytest.mark.parametrize("compiled", [False, True])
def test_calls_happen_in_order_even_if_unused(compiled: bool) -> None:
    log = Log()

    def f(x: Any) -> Any:
        vf.experimental.io_callback(log, FLOAT, x, ordered=True)
        ys = vf.lax.scan(lambda c, i: (c, vf.experimental.io_callback(log, FLOAT, i, ordered=True)), x, vf.numpy.arange(3.0))[1]
        vf.lax.cond(x > 0, lambda: vf.experimental.io_callback(log, FLOAT, x + 10), lambda: x)
        return ys

    run = vf.jit(f) if compiled else f
    for _ in range(2):
        log.seen.clear()
        assert run(np.float32(5.0)).tolist() == [0.0, 2.0, 4.0]
        assert log.seen == [5.0, 0.0, 1.0, 2.0, 15.0]


def test_examples_are_called_one_by_one() -> None:
    log = Log()
    f = lambda x: vf.experimental.io_callback(log, FLOAT, x)
    assert vf.vmap(f)(np.arange(3.0, dtype=np.float32)).tolist() == [0.0, 2.0, 4.0]
    assert log.seen == [0.0, 1.0, 2.0]
    with pytest.raises(ArgumentError, match="ordered"):
        vf.vmap(lambda x: vf.experimental.io_callback(log, FLOAT, x, ordered=True))(np.ones(2, np.float32))


def test_derivatives() -> None:
    log = Log()
    f = lambda x, y: vf.experimental.io_callback(log, FLOAT, y) * x
    assert vf.grad(f)(np.float32(1.0), np.float32(3.0)) == 6.0
    with pytest.raises(GradientError, match="io_callback"):
        vf.grad(f, argnums=1)(np.float32(1.0), np.float32(3.0))


def test_other_results_than_promised_raise() -> None:
    with pytest.raises(CallbackError, match="promised|was to return"):
        vf.jit(lambda x: vf.experimental.io_callback(lambda v: np.zeros(3), FLOAT, x))(1.0)
