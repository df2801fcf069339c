"""Blocks that find NaN, infinities and indices; switches that tell of traces; breakpoints."""

from __future__ import annotations

import io
import logging
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import config, errors, lax
from volta_fn.core.staging import named_call, named_scope


def test_infinities_are_refused_if_asked_for() -> None:
    with vf.debug.nans():
        vnp.ones(2) / vnp.zeros(2)
    with vf.debug.nans(infs=True), pytest.raises(errors.NonFiniteError, match=r"inf.*div"):
        vnp.ones(2) / vnp.zeros(2)


def test_a_carried_nan_is_said_to_be_one() -> None:
    x = vnp.array([1.0, float("nan")])
    with vf.debug.nans(), pytest.raises(errors.NonFiniteError, match="has it already"):
        x + 1


@pytest.mark.parametrize("index", [slice(0, 1), (slice(0, 1), slice(0, 2)), (np.array([0]), np.array([1])), (0, 1), np.array([0])], ids=str)
def test_what_is_read_by_index_is_checked(index: Any) -> None:
    x = vnp.asarray(np.array([[1.0, np.nan], [2.0, 3.0]], np.float32))
    with vf.debug.nans(), pytest.raises(errors.NonFiniteError):
        x[index]


def test_repeated_functions_of_the_package_are_checked_too() -> None:
    x = -vnp.ones(2000)
    for _ in range(5):  # by then it may be a compiled program
        vf.nn.logsumexp(vnp.log(x)) if hasattr(vf.nn, "logsumexp") else vnp.log(x)
    with vf.debug.nans(), pytest.raises(errors.NonFiniteError, match="log"):
        vnp.log(x)


def test_indices_in_programs() -> None:
    take = vf.jit(lambda x, i: vnp.take(x, i))
    with vf.debug.indices(), pytest.raises((errors.OutOfBoundsError, errors.CallbackError), match="7"):
        take(vnp.arange(3.0), 7)
    take(vnp.arange(3.0), 7)


def test_loops_run_in_python_without_jit() -> None:
    seen: list[float] = []
    with config.disable_jit():
        total, ys = lax.scan(lambda c, x: (vf.debug.callback(lambda v: seen.append(float(v)), c) or c + x, c * x), 0.0, vnp.arange(4.0))
        done = lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0)
    assert (float(total), ys.tolist(), int(done), seen) == (6.0, [0.0, 0.0, 2.0, 9.0], 3, [0.0, 0.0, 1.0, 3.0])


def test_traces_and_misses_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    double = vf.jit(lambda x: 2 * x)
    with caplog.at_level(logging.WARNING, "volta_fn"), config.log_compiles(), config.explain_cache_misses():
        double(vnp.ones(3))
        double(vnp.ones(3))
        double(vnp.ones(4))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4
    assert texts[0].startswith("compiling <lambda> for f32[3]") and "test_checks.py" in texts[0]
    assert "first call" in texts[1]
    assert "x has 2 types, such as f32[3], f32[4]" in texts[3]


def test_leaks_are_found_at_once() -> None:
    retained: list[Any] = []

    def leak(x: Any) -> Any:
        y = x * 2
        retained.append(y)
        return y

    with config.checking_leaks(), pytest.raises(errors.LeakedTracerError, match=r"`mul` at .*test_checks.py.*a list"):
        vf.jit(leak)(1.0)
    with config.checking_leaks():
        assert float(vf.jit(vf.grad(lambda x: vnp.sin(x) * lax.cond(x > 0, lambda: x, lambda: -x)))(0.5)) != 0


def test_values_that_only_a_cycle_holds_are_no_leaks() -> None:
    def in_a_cycle(x: Any) -> Any:
        y = x * 2
        cycle: list[Any] = [y]
        cycle.append(cycle)
        return y

    with config.checking_leaks():
        assert float(vf.jit(in_a_cycle)(1.0)) == 2


def test_names_of_blocks_are_in_the_program() -> None:
    @named_call
    def layer(x: Any) -> Any:
        with named_scope("inner"):
            return vnp.tanh(x)

    text = vf.make_jaxpr(lambda x: layer(x) + 1)(1.0).pretty_print(source_info=True)
    assert "in layer/inner" in text and text.count(" in layer") == 1
    with pytest.raises(errors.ArgumentTypeError):
        named_scope(3)  # type: ignore[arg-type]


def stopped(commands: str) -> str:
    """Return what a breakpoint prints for some commands."""
    answers = io.StringIO()

    def f(x: Any) -> Any:
        y = {"sum": x + 1}
        vf.debug.breakpoint(stdin=io.StringIO(commands), stdout=answers)
        return y["sum"]

    assert float(vf.jit(f)(3.0)) == 4.0
    return answers.getvalue()


def test_a_breakpoint_shows_values_of_the_running_program() -> None:
    assert "test_checks.py" in stopped("c\n")
    assert "4.0" in stopped("p y['sum']\nc\n") or "4." in stopped("p y['sum']\nc\n")
    assert "NameError" in stopped("z\n")
    assert "-> " in stopped("l\n")
    assert "x = " in stopped("a\n")
    with pytest.raises(errors.CallbackError, match="ended"):
        stopped("q\n")


@pytest.mark.parametrize("argument", [0.0, np.zeros(3, np.float32), [0.0, np.float32(1)]], ids=["number", "NumPy", "list"])
def test_arguments_of_jitted_functions_are_arrays(argument: Any) -> None:
    """In Python's and NumPy's own arithmetic, nothing would be checked."""
    first = lambda x: x[0] if isinstance(x, list) else x
    with vf.debug.nans(), pytest.raises(errors.NonFiniteError, match="in div"):
        vf.jit(lambda x: first(x) / first(x))(argument)
    with vf.debug_infs(), pytest.raises(errors.NonFiniteError, match="in div"):
        vf.jit(lambda x: 1 / first(x))(argument)


def test_without_jit_functions_get_and_return_what_programs_do() -> None:
    seen: list[Any] = []

    def noted(x: Any, n: int, *, options: Any) -> Any:
        seen[:] = [x, n, options]
        return {"y": x, "n": 1}

    with vf.disable_jit():
        result = vf.jit(noted, static_argnums=1)(np.ones(2), 3, options={"rate": 0.5})
    assert isinstance(seen[0], vf.Array) and seen[1] == 3 and isinstance(seen[2]["rate"], vf.Array)
    assert isinstance(result["y"], vf.Array) and isinstance(result["n"], vf.Array)
    with vf.disable_jit(), pytest.raises(errors.ArgumentTypeError, match='static_argnames="mode"'):
        vf.jit(lambda x, mode: x)(1.0, "train")
    ref = vf.new_ref(0.0)
    with vf.disable_jit():
        vf.jit(lambda r: vf.ref.set(r, ..., 2.0))(ref)
    assert float(ref[...]) == 2
