"""`linear_call`: values and gradients are JAX's, the transpose is the user's."""

from __future__ import annotations

from typing import Any

import jax
import jax.custom_derivatives
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import GradientError, ShapeError

X = np.float32([1.0, -2.0, 3.0])


def results(ja: Any) -> list[Any]:
    """Return values and derivatives of a scaling whose transpose is another one."""
    call = ja.custom_derivatives.linear_call
    f = lambda x, r: call(lambda r, t: {"y": r * t["x"]}, lambda r, ct: {"x": r * ct["y"] * 10.0}, r, {"x": x})["y"]
    r = np.float32(3.0)
    return [
        f(X, r),
        ja.jit(f)(X, r),
        ja.grad(lambda x: f(x, r).sum())(X),
        ja.jit(ja.grad(lambda x: f(x, r).sum()))(X),
        ja.jvp(lambda x: f(x, r), (X,), (X,))[1],
        ja.grad(lambda x: ja.grad(lambda y: (f(y, r) ** 2).sum())(x).sum())(X),
        ja.linear_transpose(lambda x: f(x, r), X)(X)[0],
    ]


def test_derivatives_are_jaxs() -> None:
    for ours, theirs in zip(results(vf), results(jax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_it_can_be_mapped() -> None:
    f = lambda x, r: vf.custom_derivatives.linear_call(lambda r, t: r * t, lambda r, ct: r * ct * 10.0, r, x)
    np.testing.assert_allclose(vf.vmap(f, (0, None))(X, 2.0), X * 2)
    np.testing.assert_allclose(vf.vmap(vf.grad(f))(X, X), X * 10)


def test_unfit_calls_raise() -> None:
    call = vf.custom_derivatives.linear_call
    with pytest.raises(GradientError, match="residual_args"):
        vf.grad(lambda r: call(lambda r, t: r * t, lambda r, ct: r * ct, r, 2.0))(3.0)
    with pytest.raises(ShapeError, match="fun_transpose"):
        call(lambda r, t: r * t, lambda r, ct: ct[:1], 1.0, X)
