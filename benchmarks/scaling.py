"""Fit how the cost of compiling grows with the size of a program, as in JAX.

    python -m benchmarks.scaling [--only PATTERN] [--limit SECONDS] [--no-jax] [--quick]

Each size runs in a process of its own, without a cache on disk. Times are of the processor, of all threads together, so that other
processes do not count. The exponent is that between the two largest sizes; below 1 there is a
share that does not grow. The exit status is 1 if an exponent is above `MOST`, or if volta_fn takes longer than JAX at the largest size that
both finish within the limit.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.fresh import run_fresh

#: The largest exponent allowed.
MOST = 1.1


def chain(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return a program of `size` dependent equations."""

    def f(x: Any) -> Any:
        for number in range(size // 2):
            x = jnp.sin(x) + 0.001 * number
        return x

    return f, jnp.ones(16)


def gradient(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return the gradient of a chain."""
    f, x = chain(framework, jnp, lax, size)
    return framework.grad(lambda x: jnp.sum(f(x))), x


def wide(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return a program of independent equations whose results are added up."""

    def f(x: Any) -> Any:
        terms = [jnp.sin(x * (1 + 0.001 * number)) for number in range(size // 3)]
        return functools.reduce(lambda a, b: a + b, terms)

    return f, jnp.ones(16)


def layers(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return the gradient of `size` unrolled layers."""
    weights = [jnp.ones((8, 8)) * 0.1 for _ in range(size)]

    def loss(weights: Any) -> Any:
        x = jnp.ones((4, 8))
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    return framework.grad(loss), weights


def leaves(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return a step on a tree of `size` leaves."""
    tree = {f"layer{number}": {"w": jnp.ones(2), "b": (jnp.ones(2), jnp.ones(2), jnp.ones(2))} for number in range(size // 4)}
    return lambda tree: framework.tree.map(lambda x: x * 0.9, tree), tree


def nesting(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return a program of jitted functions that call one another, `size` deep."""

    def f(x: Any) -> Any:
        return jnp.sin(x)

    for _ in range(size):
        f = framework.jit(lambda x, f=f: f(x) * 0.5 + 1)
    return f, jnp.ones(16)


def deep_tree(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return a step on a tree `size` deep."""
    tree: Any = jnp.ones(2)
    for _ in range(size):
        tree = (tree, jnp.ones(2))
    return lambda tree: framework.tree.map(lambda x: x * 0.9, tree), tree


def loops(framework: Any, jnp: Any, lax: Any, size: int) -> tuple[Callable[..., Any], Any]:
    """Return a program of `size` scans."""

    def f(x: Any) -> Any:
        for _ in range(size):
            x = lax.scan(lambda c, t: (c * 0.5 + t, c), x[0], x)[1]
        return x

    return f, jnp.ones(8)


#: Programs, and their sizes.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "chain of equations": (chain, (100, 1_000, 10_000, 50_000)),
    "gradient of a chain": (gradient, (100, 1_000, 10_000, 50_000)),
    "independent equations": (wide, (100, 1_000, 10_000)),
    "unrolled layers": (layers, (10, 100, 500)),
    "leaves": (leaves, (100, 1_000, 10_000)),
    "nested jit": (nesting, (10, 30, 100)),
    "depth of a tree": (deep_tree, (10, 30, 100)),
    "scans": (loops, (10, 30, 100)),
}


def measure(name: str, framework: str, size: int) -> float:
    """Return the processor's seconds of the first call, in this process."""
    library, jnp, lax = (importlib.import_module(framework + module) for module in ("", ".numpy", ".lax"))
    make = PROGRAMS[name][0]
    library.block_until_ready(library.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3)))  # loads the compiler
    function, argument = make(library, jnp, lax, size)
    begun = time.process_time()
    library.block_until_ready(library.jit(function)(argument))
    return time.process_time() - begun


def timed(name: str, framework: str, size: int, limit: float) -> float | None:
    """Return the seconds of a first call in a new process, or None.

    None means that it takes too long or fails.
    """
    try:
        result = run_fresh("scaling", "--one", name, framework, str(size), timeout=limit, VOLTA_CACHE_DIR="", JAX_PLATFORMS="cpu")
    except (RuntimeError, subprocess.TimeoutExpired):
        return None
    return float(result["seconds"])


def exponent(sizes: tuple[int, ...], times: list[float | None]) -> float | None:
    """Return the exponent between the two largest sizes that were timed."""
    results = [(size, seconds) for size, seconds in zip(sizes, times, strict=True) if seconds is not None]
    if len(results) < 2:
        return None
    (a, before), (b, after) = results[-2:]
    return math.log(after / before) / math.log(b / a)


def report(name: str, frameworks: list[str], sizes: tuple[int, ...], limit: float) -> bool:
    """Print a program's row for each framework; return whether it is as it should be."""
    results: dict[str, list[float | None]] = {}
    for framework in frameworks:
        times: list[float | None] = []
        for size in sizes:
            too_long = bool(times) and times[-1] is None
            times.append(None if too_long else timed(name, framework, size, limit))
        results[framework] = times
        grown = exponent(sizes, times)
        cells = "  ".join("     -  " if seconds is None else f"{seconds:7.3f}s" for seconds in times)
        print(f"{name:24} {framework:9} {cells}  exponent {'-' if grown is None else f'{grown:.2f}'}", flush=True)
    ours, theirs = results["volta_fn"], results.get("jax", [])
    grown = exponent(sizes, ours)
    both = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]
    return ours[-1] is not None and grown is not None and grown <= MOST and (not both or both[-1][0] <= both[-1][1])


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="programs whose names contain a match")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a size (default 120)")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without the largest size")
    parser.add_argument("--one", nargs=3, metavar=("PROGRAM", "FRAMEWORK", "SIZE"), help="time one size in this process")
    options = parser.parse_args()
    if options.one:
        name, framework, size = options.one
        print(json.dumps({"seconds": measure(name, framework, int(size))}))
        return 0
    bad = []
    for name, (_, sizes) in PROGRAMS.items():
        if re.search(options.only, name) and not report(
            name, ["volta_fn", *([] if options.no_jax else ["jax"])], sizes[:-1] if options.quick else sizes, options.limit
        ):
            bad.append(name)
    print(f"{len(bad)} beyond the bounds: {', '.join(bad)}" if bad else "all within the bounds")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
