"""An adaptive ODE solver, Dormand–Prince 5(4) (1980), in `lax.while_loop`: batched over starts, differentiated through forwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax

AGREEMENT = {"rtol": 1e-3, "atol": 1e-3}  # the step size follows an error estimate made of float32 rounding when it is small
TIME = 6.0

# The Butcher tableau: nodes, the stages' rows, and how the fourth-order weights differ from the fifth-order ones (the last row).
NODES = np.array([0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1], np.float32)
STAGES = [
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
ERROR = np.array([71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40], np.float32)

Field = Callable[..., jax.Array]


def attempt(field: Field, t: jax.Array, y: jax.Array, h: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Take one step of size `h`: return the fifth-order result, the slope there, and the estimate of its error."""
    slopes = slope[None]
    for node, row in zip(NODES[1:], STAGES, strict=True):
        end = y + h * jnp.array(row, y.dtype) @ slopes
        slopes = jnp.concatenate([slopes, field(t + node * h, end)[None]])
    return end, slopes[-1], h * ERROR @ slopes


def solve(field: Field, start: jax.Array, time: float, *, rtol: float = 1e-5, atol: float = 1e-6) -> tuple[jax.Array, jax.Array]:
    """Return the state at `time` of y' = field(t, y) from `start` at 0, and the number of steps that were tried."""

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        t, y, h, slope, count = state
        h = jnp.minimum(h, time - t)
        end, end_slope, error = attempt(field, t, y, h, slope)
        tolerance = atol + rtol * jnp.maximum(jnp.abs(y), jnp.abs(end))
        ratio = lax.stop_gradient(jnp.sqrt(jnp.mean((error / tolerance) ** 2)))
        accepted = ratio <= 1.0
        t, y, slope = jax.tree.map(partial(jnp.where, accepted), (t + h, end, end_slope), (t, y, slope))
        return t, y, h * jnp.clip(0.9 * (ratio + 1e-10) ** -0.2, 0.2, 5.0), slope, count + 1

    zero = jnp.float32(0)
    state = zero, start, jnp.float32(0.1), field(zero, start), jnp.int32(0)
    _, y, _, _, count = lax.while_loop(lambda state: (state[0] < time) & (state[4] < 1000), step, state)
    return y, count


def oscillator(frequency: jax.Array, t: jax.Array, y: jax.Array) -> jax.Array:
    """Position and speed of a mass on a spring."""
    return jnp.stack([y[1], -(frequency**2) * y[0]])


def predators_and_prey(t: jax.Array, y: jax.Array) -> jax.Array:
    """Return the Lotka–Volterra equations."""
    prey, predators = y
    return jnp.stack([prey * (1.0 - predators), predators * (prey - 1.0)])


def run() -> dict[str, Any]:
    """Springs of three frequencies, the derivative with respect to the frequency, and populations from four starts at once."""
    start = jnp.array([1.0, 0.0])
    spring = jax.jit(lambda frequency: solve(partial(oscillator, frequency), start, TIME)[0])
    frequencies = jnp.array([0.5, 1.0, 2.0])
    starts = jnp.array([[0.5, 0.5], [1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
    populations, counts = jax.jit(jax.vmap(lambda y: solve(predators_and_prey, y, TIME)))(starts)
    tangents = [jax.jvp(spring, (frequency,), (jnp.ones_like(frequency),))[1] for frequency in frequencies]
    return {
        "springs": jnp.stack([spring(frequency) for frequency in frequencies]),
        "sensitivities": jnp.stack(tangents),
        "frequencies": frequencies,
        "starts": starts,
        "populations": populations,
        "steps": counts,
    }


def check(results: dict[str, Any]) -> None:
    """Check that springs are cosines, and their sensitivities the derivatives of these.

    Populations keep their invariant, and rest needs few steps.
    """
    w = np.asarray(results["frequencies"], np.float64)
    np.testing.assert_allclose(results["springs"], np.stack([np.cos(w * TIME), -w * np.sin(w * TIME)], axis=1), atol=3e-4)
    sensitivities = np.stack([-TIME * np.sin(w * TIME), -np.sin(w * TIME) - w * TIME * np.cos(w * TIME)], axis=1)
    np.testing.assert_allclose(results["sensitivities"], sensitivities, atol=5e-3)
    invariant = lambda y: (y - np.log(y)).sum(axis=-1)
    np.testing.assert_allclose(invariant(results["populations"]), invariant(results["starts"]), atol=2e-4)
    np.testing.assert_allclose(results["populations"][3], [1.0, 1.0], atol=1e-6)
    assert results["steps"][3] < results["steps"][0] < 200
