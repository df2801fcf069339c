"""Training with split parameters: `python -m benchmarks.gpu.scaling`.

Parameters and states are split between the GPUs of one process. Each GPU has a row of every parameter and of its moments in float32; it
gathers parameters in bfloat16 where they are used, and gets the sum of a row's gradients (ZeRO-3, Rajbhandari et al. 2020; FSDP).
`workloads` trains those of `benchmarks.gpu.collectives` so, beside data parallelism and one GPU with all examples. `large` trains a GPT
that no GPU has room for, layer by layer, and compares the memory that it takes with what `lower(…).memory()` foretells.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu.collectives import Gpus, host_steps, in_precision, training_call
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import library, map_arrays
from benchmarks.workloads.training import adam
from volta_fn import P, lax, nn, random, tree

WORKLOADS = ("gpu train/gpt small@bfloat16", "gpu train/gpt medium@bfloat16")


def rows_of(x: np.ndarray, count: int) -> np.ndarray:
    """Return the elements of an array in rows, one for each GPU, padded with zeros."""
    length = -(-x.size // count)
    return np.pad(x.ravel(), (0, count * length - x.size)).reshape(count, length)


def gathered(row: Any, shape: Sequence[int]) -> Any:
    """Return the array in bfloat16 of which each GPU has a row."""
    flat = lax.all_gather(row.ravel().astype("bfloat16"), "i", tiled=True)
    return flat[: math.prod(shape)].reshape(shape)


def of_rows(shapes: Any, n: int) -> Callable[..., Any]:
    """Return `value_and_grad` of rows, for the mean over all GPUs."""

    def value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
        whole = lambda rows: {name: gathered(row, shapes[name]) for name, row in rows.items()}

        def call(rows: Any) -> Any:
            value, grads = vf.value_and_grad(lambda rows: function(whole(rows)))(rows)
            return lax.pmean(value, "i"), tree.map(lambda g: g / n, grads)

        return call

    return value_and_grad


def split_call(name: str, gpus: Gpus, examples: int) -> Callable[[], Any]:
    """Return the training step of a workload whose parameters and states are split."""
    n, workload = gpus.size, named(name)
    local, whole = (in_precision(workload, batch) for batch in (examples, n * examples))
    (params, moments), *data = whole.inputs
    lib = library("volta_fn")
    shapes = {key: x.shape for key, x in params.items()}
    step = local.functional(lib._replace(jax=_Jax(of_rows(shapes, n))))
    rows = map_arrays(lambda x: rows_of(x, n) if x.ndim else x, (params, moments))
    specs = map_arrays(lambda x: P("i") if x.ndim else P(), (params, moments))
    state = tree.map(lambda x, spec: vf.device_put(x, vf.NamedSharding(gpus.mesh, spec)), rows, specs)
    inputs = gpus.put(data, P("i"))
    mapped = vf.shard_map(step, mesh=gpus.mesh, in_specs=(specs, *[P("i")] * len(data)), out_specs=(specs, P()), check_vma=False)
    program = vf.jit(mapped, donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state, loss = program(state, *inputs)
        return loss

    return call


class _Jax:
    """What a workload needs of `vf` beside its own `value_and_grad`."""

    __name__ = "volta_fn"
    tree = vf.tree

    def __init__(self, value_and_grad: Callable[..., Any]) -> None:
        self.value_and_grad = value_and_grad


def seconds_of(call: Callable[[], Any], steps: int) -> tuple[float, list[float]]:
    """Return the median seconds of a step, and the losses of the first."""
    losses = [float(np.asarray(call())) for _ in range(6)]
    for _ in range(steps):
        call()
    samples = []
    for _ in range(5):
        vf.block_until_ready(call())
        start = time.perf_counter()
        for _ in range(steps):
            loss = call()
        vf.block_until_ready(loss)
        samples.append((time.perf_counter() - start) / steps)
    return statistics.median(samples), losses


def workloads(gpus: Gpus, names: Sequence[str]) -> None:
    """Train on one GPU and on all, and print times and losses."""
    for name in names:
        _compare(name, gpus)
    print(f"steps on the host: {host_steps()}", flush=True)


def _compare(name: str, gpus: Gpus) -> None:
    n, one, examples = gpus.size, Gpus(1, (0,)), named(name).size["batch"]
    calls = {
        "one": lambda: training_call(name, one, examples),
        "data parallelism": lambda: training_call(name, gpus, examples),
        "split": lambda: split_call(name, gpus, examples),
        "one with all examples": lambda: training_call(name, one, n * examples),
    }
    times = {}
    for label, make in calls.items():
        times[label], losses = seconds_of(make(), 20)
        ratio = n * times["one"] / times[label] if label in ("data parallelism", "split") else 1.0
        print(f"{name} {label:22s} {times[label] * 1e3:8.3f} ms {ratio:6.3f}  {' '.join(f'{x:.6f}' for x in losses)}", flush=True)


# A model that no GPU has room for.


def layer_shapes(width: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of a layer's matrices."""
    return {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}


