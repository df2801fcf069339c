"""Training steps: a gradient and an optimizer's update, alike in every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, map_arrays, normal

RATE, MOMENTUM = 1e-2, 0.9
ADAM_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def cross_entropy(lib: Library, logits: Any, labels: Any) -> Any:
    """Return the mean of -log softmax(logits) at the labels."""
    return -lib.jnp.mean(lib.jnp.take_along_axis(lib.nn.log_softmax(logits), labels[..., None], -1))


def sgd(lib: Library, params: Any, grads: Any, moments: Any) -> tuple[Any, Any]:
    """Update by gradient descent with momentum."""
    (velocity,) = moments
    velocity = lib.jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
    return lib.jax.tree.map(lambda p, v: p - RATE * v, params, velocity), (velocity,)


def adam(lib: Library, params: Any, grads: Any, moments: Any) -> tuple[Any, Any]:
    """Update by Adam (Kingma & Ba 2015)."""
    mean, square, count = moments
    count = count + 1
    mean = lib.jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, mean, grads)
    square = lib.jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, square, grads)
    correction1, correction2 = 1 - BETA1**count, 1 - BETA2**count
    new = lambda p, m, s: p - ADAM_RATE * (m / correction1) / (lib.jnp.sqrt(s / correction2) + EPSILON)
    return lib.jax.tree.map(new, params, mean, square), (mean, square, count)


def _torch_optimizer(torch: Any, optimizer: Callable[..., Any], params: list[Any]) -> Any:
    """Return PyTorch's optimizer in its fastest form."""
    if optimizer is adam:
        return torch.optim.Adam(params, ADAM_RATE, (BETA1, BETA2), EPSILON, fused=True)
    return torch.optim.SGD(params, RATE, MOMENTUM, fused=True)


def training(
    params: dict[str, Any],
    batch: tuple[np.ndarray, ...],
    loss: Callable[..., Any],
    torch_loss: Callable[..., Any],
    optimizer: Callable[..., Any],
) -> Case:
    """Return a training step as a case; its result is the loss before the step.

    Args:
        params: parameters by name.
        batch: the data.
        loss: `loss(lib, params, *batch)`, for JAX and volta_fn.
        torch_loss: `torch_loss(torch, params, *batch)`.
        optimizer: `adam` or `sgd`.
    """
    zeros = lambda: map_arrays(np.zeros_like, params)
    moments = (zeros(), zeros(), np.float32(0)) if optimizer is adam else (zeros(),)

    def functional(lib: Library) -> Callable[..., Any]:
        def step(state: Any, *batch: Any) -> Any:
            params, moments = state
            value, grads = lib.jax.value_and_grad(lambda params: loss(lib, params, *batch))(params)
            return optimizer(lib, params, grads, moments), value

        return step

    def torch_work(torch: Any, state: Any, *batch: Any) -> Callable[[], Any]:
        params = {name: value.requires_grad_() for name, value in state[0].items()}
        update = _torch_optimizer(torch, optimizer, list(params.values()))

        def step() -> Any:
            update.zero_grad()
            value = torch_loss(torch, params, *batch)
            value.backward()
            update.step()
            return value.detach()

        return step

    return Case(((params, moments), *batch), functional, torch_work, stateful=True, tolerance=1e-3)


def adam_step(rng: np.random.Generator, count: int, size: int) -> Case:
    """Update so many arrays by Adam; the result is one of the new numbers."""
    params, grads = ({f"p{i:02d}": normal(rng, size) for i in range(count)} for _ in range(2))
    moments = (map_arrays(np.zeros_like, params), map_arrays(np.zeros_like, params), np.float32(0))

    def functional(lib: Library) -> Callable[..., Any]:
        def step(state: Any, grads: Any) -> Any:
            params, moments = adam(lib, state[0], grads, state[1])
            return (params, moments), params["p00"][0]

        return step

    def torch_work(torch: Any, state: Any, grads: Any) -> Callable[[], Any]:
        params = {name: value.requires_grad_() for name, value in state[0].items()}
        for name, value in params.items():
            value.grad = grads[name]
        update = _torch_optimizer(torch, adam, list(params.values()))

        def step() -> Any:
            update.step()
            return params["p00"].detach()[0].clone()

        return step

    return Case(((params, moments), grads), functional, torch_work, stateful=True)
