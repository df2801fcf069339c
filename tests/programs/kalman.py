"""A Kalman filter and a smoother by scans in both directions; the likelihood's gradient is that of the joint normal density."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax

AGREEMENT = {"rtol": 1e-3, "atol": 1e-4}
STEPS, STATES, SIGNALS = 7, 4, 2
DRAW = np.random.default_rng(4)
OBSERVED = DRAW.normal(size=(STEPS, SIGNALS)).astype("float32")
TRANSITION, EMISSION = (DRAW.normal(size=(n, STATES)).astype("float32") * 0.4 for n in (STATES, SIGNALS))
DRIFT, NOISE = 0.5, 0.3  # variances of a state's step and of an observation


def filtered(transition: jax.Array, emission: jax.Array) -> tuple[jax.Array, Any]:
    """Return the observations' log-likelihood, and the means and covariances of the states by those so far."""

    def step(carry: Any, y: jax.Array) -> Any:
        mean, cov = transition @ carry[0], transition @ carry[1] @ transition.T + DRIFT * jnp.eye(STATES)
        innovation, spread = y - emission @ mean, emission @ cov @ emission.T + NOISE * jnp.eye(SIGNALS)
        gain = jnp.linalg.solve(spread, emission @ cov).T
        distance = innovation @ jnp.linalg.solve(spread, innovation)
        log_density = -0.5 * (distance + jnp.linalg.slogdet(spread)[1] + SIGNALS * np.log(2 * np.pi).astype("float32"))
        after = mean + gain @ innovation, cov - gain @ emission @ cov
        return after, (log_density, after)

    _, (densities, states) = lax.scan(step, (jnp.zeros(STATES), jnp.eye(STATES)), jnp.asarray(OBSERVED))
    return jnp.sum(densities), states


def smoothed(transition: jax.Array, emission: jax.Array) -> jax.Array:
    """Return the means of the states by all observations (Rauch, Tung & Striebel 1965)."""
    _, (means, covs) = filtered(transition, emission)

    def step(later: jax.Array, state: Any) -> tuple[jax.Array, jax.Array]:
        mean, cov = state
        predicted = transition @ cov @ transition.T + DRIFT * jnp.eye(STATES)
        mean = mean + jnp.linalg.solve(predicted, transition @ cov).T @ (later - transition @ mean)
        return mean, mean

    _, earlier = lax.scan(step, means[-1], (means[:-1], covs[:-1]), reverse=True)
    return jnp.concatenate([earlier, means[-1:]])


def run() -> dict[str, Any]:
    """The likelihood and its gradients, the smoothed means and a derivative of theirs."""
    arguments = jnp.asarray(TRANSITION), jnp.asarray(EMISSION)
    likelihood = jax.jit(jax.value_and_grad(lambda *arrays: filtered(*arrays)[0], (0, 1)))
    means, slopes = jax.jit(lambda *arrays: jax.jvp(smoothed, arrays, arrays))(*arguments)
    return {"likelihood": likelihood(*arguments), "means": means, "slopes": slopes}


def joint(transition: np.ndarray, emission: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the log density of all observations at once, and the states' means given them, in float64."""
    powers = np.zeros((STEPS, STATES, STEPS + 1, STATES))  # of the start and of every step's noise in every state
    for t in range(STEPS):
        powers[t] = np.einsum(
            "ij,jkl->ikl", transition, powers[t - 1] if t else np.eye(STATES, (STEPS + 1) * STATES).reshape(powers.shape[1:])
        )
        powers[t, :, t + 1] += np.eye(STATES)
    factors = powers.reshape(STEPS * STATES, -1) * np.sqrt(np.repeat([1.0, *[DRIFT] * STEPS], STATES))
    states, emissions = factors @ factors.T, np.kron(np.eye(STEPS), emission)
    spread = emissions @ states @ emissions.T + NOISE * np.eye(STEPS * SIGNALS)
    y = OBSERVED.astype("float64").ravel()
    weights = np.linalg.solve(spread, y)
    density = -0.5 * (y @ weights + np.linalg.slogdet(spread)[1] + y.size * np.log(2 * np.pi))
    return density, (states @ emissions.T @ weights).reshape(STEPS, STATES)


def check(results: dict[str, Any]) -> None:
    """The joint normal density, central differences of it, and the conditional means."""
    matrices = [TRANSITION.astype("float64"), EMISSION.astype("float64")]
    (value, gradients), h = results["likelihood"], 1e-5
    density, means = joint(*matrices)
    np.testing.assert_allclose(value, density, rtol=1e-5)
    np.testing.assert_allclose(results["means"], means, rtol=1e-3, atol=1e-4)
    scaled = [joint(*[matrix * factor for matrix in matrices])[1] for factor in (1 + h, 1 - h)]
    np.testing.assert_allclose(results["slopes"], (scaled[0] - scaled[1]) / (2 * h), rtol=1e-3, atol=1e-4)
    for place, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (h, -h):
                moved = [matrix.copy() for matrix in matrices]
                moved[place][index] += step
                ends.append(joint(*moved)[0])
            np.testing.assert_allclose(gradient[index], (ends[0] - ends[1]) / (2 * h), rtol=1e-3, atol=1e-3)