def large_step(n: int, width: int, heads: int, vocabulary: int) -> Callable[..., Any]:
    """Return the training step of a GPT, for one GPU's rows.

    Parameters are `layers`, all layers' matrices, and `tokens`, the embedding, which is also the last matrix.
    """
    shapes = layer_shapes(width)

    def norm(x: Any) -> Any:
        wide = x.astype("float32")
        centred = wide - vnp.mean(wide, -1, keepdims=True)
        return (centred * lax.rsqrt(vnp.mean(centred**2, -1, keepdims=True) + 1e-5)).astype("bfloat16")

    @vf.checkpoint
    def layer(x: Any, rows: Any) -> tuple[Any, None]:
        w = {name: gathered(row, shapes[name]) for name, row in rows.items()}
        q, k, v = (part.reshape(*x.shape[:2], heads, width // heads) for part in vnp.split(norm(x) @ w["qkv"], 3, -1))
        x = x + nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["out"]
        return x + nn.gelu(norm(x) @ w["up"]) @ w["down"], None

    def loss(params: Any, x: Any, labels: Any) -> Any:
        table = gathered(params["tokens"], (vocabulary, width))
        hidden, _ = lax.scan(layer, table[x], params["layers"])
        logits = (norm(hidden) @ table.T).astype("float32")
        return -vnp.mean(vnp.take_along_axis(nn.log_softmax(logits), labels[..., None], -1))

    def step(state: Any, x: Any, labels: Any) -> Any:
        params, moments = state
        value, grads = vf.value_and_grad(loss)(params, x, labels)
        grads = tree.map(lambda g: g / n, grads)
        return adam(library("volta_fn"), params, grads, moments), lax.pmean(value, "i")

    return step


def large(gpus: Gpus, width: int, layers: int, batch: int, tokens: int, vocabulary: int, steps: int) -> None:
    """Train a large GPT, and print losses, times and memory."""
    n, mesh = gpus.size, gpus.mesh
    lengths = {name: math.prod(shape) // n for name, shape in layer_shapes(width).items()}
    count = layers * n * sum(lengths.values()) + vocabulary * width
    of_layers = {name: P(None, "i") for name in lengths}
    spec = {"layers": of_layers, "tokens": P("i")}
    specs = (spec, (spec, spec, P()))

    def initial() -> Any:
        key = random.fold_in(random.key(0), lax.axis_index("i"))
        draw = lambda number, *shape: 0.02 * random.normal(random.fold_in(key, number), shape)
        params = {
            "layers": {name: draw(k, layers, 1, length) for k, (name, length) in enumerate(lengths.items())},
            "tokens": draw(len(lengths), 1, vocabulary * width // n),
        }
        zeros = lambda: tree.map(vnp.zeros_like, params)
        return params, (zeros(), zeros(), vnp.zeros((), "float32"))

    step = large_step(n, width, width // 128, vocabulary)
    mapped = vf.shard_map(step, mesh=mesh, in_specs=(specs, P("i"), P("i")), out_specs=(specs, P()), check_vma=False)
    program = vf.jit(mapped, donate_argnums=0)
    text = np.random.default_rng(0).integers(0, vocabulary, (n * batch, tokens + 1), np.int32)
    data = gpus.put((text[:, :-1].copy(), text[:, 1:].copy()), P("i"))
    state = vf.jit(vf.shard_map(initial, mesh=mesh, in_specs=(), out_specs=specs, check_vma=False))()
    vf.block_until_ready(state)
    foretold = program.lower(state, *data).memory()
    each = foretold.arguments // n + foretold.temporaries
    print(
        f"{count / 1e9:.2f} billion parameters, {12 * count / 1e9:.0f} GB with moments; {foretold}: {each / 1e9:.1f} GB of each GPU",
        flush=True,
    )
    for number in range(steps):
        start = time.perf_counter()
        state, loss = program(state, *data)
        value = float(np.asarray(loss))
        print(f"step {number}: loss {value:.4f}, {time.perf_counter() - start:.3f} s", flush=True)
    for device in vf.local_devices(backend="gpu")[:n]:
        print(f"{device}: { {key: round(value / 1e9, 2) for key, value in device.memory_stats().items()} } GB", flush=True)
    print(f"steps on the host: {host_steps()}", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modes", nargs="*", default=[], help="workloads, large (default: both)")
    parser.add_argument("-n", "--gpus", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", default=[*WORKLOADS])
    for name, default in {"width": 5120, "layers": 40, "batch": 2, "tokens": 1024, "vocabulary": 32768, "steps": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="of the large model (default %(default)s)")
    options = parser.parse_args()
    use_gpu()
    gpus = Gpus(options.gpus, range(options.gpus))
    modes = options.modes or ["workloads", "large"]
    if "workloads" in modes:
        workloads(gpus, options.workloads)
    if "large" in modes:
        large(gpus, options.width, options.layers, options.batch, options.tokens, options.vocabulary, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
