"""Optimizers.

They take a learning rate, the number of steps so far, and then arrays, their gradients and the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import Node, as_array, operator

_DOMAIN = "ai.onnx.preview.training"


@operator(f"{_DOMAIN}.Adagrad")
def adagrad(node: Node, rate: Any, count: Any, *arrays: Any) -> Any:
    """Divide by the root of the sum of squares of all gradients."""
    rate = rate / (1 + as_array(count).astype(rate.dtype) * node.get("decay_factor", 0.0))

    def update(x: Any, gradient: Any, squares: Any) -> Any:
        gradient = gradient + node.get("norm_coefficient", 0.0) * x
        squares = squares + gradient * gradient
        return x - rate * gradient / (vnp.sqrt(squares) + node.get("epsilon", 1e-6)), squares

    return tuple(_updated(update, arrays, 3))


@operator(f"{_DOMAIN}.Adam")
def adam(node: Node, rate: Any, count: Any, *arrays: Any) -> Any:
    """Divide a mean of gradients by the root of a mean of their squares."""
    alpha, beta = node.get("alpha", 0.9), node.get("beta", 0.999)
    steps = as_array(count).astype(rate.dtype)
    rate = vnp.where(steps > 0, rate * vnp.sqrt(1 - beta**steps) / (1 - alpha ** vnp.maximum(steps, 1)), rate)

    def update(x: Any, gradient: Any, mean: Any, squares: Any) -> Any:
        gradient = gradient + node.get("norm_coefficient", 0.0) * x
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * gradient * gradient
        x = x - rate * mean / (vnp.sqrt(squares) + node.get("epsilon", 1e-6))
        return (1 - node.get("norm_coefficient_post", 0.0)) * x, mean, squares

    return tuple(_updated(update, arrays, 4))


@operator(f"{_DOMAIN}.Momentum")
def momentum(node: Node, rate: Any, count: Any, *arrays: Any) -> Any:
    """Follow a sum of gradients that decays, or Nesterov's look ahead."""
    alpha = node.get("alpha")
    beta = vnp.where(as_array(count) > 0, node.get("beta"), 1.0).astype(rate.dtype)

    def update(x: Any, gradient: Any, velocity: Any) -> Any:
        gradient = gradient + node.get("norm_coefficient") * x
        velocity = alpha * velocity + beta * gradient
        direction = gradient + alpha * velocity if node.get("mode") == "nesterov" else velocity
        return x - rate * direction, velocity

    return tuple(_updated(update, arrays, 3))


def _updated(update: Callable[..., Any], arrays: tuple[Any, ...], kinds: int) -> Iterator[Any]:
    """Yield the new arrays, then what comes second of each, and so on.

    `arrays` are all arrays to train, all their gradients, and the state of all; there are that many `kinds`.
    """
    count = len(arrays) // kinds
    rows = [[as_array(array) for array in arrays[k::count]] for k in range(count)]
    for column in zip(*[update(*row) for row in rows], strict=True):
        yield from column
