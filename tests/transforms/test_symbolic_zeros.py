"""Zeros that rules see as such: in the backward pass, under vmap, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.custom_derivatives import SymbolicZero, zero_from_primal

SEEN: list[type] = []


@vf.custom_vjp
def pair(x: Any) -> Any:
    return vf.numpy.sin(x), vf.numpy.cos(x)


def _backward(x: Any, cotangents: Any) -> Any:
    SEEN[:] = map(type, cotangents)
    first, _ = cotangents
    return (first * vf.numpy.cos(x),)


pair.defvjp(lambda x: ((vf.numpy.sin(x.value), vf.numpy.cos(x.value)), x.value), _backward, symbolic_zeros=True)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: vf.grad(lambda x: f(x)[0]),
        lambda f: vf.grad(vf.jit(lambda x: f(x)[0])),
        lambda f: lambda x: vf.vmap(vf.grad(lambda x: f(x)[0]))(vf.numpy.stack([x, x]))[1],
        lambda f: lambda x: vf.grad(lambda x: vf.vmap(f)(x[None])[0].sum())(x),
    ],
)
def test_a_result_that_is_not_used_has_a_symbolic_cotangent(transform: Any) -> None:
    assert np.isclose(transform(pair)(vf.numpy.asarray(0.5)), np.cos(0.5))
    assert SEEN[1] is SymbolicZero


def test_a_zero_tangent_has_the_primals_type() -> None:
    assert zero_from_primal(np.ones(2, np.float32)).tolist() == [0.0, 0.0]
    zero = zero_from_primal(3, symbolic_zeros=True)
    assert type(zero) is SymbolicZero and zero.aval.dtype == vf.dtypes.float0
    zeros = zero_from_primal({"w": np.ones(2, np.float32), "steps": (3, None)})
    assert zeros["w"].tolist() == [0.0, 0.0] and zeros["steps"][0].dtype == vf.dtypes.float0 and zeros["steps"][1] is None
