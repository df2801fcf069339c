"""Tiny calls, eager and jitted, in which only the framework's overhead counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal


def add(rng: np.random.Generator, jit: bool) -> Case:
    """Add 8 floats; PyTorch, without a jitted counterpart, adds eagerly."""
    torch_work = None if jit else lambda torch, x, y: lambda: x + y
    return Case((normal(rng, 8), normal(rng, 8)), lambda lib: lambda x, y: x + y, torch_work, jit=jit, wait=False)


def softmax(rng: np.random.Generator) -> Case:
    """Compute an eager softmax of 32×10 numbers."""
    inputs = (normal(rng, 32, 10),)
    return Case(inputs, lambda lib: lib.nn.softmax, lambda torch, x: lambda: torch.softmax(x, -1), jit=False, wait=False)


def linear(rng: np.random.Generator) -> Case:
    """Apply an eager layer, (32, 64) by (64, 64) and a bias."""
    inputs = normal(rng, 32, 64), normal(rng, 64, 64), normal(rng, 64)
    return Case(inputs, lambda lib: lambda x, w, b: x @ w + b, lambda torch, x, w, b: lambda: x @ w + b, jit=False, wait=False)


def value_and_gradient(rng: np.random.Generator, jit: bool) -> Case:
    """Compute the loss of a network of two layers, and its gradient.

    Batch 32, 64 → 64 → 10, tanh, cross-entropy with one-hot labels.
    """
    shapes = {"w1": (64, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
    params = {name: normal(rng, *shape, scale=0.1) for name, shape in shapes.items()}
    labels = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 32)]

    def functional(lib: Library) -> Callable[..., Any]:
        def loss(params: Any, x: Any, labels: Any) -> Any:
            hidden = lib.jnp.tanh(x @ params["w1"] + params["b1"])
            log_probabilities = lib.nn.log_softmax(hidden @ params["w2"] + params["b2"])
            return -lib.jnp.mean(lib.jnp.sum(labels * log_probabilities, axis=1))

        return lib.jax.value_and_grad(loss)

    def torch_work(torch: Any, params: Any, x: Any, labels: Any) -> Callable[[], Any]:
        for value in params.values():
            value.requires_grad_()
        names = sorted(params)

        def work() -> Any:
            hidden = torch.tanh(x @ params["w1"] + params["b1"])
            loss = torch.nn.functional.cross_entropy(hidden @ params["w2"] + params["b2"], labels)
            return loss.detach(), torch.autograd.grad(loss, [params[name] for name in names])

        return work

    return Case((params, normal(rng, 32, 64), labels), functional, torch_work, jit=jit, wait=False)


def update(rng: np.random.Generator, count: int) -> Case:
    """Update many small arrays in a dict, jitted: handling arguments is most work."""
    params, grads = ({f"p{i:03d}": normal(rng, 16) for i in range(count)} for _ in range(2))
    return Case(
        (params, grads),
        lambda lib: lambda params, grads: {name: p - 0.1 * grads[name] for name, p in params.items()},
        lambda torch, params, grads: lambda: {name: p - 0.1 * grads[name] for name, p in params.items()},
        wait=False,
    )


WORKLOADS = [
    Workload("call/eager add", add, {"jit": False}),
    Workload("call/eager softmax", softmax),
    Workload("call/eager linear layer", linear),
    Workload("call/eager value and gradient", value_and_gradient, {"jit": False}),
    Workload("call/jitted add", add, {"jit": True}),
    Workload("call/jitted value and gradient", value_and_gradient, {"jit": True}),
    Workload("call/jitted update of 100 arrays", update, {"count": 100}, {"count": 3}),
]
