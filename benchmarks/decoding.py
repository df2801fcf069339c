"""Decode tokens with language models of random weights by turns.

Weights are in bfloat16, in 8 and in 4 bits, and PyTorch takes turns with all of them where it is installed.

    python -m benchmarks.decoding [--model smollm2-135m qwen2.5-0.5b] [--kinds bfloat16 int8 int4] [--rows 1 2 4 8] [--threads 2]

The models have the shapes of SmolLM2-135M and Qwen2.5-0.5B, activations and a cache of 1,024 keys in bfloat16. A token of a batch reads all
weights once, so a row has the weights' bytes a second, as a fraction of what summing an array of 512 MB reads, and how many times as fast
as the first kind it is. All contestants decode a few tokens at each turn, the sum takes its turn, too, and quotients are medians of those
of each turn: what the memory of a machine gives may change by a third within minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.machine import installed, limit_threads
from benchmarks.workloads.case import Case, Contestant, arrays_in, contestant, library
from benchmarks.workloads.language import MODELS, TINY, decode

KINDS = ("bfloat16", "int8", "int4")
#: Tokens of a turn: the first one reads the code and the small arrays into the caches again and is not timed.
TOKENS = 8


def by_turns(contestants: Mapping[Any, Contestant], turns: int) -> dict[Any, list[float]]:
    """Return the median seconds of a token at each turn of each contestant."""
    times: dict[Any, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, (call, wait) in contestants.items():
            seconds = []
            for _ in range(TOKENS):
                start = time.perf_counter()
                wait(call())
                seconds.append(time.perf_counter() - start)
            if turn:  # the first turn compiles
                times[name].append(statistics.median(seconds[1:]))
    return times


def quotient(times: list[float], others: list[float]) -> float:
    """Return the median quotient of two contestants' times."""
    return statistics.median(x / y for x, y in zip(times, others, strict=True))


def weight_bytes(case: Case) -> int:
    """Return the bytes of a case's weights as they are stored: floats in bfloat16."""
    return sum(2 * a.size if a.dtype == np.float32 else a.nbytes for a in arrays_in(case.inputs[1]))


def sum_of(size: int) -> Contestant:
    """Return the sum of an array of so many int32, which takes as long as reading it."""
    lib = library("volta_fn")
    x, total = lib.jnp.ones(size, "int32"), lib.jax.jit(lib.jnp.sum)
    return Contestant(lambda: total(x), lib.jax.block_until_ready)


def main() -> None:
    """Print a row for each model, number of sequences and kind."""
    parser = argparse.ArgumentParser(description="Decode tokens with language models of random weights, by turns.")
    parser.add_argument("--model", choices=MODELS, nargs="*", default=list(MODELS))
    parser.add_argument("--kinds", choices=KINDS, nargs="*", default=list(KINDS), help="how weights are stored")
    parser.add_argument("--rows", type=int, nargs="*", default=[1], help="sequences that are decoded together")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few turns, for a trial")
    options = parser.parse_args()
    limit_threads(options.threads)
    frameworks = [name for name in installed() if name != "jax"]
    read = 1 << 10 if options.quick else 1 << 27
    total = sum_of(read)
    for name in ("tiny",) if options.quick else options.model:
        model = TINY if options.quick else MODELS[name]
        for rows in options.rows:
            contestants: dict[Any, Contestant] = {"sum": total}
            sizes = {}
            for kind in options.kinds:
                case = decode(np.random.default_rng(0), model, kind, rows)
                sizes[kind] = weight_bytes(case)
                contestants.update({(kind, framework): contestant(framework, case) for framework in frameworks})
            times = by_turns(contestants, 2 if options.quick else options.turns)
            first, sums = times[options.kinds[0], "volta_fn"], times["sum"]
            print(f"a sum reads {4e-9 * read / statistics.median(sums):.1f} GB/s on {options.threads} threads")
            for kind in options.kinds:
                ours = times[kind, "volta_fn"]
                seconds = statistics.median(ours)
                text = f"{1e3 * seconds:.2f} ms ({sizes[kind] / (4 * read) * quotient(sums, ours):.0%} of the bandwidth)"
                peer = f", {quotient(ours, times[kind, 'torch']):.2f} of PyTorch's time" if "torch" in frameworks else ""
                label = f"{name}, {rows} sequences, {kind}, {sizes[kind] / 1e6:.0f} MB"
                print(f"{label}: {text}, {quotient(first, ours):.2f} times as fast{peer}", flush=True)


if __name__ == "__main__":
    main()
