"""Bilevel optimization: penalties learned through the fits of several data sets, by a rule that closes over each set."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax

AGREEMENT = {"rtol": 1e-3, "atol": 1e-5}
SETS, ROWS, FEATURES = 3, 17, 5
DRAW = np.random.default_rng(12)
FITTED, HELD_OUT = (DRAW.normal(size=(SETS, ROWS, FEATURES + 1)).astype("float32") for _ in range(2))  # the last column is the target
PENALTIES = DRAW.normal(size=FEATURES).astype("float32") * 0.3 - 1


def loss(penalties: jax.Array, fitted: jax.Array, held_out: jax.Array) -> jax.Array:
    """Return the held-out error of a ridge regression by gradient descent, differentiated at the minimum."""
    x, y = fitted[:, :-1], fitted[:, -1]

    def slope(weights: jax.Array, penalties: jax.Array) -> jax.Array:
        return x.T @ (x @ weights - y) / ROWS + jnp.exp(penalties) * weights

    @jax.custom_jvp
    def fit(penalties: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 200, lambda _, weights: weights - 0.3 * slope(weights, penalties), jnp.zeros(FEATURES))

    @fit.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        weights = fit(*primals)
        _, change = jax.jvp(lambda penalties: slope(weights, penalties), primals, tangents)
        return weights, -jnp.linalg.solve(x.T @ x / ROWS + jnp.diag(jnp.exp(primals[0])), change)

    return jnp.mean((held_out[:, :-1] @ fit(penalties) - held_out[:, -1]) ** 2)


def run() -> dict[str, Any]:
    """The gradient of the mean loss, that of each set, and the mean loss along a path of gradient descent."""
    sets = jnp.asarray(FITTED), jnp.asarray(HELD_OUT)
    losses = jax.vmap(loss, (None, 0, 0))

    def step(penalties: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(lambda penalties: losses(penalties, *sets).mean())(penalties)
        return penalties - gradient, value

    penalties = jnp.asarray(PENALTIES)
    return {
        "mean": jax.grad(lambda penalties: losses(penalties, *sets).mean())(penalties),
        "each": jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(penalties, *sets),
        "path": jax.jit(lambda penalties: lax.scan(step, penalties, None, length=4)[1])(penalties),
    }


def exact(penalties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each set and its gradient by the normal equations, in float64."""
    values, gradients = [], []
    for fitted, held_out in zip(FITTED.astype("float64"), HELD_OUT.astype("float64"), strict=True):
        x, y = fitted[:, :-1], fitted[:, -1]
        curvature = x.T @ x / ROWS + np.diag(np.exp(penalties))
        weights = np.linalg.solve(curvature, x.T @ y / ROWS)
        errors = held_out[:, :-1] @ weights - held_out[:, -1]
        values.append(np.mean(errors**2))
        gradients.append(-np.exp(penalties) * weights * np.linalg.solve(curvature, 2 * held_out[:, :-1].T @ errors / ROWS))
    return np.stack(values), np.stack(gradients)


def check(results: dict[str, Any]) -> None:
    """The normal equations' losses and gradients."""
    penalties = PENALTIES.astype("float64")
    _, gradients = exact(penalties)
    np.testing.assert_allclose(results["each"], gradients, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(results["mean"], gradients.mean(0), rtol=1e-3, atol=1e-5)
    for value in results["path"]:
        values, gradients = exact(penalties)
        np.testing.assert_allclose(value, values.mean(), rtol=1e-5)
        penalties = penalties - gradients.mean(0)
