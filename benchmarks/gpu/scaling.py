"""Training on several GPUs of one process: `python -m benchmarks.gpu.scaling`.

`workloads` trains by data parallelism and by the ways of `benchmarks.gpu.parallel` beside one GPU: its losses are those of all. `large`
trains a GPT that no GPU has room for, layer by layer, with rows of parameters and states (ZeRO-3), and compares the memory that it takes
with what `lower(…).memory()` foretells.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu.collectives import Gpus, host_steps, training_call
from benchmarks.gpu.parallel import gathered, groups_call, one_call, pipeline_call, split_call, states_call, tensor_call
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import library
from benchmarks.workloads.training import adam
from volta_fn import P, lax, nn, random, tree

WORKLOADS = ("gpu train/gpt small@bfloat16", "gpu train/gpt medium@bfloat16")
#: Ways in which each GPU has as many examples as one alone, and those that split what one GPU computes.
WEAK, STRONG = ("data", "split", "states"), ("tensor", "pipeline")


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


def workloads(gpus: Gpus, names: Sequence[str], ways: Sequence[str]) -> None:
    """Train on one GPU and on all, and print times and losses."""
    for name in names:
        _compare(name, gpus, ways)
    print(f"steps on the host: {host_steps()}", flush=True)


#: The layers of a pipeline's stage, and its micro-batches for each stage.
_STAGE, _MICRO = 2, 4


def _compare(name: str, gpus: Gpus, ways: Sequence[str]) -> None:
    n, workload = gpus.size, named(name)
    examples = workload.size["batch"]
    calls = {
        "data": lambda: training_call(name, gpus, examples),
        "split": lambda: split_call(workload, gpus, examples),
        "states": lambda: states_call(workload, gpus, examples),
    }
    weak = [way for way in ways if way in calls]
    alone = _timed(f"{name} one", training_call(name, Gpus(1, (0,)), examples)) if weak or "tensor" in ways else 0.0
    for way in weak:
        _timed(f"{name} {way}", calls[way](), n * alone)
    if weak:
        _timed(f"{name} one, all groups", groups_call(workload, n, examples))
    if "tensor" in ways:
        _timed(f"{name} tensor", tensor_call(workload, gpus), alone)
    if "pipeline" in ways:
        longer = replace(workload, size=workload.size | {"layers": _STAGE * n, "batch": _MICRO * n * examples})
        whole = _timed(f"{name} one, {_STAGE * n} layers", one_call(longer))
        _timed(f"{name} pipeline", pipeline_call(longer, gpus, _MICRO * n), whole)


def _timed(label: str, call: Callable[[], Any], work: float | None = None) -> float:
    """Print and return the seconds of a step, and how many GPUs' work that is."""
    seconds, losses = seconds_of(call, 20)
    ratio = "" if work is None else f"{work / seconds:.3f}"
    print(f"{label:50s} {seconds * 1e3:8.3f} ms {ratio:6s} {' '.join(f'{x:.6f}' for x in losses)}", flush=True)
    return seconds


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

    def program_of(function: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
        return vf.jit(vf.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False), **options)

    def drawn(number: int, shape: tuple[int, ...], place: Any) -> Any:
        def draw() -> Any:
            return 0.02 * random.normal(random.fold_in(random.fold_in(random.key(0), lax.axis_index("i")), number), shape)

        return program_of(draw, (), place)()

    # Array by array, so that no program of the beginning takes more memory than a step.
    params = {
        "layers": {name: drawn(k, (layers, 1, length), P(None, "i")) for k, (name, length) in enumerate(lengths.items())},
        "tokens": drawn(len(lengths), (1, vocabulary * width // n), P("i")),
    }
    zeros = program_of(lambda params: tree.map(vnp.zeros_like, params), (spec,), spec)
    state = params, (zeros(params), zeros(params), gpus.put(np.zeros((), np.float32), P()))
    step = large_step(n, width, width // 128, vocabulary)
    program = program_of(step, (specs, P("i"), P("i")), (specs, P()), donate_argnums=0)
    text = np.random.default_rng(0).integers(0, vocabulary, (n * batch, tokens + 1), np.int32)
    data = gpus.put((text[:, :-1].copy(), text[:, 1:].copy()), P("i"))
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
        if number in (1, steps - 1):
            for device in vf.local_devices(backend="gpu")[:n]:
                in_use = {key: round(value / 1e9, 2) for key, value in device.memory_stats().items()}
                print(f"{device}: {in_use} GB", flush=True)
    print(f"steps on the host: {host_steps()}", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modes", nargs="*", default=[], help="workloads, large (default: both)")
    parser.add_argument("-n", "--gpus", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", default=[*WORKLOADS])
    parser.add_argument("--ways", nargs="+", choices=[*WEAK, *STRONG], default=["data", "split"], help="how to split (default: data split)")
    for name, default in {"width": 5120, "layers": 40, "batch": 2, "tokens": 1024, "vocabulary": 32768, "steps": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="of the large model (default %(default)s)")
    options = parser.parse_args()
    use_gpu()
    gpus = Gpus(options.gpus, range(options.gpus))
    modes = options.modes or ["workloads", "large"]
    if "workloads" in modes:
        workloads(gpus, options.workloads, options.ways)
    if "large" in modes:
        large(gpus, options.width, options.layers, options.batch, options.tokens, options.vocabulary, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
