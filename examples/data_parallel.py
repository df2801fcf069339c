"""Train on several processes, each with a shard of every batch.

    python examples/data_parallel.py --model gpt                                        # one process
    python -m volta_fn.launch -n 4 examples/data_parallel.py --model gpt                # four, the same losses
    python -m volta_fn.launch -n 4 --restarts 3 examples/data_parallel.py --folder DIR  # with checkpoints in DIR

Every process has all parameters, and averages its gradients with those of the others; with --zero each has only a part of the optimizer's
state (ZeRO-1). The last line has a hash of the parameters, which is the same in all processes, and after restarts.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import char_transformer
import mnist_cnn
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import P, data, io, nn, optim, random

Loss = Callable[[Any, Any, vf.Array, vf.Array], tuple[vf.Array, Any]]


class Reader(nn.Module):
    """A recurrent network that reads a sequence and names its class."""

    lstm: nn.LSTM
    out: nn.Linear

    def __call__(self, x: vf.Array) -> vf.Array:
        """Return logits (batch, 10) for sequences (batch, time, features)."""
        return self.out(self.lstm(x)[0][:, -1])


def build(name: str) -> tuple[Any, Any, Loss, tuple[np.ndarray, np.ndarray]]:
    """Return a model, its state, its loss, and examples to learn."""
    k1, k2, k3 = random.split(random.key(0), 3)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 512).astype(np.int32)
    stateless: Loss = lambda model, state, x, y: (nn.cross_entropy(model(x), y, axis=-1), state)
    if name == "mlp":
        mlp = nn.Sequential.init(nn.Linear.init(k1, 784, 256), nn.relu, nn.Linear.init(k2, 256, 256), nn.relu, nn.Linear.init(k3, 256, 10))
        return mlp, None, stateless, (rng.normal(size=(512, 784)).astype(np.float32), labels)
    if name == "lenet":
        model, state = mnist_cnn.build(k1, 28)
        is_norm = lambda x: isinstance(x, nn.BatchNorm1d | nn.BatchNorm2d)  # all processes share their statistics
        model = vf.tree.map(lambda x: x.replace(axis_name="data") if is_norm(x) else x, model, is_leaf=is_norm)
        return model, state, mnist_cnn.loss, (rng.normal(size=(512, 1, 28, 28)).astype(np.float32), labels)
    if name == "lstm":
        reader = Reader(nn.LSTM.init(k1, 8, 64), nn.Linear.init(k2, 64, 10))
        return reader, None, stateless, (rng.normal(size=(512, 12, 8)).astype(np.float32), labels)
    gpt = char_transformer.CharTransformer.init(k1, 40, width=64, layers=2, heads=4, length=32)
    text = rng.integers(0, 40, (512, 33)).astype(np.int32)
    return gpt, None, stateless, (text[:, :-1], text[:, 1:])


def trainer(loss: Loss, optimizer: Any, mesh: Any, state_specs: Any, zero: bool) -> Callable[..., Any]:
    """Return the training step of all processes."""

    @functools.partial(vf.jit, donate_argnums=(0, 1, 2))
    @vf.shard_map(mesh=mesh, in_specs=(P(), P(), state_specs, P("data"), P("data")), out_specs=(P(), P(), state_specs, P()))
    def step(model: Any, state: Any, moments: Any, x: vf.Array, y: vf.Array) -> Any:
        (value, state), grads = vf.value_and_grad(loss, has_aux=True)(model, state, x, y)
        if not zero:  # else the optimizer does
            grads = optim.average_gradients(grads, "data")
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), state, moments, vf.lax.pmean(value, "data")

    return step


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Run the command line, and return the losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["mlp", "lenet", "lstm", "gpt"], default="mlp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_const", dest="steps", const=4, help="4 steps")
    parser.add_argument("--zero", action="store_true", help="shard the optimizer's state")
    parser.add_argument("--folder", help="folder for checkpoints, one every 5 steps")
    options = parser.parse_args(arguments)

    vf.distributed.initialize()
    mesh, shard = vf.make_mesh({"data": vf.process_count()}), (vf.process_index(), vf.process_count())
    model, state, loss, examples = build(options.model)
    loader = data.DataLoader(data.ArrayDataset(*examples), 64, shuffle=True, key=1, shard=shard)
    inner = optim.adam(1e-3)
    optimizer = optim.shard_states(inner, "data") if options.zero else inner
    moments = inner.init(model)
    specs = optim.tree_map_params(inner, lambda _: P("data"), moments, transform_non_params=lambda _: P()) if options.zero else P()
    on_mesh = functools.partial(vf.shard_map, mesh=mesh)
    scatter = on_mesh(lambda s: optim.scatter_states(inner, s, "data"), in_specs=P(), out_specs=specs)
    gather = vf.jit(on_mesh(lambda s, m: optim.gather_states(inner, s, m, "data"), in_specs=(specs, P()), out_specs=P()))

    saved = {"model": model, "state": state, "moments": moments, "step": 0, "losses": jnp.zeros(options.steps)}
    checkpoints = io.Checkpointer(options.folder) if options.folder else None
    if checkpoints is not None and checkpoints.all_steps():
        saved = checkpoints.restore(saved)
    model, state, moments = saved["model"], saved["state"], scatter(saved["moments"]) if options.zero else saved["moments"]
    step, losses = trainer(loss, optimizer, mesh, specs, options.zero), saved["losses"]
    for number in range(saved["step"], options.steps):
        epoch, batch = divmod(number, len(loader))
        x, y = next(loader.epoch(epoch, batch))
        model, state, moments, value = step(model, state, moments, x, y)
        losses = losses.at[number].set(value)
        if checkpoints is not None and (number + 1) % 5 == 0:
            unsharded = gather(moments, model) if options.zero else moments
            checkpoints.save(number + 1, {"model": model, "state": state, "moments": unsharded, "step": number + 1, "losses": losses})
    parameters = b"".join([np.asarray(x).tobytes() for x in vf.tree.leaves(model)])
    print(f"losses {[float(x) for x in losses]} parameters {hashlib.sha256(parameters).hexdigest()[:16]}", flush=True)
    return [float(x) for x in losses]


if __name__ == "__main__":
    main()
