"""A variational autoencoder (Kingma & Welling 2014) learns to compress and to dream digits; an epoch is one `lax.scan`."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, nn, random

Params = dict[str, dict[str, jax.Array]]
LATENT, HIDDEN, BATCH, EPOCHS = 8, 128, 50, 12
AGREEMENT = {"rtol": 2e-3, "atol": 2e-3}  # hundreds of Adam steps: each divides by the root of a small float32 mean


def init(key: jax.Array, pixels: int) -> Params:
    """Weights of the encoder's and the decoder's two layers."""
    sizes = {"encode": (pixels, HIDDEN), "code": (HIDDEN, 2 * LATENT), "decode": (LATENT, HIDDEN), "paint": (HIDDEN, pixels)}
    glorot = nn.initializers.glorot_uniform()
    keys = random.split(key, len(sizes))
    return {name: {"w": glorot(k, shape), "b": jnp.zeros(shape[1])} for k, (name, shape) in zip(keys, sizes.items(), strict=True)}


def dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Apply an affine map."""
    return x @ layer["w"] + layer["b"]


def encode(params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and log-variance of the code's posterior."""
    mean, log_variance = jnp.split(dense(params["code"], nn.gelu(dense(params["encode"], x))), 2, axis=-1)
    return mean, log_variance


def decode(params: Params, z: jax.Array) -> jax.Array:
    """Logits of the pixels given a code."""
    return dense(params["paint"], nn.gelu(dense(params["decode"], z)))


def negative_elbo(params: Params, key: jax.Array, x: jax.Array) -> jax.Array:
    """Reconstruction cost of Bernoulli pixels plus the divergence of the code's posterior from N(0, 1), in nats an image."""
    mean, log_variance = encode(params, x)
    z = mean + jnp.exp(log_variance / 2) * random.normal(key, mean.shape)
    logits = decode(params, z)
    reconstruction = jnp.sum(nn.softplus(logits) - x * logits, axis=-1)
    divergence = 0.5 * jnp.sum(jnp.exp(log_variance) + mean**2 - 1 - log_variance, axis=-1)
    return jnp.mean(reconstruction + divergence)


def adam(params: Params, moments: tuple[Params, Params], grads: Params, t: jax.Array) -> tuple[Params, tuple[Params, Params]]:
    """Take one step of Adam (Kingma & Ba 2015), the t-th from 1."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], grads)
    rate = 3e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-6), params, first, second)
    return params, (first, second)


@jax.jit
def epoch(state: Any, keys: jax.Array, batches: jax.Array) -> tuple[Any, jax.Array]:
    """Pass over the stacked batches; return the loss of each."""

    def step(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        params, moments, t = state
        value, grads = jax.value_and_grad(negative_elbo)(params, *inputs)
        params, moments = adam(params, moments, grads, t)
        return (params, moments, t + 1), value

    return lax.scan(step, state, (keys, batches))


def run(digits: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Train, then rebuild held-out images and dream new ones from the prior."""
    images, unseen = jnp.asarray(digits[0][:1500]), jnp.asarray(digits[2])
    key = random.key(1)
    params = init(key, images.shape[1])
    zeros = jax.tree.map(jnp.zeros_like, params)
    state, losses = (params, (zeros, zeros), jnp.float32(1)), []
    batches = images[: len(images) // BATCH * BATCH].reshape(-1, BATCH, images.shape[1])
    for number in range(EPOCHS):
        keys = random.split(random.fold_in(key, number), len(batches))
        state, values = epoch(state, keys, batches)
        losses.append(values)
    params = state[0]
    rebuilt = nn.sigmoid(decode(params, encode(params, unseen)[0]))
    dreams = nn.sigmoid(decode(params, random.normal(key, (16, LATENT))))
    return {
        "losses": jnp.concatenate(losses),
        "error": jnp.mean((rebuilt - unseen) ** 2),
        "error_of_mean": jnp.mean((jnp.mean(images, axis=0) - unseen) ** 2),
        "dreams": dreams,
    }


def check(results: dict[str, Any]) -> None:
    """Check that the bound tightens, and that eight numbers describe an unseen image far better than the mean image does."""
    losses = results["losses"]
    assert losses[-10:].mean() < 0.8 * losses[:5].mean()
    assert results["error"] < 0.55 * results["error_of_mean"]
    assert ((results["dreams"] >= 0) & (results["dreams"] <= 1)).all()
