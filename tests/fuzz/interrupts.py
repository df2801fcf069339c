"""Raise KeyboardInterrupt at random moments, as Ctrl-C does; the next call must be right.

`python -m tests.fuzz.interrupts --count 10000` interrupts tracing, compiling, running, eager operations, loading files, waiting for a GPU,
loaders and checkpoints. After each the same call is made again without an interrupt: it gives the right result within `SECONDS`.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, io, lax
from volta_fn.core.trace import EVAL, current_trace

#: Seconds within which the next call ends, on a machine that is not loaded.
SECONDS = 5.0

X = np.linspace(0, 1, 64, dtype=np.float32)
LARGE = np.arange(200_000, dtype=np.float32)


def _model(number: float) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        x = jnp.tanh(x * number) + jnp.sin(x)
        return lax.scan(lambda a, t: (a + t * number, a), x.sum(), x)[1] + jnp.cumsum(x)

    return f


def _expected(number: float) -> np.ndarray:
    x = X.astype(np.float64)
    x = np.tanh(x * number) + np.sin(x)
    return np.concatenate([[0], np.cumsum(x[:-1])]) * number + x.sum() + np.cumsum(x)


def _calling(x: Any) -> Any:
    for _ in range(4):
        x = vf.pure_callback(np.sin, x, jnp.tanh(x @ x))
    return x


class Activities:
    """What is interrupted: methods that take the number of the attempt and return whether the result is right."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.step = vf.jit(lambda x: jnp.cumsum(x * 0.5)[::-1] + jnp.sin(x))
        self.calling = vf.jit(_calling)
        self.on_gpu = vf.jit(lambda x: x @ x * 0.001 + 1)
        self.checkpoints = io.Checkpointer(folder / "run", asynchronous=True)
        self.state = {"x": jnp.asarray(LARGE), "n": 7}
        io.save_safetensors(folder / "x.safetensors", {"x": LARGE})
        self.loader = data.DataLoader(data.ArrayDataset(np.arange(64, dtype=np.int32)), 4, workers=2)
        self.gpu = vf.devices("gpu")[0]

    def compile(self, number: int) -> bool:
        """Trace and compile a new program, and run it."""
        factor = 1.25 + number % 4096 / 4096
        return bool(np.allclose(vf.jit(_model(factor))(X), _expected(factor), rtol=1e-4))

    def trace(self, number: int) -> bool:
        """Trace a derivative of a derivative."""
        square = vf.grad(lambda x: vf.jvp(lambda y: jnp.sum(jnp.sin(y) * y), (x,), (x,))[1])
        return len(vf.make_jaxpr(vf.vmap(square))(np.ones((2, 3), np.float32)).eqns) > 3

    def run(self, number: int) -> bool:
        """Run a compiled program."""
        result = np.asarray(self.step(LARGE))
        return bool(np.allclose(result[-1], 0.0 + np.sin(LARGE[-1]), atol=1e-3))

    def eager(self, number: int) -> bool:
        """Run operations one by one."""
        result = jnp.sort(jnp.asarray(X) * -1.0)[:3] + number % 10
        return bool(np.allclose(result, np.sort(-X)[:3] + number % 10, atol=1e-5))

    def load(self, number: int) -> bool:
        """Load and save a file."""
        path = self.folder / "y.safetensors"
        io.save_safetensors(path, {"n": np.full(3, number % 100)})
        result = io.load_safetensors(path)["n"]
        return np.asarray(result).tolist() == [number % 100] * 3 and bool(
            (io.load_safetensors(self.folder / "x.safetensors")["x"] == LARGE).all()
        )

    def call_python(self, number: int) -> bool:
        """Run a compiled program that calls functions of Python between products."""
        arguments = expected = np.full((200, 200), 0.05, np.float32)
        for _ in range(4):
            expected = np.sin(np.tanh(expected @ expected))
        return bool(np.allclose(self.calling(arguments), expected, rtol=1e-4))

    def wait_for_gpu(self, number: int) -> bool:
        """Wait for a GPU."""
        with vf.default_device(self.gpu):
            x = jnp.zeros((128, 128))
            for _ in range(5):
                x = self.on_gpu(x)
            return float(x[0, 0]) > 1.0 and bool(np.isfinite(np.asarray(x)).all())

    def load_batches(self, number: int) -> bool:
        """Take batches of a loader with workers."""
        return [int(batch[0]) for batch in self.loader] == list(range(0, 64, 4))

    def checkpoint(self, number: int) -> bool:
        """Save and restore a checkpoint."""
        self.checkpoints.save(number, self.state)
        result = self.checkpoints.restore(self.state)
        return bool(result["n"] == 7 and (np.asarray(result["x"]) == LARGE).all())


NAMES = ("compile", "trace", "run", "call_python", "eager", "load", "wait_for_gpu", "load_batches", "checkpoint")


class _Armed:
    """Whether an alarm interrupts; the system may give it to another thread, and the main one hear of it late."""

    now = False


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _Armed.now:
        signal.raise_signal(signal.SIGINT)  # whose handler may be another one at this moment


def check(count: int, seed: int = 0, until: float = float("inf"), names: tuple[str, ...] = NAMES) -> tuple[Counter[str], list[str]]:
    """Interrupt so often; return how often what was interrupted, and what was wrong."""
    draw, seen, wrong = random.Random(seed), Counter[str](), list[str]()
    before = signal.signal(signal.SIGALRM, _interrupt)
    before_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have their background jobs ignore it
    faulthandler.dump_traceback_later(600, exit=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            activities = Activities(Path(folder))
            usual = {name: _seconds(getattr(activities, name)) for name in names}
            number = 0
            while sum(seen.values()) < count and time.monotonic() < until:
                number += 1
                name = names[number % len(names)]
                faulthandler.dump_traceback_later(600, exit=True)
                wrong += _attempt(getattr(activities, name), name, number, usual[name] * draw.uniform(0.001, 1.1), seen)
            activities.checkpoints.wait_until_finished()
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, before_interrupt)
    return seen, wrong


def _seconds(activity: Callable[[int], bool]) -> float:
    activity(-1 % 1000)
    begun = time.monotonic()
    assert activity(0)
    return max(time.monotonic() - begun, 1e-4)


def _attempt(activity: Callable[[int], bool], name: str, number: int, delay: float, seen: Counter[str]) -> list[str]:
    """Interrupt an activity once; return what is wrong afterwards."""
    try:
        try:
            _Armed.now = True
            signal.setitimer(signal.ITIMER_REAL, delay)
            activity(number)
        finally:
            _Armed.now = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        seen[name] += 1
    faults = []
    if current_trace() is not EVAL or not gc.isenabled():
        faults.append("a trace goes on, or garbage is not collected")
    begun, busy = time.monotonic(), time.process_time()
    try:
        if not activity(number):
            faults.append("another result")
    except Exception as error:
        faults.append(f"{type(error).__name__}: {str(error)[:200]}")
    if time.monotonic() - begun > SECONDS and time.process_time() - busy > SECONDS:  # else the machine was busy otherwise
        faults.append(f"{time.monotonic() - begun:.1f} s")
    return [f"{name}, attempt {number}, after {delay:.6f} s: {fault}" for fault in faults]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="how many interrupts (default 10,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="what is interrupted (default: all)")
    options = parser.parse_args(argv)
    seen, wrong = check(options.count, options.seed, time.monotonic() + options.seconds, tuple(options.only))
    print(f"{sum(seen.values()):,} interrupts {dict(seen)}, {len(wrong)} wrong")
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
