"""Hamiltonian Monte Carlo (Neal 2011): chains of a correlated normal distribution, all in one `lax.scan` under one `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, random

AGREEMENT = {"rtol": 1e-3, "atol": 1e-3}  # float32 chains forget their rounding, since the target is a single bump
MEAN = np.array([1.0, -2.0, 0.5], np.float32)
COVARIANCE = np.array([[1.0, 0.6, 0.0], [0.6, 1.5, -0.3], [0.0, -0.3, 0.7]], np.float32)
PRECISION = np.linalg.inv(COVARIANCE)
CHAINS, WARM_UP, SAMPLES = 16, 100, 500

LogDensity = Callable[[jax.Array], jax.Array]


def log_density(q: jax.Array) -> jax.Array:
    """Return the target's log-density up to a constant."""
    centred = q - MEAN
    return -0.5 * centred @ PRECISION @ centred


def leapfrog(target: LogDensity, q: jax.Array, p: jax.Array, size: float, steps: int) -> tuple[jax.Array, jax.Array]:
    """Hamilton's equations for a while: half a kick, then drifts and kicks, the last of them half."""
    force = jax.grad(target)

    def drift_and_kick(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q, p = state
        q = q + size * p
        return q, p + size * force(q)

    q, p = lax.fori_loop(0, steps, drift_and_kick, (q, p + 0.5 * size * force(q)))
    return q, p - 0.5 * size * force(q)


@partial(jax.jit, static_argnums=0)
def sample(target: LogDensity, key: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run one chain from `start`: return its states and whether each proposal was accepted."""

    def transition(q: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        p_key, accept_key = random.split(key)
        p = random.normal(p_key, q.shape)
        proposal, p_end = leapfrog(target, q, p, size=0.25, steps=8)
        log_ratio = target(proposal) - target(q) + 0.5 * (jnp.sum(p**2) - jnp.sum(p_end**2))
        accepted = jnp.log(random.uniform(accept_key)) < log_ratio
        q = jnp.where(accepted, proposal, q)
        return q, (q, accepted)

    return lax.scan(transition, start, random.split(key, WARM_UP + SAMPLES))[1]


def run() -> dict[str, Any]:
    """Sixteen chains at once, from scattered starts."""
    start_key, chain_key = random.split(random.key(4))
    starts = 3 * random.normal(start_key, (CHAINS, 3))
    states, accepted = jax.vmap(partial(sample, log_density))(random.split(chain_key, CHAINS), starts)
    retained = states[:, WARM_UP:].reshape(-1, 3)
    return {
        "states": states,
        "acceptance": jnp.mean(accepted),
        "mean": jnp.mean(retained, axis=0),
        "covariance": jnp.cov(retained, rowvar=False),
    }


def check(results: dict[str, Any]) -> None:
    """Check that most proposals are accepted, and mean and covariance are right within five standard errors of 8,000 samples."""
    assert 0.9 < results["acceptance"] <= 1.0
    np.testing.assert_allclose(results["mean"], MEAN, atol=0.08)
    np.testing.assert_allclose(results["covariance"], COVARIANCE, atol=0.12)
