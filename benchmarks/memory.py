"""Measure the peak memory of a large convolution layer.

    python benchmarks/memory.py [--json PATH]        (`python -m benchmarks` runs it, too)

Its predecessor Volta took 2.5 GB for this layer: batch 32, 64 → 64 channels, 128×128 pixels, 3×3 taps. Measured is the peak of all NumPy
allocations (tracemalloc counts them) beyond the inputs and the results, for the layer, for its backward pass, and for both in one program.
The bound is 32 MiB per thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn import lax

BATCH, CHANNELS, SIDE, TAPS = 32, 64, 128, 3
BOUND = 32 * 2**20
MIB = 2**20


def layer(x: vf.Array, w: vf.Array) -> vf.Array:
    """Convolve; the result is as large as the input."""
    return lax.conv_general_dilated(x, w, window_strides=(1, 1), padding="SAME")


def backward(x: vf.Array, w: vf.Array, ct: vf.Array) -> Any:
    """Return the cotangents of input and weights from that of the result."""
    return vf.vjp(layer, x, w)[1](ct)


def both(x: vf.Array, w: vf.Array, ct: vf.Array) -> Any:
    """Return the result and the cotangents, as one training step needs them."""
    y, pull_back = vf.vjp(layer, x, w)
    return y, pull_back(ct)


def beyond(function: Callable[..., Any], *args: vf.Array) -> tuple[int, int, float]:
    """Return a call's peak bytes beyond its arrays, its results' bytes, and seconds."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    start = time.perf_counter()
    results = vf.block_until_ready(function(*args))
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    produced = sum(leaf.nbytes for leaf in vf.tree.leaves(results))
    return peak - produced, produced, seconds


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = argparse.ArgumentParser(description="Peak memory of a large convolution layer, forward and backward.")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rng = np.random.default_rng(0)
    draw = lambda *shape: vf.device_put(rng.standard_normal(shape, np.float32))
    x, w, ct = draw(BATCH, CHANNELS, SIDE, SIDE), draw(CHANNELS, CHANNELS, TAPS, TAPS), draw(BATCH, CHANNELS, SIDE, SIDE)
    print(f"{x.nbytes / MIB:.0f} MiB of images; gathering their 3×3 neighbourhoods (im2col) would take {TAPS**2 * x.nbytes / MIB:.0f} MiB")
    results = []
    programs: dict[str, tuple[Callable[..., Any], tuple[vf.Array, ...]]]
    programs = {"forward": (layer, (x, w)), "backward": (backward, (x, w, ct)), "both": (both, (x, w, ct))}
    for name, (function, args) in programs.items():
        extra, produced, seconds = beyond(vf.jit(function), *args)
        met = extra <= BOUND * threads
        print(f"{name:9s} {extra / MIB:7.1f} MiB beyond inputs and the {produced / MIB:.0f} MiB of results; {seconds:.2f} s with tracing")
        print(f"{'':9s} target at most {BOUND * threads / MIB:.0f} MiB on {threads} threads: {'met' if met else 'MISSED'}")
        results.append({"name": name, "bytes_beyond": extra, "bytes_of_results": produced, "seconds": seconds, "met": met})
    if options.json:
        options.json.write_text(json.dumps({"threads": threads, "bound_bytes": BOUND * threads, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
