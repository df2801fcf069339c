"""Model-agnostic meta-learning (Finn et al. 2017) of sines from ten points each.

    python examples/maml.py

A task is a sine of random amplitude and phase. A few steps of gradient descent on ten of its points start from the meta-parameters. These
are learnt by the gradient *through* those steps, a `grad` of `grad`, for many tasks at once with `vmap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random

POINTS, RATE = 10, 0.02


class Task(NamedTuple):
    """A sine: `amplitude` * sin(x + `phase`)."""

    amplitude: vf.Array
    phase: vf.Array

    def __call__(self, x: vf.Array) -> vf.Array:
        """Return the sine's values."""
        return self.amplitude * jnp.sin(x + self.phase)


def tasks(key: vf.Array, count: int) -> Task:
    """Draw random tasks, as a task with a leading axis."""
    first, second = random.split(key)
    return Task(random.uniform(first, (count,), minval=0.1, maxval=5.0), random.uniform(second, (count,), minval=0.0, maxval=np.pi))


def network(key: vf.Array) -> nn.Sequential:
    """Create a network with two hidden layers of 40 units, as in the paper."""
    keys = random.split(key, 3)
    return nn.Sequential(nn.Linear.init(keys[0], 1, 40), nn.tanh, nn.Linear.init(keys[1], 40, 40), nn.tanh, nn.Linear.init(keys[2], 40, 1))


def loss(model: nn.Sequential, x: vf.Array, y: vf.Array) -> vf.Array:
    """Return the mean squared error."""
    return nn.losses.mse_loss(model(x[:, None])[:, 0], y)


def adapted(model: nn.Sequential, x: vf.Array, y: vf.Array, steps: int) -> nn.Sequential:
    """Return the model after `steps` steps of gradient descent on a task's points."""
    for _ in range(steps):
        model = vf.tree.map(lambda p, g: p - RATE * g, model, vf.grad(loss)(model, x, y))
    return model


def after(model: nn.Sequential, task: Task, key: vf.Array, steps: int) -> vf.Array:
    """Return the loss on new points of a task, after `steps` steps on ten others."""
    x, x_new = random.uniform(key, (2, POINTS), minval=-5.0, maxval=5.0)
    return loss(adapted(model, x, task(x), steps), x_new, task(x_new))


def mean_after(model: nn.Sequential, key: vf.Array, count: int, steps: int) -> vf.Array:
    """Return the mean of `after` over random tasks."""
    task_key, point_key = random.split(key)
    per_task = vf.vmap(after, in_axes=(None, 0, 0, None))
    return jnp.mean(per_task(model, tasks(task_key, count), random.split(point_key, count), steps))


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Meta-train; return losses on new tasks after 0, 1, 5 steps, without and with it."""
    options = common.arguments(__doc__, argv)
    model_key, train_key, test_key = random.split(random.key(options.seed), 3)
    count = 300 if options.quick else 10_000
    optimizer = optim.adam(optim.cosine_decay_schedule(3e-3, count))

    @vf.jit
    def step(model: nn.Sequential, moments: Any, key: vf.Array) -> tuple[nn.Sequential, Any, vf.Array]:
        value, grads = vf.value_and_grad(mean_after)(model, key, 25, 1)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    model = untrained = network(model_key)
    moments = optimizer.init(model)
    bar = data.progress(range(count), "meta-training")
    for number in bar:
        model, moments, value = step(model, moments, random.fold_in(train_key, number))
        if number % 50 == 0:
            bar.report(f"loss after one step {float(value):.3f}")
    report = {}
    for name, start in [("random start", untrained), ("meta-learnt start", model)]:
        report[name] = [float(mean_after(start, test_key, 200, steps)) for steps in (0, 1, 5)]
        print(f"{name}: loss on new tasks {report[name][0]:.3f}; after 1 step {report[name][1]:.3f}; after 5 {report[name][2]:.3f}")
    draw(model, Task(jnp.array(3.0), jnp.array(1.0)), test_key, options)
    return report


def draw(model: nn.Sequential, task: Task, key: vf.Array, options: Any) -> None:
    """Plot the model's predictions for one task."""
    x, grid = random.uniform(key, (POINTS,), minval=-5.0, maxval=5.0), jnp.linspace(-5, 5, 200)
    with common.plot(options.out / "maml.png") as axes:
        axes.plot(np.asarray(grid), np.asarray(task(grid)), color="gray", label="task")
        axes.plot(np.asarray(x), np.asarray(task(x)), "o", color="gray", label="its points")
        for steps in (0, 1, 5):
            axes.plot(np.asarray(grid), np.asarray(adapted(model, x, task(x), steps)(grid[:, None])[:, 0]), label=f"after {steps} steps")


if __name__ == "__main__":
    main()
