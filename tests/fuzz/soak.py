"""Go on for long, and watch the memory of the process.

`python -m tests.fuzz.soak` trains 20,000 steps, compiles 10,000 functions that are dropped, and raises 10,000 exceptions in traces.
Memory is measured from a tenth of the way on, when caches are full.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim

#: The most bytes that a part may grow by after its first tenth.
MOST = {"training": 4_000_000, "dropped functions": 64_000_000, "exceptions": 4_000_000}


class TracedError(Exception):
    """What traced functions raise here."""


def in_memory() -> int:
    """Return the bytes of the process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def training() -> Callable[[int], None]:
    """Return a step of training."""
    model: Any = nn.Sequential.init(nn.Linear.init(vf.random.key(0), 8, 16), nn.relu, nn.Linear.init(vf.random.key(1), 16, 1))
    optimizer = optim.adam(1e-3)
    state = [model, optimizer.init(model)]

    @vf.jit
    def step(model: Any, moments: Any, x: Any) -> Any:
        gradient = vf.grad(lambda m: jnp.mean(m(x) ** 2))(model)
        updates, moments = optimizer.update(gradient, moments, model)
        return optim.apply_updates(model, updates), moments

    draw = np.random.default_rng(0)

    def one(number: int) -> None:
        state[:] = step(*state, draw.normal(size=(16, 8)).astype(np.float32))

    return one


def dropped_functions() -> Callable[[int], None]:
    """Return a compilation of a function that nothing keeps."""
    x = jnp.linspace(0.0, 1.0, 64)

    def one(number: int) -> None:
        vf.jit(lambda x: jnp.tanh(x * (number + 0.25)).sum())(x)

    return one


def exceptions() -> Callable[[int], None]:
    """Return a trace that an exception ends."""
    x = jnp.ones(1000)

    def fails(x: Any) -> Any:
        if x.shape:
            raise TracedError
        return x

    def one(number: int) -> None:
        try:
            vf.jit(vf.grad(lambda x: fails(jnp.sin(x)).sum()))(x)
        except TracedError:
            return

    return one


PARTS = {"training": (training, 20_000), "dropped functions": (dropped_functions, 10_000), "exceptions": (exceptions, 10_000)}


def grown(name: str, part: int = 1) -> int:
    """Return the bytes by which a part of the soak grows, done so many times less often."""
    make, count = PARTS[name]
    one, count = make(), count // part
    for number in range(count // 10):
        one(number)
    gc.collect()
    before = in_memory()
    for number in range(count // 10, count):
        one(number)
    gc.collect()
    return in_memory() - before


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", type=int, default=1, help="do everything so many times less often")
    options = parser.parse_args(argv)
    bad = False
    for name in PARTS:
        growth = grown(name, options.part)
        bad |= growth > MOST[name]
        print(f"{name}: {growth / 1e6:+.1f} MB of {MOST[name] / 1e6:.0f} allowed", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
