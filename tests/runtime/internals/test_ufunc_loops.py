"""The loops of NumPy's ufuncs, called from machine code."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn.numpy as jnp
from volta_fn.core.array import ConcreteArray
from volta_fn.runtime.internals.eager_calls import loop_of
from volta_fn.targets.cpu.runtime.executor import support_code_of_process

LOOPS = [np.cbrt, np.power, np.arctanh, np.add]


def of_loop(ufunc: np.ufunc, x: Any) -> Callable[..., Any]:
    make = functools.partial(np.empty, x.shape, x.dtype)
    return support_code_of_process().entry.of_loop(ufunc, make, [x._spec], lambda *args: "otherwise")


@pytest.mark.parametrize("ufunc", LOOPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (31, 33), (0, 3)])
def test_results_are_those_of_the_ufunc(ufunc: np.ufunc, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    operands = [np.asarray(rng.normal(size=shape), dtype) for _ in range(ufunc.nin)]
    arrays = [jnp.asarray(x) for x in operands]
    if loop_of(ufunc, np.dtype(dtype)) is None:
        pytest.fail(f"no loop of {ufunc.__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = of_loop(ufunc, arrays[0])(*arrays)
    references = sys.getrefcount(result._buffer)
    assert references == 2  # the array's, and the argument
    assert type(result) is ConcreteArray and result.aval == arrays[0].aval
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(result, ufunc(*operands))


def test_other_operands_are_left_to_the_other_function() -> None:
    x: Any = jnp.asarray(np.arange(1000, dtype=np.float32))
    run = of_loop(np.cbrt, x)
    gone = x + 0
    gone.delete()
    assert run(2.0) == run(np.zeros(1000, np.float32)) == run(gone) == run(x, x) == run() == run(x[::-1]) == "otherwise"


def test_what_has_no_such_loop_stays_with_the_ufunc() -> None:
    assert loop_of(np.cbrt, np.dtype(np.int32)) is None  # whose result is of another dtype
    assert loop_of(np.add, np.dtype(object)) is None  # which needs Python
    integers: Any = jnp.arange(1000)
    assert of_loop(np.cbrt, integers)(integers) == "otherwise"


@pytest.mark.parametrize("function", [jnp.cbrt, jnp.arctanh, lambda x: jnp.power(x, x)])
def test_eager_calls_keep_their_numbers_when_they_are_repeated(function: Callable[[Any], Any]) -> None:
    x = jnp.asarray(np.linspace(0.1, 0.9, 1000, dtype=np.float32))
    first, *later = [np.asarray(function(x)) for _ in range(6)]
    for result in later:
        np.testing.assert_array_equal(result, first)
