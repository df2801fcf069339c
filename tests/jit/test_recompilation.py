"""Functions that are compiled again and again give one warning, with the reason."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import RecompilationWarning
from volta_fn.jit.cache import MANY_PROGRAMS


def test_changing_shapes_are_named() -> None:
    f = vf.jit(lambda params, x: params["w"] * x.sum())
    with pytest.warns(RecompilationWarning, match=rf"compiled {MANY_PROGRAMS} times") as records:
        number = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]  # CPython has frames
        for size in range(MANY_PROGRAMS):
            f({"w": 2.0}, jnp.zeros(size))
    assert f"x has {MANY_PROGRAMS} types, such as f32[28], f32[29], f32[30], f32[31]" in str(records[0].message)
    assert "params" not in str(records[0].message)
    assert (len(records), records[0].filename, records[0].lineno) == (1, __file__, number)


@pytest.mark.parametrize("call", [lambda f, n: f(1.0, n), lambda f, n: f(1.0, n=n)], ids=["position", "name"])
def test_changing_static_arguments_are_named(call: Any) -> None:
    f = vf.jit(lambda x, n: x * n, static_argnames="n")
    with pytest.warns(RecompilationWarning, match=r"the static argument .* has 32 values, such as 28, 29, 30, 31"):
        for n in range(MANY_PROGRAMS):
            call(f, n)


def test_changing_structures_are_named() -> None:
    f = vf.jit(lambda xs: sum(xs))
    with pytest.warns(RecompilationWarning, match=rf"{MANY_PROGRAMS} structures"):
        for n in range(1, MANY_PROGRAMS + 1):
            f([1.0] * n)


def test_few_programs_and_later_ones_give_no_warning() -> None:
    f = vf.jit(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in range(1, MANY_PROGRAMS):
            f(jnp.zeros(size))
            f(jnp.zeros(size))
    with pytest.warns(RecompilationWarning):
        f(jnp.zeros(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(jnp.zeros(100))


def test_functions_of_the_package_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in range(1, MANY_PROGRAMS + 2):
            vf.nn.softmax(jnp.zeros(size))


def test_many_jitted_functions_of_one_function_are_not_warned_of() -> None:
    def f(x: vf.Array) -> vf.Array:
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in range(MANY_PROGRAMS + 1):
            vf.jit(f)(jnp.ones(size))
    assert vf.jit(f).cache_info().programs == MANY_PROGRAMS + 1


def test_a_function_says_why_a_call_would_be_compiled() -> None:
    f = vf.jit(lambda params, x, n=1: params["w"] * x * n, static_argnames="n")
    assert f.why_missed({"w": 2.0}, jnp.zeros(3)) == "its first call, or the first of a function that is made anew each time"
    assert f.cache_info() == (0, 0)
    f({"w": 2.0}, jnp.zeros(3))
    f({"w": 2.0}, jnp.zeros((5, 5)), n=4)
    assert f.why_missed({"w": 3.0}, jnp.ones(3)) is None
    assert "of 2 programs, x has 2 types, such as f32[3], f32[4]" in str(f.why_missed({"w": 2.0}, jnp.zeros(4)))
    assert "params['w'] has 2 types, such as weak f32[], f32[1]" in str(f.why_missed({"w": jnp.zeros(1)}, jnp.zeros(3)))
    assert "2 structures" in str(f.why_missed({"w": 2.0, "b": 1.0}, jnp.zeros(3)))
    assert "the static argument 'n' has 2 values" in str(f.why_missed({"w": 2.0}, jnp.zeros((5, 5)), n=5))
    assert f.cache_info().traces == 2
    f.clear_cache()
    assert "first call" in str(f.why_missed({"w": 3.0}, jnp.ones(3)))


def test_functions_of_references_say_why_a_call_would_be_compiled() -> None:
    total = vf.new_ref(jnp.zeros(3))

    @vf.jit
    def outside(x: Any) -> None:
        total[...] += x

    @vf.jit
    def argument(ref: Any, x: Any) -> None:
        ref[...] += x

    for f, args in ((outside, ()), (argument, (total,))):
        assert "first call" in str(f.why_missed(*args, jnp.ones(3)))
        f(*args, jnp.ones(3))
        assert f.why_missed(*args, jnp.zeros(3)) is None
        assert "x has 2 types" in str(f.why_missed(*args, 1))
    assert total[...].tolist() == [2.0, 2.0, 2.0]
