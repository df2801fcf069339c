"""Hamiltonian Monte Carlo over many chains at once."""

from collections.abc import Callable

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, random

Density = Callable[[vf.Array], vf.Array]


def leapfrog(density: Density, q: vf.Array, p: vf.Array, step: float, count: int) -> tuple[vf.Array, vf.Array]:
    """Follow the dynamics for `count` steps."""
    slope = vf.grad(density)

    def one(_: vf.Array, state: tuple[vf.Array, vf.Array]) -> tuple[vf.Array, vf.Array]:
        q, p = state
        p = p + 0.5 * step * slope(q)
        q = q + step * p
        return q, p + 0.5 * step * slope(q)

    return lax.fori_loop(0, count, one, (q, p))


def sample(density: Density, key: vf.Array, start: vf.Array, length: int) -> vf.Array:
    """Return the states of one chain."""

    def transition(q: vf.Array, key: vf.Array) -> tuple[vf.Array, vf.Array]:
        draw, accept = random.split(key)
        p = random.normal(draw, q.shape)
        new_q, new_p = leapfrog(density, q, p, 0.3, 5)
        gain = density(new_q) - density(q) - 0.5 * (new_p @ new_p - p @ p)
        q = jnp.where(jnp.log(random.uniform(accept)) < gain, new_q, q)
        return q, q

    _, chain = lax.scan(transition, start, random.split(key, length))
    return chain


def gaussian(q: vf.Array) -> vf.Array:
    """Return the log density of the standard normal distribution."""
    return -0.5 * jnp.sum(q**2)


def main() -> tuple[vf.Array, vf.Array]:
    """Return the mean and the variance over chains and steps."""

    def chain(key: vf.Array) -> vf.Array:
        return sample(gaussian, key, jnp.zeros(2), 100)

    chains = vf.jit(vf.vmap(chain))(random.split(random.key(1), 8))
    return chains.mean((0, 1)), chains.var((0, 1))
