"""Learn the law of motion of a spiral from noisy points of some of its paths.

    python examples/spiral_ode.py

A network gives the velocity at a point; `odeint` follows it through time, and the gradient of the error goes back through the solver by
the adjoint equation (Chen et al. 2018). The learnt law is then followed from points that it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random
from volta_fn.experimental.ode import odeint

TIMES = jnp.linspace(0.0, 4.0, 21)
SPIRAL = jnp.array([[-0.2, 2.0], [-2.0, -0.2]])


def truth(start: vf.Array) -> vf.Array:
    """Return the path from a point, shape (times, 2)."""
    return odeint(lambda point, _: SPIRAL @ point, start, TIMES)


def path(model: nn.MLP, start: vf.Array) -> vf.Array:
    """Return the path that the network's velocities give, shape (times, 2)."""
    return odeint(lambda point, _: model(point), start, TIMES, rtol=1e-4, atol=1e-4)


@vf.jit
def loss(model: nn.MLP, starts: vf.Array, points: vf.Array) -> vf.Array:
    """Return the mean squared distance of paths from points (paths, times, 2)."""
    return jnp.mean((vf.vmap(path, in_axes=(None, 0))(model, starts) - points) ** 2)


def train(model: nn.MLP, starts: vf.Array, points: vf.Array, steps: int) -> nn.MLP:
    """Return the network after `steps` steps of Adam."""
    optimizer = optim.adam(optim.cosine_decay_schedule(1e-2, steps))

    @vf.jit
    def step(model: nn.MLP, moments: Any) -> tuple[nn.MLP, Any, vf.Array]:
        value, gradients = vf.value_and_grad(loss)(model, starts, points)
        updates, moments = optimizer.update(gradients, moments, model)
        return optim.apply_updates(model, updates), moments, value

    moments = optimizer.init(model)
    for number in range(steps):
        model, moments, value = step(model, moments)
        if number % 100 == 0:
            print(f"step {number:3}: loss {float(value):.5f}")
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, draw, and return the errors on new paths: before, and after."""
    options = common.arguments(__doc__, argv)
    model_key, start_key, noise_key, new_key = random.split(random.key(options.seed), 4)
    starts = random.uniform(start_key, (16, 2), minval=-1.0, maxval=1.0)
    points = vf.vmap(truth)(starts)
    points = points + 0.02 * random.normal(noise_key, points.shape)
    untrained = nn.MLP.init(model_key, in_size=2, out_size=2, width_size=32, depth=2, activation=nn.tanh)
    model = train(untrained, starts, points, 60 if options.quick else 500)

    new = random.uniform(new_key, (4, 2), minval=-1.0, maxval=1.0)
    wanted = vf.vmap(truth)(new)
    with common.plot(options.out / "spiral_ode.png") as axes:
        for number, (actual, right) in enumerate(zip(vf.vmap(path, in_axes=(None, 0))(model, new), wanted, strict=True)):
            axes.plot(*np.asarray(right).T, ".", color="gray", label="true paths from new points" if number == 0 else None)
            axes.plot(*np.asarray(actual).T, label=f"path {number + 1} of the learnt law")
        axes.set_aspect("equal")
    errors = {"untrained": float(loss(untrained, new, wanted)), "trained": float(loss(model, new, wanted))}
    print(f"mean squared error on new paths: {errors['trained']:.5f}, untrained {errors['untrained']:.3f}")
    return errors


if __name__ == "__main__":
    main()
