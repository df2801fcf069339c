"""Derivatives beyond a gradient: one for each example, and a Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal
from benchmarks.workloads.training import RATE, cross_entropy

BOUND = 1.0


def per_example(rng: np.random.Generator, batch: int, width: int, hidden: int) -> Case:
    """Take a gradient step in which each example's gradient is clipped.

    As in differentially private training.
    """
    params = {
        "w1": normal(rng, width, hidden, scale=width**-0.5),
        "b1": np.zeros(hidden, np.float32),
        "w2": normal(rng, hidden, 10, scale=hidden**-0.5),
        "b2": np.zeros(10, np.float32),
    }
    data = normal(rng, batch, width), rng.integers(0, 10, batch, np.int32)

    def logits(tanh: Any, params: Any, x: Any) -> Any:
        return tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    def functional(lib: Library) -> Callable[..., Any]:
        def loss(params: Any, x: Any, label: Any) -> Any:
            return cross_entropy(lib, logits(lib.jnp.tanh, params, x), label)

        def step(params: Any, x: Any, labels: Any) -> Any:
            values, grads = lib.jax.vmap(lib.jax.value_and_grad(loss), (None, 0, 0))(params, x, labels)
            square = sum(lib.jnp.sum(g * g, tuple(range(1, g.ndim))) for g in grads.values())
            factor = lib.jnp.minimum(1, BOUND * lib.lax.rsqrt(square)) / batch
            new = {name: p - RATE * lib.jnp.tensordot(factor, grads[name], 1) for name, p in params.items()}
            return new, lib.jnp.mean(values)

        return step

    def torch_work(torch: Any, params: Any, x: Any, labels: Any) -> Callable[[], Any]:
        def loss(params: Any, x: Any, label: Any) -> Any:
            return torch.nn.functional.cross_entropy(logits(torch.tanh, params, x), label)

        derivative = torch.func.vmap(torch.func.grad_and_value(loss), (None, 0, 0))

        def step() -> Any:
            grads, values = derivative(params, x, labels)
            square = sum(torch.sum(g * g, tuple(range(1, g.ndim))) for g in grads.values())
            factor = torch.clamp(BOUND * torch.rsqrt(square), max=1) / batch
            for name, p in params.items():
                p -= RATE * torch.tensordot(factor, grads[name], 1)
            return values.mean()

        return step

    return Case((params, *data), functional, torch_work, stateful=True, tolerance=1e-3)


def hessian(rng: np.random.Generator, batch: int, width: int) -> Case:
    """Compute all second derivatives of a small network's loss."""
    matrix = width * width

    def value(tanh: Any, mean: Any, flat: Any, x: Any, y: Any) -> Any:
        hidden = tanh(x @ flat[:matrix].reshape(width, width) + flat[matrix : matrix + width])
        return mean((hidden @ flat[matrix + width :] - y) ** 2)

    def functional(lib: Library) -> Callable[..., Any]:
        return lib.jax.hessian(lambda flat, x, y: value(lib.jnp.tanh, lib.jnp.mean, flat, x, y))

    def torch_work(torch: Any, flat: Any, x: Any, y: Any) -> Callable[[], Any]:
        second = torch.func.hessian(lambda flat, x, y: value(torch.tanh, torch.mean, flat, x, y))
        return lambda: second(flat, x, y)

    inputs = normal(rng, matrix + 2 * width, scale=width**-0.5), normal(rng, batch, width), normal(rng, batch)
    return Case(inputs, functional, torch_work)


WORKLOADS = [
    Workload(
        "train/per-example gradients", per_example, {"batch": 128, "width": 256, "hidden": 128}, {"batch": 3, "width": 5, "hidden": 4}
    ),
    Workload("train/hessian", hessian, {"batch": 64, "width": 16}, {"batch": 5, "width": 3}),
]
