"""Decode tokens with language models of random weights, beside PyTorch.

    python -m benchmarks.decoding [--model smollm2-135m qwen2.5-0.5b] [--rows 1 2 4 8] [--layout torch|linear]

The models have the shapes of SmolLM2-135M and Qwen2.5-0.5B, weights in bfloat16, and a cache of 1,024 keys. A token of a batch reads all
weights once, so the figure beside the milliseconds is the weights' bytes a second, as a fraction of what summing an array of 512 MB reads.
Frameworks take turns on one thread; the least processor time counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from benchmarks.machine import limit_threads
from benchmarks.workloads.language import CACHE, MODELS, TINY, Model
from volta_fn import lax, nn


def weights(model: Model, layout: str) -> dict[str, Any]:
    """Return random weights in float32 by name; of `layout` "linear" as (in, out)."""
    draw = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        x = draw.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(columns, dtype=np.float32)
        return np.ascontiguousarray(x.T) if layout == "linear" else x

    layers = [
        {name: matrix(*shape) for name, shape in model.matrices().items()}
        | {norm: np.ones(model.width, np.float32) for norm in ("norm1", "norm2")}
        for _ in range(model.layers)
    ]
    embedding = draw.standard_normal((model.vocabulary, model.width), dtype=np.float32)
    return {"embedding": embedding, "norm": np.ones(model.width, np.float32), "layers": layers}


def volta_step(model: Model, layout: str) -> Callable[..., Any]:
    """Return the function that decodes a token of each row."""

    def linear(x: Any, w: Any) -> Any:
        return x @ (w if layout == "linear" else w.T)

    def norm(x: Any, w: Any) -> Any:
        wide = x.astype("float32")
        return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * w

    def rotate(x: Any, position: Any) -> Any:
        angles = position * 1e5 ** (-jnp.arange(0, model.features, 2, dtype="float32") / model.features)
        first, second = jnp.split(x.astype("float32"), 2, -1)
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(x.dtype)

    def step(p: Any, tokens: Any, cache: Any, position: Any) -> Any:
        x, new = p["embedding"][tokens], []
        rows = tokens.shape[0]
        mask = (jnp.arange(CACHE) <= position)[None, None, None]
        for w, (keys, values) in zip(p["layers"], cache, strict=True):
            h = norm(x, w["norm1"])
            q, k, v = (linear(h, w[name]).reshape(rows, 1, -1, model.features) for name in "qkv")
            q, k = rotate(q, position.astype("float32")), rotate(k, position.astype("float32"))
            keys, values = (lax.dynamic_update_slice(old, x, (0, position, 0, 0)) for old, x in ((keys, k), (values, v)))
            new.append((keys, values))
            x = x + linear(nn.dot_product_attention(q, keys, values, mask=mask).reshape(rows, 1, -1), w["o"])
            h = norm(x, w["norm2"])
            x = x + linear(nn.silu(linear(h, w["gate"])) * linear(h, w["up"]), w["down"])
        logits = norm(x, p["norm"]) @ p["embedding"].T
        return jnp.argmax(logits[:, -1], -1).astype("int32")[:, None], new

    return vf.jit(step, donate_argnums=2)


def volta(model: Model, layout: str, arrays: dict[str, Any], rows: int) -> Callable[[], Any]:
    """Return a call that decodes one more token of each row."""
    p = vf.tree.map(lambda a: jnp.asarray(a).astype("bfloat16"), arrays)
    step = volta_step(model, layout)
    shape = (rows, CACHE, model.key_heads, model.features)
    state: list[Any] = [
        jnp.ones((rows, 1), "int32"),
        [(jnp.zeros(shape, "bfloat16"), jnp.zeros(shape, "bfloat16")) for _ in range(model.layers)],
        512,
    ]

    def call() -> Any:
        tokens, cache, position = state
        state[0], state[1] = step(p, tokens, cache, np.int32(position))
        state[2] = min(position + 1, CACHE - 1)
        return np.asarray(state[0])

    return call


def torch(model: Model, layout: str, arrays: dict[str, Any], rows: int) -> Callable[[], Any] | None:
    """Return the same of PyTorch; None if it is not installed."""
    try:
        import torch as t
    except ImportError:
        return None
    t.set_num_threads(1)
    functional = t.nn.functional
    p = vf.tree.map(lambda a: t.from_numpy(a).to(t.bfloat16), arrays)
    inverse = 1e5 ** (-t.arange(0, model.features, 2).float() / model.features)

    def linear(x: Any, w: Any) -> Any:
        return x @ w if layout == "linear" else functional.linear(x, w)

    def rotate(x: Any, position: int) -> Any:
        first, second = x.float().chunk(2, -1)
        cosine, sine = (position * inverse).cos(), (position * inverse).sin()
        return t.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x.dtype)

    shape = (rows, model.key_heads, CACHE, model.features)
    cache = [(t.zeros(shape, dtype=t.bfloat16), t.zeros(shape, dtype=t.bfloat16)) for _ in range(model.layers)]
    state: list[Any] = [t.ones((rows, 1), dtype=t.int64), 512]

    def call() -> Any:
        tokens, position = state
        x = p["embedding"][tokens]
        for w, (keys, values) in zip(p["layers"], cache, strict=True):
            h = functional.rms_norm(x, (model.width,), w["norm1"], 1e-5)
            q, k, v = (linear(h, w[name]).view(rows, 1, -1, model.features).transpose(1, 2) for name in "qkv")
            keys[:, :, position], values[:, :, position] = rotate(k, position)[:, :, 0], v[:, :, 0]
            seen = position + 1
            attended = functional.scaled_dot_product_attention(rotate(q, position), keys[:, :, :seen], values[:, :, :seen], enable_gqa=True)
            x = x + linear(attended.transpose(1, 2).reshape(rows, 1, -1), w["o"])
            h = functional.rms_norm(x, (model.width,), w["norm2"], 1e-5)
            x = x + linear(functional.silu(linear(h, w["gate"])) * linear(h, w["up"]), w["down"])
        logits = functional.linear(functional.rms_norm(x, (model.width,), p["norm"], 1e-5), p["embedding"])
        state[0], state[1] = logits[:, -1].argmax(-1)[:, None], min(position + 1, CACHE - 1)
        return state[0].numpy()

    without_gradients: Callable[[], Any] = t.inference_mode()(call)
    return without_gradients


def by_turns(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Return the least processor seconds of each call."""
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(turns):
        for name, call in calls.items():
            start = time.process_time()
            call()
            least[name] = min(least[name], time.process_time() - start)
    return least


