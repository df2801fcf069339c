"""Gaussian-process regression: hyper-parameters by gradient ascent on the marginal likelihood (Rasmussen & Williams, ch. 2 and 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, random

Params = dict[str, jax.Array]
AGREEMENT = {"rtol": 2e-3, "atol": 2e-3}  # a float32 Cholesky factor of a matrix with condition number 1e3, 200 times over
NOISE, POINTS = 0.2, 60


def kernel(params: Params, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the squared-exponential covariance of every pair of inputs."""
    one_pair = lambda x, y: jnp.exp(2 * params["log_scale"] - 0.5 * ((x - y) / jnp.exp(params["log_length"])) ** 2)
    return jax.vmap(lambda x: jax.vmap(lambda y: one_pair(x, y))(b))(a)


def factor(params: Params, x: jax.Array) -> jax.Array:
    """Return the Cholesky factor of the covariance of noisy observations at `x`."""
    noise = jnp.exp(2 * params["log_noise"])
    return jnp.linalg.cholesky(kernel(params, x, x) + noise * jnp.eye(len(x)))


def log_marginal_likelihood(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return log p(y | x): the data's fit, the model's complexity, a constant."""
    lower = factor(params, x)
    white = lax.linalg.triangular_solve(lower, y[:, None], left_side=True, lower=True)
    return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(lower))) - 0.5 * len(x) * jnp.log(2 * jnp.pi)


def posterior(params: Params, x: jax.Array, y: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the function at new inputs."""
    lower, cross = factor(params, x), kernel(params, x, at)
    both = lax.linalg.triangular_solve(lower, jnp.column_stack([cross, y]), left_side=True, lower=True)
    projected, white = both[:, :-1], both[:, -1]
    return projected.T @ white, jnp.exp(2 * params["log_scale"]) - jnp.sum(projected**2, axis=0)


@jax.jit
def ascend(params: Params, velocity: Params, x: jax.Array, y: jax.Array) -> tuple[Params, Params, jax.Array]:
    """Take one step of gradient ascent with momentum."""
    value, grads = jax.value_and_grad(log_marginal_likelihood)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.8 * v + 2e-3 * g, velocity, grads)
    return jax.tree.map(lambda p, v: p + v, params, velocity), velocity, value


def run() -> dict[str, Any]:
    """Fit noisy samples of a sine and predict between them."""
    x_key, noise_key = random.split(random.key(2))
    x = random.uniform(x_key, (POINTS,), minval=0.0, maxval=10.0)
    y = jnp.sin(x) + NOISE * random.normal(noise_key, (POINTS,))
    params = {"log_length": jnp.log(2.0), "log_scale": jnp.log(0.5), "log_noise": jnp.log(0.5)}
    velocity = jax.tree.map(jnp.zeros_like, params)
    values = []
    for _ in range(200):
        params, velocity, value = ascend(params, velocity, x, y)
        values.append(value)
    grid = jnp.linspace(0.5, 9.5, 50)
    mean, variance = jax.jit(posterior)(params, x, y, grid)
    results = {"x": x, "y": y, "grid": grid, "params": params, "values": jnp.stack(values), "mean": mean, "variance": variance}
    return results | {"slopes": jax.jit(jax.grad(log_marginal_likelihood))(params, x, y)}


def check(results: dict[str, Any]) -> None:
    """Check that slopes vanish at the optimum; likelihood and posterior are NumPy's in float64, from inverses and determinants."""
    x, y, grid = (np.asarray(results[name], np.float64) for name in ("x", "y", "grid"))
    length, scale, noise = (np.exp(np.float64(results["params"][f"log_{name}"])) for name in ("length", "scale", "noise"))
    covariance = lambda a, b: scale**2 * np.exp(-0.5 * ((a[:, None] - b) / length) ** 2)
    matrix = covariance(x, x) + noise**2 * np.eye(POINTS)
    likelihood = -0.5 * (y @ np.linalg.solve(matrix, y) + np.linalg.slogdet(matrix)[1] + POINTS * np.log(2 * np.pi))
    weights = np.linalg.solve(matrix, covariance(x, grid))
    np.testing.assert_allclose(results["values"][-1], likelihood, atol=1e-2)
    np.testing.assert_allclose(results["mean"], weights.T @ y, atol=1e-3)
    np.testing.assert_allclose(results["variance"], scale**2 - np.sum(covariance(x, grid) * weights, axis=0), atol=1e-3)
    assert all(abs(slope) < 0.05 for slope in results["slopes"].values())
    assert abs(noise - NOISE) < 0.06
    assert np.abs(results["mean"] - np.sin(grid)).max() < 0.25
