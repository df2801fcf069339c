"""Solve a differential equation with a network that has never seen the solution.

    python examples/heat_equation.py

The heat equation u_t = κ u_xx on a rod that starts as sin πx and is kept at 0 at both ends: the loss is how far the network is from
obeying it (Raissi et al. 2019). The derivatives in the equation come from `grad`, and those of the loss go through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random

KAPPA = 0.2


def solution(x: vf.Array, t: vf.Array) -> vf.Array:
    """Return the temperature, which is known here."""
    return jnp.exp(-KAPPA * jnp.pi**2 * t) * jnp.sin(jnp.pi * x)


def temperature(model: nn.MLP, x: vf.Array, t: vf.Array) -> vf.Array:
    """Return the network's temperature at a point, exact at t = 0 and at both ends."""
    return jnp.sin(jnp.pi * x) + t * x * (1 - x) * model(jnp.stack([x, t]))[0]


def residual(model: nn.MLP, x: vf.Array, t: vf.Array) -> vf.Array:
    """Return u_t - κ u_xx at one point."""
    u_t = vf.grad(temperature, argnums=2)(model, x, t)
    u_xx = vf.grad(vf.grad(temperature, argnums=1), argnums=1)(model, x, t)
    return u_t - KAPPA * u_xx


def loss(model: nn.MLP, points: vf.Array) -> vf.Array:
    """Return the mean squared residual over points (n, 2)."""
    return jnp.mean(vf.vmap(residual, in_axes=(None, 0, 0))(model, points[:, 0], points[:, 1]) ** 2)


def train(model: nn.MLP, key: vf.Array, steps: int) -> tuple[nn.MLP, list[vf.Array]]:
    """Return the network after `steps` steps on fresh points, and the losses."""
    optimizer = optim.adam(optim.cosine_decay_schedule(3e-3, steps))

    @vf.jit
    def step(model: nn.MLP, moments: Any, key: vf.Array) -> tuple[nn.MLP, Any, vf.Array]:
        value, gradients = vf.value_and_grad(loss)(model, random.uniform(key, (256, 2)))
        updates, moments = optimizer.update(gradients, moments, model)
        return optim.apply_updates(model, updates), moments, value

    moments, losses = optimizer.init(model), []
    for number in range(steps):
        model, moments, value = step(model, moments, random.fold_in(key, number))
        losses.append(value)
    return model, losses


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, draw, and return the largest errors before and after."""
    options = common.arguments(__doc__, argv)
    model_key, points_key = random.split(random.key(options.seed))
    untrained = nn.MLP.init(model_key, in_size=2, out_size=1, width_size=32, depth=3, activation=nn.tanh)
    model, losses = train(untrained, points_key, 150 if options.quick else 2000)
    print(f"mean squared residual: {float(losses[0]):.4f} at first, {float(losses[-1]):.6f} at last")

    x, t = jnp.linspace(0, 1, 51), jnp.linspace(0, 1, 5)
    table = vf.vmap(vf.vmap(temperature, in_axes=(None, 0, None)), in_axes=(None, None, 0))
    right = solution(x[None, :], t[:, None])
    with common.plot(options.out / "heat_equation.png") as axes:
        for row, exact, time in zip(table(model, x, t), right, t.tolist(), strict=True):
            axes.plot(np.asarray(x), np.asarray(row), label=f"network, t = {time:.2f}")
            axes.plot(np.asarray(x), np.asarray(exact), "k:", linewidth=2)
        axes.set_xlabel("x (dotted: the solution)")
    errors = {name: float(jnp.max(jnp.abs(table(m, x, t) - right))) for name, m in [("untrained", untrained), ("trained", model)]}
    print(f"largest error {errors['trained']:.5f}, untrained {errors['untrained']:.3f}")
    return errors


if __name__ == "__main__":
    main()
