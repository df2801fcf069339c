"""Attention along a graph's edges by segment sums and maxima, beside dense attention with a matrix of counts of edges."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import nn, ops

AGREEMENT = {"rtol": 1e-4, "atol": 1e-5}
NODES, FEATURES, HEADS, EDGES = 37, 6, 2, 130
DRAW = np.random.default_rng(11)
SENDERS, RECEIVERS = (np.concatenate([DRAW.integers(0, NODES, EDGES), np.arange(NODES)]) for _ in range(2))  # and every node itself
X, VALUES, QUERIES, KEYS = (
    DRAW.normal(size=s).astype("float32") for s in ((NODES, FEATURES), (FEATURES, HEADS, 4), (FEATURES, HEADS), (FEATURES, HEADS))
)


def attend(x: jax.Array, values: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Return each node's mean of its neighbours, weighted by a softmax over its edges (Veličković et al. 2018)."""
    senders, receivers = jnp.asarray(SENDERS), jnp.asarray(RECEIVERS)
    logits = nn.leaky_relu((x @ queries)[receivers] + (x @ keys)[senders], 0.2)
    highest = jax.lax.stop_gradient(ops.segment_max(logits, receivers, NODES))
    weights = jnp.exp(logits - highest[receivers])
    weights = weights / ops.segment_sum(weights, receivers, NODES)[receivers]
    messages = weights[..., None] * jnp.einsum("ni,ihk->nhk", x, values)[senders]
    return ops.segment_sum(messages, receivers, NODES)


def dense(x: jax.Array, values: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Return the same by matrices of all pairs: an edge that occurs twice counts twice."""
    counts = np.zeros((NODES, NODES), "float32")
    np.add.at(counts, (RECEIVERS, SENDERS), 1)
    logits = nn.leaky_relu((x @ queries)[:, None] + (x @ keys)[None], 0.2)
    weights = jnp.exp(logits) * counts[..., None]
    weights = weights / jnp.sum(weights, 1, keepdims=True)
    return jnp.einsum("rsh,sd,dhk->rhk", weights, x, values)


def run() -> dict[str, Any]:
    """The outputs of both, their gradients, and a product of the Hessian."""
    arguments = tuple(jnp.asarray(array) for array in (X, VALUES, QUERIES, KEYS))
    results = {}
    for name, function in (("edges", attend), ("dense", dense)):
        loss = lambda *arrays, function=function: jnp.sum(jnp.cos(function(*arrays)))
        gradient = jax.grad(loss, (0, 1, 2, 3))
        curvature = lambda *arrays, gradient=gradient: jax.jvp(gradient, arrays, arrays)[1]
        results[name] = jax.jit(function)(*arguments), jax.jit(gradient)(*arguments), jax.jit(curvature)(*arguments)
    return results


def check(results: dict[str, Any]) -> None:
    """Edges and matrices agree, and the outputs are means: constant values are passed on."""
    for edges, matrices in zip(results["edges"], results["dense"], strict=True):
        pairs = zip(edges, matrices, strict=True) if isinstance(edges, tuple) else [(edges, matrices)]
        for of_edges, of_matrices in pairs:
            np.testing.assert_allclose(of_edges, of_matrices, rtol=1e-3, atol=1e-3 * np.abs(of_matrices).max())
    out, messages = results["edges"][0], np.einsum("ni,ihk->nhk", X, VALUES)
    assert np.all(out <= messages.max(0) + 1e-4) and np.all(out >= messages.min(0) - 1e-4)
