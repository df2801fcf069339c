"""No floating-point warning reaches a user, from any thread, and no caller's error state is changed."""

from __future__ import annotations

import threading
import warnings
from contextvars import ContextVar

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.runtime import native_calls
from volta_fn.runtime.native_calls import silenced, silenced_in_context


@pytest.fixture(params=["NumPy's variable", "np.errstate"])
def state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: by NumPy's context variable, and without it."""
    if request.param == "np.errstate":
        monkeypatch.setattr(native_calls, "_WARNING_FREE", None)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_silenced_function_leaves_the_error_state_alone(count: int) -> None:
    def divide(*arrays: np.ndarray) -> np.ndarray:
        return arrays[0] / np.float32(0)

    arrays = [np.ones(4, np.float32)] * count
    with np.errstate(all="raise"):
        for quiet in (silenced(divide), silenced_in_context(divide, count)):
            assert np.isinf(quiet(*arrays)).all()
        with pytest.raises(FloatingPointError):
            divide(*arrays)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_busy_context_is_not_waited_for(count: int) -> None:
    """A function that is called while another thread, or this one further up, is inside of one."""
    inside, finished = threading.Event(), threading.Event()

    def wait(*arrays: np.ndarray) -> bool:
        inside.set()
        return finished.wait(20)

    arrays = [np.full(4, 3e38, np.float32)] * count
    other = threading.Thread(target=silenced_in_context(wait, count), args=arrays)
    other.start()
    assert inside.wait(20)
    double = silenced_in_context(lambda *xs: xs[0] + xs[-1], count)
    nested = silenced_in_context(lambda *xs: double(*xs), count)
    with np.errstate(all="raise"):
        assert np.isinf(double(*arrays)).all()
        assert np.isinf(nested(*arrays)).all()
    finished.set()
    other.join()


@pytest.mark.usefixtures("state")
def test_errors_come_out_once() -> None:
    calls = []

    def fail(x: np.ndarray) -> None:
        calls.append(x)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        silenced_in_context(fail, 1)(np.ones(2))
    assert len(calls) == 1


def test_operations_do_not_warn() -> None:
    x, y = jnp.array([3e38, 0.0, -1.0]), jnp.array([3e38, 0.0, jnp.inf])
    product = jnp.array([[3e38, jnp.inf], [1.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [x + y, x * y, x / y, jnp.log(x), jnp.sum(x + x), product @ product, jnp.where(x > 0, x * x, y - y)]
        np.testing.assert_array_equal(results[0], np.array([np.inf, 0, np.inf], np.float32))
        np.testing.assert_array_equal(results[5], np.array([[np.inf, np.nan], [3e38, np.inf]], np.float32))


def test_a_callback_sees_the_callers_context() -> None:
    """Its code is the user's: what a user's context variables hold is what it finds there."""
    setting: ContextVar[str] = ContextVar("setting")
    seen = []

    def callback(x: np.ndarray) -> np.ndarray:
        seen.append(setting.get())
        return x

    setting.set("mine")
    vf.pure_callback(callback, vf.ShapeDtypeStruct((2,), jnp.float32), jnp.ones(2))
    assert seen == ["mine"]


def test_numpys_state_is_found_or_its_absence_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_calls._find_warning_free_context() is not None
    monkeypatch.setattr(np, "seterr", lambda **kinds: None)
    assert native_calls._find_warning_free_context() is None
