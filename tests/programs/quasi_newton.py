"""L-BFGS (Nocedal 1980) with `cond`, `fori_loop` and `while_loop`, and conjugate gradients on Hessian–vector products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, random

AGREEMENT = {"rtol": 1e-3, "atol": 1e-3}  # two paths down a curved valley part by rounding and meet again at its floor
MEMORY, SIZE = 8, 10

Objective = Callable[[jax.Array], jax.Array]


class State(NamedTuple):
    """The iterate with its gradient, and a ring of the latest moves and of the gradient's changes along them."""

    x: jax.Array
    gradient: jax.Array
    moves: jax.Array
    changes: jax.Array
    filled: jax.Array
    steps: jax.Array


def direction(state: State) -> jax.Array:
    """Return minus the gradient times the inverse Hessian that the ring implies, by the two-loop recursion."""
    scale = lambda i: 1.0 / jnp.dot(state.moves[i], state.changes[i])
    count = jnp.minimum(state.filled, MEMORY)

    def newest_first(j: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q, alphas = carry
        i = (state.filled - 1 - j) % MEMORY
        alpha = scale(i) * jnp.dot(state.moves[i], q)
        return q - alpha * state.changes[i], alphas.at[i].set(alpha)

    def oldest_first(j: jax.Array, r: jax.Array) -> jax.Array:
        i = (state.filled - count + j) % MEMORY
        return r + (alphas[i] - scale(i) * jnp.dot(state.changes[i], r)) * state.moves[i]

    q, alphas = lax.fori_loop(0, count, newest_first, (state.gradient, jnp.zeros(MEMORY)))
    last = (state.filled - 1) % MEMORY
    curvature = lambda: 1.0 / (scale(last) * jnp.dot(state.changes[last], state.changes[last]))
    return -lax.fori_loop(0, count, oldest_first, q * lax.cond(count > 0, curvature, lambda: 1e-3))


@partial(jax.jit, static_argnums=0)
def minimise(f: Objective, start: jax.Array) -> State:
    """Return the state at which the gradient of `f` has vanished, or that after 200 steps."""

    def step(state: State) -> State:
        d = direction(state)
        slope = jnp.dot(d, state.gradient)
        too_long = lambda t: (f(state.x + t * d) > f(state.x) + 1e-4 * t * slope) & (t > 1e-8)
        length = lax.while_loop(too_long, lambda t: t / 2, jnp.float32(1.0))
        x = state.x + length * d
        gradient = jax.grad(f)(x)
        move, change = x - state.x, gradient - state.gradient

        def remember() -> tuple[jax.Array, jax.Array, jax.Array]:
            i = state.filled % MEMORY
            return state.moves.at[i].set(move), state.changes.at[i].set(change), state.filled + 1

        forget = lambda: (state.moves, state.changes, state.filled)
        ring = lax.cond(jnp.dot(move, change) > 1e-10, remember, forget)
        return State(x, gradient, *ring, state.steps + 1)

    ring = jnp.zeros((MEMORY, start.size))
    state = State(start, jax.grad(f)(start), ring, ring, jnp.int32(0), jnp.int32(0))
    return lax.while_loop(lambda s: (jnp.max(jnp.abs(s.gradient)) > 1e-3) & (s.steps < 200), step, state)


def conjugate_gradient(multiply: Objective, b: jax.Array, steps: int) -> jax.Array:
    """Return the x with multiply(x) = b, for a symmetric positive definite map (Hestenes & Stiefel 1952)."""

    def step(_: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, residual, d, size = state
        image = multiply(d)
        length = size / jnp.vdot(d, image)
        residual = residual - length * image
        new_size = jnp.vdot(residual, residual)
        return x + length * d, residual, residual + new_size / size * d, new_size

    return lax.fori_loop(0, steps, step, (jnp.zeros_like(b), b, b, jnp.vdot(b, b)))[0]


def rosenbrock(x: jax.Array) -> jax.Array:
    """Return the curved valley of Rosenbrock (1960), least at (1, …, 1)."""
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def run() -> dict[str, Any]:
    """Minimise the valley, and solve least squares without ever forming a matrix of second derivatives."""
    result = minimise(rosenbrock, jnp.zeros(SIZE))
    a_key, b_key = random.split(random.key(8))
    a, b = random.normal(a_key, (40, SIZE)), random.normal(b_key, (40,))
    objective = lambda x: 0.5 * jnp.sum((a @ x - b) ** 2)
    hessian_times = lambda v: jax.jvp(jax.grad(objective), (jnp.zeros(SIZE),), (v,))[1]
    solution = jax.jit(lambda: conjugate_gradient(hessian_times, -jax.grad(objective)(jnp.zeros(SIZE)), SIZE))()
    return {"found": result.x, "value": rosenbrock(result.x), "quick": result.steps < 150, "a": a, "b": b, "solution": solution}


def check(results: dict[str, Any]) -> None:
    """Check that the valley's floor is reached well before the limit, and that least squares are NumPy's."""
    np.testing.assert_allclose(results["found"], np.ones(SIZE), atol=5e-3)
    assert results["value"] < 1e-5
    assert results["quick"]
    expected = np.linalg.lstsq(results["a"].astype(np.float64), results["b"].astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(results["solution"], expected, rtol=1e-4, atol=1e-5)
