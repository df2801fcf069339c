"""The targets of volta_fn: each is a number of a run, and the most that it may be.

Results are the dict that `python -m benchmarks` writes as JSON. A measure returns None where the run lacks what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MEBIBYTE = 2**20
CONTRACTIONS = ("train/mlp", "train/lenet", "train/resnet block", "train/gpt")


class Target(NamedTuple):
    """A target: `measure(results)` is at most `limit`."""

    text: str
    measure: Callable[[dict[str, Any]], float | None]
    limit: float


def geometric_mean(results: dict[str, Any]) -> float | None:
    """Return the geometric mean of our time over the faster peer's."""
    ratios = [row["ratio"] for row in results["times"] if row["ratio"]]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def over(*names: str, peer: str | None = None) -> Callable[[dict[str, Any]], float | None]:
    """Return our largest time over a peer's, of workloads whose names start so.

    Without a `peer`, over the faster one's.
    """

    def measure(results: dict[str, Any]) -> float | None:
        rows = [row["seconds"] | {None: row["seconds"].get(row["peer"])} for row in results["times"] if row["name"].startswith(names)]
        return max((row["volta_fn"] / row[peer] for row in rows if row.get(peer)), default=None)

    return measure


def _jitted_add(results: dict[str, Any]) -> float | None:
    """Return our time over 3 µs or 0.3 of JAX's time, whichever is easier."""
    row = next((row["seconds"] for row in results["times"] if row["name"] == "call/jitted add"), None)
    if row is None:
        return None
    return min([row["volta_fn"] / 3e-6] + ([row["volta_fn"] / row["jax"] / 0.3] if "jax" in row else []))


def _memory(results: dict[str, Any]) -> float | None:
    return max((row["ratio"] for row in results["peaks"] if row["ratio"]), default=None)


def _quotient(section: str, ours: str, theirs: str) -> Callable[[dict[str, Any]], float | None]:
    def measure(results: dict[str, Any]) -> float | None:
        result = results.get(section) or {}
        return result[ours] / result[theirs] if ours in result and theirs in result else None

    return measure


def _import_beyond_numpy(results: dict[str, Any]) -> float | None:
    result = results.get("imports")
    return (result["volta_fn"] - result["numpy"]) * 1e3 if result else None


def _convolution_memory(results: dict[str, Any]) -> float | None:
    result = results.get("convolution_memory")
    return max(row["bytes_beyond"] for row in result["results"]) / result["threads"] / MEBIBYTE if result else None


EVERYWHERE = [
    Target("eager x + y on 8 floats, over PyTorch's time", over("call/eager add", peer="torch"), 1.2),
    Target("eager value and gradient of two layers, over PyTorch's", over("call/eager value and gradient", peer="torch"), 2.0),
    Target("jitted call of one add, over JAX's", over("call/jitted add", peer="jax"), 0.5),
    Target("import, ms beyond NumPy's", _import_beyond_numpy, 100),
    Target("peak memory of any training step, over JAX's", _memory, 1.0),
    Target("memory of a large convolution layer, MiB per thread", _convolution_memory, 32),
]

NATIVE = [
    Target("slowest of all workloads, over the faster peer's time", over(""), 1.05),
    Target("geometric mean over all workloads", geometric_mean, 0.7),
    Target("3×3 convolution forward, over PyTorch's", over("conv/3×3 forward", "conv/3×3 deep forward", peer="torch"), 0.7),
    Target("3×3 convolution gradients, over PyTorch's", over("conv/3×3 gradients", "conv/3×3 deep gradients", peer="torch"), 0.7),
    Target("gelu of 4M floats, over the faster peer's", over("op/gelu"), 0.8),
    Target("softmax 2048×2048, over the faster peer's", over("op/softmax 2048"), 0.85),
    Target("jitted call of one add, beside 3 µs or 0.3 of JAX's", _jitted_add, 1.0),
    Target("first GPT training step, over JAX's", _quotient("first_steps", "volta_fn", "jax"), 0.5),
    Target("first GPT step with cached objects, over that without", _quotient("first_steps", "warm cache", "volta_fn"), 0.2),
]

