"""Result dtypes of mixed operands, and whether they are weak, against JAX."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import numpy as vnp

BINARY = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "divmod", "power", "float_power", "maximum", "minimum",
    "fmax", "fmin", "hypot", "arctan2", "logaddexp", "copysign", "equal", "less", "dot", "inner", "outer", "kron", "polyval",
    "gradient", "trapezoid",
)  # fmt: skip
UNARY = (
    "sum", "prod", "max", "min", "mean", "var", "std", "median", "any", "all", "average", "ptp", "cumsum", "nansum", "nanmax", "nanmean",
    "negative", "absolute", "sqrt", "exp", "sin", "square", "reciprocal", "floor", "round", "sort", "gradient", "unwrap", "zeros_like",
)  # fmt: skip
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "eq")


def values(space: Any) -> dict[str, Any]:
    """Return numbers and arrays by the names of their types."""
    arrays = {
        name: space.asarray([1, 2, 3]).astype(name)
        for name in ("bool", "int8", "uint8", "int32", "bfloat16", "float16", "float32", "complex64")
    }
    weak = {"weak int": space.asarray(2), "weak float": space.asarray(0.5)}
    return {"int": 2, "float": 0.5, "complex": 0.5j, "np.float32": np.float32(0.5), "np.int32": np.int32(2), **arrays, **weak}


JAX, OURS = values(jnp), values(vnp)


def result_types(eval_shape: Callable[..., Any], function: Callable[..., Any], arguments: list[Any]) -> Any:
    """Return (dtype, weak, shape) of each result, Python's numbers not traced."""
    traced = [i for i, x in enumerate(arguments) if not isinstance(x, (int, float, complex))]

    def of_arrays(*arrays: Any) -> Any:
        replaced = dict(zip(traced, arrays, strict=True))
        return function(*[replaced.get(i, x) for i, x in enumerate(arguments)])

    results = eval_shape(of_arrays, *[arguments[i] for i in traced])
    return [(x.dtype.name, x.weak_type, x.shape) for x in (results if isinstance(results, (list, tuple)) else [results])]


def differences(theirs: Callable[..., Any], ours: Callable[..., Any], combinations: list[tuple[str, ...]]) -> list[str]:
    """Return where JAX takes operands of these types, and its results have others."""
    different, count = [], 0
    for names in combinations:
        try:
            want = result_types(jax.eval_shape, theirs, [JAX[n] for n in names])
        except (TypeError, ValueError, IndexError):
            continue
        count += 1
        got = result_types(vf.eval_shape, ours, [OURS[n] for n in names])
        if got != want:
            different.append(f"{names}: {got}, in JAX {want}")
    assert count
    return different


def pairs() -> list[tuple[str, ...]]:
    """Return all pairs of which one is an array or an array's scalar."""
    numbers = {"int", "float", "complex", "np.float32", "np.int32"}
    return [p for p in itertools.product(JAX, repeat=2) if not set(p) <= numbers]


@pytest.mark.parametrize("name", BINARY)
def test_pairs_have_the_types_of_jax(name):
    combinations = pairs()
    if name in ("arctan2", "logaddexp"):  # of complex numbers the one is refused here, and the other weak
        combinations = [p for p in combinations if not {"complex", "complex64"} & set(p)]
    if name in ("hypot", "polyval"):  # booleans and a number are weak here, and strong in JAX
        combinations = [p for p in combinations if "bool" not in p]
    assert not differences(getattr(jnp, name), getattr(vnp, name), combinations)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_the_types_of_jax(name):
    function = getattr(operator, name)
    assert not differences(function, function, [p for p in pairs() if p != ("bool", "bool")])


@pytest.mark.parametrize("name", UNARY)
def test_results_have_the_types_of_jax(name):
    assert not differences(getattr(jnp, name), getattr(vnp, name), [(n,) for n in JAX])


def test_where_and_clip_have_the_types_of_jax():
    for name, first in (("where", [True, False, True]), ("clip", None)):
        theirs, ours = ((functools.partial(getattr(m, name), m.asarray(first)) if first else getattr(m, name)) for m in (jnp, vnp))
        assert not differences(theirs, ours, pairs())


def test_half_the_integers_keep_bfloat16():
    half = vnp.arange(3) * 0.5
    assert half.weak_type and (vnp.ones(3, "bfloat16") * half).dtype == vnp.bfloat16
    jitted = vf.jit(lambda x, n: (x * (n * 0.5), vnp.maximum(n, 0.5) + x, 2.0**n * x))
    products = jitted(vnp.ones(3, "bfloat16"), vnp.arange(3))
    assert [p.dtype.name for p in products] == ["bfloat16", "bfloat16", "float32"]
    assert products[0].tolist() == [0.0, 0.5, 1.0] and products[1].tolist() == [1.5, 2.0, 3.0] and products[2].tolist() == [1.0, 2.0, 4.0]
