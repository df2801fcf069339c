"""Learn to turn noise into points of two moons, by denoising.

    python examples/moon_diffusion.py

A network learns to predict the noise in noisy points (Ho et al. 2020); sampling starts from noise alone and removes it step by step, in
one `scan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn, optim, random

STEPS = 100
BETAS = jnp.linspace(1e-4, 0.15, STEPS)
KEPT = jnp.cumprod(1 - BETAS)  # how much of a point's variance is left after each step


def moons(key: vf.Array, count: int) -> vf.Array:
    """Return points of two half circles with a little noise, shape (count, 2)."""
    angle_key, which_key, noise_key = random.split(key, 3)
    angle = jnp.pi * random.uniform(angle_key, (count,))
    upper = random.bernoulli(which_key, 0.5, (count,))
    x = jnp.where(upper, jnp.cos(angle) - 0.5, 0.5 - jnp.cos(angle))
    y = jnp.where(upper, jnp.sin(angle) - 0.25, 0.25 - jnp.sin(angle))
    return 1.2 * jnp.stack([x, y], axis=1) + 0.05 * random.normal(noise_key, (count, 2))


def predicted_noise(model: nn.MLP, points: vf.Array, step: vf.Array) -> vf.Array:
    """Return the noise in points (n, 2) at steps (n,)."""
    phase = step[:, None] / STEPS * jnp.array([1.0, 2.0, 4.0, 8.0]) * jnp.pi
    return vf.vmap(model)(jnp.concatenate([points, jnp.sin(phase), jnp.cos(phase)], axis=1))


def loss(model: nn.MLP, key: vf.Array) -> vf.Array:
    """Return the mean squared error of the prediction, for a fresh batch."""
    data_key, noise_key, step_key = random.split(key, 3)
    points, noise = moons(data_key, 512), random.normal(noise_key, (512, 2))
    step = random.randint(step_key, (512,), 0, STEPS)
    retained = KEPT[step][:, None]
    return jnp.mean((predicted_noise(model, jnp.sqrt(retained) * points + jnp.sqrt(1 - retained) * noise, step) - noise) ** 2)


@vf.jit(static_argnames="count")
def sample(model: nn.MLP, key: vf.Array, count: int) -> vf.Array:
    """Return new points, and all steps on the way, shape (STEPS, count, 2)."""
    first, rest = random.split(key)

    def denoise(points: vf.Array, now: tuple[vf.Array, vf.Array]) -> tuple[vf.Array, vf.Array]:
        step, key = now
        noise = predicted_noise(model, points, jnp.full(count, step))
        mean = (points - BETAS[step] / jnp.sqrt(1 - KEPT[step]) * noise) / jnp.sqrt(1 - BETAS[step])
        points = mean + jnp.where(step > 0, jnp.sqrt(BETAS[step]), 0.0) * random.normal(key, mean.shape)
        return points, points

    return lax.scan(denoise, random.normal(first, (count, 2)), (jnp.arange(STEPS)[::-1], random.split(rest, STEPS)))[1]


def distance(a: vf.Array, b: vf.Array) -> vf.Array:
    """Return the energy distance of two sets of points (Székely & Rizzo 2013)."""
    between = lambda p, q: jnp.mean(jnp.sqrt(jnp.sum((p[:, None] - q[None]) ** 2, axis=-1) + 1e-12))
    return 2 * between(a, b) - between(a, a) - between(b, b)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, sample, draw, and return distances of noise and of samples from the data."""
    options = common.arguments(__doc__, argv)
    model_key, train_key, sample_key, data_key = random.split(random.key(options.seed), 4)
    model = nn.MLP.init(model_key, in_size=10, out_size=2, width_size=96, depth=3, activation=nn.silu)
    steps = 300 if options.quick else 4000
    optimizer = optim.adam(optim.cosine_decay_schedule(3e-3, steps))

    @vf.jit
    def step(model: nn.MLP, moments: Any, key: vf.Array) -> tuple[nn.MLP, Any, vf.Array]:
        value, gradients = vf.value_and_grad(loss)(model, key)
        updates, moments = optimizer.update(gradients, moments, model)
        return optim.apply_updates(model, updates), moments, value

    moments = optimizer.init(model)
    for number in range(steps):
        model, moments, _ = step(model, moments, random.fold_in(train_key, number))
    path, data = sample(model, sample_key, 1000), moons(data_key, 1000)
    with common.plot(options.out / "moon_diffusion.png") as axes:
        for column, at in enumerate([0, STEPS // 2, 3 * STEPS // 4, STEPS - 1]):
            axes.plot(*np.add(path[at], [5 * column, 0]).T, ".", markersize=2, label=f"step {at + 1}")
        axes.plot(*np.add(data, [20, 0]).T, ".", markersize=2, color="gray", label="data")
        axes.set_aspect("equal")
        axes.set_ylim(-8, 4)  # room for the legend
    result = {"noise": float(distance(path[0], data)), "samples": float(distance(path[-1], data))}
    print(f"energy distance from the data: samples {result['samples']:.4f}, noise {result['noise']:.3f}")
    return result


if __name__ == "__main__":
    main()