#: Rows of language models, and the most that our time may be of the faster peer's. Products of large matrices in bfloat16 and int8 are held
#: to PyTorch's, whose library has them hand-tuned for this processor; decoding reads memory, which peers do in several passes.
LANGUAGE_TIMES = {
    "llm/decode smollm2-135m bfloat16": 0.5,
    "llm/decode smollm2-135m int8": 0.5,
    "llm/decode smollm2-135m int4": 0.5,
    "llm/decode qwen2.5-0.5b bfloat16": 0.6,
    "llm/decode qwen2.5-0.5b int8": 0.6,
    "llm/decode qwen2.5-0.5b int4": 0.6,
    "llm/prefill 512 smollm2-135m": 1.05,
    "llm/prefill 512 qwen2.5-0.5b": 1.05,
    **{f"llm/bfloat16 product {n}": 1.05 for n in (512, 1024, 2048, 4096)},
    **{f"llm/int8 product {n}": 1.05 for n in (512, 1024, 2048)},
    "llm/attention 4096": 1.0,
    "llm/attention gradient 4096": 1.0,
    "llm/attention 16384": 1.0,
    "llm/attention gradient 16384": 1.0,
    "llm/cross-entropy gradient 4096×50257": 1.05,
    "llm/linear cross-entropy gradient 4096×50257": 1.2,
}

#: The most MiB that programs of language models may need besides arguments and results. Attention grows with the tokens, not their square:
#: forward with copies of queries, keys and values; its gradient with as much again for each. Logits of 4096 × 50257 floats are 785 MiB.
LANGUAGE_MEMORY = {
    "llm/memory of attention 4096": 16,
    "llm/memory of attention gradient 4096": 48,
    "llm/memory of attention 16384": 64,
    "llm/memory of attention gradient 16384": 192,
    "llm/memory of cross-entropy gradient 4096×50257": 1600,
    "llm/memory of linear cross-entropy gradient 4096×50257": 128,
}


def _planned(name: str) -> Callable[[dict[str, Any]], float | None]:
    def measure(results: dict[str, Any]) -> float | None:
        return next((row["bytes"]["volta_fn"] / MEBIBYTE for row in results["plans"] if row["name"] == name), None)

    return measure


LANGUAGE = [Target(f"{name}, over the faster peer's time", over(name), most) for name, most in LANGUAGE_TIMES.items()]
LANGUAGE += [Target(f"{name}, MiB", _planned(name), most) for name, most in LANGUAGE_MEMORY.items()]

NUMPY_ONLY = [Target("training steps dominated by contractions, over JAX's", over(*CONTRACTIONS, peer="jax"), 1.0)]


_SMALL_STEPS = ("gpu train/mlp", "gpu train/lenet", "gpu train/lstm", "gpu train/gpt small")


def _first_steps(results: dict[str, Any]) -> float | None:
    """Return the longest first training step over JAX's, in fresh processes if there."""
    rows = {row["name"]: row["first_call"] for row in results["times"] if row["name"].startswith("gpu train/")} | results["first_steps"]
    return max((result["volta_fn"] / result["jax"] for result in rows.values() if "jax" in result), default=None)


GPU = [
    Target("slowest training step of MLP, LeNet, LSTM, small GPT, over JAX's", over(*_SMALL_STEPS, peer="jax"), 1.0),
    Target("longest first training step, over JAX's", _first_steps, 0.25),
]


def targets(machine_code: bool) -> list[Target]:
    """Return the targets of a run with machine code, or without."""
    return (NATIVE + LANGUAGE if machine_code else NUMPY_ONLY) + EVERYWHERE


def judge(results: dict[str, Any], wanted: Sequence[Target] | None = None) -> list[dict[str, Any]]:
    """Judge each target (by default the CPU's): its number, and whether it is met.

    That is None where it was not measured.
    """
    judged = []
    for target in targets(results["machine"]["machine_code"]) if wanted is None else wanted:
        value = target.measure(results)
        judged.append({"text": target.text, "value": value, "limit": target.limit, "met": None if value is None else value <= target.limit})
    return judged
