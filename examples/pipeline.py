"""Give each process some layers of a network (GPipe, Huang et al. 2019).

    python -m volta_fn.launch -n 4 examples/pipeline.py

In step t, stage s computes micro-batch t - s, and `ppermute` sends the results on. All stages are busy at once but for the first and the
last steps. The backward pass is the transpose: cotangents travel the other way, from the last stage to the first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import P, lax, random

LAYERS, WIDTH, MICRO, COUNT = 4, 32, 8, 6


def stage(layers: vf.Array, x: vf.Array) -> vf.Array:
    """Apply the layers of one stage, of shape (number, width, width)."""
    return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, layers)[0]


def pipeline(layers: vf.Array, micro: vf.Array) -> vf.Array:
    """Return the last stage's results for micro-batches; in other processes zeros."""
    stages, stage_index = lax.axis_size("stage"), lax.axis_index("stage")
    onward = [(i, i + 1) for i in range(stages - 1)]

    def step(arriving: vf.Array, t: vf.Array) -> tuple[vf.Array, vf.Array]:
        entering = lax.dynamic_index_in_dim(micro, jnp.clip(t, 0, COUNT - 1), keepdims=False)
        out = stage(layers, jnp.where(stage_index == 0, entering, arriving))
        return lax.ppermute(out, "stage", onward), out

    outs = lax.scan(step, jnp.zeros_like(micro[0]), jnp.arange(COUNT + stages - 1))[1]
    return jnp.where(stage_index == stages - 1, outs[stages - 1 :], 0)


def loss(layers: vf.Array, x: vf.Array, y: vf.Array) -> vf.Array:
    """Return the loss in the last stage, and zero in the others."""
    is_last = lax.axis_index("stage") == lax.axis_size("stage") - 1
    return jnp.where(is_last, jnp.mean((pipeline(layers, x) - y) ** 2), 0)


def train(steps: int) -> list[float]:
    """Train all stages together; return the losses."""
    vf.distributed.initialize()
    mesh = vf.make_mesh({"stage": vf.process_count()})

    @vf.jit
    @functools.partial(vf.shard_map, mesh=mesh, in_specs=(P("stage"), P(), P()), out_specs=(P("stage"), P()))
    def step(layers: vf.Array, x: vf.Array, y: vf.Array) -> Any:
        value, grads = vf.value_and_grad(loss)(layers, x, y)
        return layers - 0.2 * grads, lax.psum(value, "stage")

    k1, k2, k3 = random.split(random.key(0), 3)
    layers = 0.2 * random.normal(k1, (LAYERS, WIDTH, WIDTH))
    batch = random.normal(k2, (COUNT, MICRO, WIDTH)), random.normal(k3, (COUNT, MICRO, WIDTH))
    return common.train_shards(step, layers, P("stage"), mesh, batch, steps)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Run the command line, and return the losses."""
    return train(5 if common.arguments(__doc__, arguments).quick else 20)


if __name__ == "__main__":
    main()
