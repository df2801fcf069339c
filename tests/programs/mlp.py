"""A multilayer perceptron learns handwritten digits by mini-batch gradient descent with momentum."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import nn, random

Params = list[dict[str, jax.Array]]
AGREEMENT = {"rtol": 1e-3, "atol": 1e-4}  # hundreds of steps of float32 sums taken in another order


def init(key: jax.Array, sizes: list[int]) -> Params:
    """He-initialised weights and zero biases of the layers between consecutive `sizes`."""
    keys = random.split(key, len(sizes) - 1)
    shapes = zip(keys, pairwise(sizes), strict=True)
    return [{"w": random.normal(k, (m, n)) * jnp.sqrt(2 / m), "b": jnp.zeros(n)} for k, (m, n) in shapes]


def log_probabilities(params: Params, x: jax.Array) -> jax.Array:
    """Apply the network: smooth layers (a ReLU's kink would part paths that differ by rounding), then a log-softmax over the classes."""
    *hidden, last = params
    for layer in hidden:
        x = nn.silu(x @ layer["w"] + layer["b"])
    return nn.log_softmax(x @ last["w"] + last["b"], axis=-1)


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy of the right classes."""
    return -jnp.mean(jnp.take_along_axis(log_probabilities(params, x), y[:, None], axis=1))


@partial(jax.jit, donate_argnums=(0, 1))
def step(params: Params, velocity: Params, x: jax.Array, y: jax.Array) -> tuple[Params, Params, jax.Array]:
    """Take one step of gradient descent with momentum; return the loss before it, too."""
    value, grads = jax.value_and_grad(loss)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.05 * g, velocity, grads)
    return jax.tree.map(jnp.add, params, velocity), velocity, value


@jax.jit
def accuracy(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the share of rows whose most probable class is the right one."""
    return jnp.mean(jnp.argmax(log_probabilities(params, x), axis=1) == y)


def run(digits: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Train for six epochs on flattened images and measure the accuracy on held-out ones."""
    x_train, y_train, x_test, y_test = (jnp.asarray(part) for part in digits)
    init_key, shuffle_key = random.split(random.PRNGKey(0))
    params = init(init_key, [x_train.shape[1], 64, 10])
    velocity = jax.tree.map(jnp.zeros_like, params)
    losses = []
    for epoch in range(6):
        order = random.permutation(random.fold_in(shuffle_key, epoch), len(x_train))
        for rows in order[: len(order) // 32 * 32].reshape(-1, 32):
            params, velocity, value = step(params, velocity, x_train[rows], y_train[rows])
            losses.append(value)
    return {"losses": jnp.stack(losses), "accuracy": accuracy(params, x_test, y_test), "params": params}


def check(results: dict[str, Any]) -> None:
    """Check that it learns: the loss falls far below chance, and the held-out accuracy is that of a network of this size."""
    assert results["losses"][0] > 1.5
    assert results["losses"][-20:].mean() < 0.25
    assert results["accuracy"] > 0.88
