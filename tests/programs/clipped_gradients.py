"""Differentially private gradient descent (Abadi et al. 2016): each example's gradient is clipped before noise is added."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import nn, random

Params = dict[str, jax.Array]
AGREEMENT = {"rtol": 1e-4, "atol": 1e-5}
CLIP, FEATURES, EXAMPLES = 0.5, 5, 64


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross-entropy of one labelled example under a small network."""
    hidden = jnp.tanh(params["w"] @ x + params["b"])
    return nn.softplus(-y * jnp.dot(params["v"], hidden))


def norm(tree: Params) -> jax.Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def clipped(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    """Return one example's gradient scaled to a norm of at most CLIP, and the norm it had."""
    grads = jax.grad(loss)(params, x, y)
    size = norm(grads)
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / size), grads), size


@partial(jax.jit, static_argnames="noise")
def private_step(params: Params, key: jax.Array, x: jax.Array, y: jax.Array, *, noise: float) -> Params:
    """Descend along the mean of the clipped gradients plus Gaussian noise."""
    grads, _ = jax.vmap(clipped, in_axes=(None, 0, 0))(params, x, y)
    leaves, structure = jax.tree.flatten(grads)
    keys = random.split(key, len(leaves))
    noisy = [(jnp.sum(g, axis=0) + noise * CLIP * random.normal(k, g.shape[1:])) / len(x) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.map(lambda p, g: p - g, params, jax.tree.unflatten(structure, noisy))


def run() -> dict[str, Any]:
    """Learn which side of a curved surface random points lie on."""
    x_key, w_key, v_key, step_key = random.split(random.key(3), 4)
    x = random.normal(x_key, (EXAMPLES, FEATURES))
    y = jnp.where(x[:, 0] + x[:, 1] ** 2 > 0.5, 1.0, -1.0)
    start = {"w": random.normal(w_key, (16, FEATURES)), "b": jnp.zeros(16), "v": random.normal(v_key, (16,)) / 4}
    each = lambda f: jax.vmap(f, in_axes=(None, 0, 0))
    batch_loss = jax.jit(lambda params: jnp.mean(each(loss)(params, x, y)))
    per_example, sizes = jax.jit(each(clipped))(start, x, y)
    one_example = jax.jit(clipped)
    params = start
    for key in random.split(step_key, 60):
        params = private_step(params, key, x, y, noise=0.3)
    return {
        "per_example": per_example,
        "sizes": sizes,
        "clipped_sizes": jax.jit(jax.vmap(norm))(per_example),
        "one_by_one": jax.tree.map(lambda *g: jnp.stack(g), *[one_example(start, x[i], y[i])[0] for i in range(8)]),
        "mean_of_grads": jax.tree.map(lambda g: jnp.mean(g, axis=0), jax.jit(each(jax.grad(loss)))(start, x, y)),
        "grad_of_mean": jax.grad(batch_loss)(start),
        "losses": jnp.stack([batch_loss(start), batch_loss(params)]),
    }


def check(results: dict[str, Any]) -> None:
    """Check that no clipped gradient is too long, short ones are untouched, a loop agrees, and gradients commute with the mean."""
    np.testing.assert_allclose(results["clipped_sizes"], np.minimum(results["sizes"], CLIP), rtol=1e-5)
    assert 0 < np.mean(results["sizes"] > CLIP) < 1
    for name, loop in results["one_by_one"].items():
        np.testing.assert_allclose(results["per_example"][name][:8], loop, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(results["mean_of_grads"][name], results["grad_of_mean"][name], rtol=1e-5, atol=1e-6)
    assert results["losses"][1] < 0.7 * results["losses"][0]
