"""The option `accuracy`, and dtypes of operands, of elementwise functions."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import DTypeError


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "log", "log1p", "logistic", "sin", "cos", "tan", "tanh", "sqrt", "rsqrt", "cbrt"])
def test_any_accuracy_gives_the_exact_code(name: str) -> None:
    function, x = getattr(lax, name), np.float32(0.7)
    for accuracy in (None, lax.AccuracyMode.DEFAULT, lax.AccuracyMode.HIGHEST, lax.Tolerance(rtol=1e-3)):
        assert function(x, accuracy=accuracy) == function(x)
        assert vf.jit(lambda x: function(x, accuracy=accuracy))(x) == vf.jit(function)(x)


def test_numbers_of_different_kinds_are_refused() -> None:
    for function in (lax.add, lax.mul, lax.lt, lax.eq):
        with pytest.raises(DTypeError, match="one dtype"):
            function(0, 0.0)
    assert lax.add(0, 1) == 1
    assert lax.add(vf.numpy.ones(()), 1) == 2


def test_the_slope_of_expm1_is_exp_far_on_the_left() -> None:
    assert vf.grad(lax.expm1)(-80.0) == lax.exp(-80.0)


@pytest.mark.parametrize(
    ("function", "slope"),
    [(lax.asin, lambda x: (1 - x * x) ** -0.5), (lax.acos, lambda x: -((1 - x * x) ** -0.5)), (lax.atanh, lambda x: 1 / (1 - x * x))],
)
def test_slopes_near_one(function, slope) -> None:
    x = np.concatenate([1 - np.geomspace(1e-7, 0.5, 300), np.geomspace(1e-7, 0.5, 300) - 1]).astype(np.float32)
    wanted = slope(x.astype(np.float64))
    for gradient in (vf.vmap(vf.grad(function)), vf.jit(vf.vmap(vf.grad(function)))):
        np.testing.assert_allclose(np.asarray(gradient(x)), wanted, rtol=1e-6)
