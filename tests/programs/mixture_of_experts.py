"""Experts with a capacity: tokens are numbered by a cumulative sum, scattered to their experts' slots and gathered back, or passed on."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, nn

AGREEMENT = {"rtol": 1e-4, "atol": 1e-5}
TOKENS, FEATURES, EXPERTS, CHOICES = 37, 6, 4, 2
CAPACITY = 13  # below the share of the most popular expert
DRAW = np.random.default_rng(7)
X, ROUTER, WEIGHTS = (
    DRAW.normal(size=s).astype("float32") for s in ((TOKENS, FEATURES), (FEATURES, EXPERTS), (EXPERTS, FEATURES, FEATURES))
)
WEIGHTS *= np.float32(0.4)


def layer(x: jax.Array, router: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the experts' weighted outputs, and the loss that balances their shares (Fedus et al. 2021)."""
    shares = nn.softmax(x @ router)
    gates, experts = lax.top_k(shares, CHOICES)
    gates = gates / jnp.sum(gates, -1, keepdims=True)
    one_hot = nn.one_hot(experts.T.reshape(-1), EXPERTS, dtype="int32")  # all first choices before all second ones
    places = (jnp.sum(jnp.cumsum(one_hot, 0) * one_hot, -1) - 1).reshape(CHOICES, -1).T
    fits = places < CAPACITY
    slots = jnp.where(fits, experts * CAPACITY + places, EXPERTS * CAPACITY)
    tokens = jnp.zeros((EXPERTS * CAPACITY + 1, FEATURES), x.dtype).at[slots].add(x[:, None])[:-1]
    outs = jnp.tanh(jnp.einsum("ecd,edh->ech", tokens.reshape(EXPERTS, CAPACITY, FEATURES), weights))
    gathered = outs.reshape(-1, FEATURES).at[slots].get(mode="fill", fill_value=0)
    balance = EXPERTS * jnp.sum(jnp.mean(shares, 0) * jnp.mean(one_hot[:TOKENS].astype(x.dtype), 0))
    return x + jnp.sum(jnp.where(fits, gates, 0)[..., None] * gathered, 1), balance


def loss(x: jax.Array, router: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
    """Return a sum of all that the layer gives."""
    out, balance = layer(x, router, weights)
    return jnp.sum(jnp.sin(out)) + balance, out


def run() -> dict[str, Any]:
    """The loss, the outputs, and the gradients by tokens, router and experts; of one batch and of two at once."""
    arguments = jnp.asarray(X), jnp.asarray(ROUTER), jnp.asarray(WEIGHTS)
    gradient = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    (value, out), gradients = jax.jit(gradient)(*arguments)
    pair = jax.jit(jax.vmap(lambda x: gradient(x, *arguments[1:])[1]))(jnp.stack([arguments[0][::-1] * 0.5, arguments[0]]))
    return {"loss": value, "out": out, "gradients": gradients, "of the second": [array[1] for array in pair]}


def loss_by_loops(x: np.ndarray, router: np.ndarray, weights: np.ndarray) -> float:
    """Return the loss in float64, token by token."""
    logits = x @ router
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    chosen, out, used = np.argsort(-shares, 1)[:, :CHOICES], x.copy(), np.zeros(EXPERTS, int)
    for choice in range(CHOICES):
        for token, expert in enumerate(chosen[:, choice]):
            if used[expert] < CAPACITY:
                gate = shares[token, expert] / shares[token, chosen[token]].sum()
                out[token] += gate * np.tanh(x[token] @ weights[expert])
            used[expert] += 1
    first = np.bincount(chosen[:, 0], minlength=EXPERTS) / TOKENS
    return float(np.sin(out).sum() + EXPERTS * shares.mean(0) @ first)


def check(results: dict[str, Any]) -> None:
    """Loops over tokens, and their central differences along directions."""
    arrays = [array.astype("float64") for array in (X, ROUTER, WEIGHTS)]
    np.testing.assert_allclose(results["loss"], loss_by_loops(*arrays), rtol=1e-5)
    draw, h = np.random.default_rng(0), 1e-6
    for place, (one, of_two) in enumerate(zip(results["gradients"], results["of the second"], strict=True)):
        direction = draw.normal(size=one.shape)
        moved = [[a + step * direction if i == place else a for i, a in enumerate(arrays)] for step in (h, -h)]
        slope = (loss_by_loops(*moved[0]) - loss_by_loops(*moved[1])) / (2 * h)
        np.testing.assert_allclose(np.sum(one * direction), slope, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(of_two, one, rtol=1e-4, atol=1e-5)
