"""Lose the GPU at random points of training, and compare the bits with an undisturbed run.

`python -m tests.fuzz.losses --count 500` does so 500 times, in turn for all examples that train and for a loop that donates, reads back and
computes eagerly. A point is a dispatch, a batch, a readback, an upload, an allocation or the compilation of a shader.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz.planted_losses import POINTS, Points, planted
from volta_fn.core.devices import device as devices
from volta_fn.core.devices.device import Device
from volta_fn.targets.gpu.backend import GpuBackend

#: The examples that train, and the names of the jitted functions that end a step.
EXAMPLES = {
    **dict.fromkeys("dp_sgd mnist_rnn regression vae xor dcgan digits maml mnist_cnn super_resolution time_series".split(), "step"),
    **dict.fromkeys(["char_lstm", "char_transformer"], "update"),
}
#: Steps of an example, and losses of one process.
_STEPS, _SLICE = 4, 10


class EnoughError(Exception):
    """The example has taken enough steps."""


class Outcome(NamedTuple):
    """What a run gave: a digest of all results' bits, and the points that it passed."""

    digest: str
    points: Points


def loop(digest: Any) -> None:
    """Train a product: donate, put batches, read losses now and then, and compute eagerly."""

    def loss(p: vf.Array, x: vf.Array) -> vf.Array:
        return jnp.mean(jnp.sin(x @ p) ** 2)

    step = vf.jit(lambda p, x: (jnp.tanh(p - 0.1 * vf.grad(loss)(p, x)), jnp.sum(p * p)), donate_argnums=0)
    p, draw = jnp.linspace(0, 1, 64 * 64).reshape(64, 64), np.random.default_rng(0)
    for number in range(12):
        p, total = step(p, jnp.asarray(draw.normal(size=(8, 64)).astype(np.float32)))
        if number % 3 == 0:
            digest.update(np.asarray(total).tobytes())
    digest.update(np.asarray((p + 1) * p).tobytes())


def example(name: str) -> Callable[[Any], None]:
    """Return a run of an example's first steps."""
    jit = vf.jit

    def run(digest: Any) -> None:
        calls = 0

        def watching(function: Callable[..., Any] | None = None, **options: Any) -> Any:
            if function is None:
                return lambda function: watching(function, **options)
            compiled = jit(function, **options)
            if function.__name__ != EXAMPLES[name]:
                return compiled

            def call(*args: Any) -> Any:
                nonlocal calls
                result = compiled(*args)
                for leaf in vf.tree.leaves(result):
                    digest.update(np.asarray(leaf).tobytes())
                calls += 1
                if calls == _STEPS:
                    raise EnoughError
                return result

            return _Method(call)

        retained = {name: sys.modules.pop(name) for name in [*EXAMPLES, "common"] if name in sys.modules}
        with tempfile.TemporaryDirectory() as folder, patch.object(vf, "jit", watching), patch.object(sys, "argv", [name]):
            try:
                importlib.import_module(name).main(*([] if name == "digits" else [["--quick", "--out", folder]]))
            except EnoughError:
                pass
            finally:
                for loaded in [*EXAMPLES, "common"]:
                    sys.modules.pop(loaded, None)
                sys.modules.update(retained)

    return run


class _Method:
    """A function that is also a method."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return lambda *args: self.call(instance, *args)


RUNS: dict[str, Callable[[Any], None]] = {"loop": loop, **{name: example(name) for name in EXAMPLES}}


def own_device() -> Device:
    """Return a GPU that nothing else uses."""
    first = vf.devices("gpu")[0]
    return Device("gpu", 0, first.device_kind, GpuBackend(first.backend.handle.adapter))


def outcome(name: str, losses: Collection[int] = (), kinds: Collection[str] = tuple(POINTS), every: int | None = None) -> Outcome:
    """Run on a device of its own, which is lost at some points."""
    digest = hashlib.sha256()
    with patch.object(devices, "_process_default", own_device()), planted(losses, kinds) as points:
        vf.set_recovery(None if every is None else "checkpoint", every=every or 1)
        RUNS[name](digest)
    return Outcome(digest.hexdigest(), points)


def attempt(name: str, wanted: Outcome, draw: random.Random) -> tuple[int, str]:
    """Lose the device at one to three points; return how often, and what was wrong."""
    kinds = tuple(POINTS) if draw.random() < 0.5 else (draw.choice(list(POINTS)),)
    count = sum(wanted.points.counts[kind] for kind in kinds)
    losses, every = [draw.randrange(max(count, 1)) for _ in range(draw.choice((1, 1, 3)))], draw.choice((1, 2, 5, 100))
    actual = outcome(name, losses, kinds, every)
    wrong = "" if actual.digest == wanted.digest else f"{name}: other bits with losses at {losses} of {kinds}, every={every}"
    return actual.points.losses, wrong


def lose(count: int, runs: Sequence[str], seed: int, until: float) -> tuple[int, int]:
    """Lose the device about so often in some runs, in turn; return how often it was, and in how many attempts the bits differed."""
    draw, done, wrong = random.Random(seed), 0, 0
    wanted = {name: outcome(name) for name in runs}
    while done < count and time.monotonic() < until:
        for name in runs:
            losses, fault = attempt(name, wanted[name], draw)
            done += losses
            wrong += bool(fault)
            print(f"{name}: {losses} losses, {fault or 'the same bits'}", flush=True)
    return done, wrong


def in_processes(count: int, runs: Sequence[str], seed: int, until: float) -> tuple[int, int]:
    """Do the same, in a process for each run and `_SLICE` losses: the driver keeps what it has compiled for a lost device."""
    done = wrong = 0
    while done < count and time.monotonic() < until:
        for name in runs:
            seed += 1
            words = [sys.executable, "-m", "tests.fuzz.losses", "--runs", name, "--count", str(_SLICE), "--seed", str(seed), "--here"]
            completed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
            print(completed.stdout, end="", flush=True)
            summary = re.search(r"^(\d+) losses in 1 runs, (\d+) wrong$", completed.stdout, re.MULTILINE)
            done, wrong = (done + int(summary[1]), wrong + int(summary[2])) if summary else (done, wrong + 1)
    return done, wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="how many losses (default 500)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--runs", nargs="*", default=list(RUNS), help="which examples, or loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    way = lose if options.here else in_processes
    done, wrong = way(options.count, options.runs, options.seed, time.monotonic() + options.seconds)
    print(f"{done} losses in {len(options.runs)} runs, {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
