"""Measure what a recorded trace costs training steps.

    python -m benchmarks.profiler [--device cpu|gpu] [--only REGEX] [--quick]

Each step runs in alternation without and with `profiler.trace`, which includes its notes of kernels but not its compilations, nor the file
that it writes at its end. The least seconds of each are compared, since other processes only make steps slower. The bound is 5 %.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import volta_fn as vf
from benchmarks.workloads import named
from benchmarks.workloads.case import library, map_arrays

STEPS = ("train/mlp", "train/lenet", "train/lstm", "train/gpt")
BOUND = 0.05
#: Alternations, and the seconds of calls that each has of either kind.
ROUNDS, SECONDS = 6, 0.5


def fastest(call: Callable[[], Any]) -> float:
    """Return the least seconds of calls, after some that may compile."""
    for _ in range(3):
        vf.block_until_ready(call())
    results: list[float] = []
    while sum(results) < SECONDS or len(results) < 3:
        start = time.perf_counter()
        vf.block_until_ready(call())
        results.append(time.perf_counter() - start)
    return min(results)


def measure(name: str, quick: bool) -> tuple[float, float]:
    """Return the least seconds of a step without and with a trace."""
    lib = library("volta_fn")
    case = named(name).case(quick)
    step, args = vf.jit(case.functional(lib)), map_arrays(lib.jnp.array, case.inputs)
    off, on = [], []
    for _ in range(ROUNDS):
        off.append(fastest(lambda: step(*args)))
        with tempfile.TemporaryDirectory() as folder, vf.profiler.trace(folder):
            on.append(fastest(lambda: step(*args)))
    return min(off), min(on)


def main() -> int:
    """Measure the steps and print a row for each; return 1 if one misses the bound."""
    parser = argparse.ArgumentParser(description="What profiler.trace costs training steps while it records.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help="a regular expression of the steps' names")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a trial")
    options = parser.parse_args()
    met = True
    with vf.default_device(vf.devices(options.device)[0]):
        for name in STEPS:
            if not re.search(options.only, name):
                continue
            off, on = measure(name, options.quick)
            retained = on / off - 1 < BOUND
            verdict = "met" if retained else "MISSED"
            print(f"{name:12s} {off * 1e3:9.3f} ms without, {on * 1e3:9.3f} ms with a trace ({on / off - 1:+.1%}); {verdict}", flush=True)
            met &= retained
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