def bandwidth(size: int) -> float:
    """Return the bytes a second that one thread reads, of an array of so many int32."""
    x = jnp.ones(size, "int32")
    total = vf.jit(jnp.sum)
    seconds = by_turns({"sum": lambda: total(x).block_until_ready()}, 7)["sum"]
    return x.nbytes / seconds


def main() -> None:
    """Print a row for each model and number of sequences."""
    parser = argparse.ArgumentParser(description="Decode tokens with language models of random weights, beside PyTorch.")
    parser.add_argument("--model", choices=MODELS, nargs="*", default=list(MODELS))
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4], help="sequences that are decoded together")
    parser.add_argument(
        "--layout", choices=("torch", "linear"), default="torch", help="weights (out, in), or (in, out) as nn.Linear has them"
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few turns, for a trial")
    options = parser.parse_args()
    limit_threads(1)
    peak = bandwidth(1 << 10 if options.quick else 1 << 27)
    print(f"one thread reads {peak / 1e9:.1f} GB/s")
    for name in ("tiny",) if options.quick else options.model:
        model = TINY if options.quick else MODELS[name]
        arrays = weights(model, options.layout)
        size = 2 * sum(a.size for a in vf.tree.leaves(arrays))
        for rows in options.rows:
            calls = {"volta_fn": volta(model, options.layout, arrays, rows), "torch": torch(model, options.layout, arrays, rows)}
            seconds = by_turns({key: call for key, call in calls.items() if call is not None}, 2 if options.quick else options.turns)
            text = ", ".join(f"{key} {1e3 * s:.2f} ms ({size / s / peak:.0%} of the bandwidth)" for key, s in seconds.items())
            ratio = f", ratio {seconds['volta_fn'] / seconds['torch']:.2f}" if "torch" in seconds else ""
            print(f"{name}, {size / 1e6:.0f} MB, {rows} sequences: {text}{ratio}", flush=True)


if __name__ == "__main__":
    main()
