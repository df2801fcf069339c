"""Newton's method with exact Hessians: logistic regression to machine precision in a few steps, and a curved valley with damping."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, nn, random

AGREEMENT = {"rtol": 1e-3, "atol": 1e-4}
EXAMPLES, FEATURES, RIDGE = 200, 4, 1e-2

Objective = Callable[[jax.Array], jax.Array]


@partial(jax.jit, static_argnums=0)
def newton(f: Objective, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Steps -H⁻¹g until the gradient vanishes; a step that does not descend is halved (Armijo). The point, the number of steps."""

    def descends_too_little(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        x, step, slope = state
        return (f(x + step) > f(x) + 1e-4 * slope) & (jnp.max(jnp.abs(step)) > 1e-6)

    def halve(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, step, slope = state
        return x, step / 2, slope / 2

    def iterate(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, count = state
        gradient = jax.grad(f)(x)
        step = -jnp.linalg.solve(jax.hessian(f)(x), gradient)
        _, step, _ = lax.while_loop(descends_too_little, halve, (x, step, gradient @ step))
        return x + step, count + 1

    unfinished = lambda state: (jnp.linalg.norm(jax.grad(f)(state[0])) > 1e-5) & (state[1] < 50)
    return lax.while_loop(unfinished, iterate, (x, jnp.int32(0)))


def rosenbrock(x: jax.Array) -> jax.Array:
    """Return the curved valley of Rosenbrock (1960), least at (1, …, 1)."""
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def run() -> dict[str, Any]:
    """Solve both problems; the Hessian at the regression's optimum gives its standard errors."""
    x_key, y_key = random.split(random.key(5))
    x = random.normal(x_key, (EXAMPLES, FEATURES))
    truth = jnp.array([1.0, -2.0, 0.5, 0.0])
    y = random.bernoulli(y_key, nn.sigmoid(x @ truth)).astype(jnp.float32)

    def negative_log_posterior(w: jax.Array) -> jax.Array:
        logits = x @ w
        return jnp.mean(nn.softplus(logits) - y * logits) + 0.5 * RIDGE * jnp.dot(w, w)

    weights, steps = newton(negative_log_posterior, jnp.zeros(FEATURES))
    valley, valley_steps = newton(rosenbrock, jnp.array([-1.2, 1.0]))
    return {
        "x": x,
        "y": y,
        "weights": weights,
        "steps": steps,
        "hessian": jax.hessian(negative_log_posterior)(weights),
        "reverse_over_forward": jax.jacrev(jax.jacfwd(negative_log_posterior))(weights),
        "valley": valley,
        "valley_steps": valley_steps,
    }


def check(results: dict[str, Any]) -> None:
    """NumPy's float64 gradient vanishes at the weights found, its Hessian is ours, and the valley's floor is reached."""
    x, y, w = (np.asarray(results[name], np.float64) for name in ("x", "y", "weights"))
    p = 1 / (1 + np.exp(-x @ w))
    assert np.abs(x.T @ (p - y) / EXAMPLES + RIDGE * w).max() < 1e-5
    hessian = (x.T * (p * (1 - p))) @ x / EXAMPLES + RIDGE * np.eye(FEATURES)
    np.testing.assert_allclose(results["hessian"], hessian, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(results["reverse_over_forward"], hessian, rtol=1e-4, atol=1e-6)
    assert results["steps"] <= 8
    np.testing.assert_allclose(results["valley"], np.ones(2), atol=1e-3)
    assert results["valley_steps"] < 50
