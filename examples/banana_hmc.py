"""Sample a curved distribution with many chains of Hamiltonian Monte Carlo.

    python examples/banana_hmc.py

One chain is a `scan` over leapfrog steps that `grad` drives (Neal 2011); `vmap` runs a hundred chains as one program. The distribution is
a banana, whose moments are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, random

STEPS, SIZE = 20, 0.15


def log_density(point: vf.Array) -> vf.Array:
    """Return the logarithm of the density, up to a constant, at (x, y).

    x is normal with deviation 1, and y given x is normal around x² - 1 with deviation 0.5.
    """
    x, y = point
    return -0.5 * x**2 - 2.0 * (y - (x**2 - 1.0)) ** 2


def leapfrog(point: vf.Array, momentum: vf.Array) -> tuple[vf.Array, vf.Array]:
    """Return point and momentum after `STEPS` steps of the motion."""

    def step(state: tuple[vf.Array, vf.Array], _: None) -> tuple[tuple[vf.Array, vf.Array], None]:
        point, momentum = state
        momentum = momentum + 0.5 * SIZE * vf.grad(log_density)(point)
        point = point + SIZE * momentum
        return (point, momentum + 0.5 * SIZE * vf.grad(log_density)(point)), None

    return lax.scan(step, (point, momentum), None, length=STEPS)[0]


def transition(point: vf.Array, key: vf.Array) -> tuple[vf.Array, tuple[vf.Array, vf.Array]]:
    """Return the next point of a chain, and it with whether it was accepted."""
    momentum_key, accept_key = random.split(key)
    momentum = random.normal(momentum_key, point.shape)
    proposal, end = leapfrog(point, momentum)
    gain = log_density(proposal) - log_density(point) + 0.5 * (jnp.sum(momentum**2) - jnp.sum(end**2))
    accepted = jnp.log(random.uniform(accept_key)) < gain
    point = jnp.where(accepted, proposal, point)
    return point, (point, accepted)


def chain(start: vf.Array, key: vf.Array, samples: int) -> tuple[vf.Array, vf.Array]:
    """Return the samples of one chain, and which proposals were accepted."""
    return lax.scan(transition, start, random.split(key, samples))[1]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Sample, draw, and return moments, the rate of acceptance and R̂."""
    options = common.arguments(__doc__, argv)
    samples, chains = (100, 50) if options.quick else (1000, 100)
    start_key, chain_key = random.split(random.key(options.seed))
    run = vf.jit(vf.vmap(lambda start, key: chain(start, key, samples)))
    output, accepted = run(random.normal(start_key, (chains, 2)), random.split(chain_key, chains))
    retained = output[:, samples // 4 :]  # the first quarter forgets the start

    # R̂ compares the variance between chains with that within (Gelman & Rubin 1992): 1 when all see the same distribution.
    within, between = jnp.mean(jnp.var(retained, axis=1), axis=0), jnp.var(jnp.mean(retained, axis=1), axis=0)
    with common.plot(options.out / "banana_hmc.png") as axes:
        points = np.asarray(retained).reshape(-1, 2)[::7]
        axes.plot(*points.T, ",", color="gray", label="samples of all chains")
        axes.plot(*np.asarray(output[0, :60]).T, ".-", linewidth=0.8, label="the first chain's beginning")
    result = {
        "mean of x": float(jnp.mean(retained[..., 0])),
        "variance of x": float(jnp.var(retained[..., 0])),
        "mean of y": float(jnp.mean(retained[..., 1])),
        "variance of y": float(jnp.var(retained[..., 1])),
        "accepted": float(jnp.mean(accepted)),
        "R hat": float(jnp.max(jnp.sqrt(1 + between / within))),
    }
    print(", ".join(f"{name} {value:.3f}" for name, value in result.items()))
    print("in truth: means 0 and 0, variances 1 and 2.25")
    return result


if __name__ == "__main__":
    main()
