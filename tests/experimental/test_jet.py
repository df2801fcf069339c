"""`jet`: derivatives of high order are those of nested `jvp`, and JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.jet
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, GradientError, TreeError
from volta_fn.experimental.jet import fact, jet

X = np.float32([0.3, 0.8])
W = np.float32([[0.5, -1.0], [2.0, 0.25]])
FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "exp": lambda ja, xp, x: xp.exp(x) + xp.expm1(x),
    "sin and cos": lambda ja, xp, x: xp.sin(x) * xp.cos(2 * x),
    "log and sqrt": lambda ja, xp, x: xp.log(1 + x) / xp.sqrt(x),
    "tanh": lambda ja, xp, x: xp.tanh(x) + ja.nn.sigmoid(x),
    "powers": lambda ja, xp, x: x**3 + x**0.5 + 1 / (x * x),
    "network": lambda ja, xp, x: xp.tanh(W @ xp.sin(W @ x)).sum(),
    "softmax": lambda ja, xp, x: ja.nn.softmax(x * W, axis=-1)[0],
    "selection": lambda ja, xp, x: xp.where(x > 0.5, xp.sin(x), x * x) + xp.abs(x) + xp.maximum(x, 0.5),
    "shapes": lambda ja, xp, x: xp.concatenate([x[::-1], x.reshape(1, 2)[0]]).cumsum() * 2,
    "jit": lambda ja, xp, x: ja.jit(lambda y: y * xp.exp(y))(x),
    "integers": lambda ja, xp, x: x * xp.floor(4 * x) + (x > 0.5).astype(x.dtype),
}
OURS_ALONE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scan": lambda ja, xp, x: ja.lax.scan(lambda c, w: (xp.sin(w @ c), None), x, xp.stack([W, W.T]))[0],
    "cond": lambda ja, xp, x: ja.lax.cond(x[0] > 0, lambda y: xp.sin(y), lambda y: y, x),
    "while": lambda ja, xp, x: ja.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * xp.sin(c[1])), (0, x))[1],
    "gamma": lambda ja, xp, x: ja.scipy.special.gammaln(x + 1) + ja.scipy.special.erf(x),
    "linear algebra": lambda ja, xp, x: xp.linalg.inv(W + xp.diag(x)).sum(),
    "gather": lambda ja, xp, x: x[xp.array([1, 0, 1])] ** 3,
}


def nested(function: Callable[[Any], Any], primal: Any, series: Any, order: int) -> list[Any]:
    """Return derivatives along the curve by differentiating again and again, by JAX."""
    with jax.enable_x64(True):
        x, terms = np.asarray(primal, np.float64), [np.asarray(c, np.float64) for c in series]
        curve = lambda t: x + sum(c * t**k / float(np.prod(range(1, k + 1))) for k, c in enumerate(terms, 1))
        g: Callable[..., Any] = lambda t: function(curve(t))
        results = []
        for _ in range(order):
            g = (lambda h: lambda t: jax.jvp(h, (t,), (1.0,))[1])(g)
            results.append(np.asarray(g(0.0)))
        return results


@pytest.mark.parametrize("name", [*FUNCTIONS, *OURS_ALONE])
def test_derivatives_are_those_of_nested_differentiation(name: str) -> None:
    function = (FUNCTIONS | OURS_ALONE)[name]
    series = [np.float32([1.0, -0.5]), np.float32([0.2, 0.4]), np.float32([0.0, 1.0])]
    value, derivatives = jet(lambda x: function(vf, vnp, x), (X,), (series,))
    np.testing.assert_allclose(value, function(vf, vnp, vnp.asarray(X)), rtol=1e-5)
    # Third derivatives of float32 functions lose a few digits to cancellation.
    for actual, wanted in zip(derivatives, nested(lambda x: function(jax, jnp, x), X, series, 3), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


def test_results_are_laid_out_as_by_jax() -> None:
    f = lambda ja, xp: lambda x, y: {"a": xp.sin(x) * y, "b": (y * y, x)}
    args = (np.float32(0.5), np.float32(2.0)), ([np.float32(1.0), np.float32(0.0)], [np.float32(0.5), np.float32(1.0)])
    ours, theirs = jet(f(vf, vnp), *args), jax.experimental.jet.jet(f(jax, jnp), *args)
    assert jax.tree.structure(jax.tree.map(np.asarray, ours)) == jax.tree.structure(jax.tree.map(np.asarray, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, jax.tree.map(np.asarray, theirs))


def test_it_can_be_jitted_and_mapped() -> None:
    second = lambda x: jet(vnp.sin, (x,), ([vnp.ones(()), vnp.zeros(())],))[1][1]
    np.testing.assert_allclose(vf.jit(vf.vmap(second))(X), -np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(vf.grad(second)(X[0]), -np.cos(X[0]), rtol=1e-6)


def test_unfit_series_raise() -> None:
    with pytest.raises(TreeError, match="1 primals, but 2 series"):
        jet(vnp.sin, (0.0,), ([1.0], [1.0]))
    with pytest.raises(ArgumentError, match="one length"):
        jet(vnp.add, (0.0, 1.0), ([1.0], [1.0, 2.0]))
    with pytest.raises(GradientError, match="floating"):
        jet(vnp.sin, (1,), ([1],))


def test_factorials() -> None:
    np.testing.assert_allclose(fact(np.arange(8)), jax.experimental.jet.fact(jnp.arange(8)), rtol=1e-5)
