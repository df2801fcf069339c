"""Parts of networks as people write them, in more than one statement, for random programs."""

from __future__ import annotations

from typing import Any

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn


def rotated(x: Any, angles: Any) -> Any:
    """Return heads with rotary embeddings."""
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * jnp.cos(angles) - right * jnp.sin(angles), left * jnp.sin(angles) + right * jnp.cos(angles)], -1)


def lstm(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any, reverse: bool = False) -> tuple[Any, Any, Any]:
    """Return the last hidden state, the last cell state and all hidden states of an LSTM."""

    def step(carry: tuple[Any, Any], row: Any) -> tuple[tuple[Any, Any], Any]:
        hidden, cell = carry
        i, f, g, o = jnp.split(row @ w + hidden @ u + b, 4, axis=-1)
        cell = nn.sigmoid(f + 1) * cell + nn.sigmoid(i) * jnp.tanh(g)
        hidden = nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    (h, c), states = lax.scan(step, (h, c), x, reverse=reverse)
    return h, c, states


def gru(x: Any, h: Any, w: Any, u: Any, b: Any, reverse: bool = False) -> tuple[Any, Any]:
    """Return the last hidden state and all hidden states of a GRU."""

    def step(hidden: Any, row: Any) -> tuple[Any, Any]:
        xr, xz, xn = jnp.split(row @ w + b, 3, axis=-1)
        hr, hz, hn = jnp.split(hidden @ u, 3, axis=-1)
        r, z = nn.sigmoid(xr + hr), nn.sigmoid(xz + hz)
        hidden = (1 - z) * jnp.tanh(xn + r * hn) + z * hidden
        return hidden, hidden

    return lax.scan(step, h, x, reverse=reverse)


@vf.custom_vjp
def straight_through(x: Any) -> Any:
    """Return signs, whose derivatives are those of a clipped identity."""
    return jnp.where(x > 0, 1, -1).astype(x.dtype)


straight_through.defvjp(lambda x: (straight_through(x), x), lambda x, g: (jnp.where(jnp.abs(x) < 1, g, 0),))


@vf.custom_vjp
def clipped(x: Any) -> Any:
    """Return the argument, and clip cotangents to its largest element."""
    return x


clipped.defvjp(lambda x: (x, jnp.abs(x).max()), lambda most, g: (0.5 * jnp.clip(g, -most, most),))


@vf.custom_jvp
def safe_norm(x: Any) -> Any:
    """Return the length of rows, whose slope at zero is zero."""
    return jnp.sqrt((x * x).sum(-1))


@safe_norm.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    norm = safe_norm(x)
    return norm, (x * t).sum(-1) / jnp.maximum(norm, 1e-2)
