"""Fixed points differentiated implicitly with `custom_vjp`: the backward pass solves a linear fixed point instead of unrolling.

If x* = f(θ, x*), then dx* = (I - ∂f/∂x)⁻¹ ∂f/∂θ dθ, and its transpose is found by iterating u = v + uᵀ∂f/∂x.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, random

AGREEMENT = {"rtol": 1e-4, "atol": 1e-5}
UNITS = 6

Map = Callable[[Any, jax.Array], jax.Array]


def iterate(f: Callable[[jax.Array], jax.Array], start: jax.Array) -> jax.Array:
    """Apply `f` until nothing moves by more than a few rounding errors."""
    moving = lambda state: (jnp.max(jnp.abs(state[0] - state[1])) > 1e-6) & (state[2] < 500)
    return lax.while_loop(moving, lambda state: (f(state[0]), state[0], state[2] + 1), (f(start), start, 0))[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fixed_point(f: Map, theta: Any, start: jax.Array) -> jax.Array:
    """Return the x with x = f(theta, x), found from `start`."""
    return iterate(lambda x: f(theta, x), start)


def forward(f: Map, theta: Any, start: jax.Array) -> tuple[jax.Array, tuple[Any, jax.Array]]:
    """Return the fixed point, and what its cotangent needs."""
    x = fixed_point(f, theta, start)
    return x, (theta, x)


def backward(f: Map, residuals: tuple[Any, jax.Array], cotangent: jax.Array) -> tuple[Any, jax.Array]:
    """Return the parameters' cotangent; where the search started does not matter."""
    theta, x = residuals
    _, pull_x = jax.vjp(lambda x: f(theta, x), x)
    _, pull_theta = jax.vjp(lambda theta: f(theta, x), theta)
    u = iterate(lambda u: cotangent + pull_x(u)[0], cotangent)
    return pull_theta(u)[0], jnp.zeros_like(x)


fixed_point.defvjp(forward, backward)


def babylonian(a: jax.Array, x: jax.Array) -> jax.Array:
    """Return a better guess of the square root of `a`, which is the fixed point."""
    return 0.5 * (x + a / x)


def equilibrium(theta: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """Return a layer of infinite depth: tanh(Wx + b), a contraction while W is small."""
    weights, bias = theta
    return jnp.tanh(weights @ x + bias)


def run() -> dict[str, Any]:
    """Square roots with their slopes, and an equilibrium layer's gradients beside those of fifty unrolled applications."""
    root = lambda a: fixed_point(babylonian, a, jnp.ones_like(a))
    a = jnp.array([0.25, 2.0, 9.0])
    w_key, b_key = random.split(random.key(6))
    weights, bias = random.normal(w_key, (UNITS, UNITS)), random.normal(b_key, (UNITS,))
    theta = (0.5 * weights / jnp.linalg.norm(weights, ord=2), bias)
    implicit = lambda theta: jnp.sum(fixed_point(equilibrium, theta, jnp.zeros(UNITS)) ** 2)
    layer_output = fixed_point(equilibrium, theta, jnp.zeros(UNITS))
    unrolled = lambda theta: jnp.sum(lax.scan(lambda x, _: (equilibrium(theta, x), None), jnp.zeros(UNITS), length=50)[0] ** 2)
    return {
        "a": a,
        "roots": jax.vmap(root)(a),
        "slopes": jax.vmap(jax.grad(root))(a),
        "value": jax.jit(implicit)(theta),
        "gradient": jax.jit(jax.grad(implicit))(theta),
        "unrolled": jax.grad(unrolled)(theta),
        "residual": equilibrium(theta, layer_output) - layer_output,
    }


def check(results: dict[str, Any]) -> None:
    """Roots and slopes are √a and 1/(2√a); implicit and unrolled gradients are one."""
    np.testing.assert_allclose(results["roots"], np.sqrt(results["a"]), rtol=1e-6)
    np.testing.assert_allclose(results["slopes"], 0.5 / np.sqrt(results["a"]), rtol=1e-5)
    assert np.abs(results["residual"]).max() < 1e-5
    for implicit, unrolled in zip(results["gradient"], results["unrolled"], strict=True):
        np.testing.assert_allclose(implicit, unrolled, rtol=1e-4, atol=1e-5)
