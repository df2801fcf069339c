"""Built-in functions of arrays that call NumPy's functions, or make views."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn.numpy as jnp
from volta_fn.core import dispatch
from volta_fn.core.array import ConcreteArray
from volta_fn.runtime.internals.threads import quiet_context, silenced_in_context
from volta_fn.targets.cpu.runtime import executor

X: Any = jnp.asarray(np.arange(1000, dtype=np.float32))


def of_kernel(function: Callable[..., Any], operands: int = 1, result: Any = X) -> Callable[..., Any]:
    executor.support_code_of_process()
    output = dispatch.available()
    assert output is not None
    return output.of_kernel(silenced_in_context(function, operands), operands, result._spec, lambda *args: "otherwise")


def test_a_function_of_numpy_makes_an_array() -> None:
    run = of_kernel(np.add, 2)
    completed = run(X, X)
    references = sys.getrefcount(completed._buffer)
    assert references == 2  # the array's, and the argument
    assert type(completed) is ConcreteArray and completed.aval == X.aval
    np.testing.assert_array_equal(completed, 2 * np.arange(1000, dtype=np.float32))
    np.testing.assert_array_equal(run(X, X[::-1]), np.full(1000, 999, np.float32))  # as it is, without a copy


def test_scalars_become_arrays() -> None:
    result = of_kernel(np.sum, 1, X.sum())(X)
    assert type(result._buffer) is np.ndarray and result.shape == () and result.item() == 499500


def test_other_operands_are_left_to_the_other_function() -> None:
    run = of_kernel(np.sin)
    gone = X + 0
    gone.delete()
    assert run(2.0) == run(np.zeros(3)) == run(gone) == run(X, X) == run() == "otherwise"


def test_warnings_are_off_and_on_again() -> None:
    run = of_kernel(np.log)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(X)[0].item() == -np.inf
        with pytest.raises(RuntimeWarning):
            np.log(np.zeros(2))


def test_errors_come_through_but_lack_of_memory_is_the_other_functions() -> None:
    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    def lacks(x: Any) -> Any:
        raise MemoryError

    with pytest.raises(ZeroDivisionError):
        of_kernel(fails)(X)
    assert of_kernel(lacks)(X) == "otherwise"
    assert of_kernel(np.sin)(X).shape == X.shape  # the context is free again


def test_a_context_that_is_taken_is_the_other_functions() -> None:
    context = quiet_context()
    assert context is not None
    run = of_kernel(np.sin)
    assert context.run(run, X) == "otherwise"
    assert of_kernel(lambda x: x if run(X) == "otherwise" else None)(X).shape == X.shape
    go, entered = threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        go.wait(60)

    other = threading.Thread(target=context.run, args=(stay,))
    other.start()
    entered.wait(60)
    assert run(X) == "otherwise"
    go.set()
    other.join()
    assert run(X).shape == X.shape


def test_references_are_counted() -> None:
    run, fails = of_kernel(np.sin), of_kernel(lambda x: 1 / 0)
    counted = [X._buffer, X._spec, None]
    before = [sys.getrefcount(thing) for thing in counted]
    for _ in range(1000):
        run(X), run(3)
        with pytest.raises(ZeroDivisionError):
            fails(X)
    assert max(abs(sys.getrefcount(thing) - count) for thing, count in zip(counted, before, strict=True)) < 100


def of_view(view: np.ndarray, of: Any) -> Callable[..., Any]:
    result = dispatch.available()
    assert result is not None
    offset = view.__array_interface__["data"][0] - of._buffer.__array_interface__["data"][0]
    like: Any = jnp.asarray(view)
    return result.of_view(view, offset, like._spec, lambda *args: "otherwise")


def test_views_share_memory_and_keep_it() -> None:
    m = X.reshape(20, 50) + 0
    run = of_view(m._buffer[::-1, ::2], m)
    other = m + 1
    completed = run(other)
    references = sys.getrefcount(completed._buffer)
    assert references == 2
    assert np.shares_memory(completed._buffer, other._buffer)
    expected = np.asarray(other)[::-1, ::2].copy()
    del other
    np.testing.assert_array_equal(completed, expected)
    assert run(m.T) == run(m, m) == run(2) == "otherwise"
    before = sys.getrefcount(m._buffer)
    for _ in range(1000):
        run(m), run(None)
    assert abs(sys.getrefcount(m._buffer) - before) < 10


def test_views_may_have_another_dtype() -> None:
    z: Any = jnp.asarray(np.arange(600) * (1 + 2j)).astype("complex64")
    run = of_view(z._buffer.imag, z)
    np.testing.assert_array_equal(run(z), 2 * np.arange(600, dtype=np.float32))
