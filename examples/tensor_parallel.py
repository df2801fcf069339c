"""Split a transformer block over processes (Megatron, Shoeybi et al. 2019).

    python -m volta_fn.launch -n 2 examples/tensor_parallel.py

The first product of a pair is split by columns, the second by rows, so that one sum over processes completes each pair. The gradients are
those of the unsplit block: what enters the split layers is the same in all processes, so its cotangents are summed (`shared`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import P, lax, nn, random

WIDTH, HEADS, HIDDEN, BATCH, TIME = 32, 4, 64, 8, 16
#: How each parameter is split over the axis "model".
SPECS = {"qkv": P(None, None, "model"), "out": P("model"), "up": P(None, "model"), "down": P("model")}


@functools.partial(vf.custom_vjp, nondiff_argnums=(1,))
def shared(x: vf.Array, axis: str) -> vf.Array:
    """Return x, equal in all processes; its cotangent is the sum of theirs."""
    return x


shared.defvjp(lambda x, axis: (x, None), lambda axis, _, ct: (lax.psum(ct, axis),))


@functools.partial(vf.custom_vjp, nondiff_argnums=(1,))
def total(x: vf.Array, axis: str) -> vf.Array:
    """Return the sum over processes, whose cotangent is the same in all of them."""
    return lax.psum(x, axis)


total.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, ct: (ct,))


def init(key: vf.Array) -> dict[str, vf.Array]:
    """Return the parameters of the unsplit block."""
    shapes = {
        "qkv": (WIDTH, 3, HEADS, WIDTH // HEADS),
        "out": (HEADS, WIDTH // HEADS, WIDTH),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    keys = random.split(key, len(shapes))
    return {name: 0.1 * random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def column_linear(x: vf.Array, w: vf.Array, axis: str) -> vf.Array:
    """Multiply by the columns that this process has."""
    return jnp.tensordot(shared(x, axis), w, 1)


def row_linear(x: vf.Array, w: vf.Array, axis: str) -> vf.Array:
    """Multiply by the rows that this process has, and sum over processes."""
    return total(jnp.tensordot(x, w, w.ndim - 1), axis)


def block(p: dict[str, vf.Array], x: vf.Array, axis: str) -> vf.Array:
    """Return attention and a feed-forward network, with skip connections."""
    q, k, v = jnp.moveaxis(column_linear(x, p["qkv"], axis), 2, 0)
    x = x + row_linear(nn.dot_product_attention(q, k, v, is_causal=True), p["out"], axis)
    return x + row_linear(nn.gelu(column_linear(x, p["up"], axis)), p["down"], axis)


def loss(p: dict[str, vf.Array], x: vf.Array, y: vf.Array, axis: str) -> vf.Array:
    """Return the mean squared error."""
    return jnp.mean((block(p, x, axis) - y) ** 2)


def train(steps: int) -> list[float]:
    """Train all shards together; return the losses."""
    vf.distributed.initialize()
    mesh = vf.make_mesh({"model": vf.process_count()})

    @vf.jit
    @functools.partial(vf.shard_map, mesh=mesh, in_specs=(SPECS, P(), P()), out_specs=(SPECS, P()))
    def step(p: Any, x: vf.Array, y: vf.Array) -> Any:
        value, grads = vf.value_and_grad(loss)(p, x, y, "model")
        return vf.tree.map(lambda w, g: w - 0.5 * g, p, grads), value

    k1, k2, k3 = random.split(random.key(0), 3)
    batch = random.normal(k2, (BATCH, TIME, WIDTH)), random.normal(k3, (BATCH, TIME, WIDTH))
    return common.train_shards(step, init(k1), SPECS, mesh, batch, steps)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Run the command line, and return the losses."""
    return train(5 if common.arguments(__doc__, arguments).quick else 20)


if __name__ == "__main__":
    main()
