"""A gated recurrent network (Cho et al. 2014) learns a rhyme character by character: `scan` over time, `scan` again to recite."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, nn, random

Params = dict[str, jax.Array]
AGREEMENT = {"rtol": 5e-3, "atol": 5e-3}  # the gradient of a recurrence amplifies float32 rounding over the steps of training
RHYME = "round the rough and rugged rock the ragged rascal rudely ran. "
ALPHABET = sorted(set(RHYME))
HIDDEN, LENGTH, STEPS = 48, 24, 100


def init(key: jax.Array) -> Params:
    """Embedding, the two gates' and the candidate's weights, and the read-out."""
    keys = random.split(key, 4)
    orthogonal, size = nn.initializers.orthogonal(), len(ALPHABET)
    return {
        "embed": random.normal(keys[0], (size, HIDDEN)) * 0.5,
        "gates": orthogonal(keys[1], (2 * HIDDEN, 2 * HIDDEN)),
        "candidate": orthogonal(keys[2], (2 * HIDDEN, HIDDEN)),
        "read": random.normal(keys[3], (HIDDEN, size)) / jnp.sqrt(HIDDEN),
    }


def cell(params: Params, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take one step of the unit: return the new state, twice, as `scan` wants it."""
    update, reset = jnp.split(nn.sigmoid(jnp.concatenate([x, state], axis=-1) @ params["gates"]), 2, axis=-1)
    candidate = jnp.tanh(jnp.concatenate([x, reset * state], axis=-1) @ params["candidate"])
    state = update * state + (1 - update) * candidate
    return state, state


def loss(params: Params, text: jax.Array) -> jax.Array:
    """Mean surprise, in nats, at each next character of each row of `text`."""
    inputs = params["embed"][text[:, :-1]].swapaxes(0, 1)
    _, states = lax.scan(lambda state, x: cell(params, state, x), jnp.zeros((len(text), HIDDEN)), inputs)
    log_probabilities = nn.log_softmax(states @ params["read"])
    return -jnp.mean(jnp.sum(log_probabilities * nn.one_hot(text[:, 1:].T, len(ALPHABET)), axis=-1))


@jax.jit
def step(params: Params, memory: Params, text: jax.Array) -> tuple[Params, Params, jax.Array]:
    """RMSProp on a gradient whose norm is cut to 1."""
    value, grads = jax.value_and_grad(loss)(params, text)
    size = jnp.sqrt(jax.tree.reduce(lambda total, g: total + jnp.sum(g**2), grads, 0.0))
    grads = jax.tree.map(lambda g: g / jnp.maximum(size, 1.0), grads)
    memory = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g**2, memory, grads)
    return jax.tree.map(lambda p, m, g: p - 0.01 * g / jnp.sqrt(m + 1e-6), params, memory, grads), memory, value


@jax.jit
def recite(params: Params, first: jax.Array) -> jax.Array:
    """Return the likeliest continuation of the one-character text `first`, as long as the rhyme."""

    def next_character(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        state, character = carry
        state, _ = cell(params, state, params["embed"][character])
        character = jnp.argmax(state @ params["read"]).astype(jnp.int32)
        return (state, character), character

    return lax.scan(next_character, (jnp.zeros(HIDDEN), first), None, length=len(RHYME))[1]


def run() -> dict[str, Any]:
    """Train on the rhyme's rotations, then recite from its first letter."""
    codes = jnp.array([ALPHABET.index(character) for character in RHYME], jnp.int32)
    windows = jnp.arange(0, len(RHYME), 2)[:, None] + jnp.arange(LENGTH + 1)
    rows = codes[windows % len(RHYME)]
    params = init(random.key(7))
    memory, losses = jax.tree.map(jnp.zeros_like, params), []
    for _ in range(STEPS):
        params, memory, value = step(params, memory, rows)
        losses.append(value)
    return {"losses": jnp.stack(losses), "recited": recite(params, codes[0])}


def check(results: dict[str, Any]) -> None:
    """Check that it starts near the surprise of uniform guessing and ends knowing the text.

    What it recites is made of the rhyme's words.
    """
    assert abs(results["losses"][0] - np.log(len(ALPHABET))) < 0.7
    assert results["losses"][-1] < 0.3
    words = "".join(ALPHABET[code] for code in results["recited"]).split()[1:-1]
    assert len(words) > 5
    assert set(words) <= set(RHYME.split())
