"""Training loops as people write them, on a GPU.

    python -m benchmarks.gpu.loops volta_fn
    python -m benchmarks.gpu.loops jax

A step by itself is one program on arrays that are on the device. Loops keep the loss of each step, bring a new batch from the host, read
the loss, evaluate now and then, or copy parameters, and each of these changes which memory a step uses and what the host has to do. Times
are microseconds a step, the least of three runs. Both frameworks compute in their default precision of float32.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads import named
from benchmarks.workloads.case import Library, Workload, library, map_arrays

#: Steps between evaluations, or copies of the parameters, of which the latest three are kept.
_EVERY, _COPIES = 10, 3


class Loop:
    """A workload's training, with what loops do besides steps."""

    def __init__(self, lib: Library, workload: Workload, *, donates: bool) -> None:
        self.lib, case = lib, workload.case()
        jax = lib.jax
        self.state, *self.batch = map_arrays(lib.jnp.array, case.inputs)
        self.on_host = case.inputs[1:]
        self.step = jax.jit(case.functional(lib), donate_argnums=0 if donates else ())
        is_float = lambda a: np.issubdtype(np.dtype(a.dtype), np.floating)
        self.evaluate = jax.jit(lambda state: sum((a * a).sum() for a in jax.tree.leaves(state) if is_float(a)))
        self.copied = jax.jit(lambda state: jax.tree.map(lambda a: a * 1 if is_float(a) else a, state))
        self.kept: list[Any] = []

    def _next(self, batch: Any = None) -> Any:
        self.state, loss = self.step(self.state, *(self.batch if batch is None else batch))
        return loss

    def plain(self, number: int) -> Any:
        """Do nothing but the step."""
        return self._next()

    def kept_losses(self, number: int) -> Any:
        """Append each loss to a list."""
        self.kept.append(self._next())
        return self.kept[-1]

    def batches_of_numpy(self, number: int) -> Any:
        """Pass arrays of NumPy."""
        return self._next(self.on_host)

    def batches_and_losses(self, number: int) -> Any:
        """Pass arrays of NumPy, and append each loss to a list."""
        self.kept.append(self._next(self.on_host))
        return self.kept[-1]

    def batches_put(self, number: int) -> Any:
        """Copy each batch to the device before the call."""
        return self._next([self.lib.jax.tree.map(self.lib.jnp.asarray, x) for x in self.on_host])

    def read_losses(self, number: int) -> Any:
        """Read each loss."""
        loss = self._next()
        float(loss)
        return loss

    def evaluations(self, number: int) -> Any:
        """Run another program on the state in every tenth step, and keep its results."""
        loss = self._next()
        if number % _EVERY == 0:
            self.kept.append(self.evaluate(self.state))
        return loss

    def copies(self, number: int) -> Any:
        """Copy the state in every tenth step, and keep the latest copies."""
        loss = self._next()
        if number % _EVERY == 0:
            self.kept = [*self.kept, self.copied(self.state)][-_COPIES:]
        return loss

    def summed_losses(self, number: int) -> Any:
        """Add each loss to a sum by an operation of its own."""
        loss = self._next()
        self.kept = [loss + self.kept[0] if self.kept else loss]
        return loss

    def seconds(self, body: Callable[[int], Any], steps: int) -> float:
        """Return the seconds of a step of a loop."""
        self.kept = []
        self.lib.jax.block_until_ready(self.state)
        start = time.perf_counter()
        for number in range(steps):
            loss = body(number)
        self.lib.jax.block_until_ready((self.state, loss))
        return (time.perf_counter() - start) / steps


#: Loops, by what they do besides steps.
LOOPS: dict[str, Callable[[Loop, int], Any]] = {
    "nothing": Loop.plain,
    "keep losses": Loop.kept_losses,
    "NumPy's batches": Loop.batches_of_numpy,
    "both": Loop.batches_and_losses,
    "put batches": Loop.batches_put,
    "read losses": Loop.read_losses,
    "evaluate": Loop.evaluations,
    "copy states": Loop.copies,
    "sum losses": Loop.summed_losses,
}


def main() -> None:
    """Print a row for each workload, with and without donation of the state."""
    parser = argparse.ArgumentParser(description="Time training loops as people write them.")
    parser.add_argument("framework", choices=["volta_fn", "jax"])
    parser.add_argument("--workloads", nargs="+", default=["train/mlp", "train/gpt"])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    for name in options.workloads:
        for donates in (True, False):
            loop, texts = Loop(library(options.framework), named(name), donates=donates), []
            for label, body in LOOPS.items():
                seconds = min(loop.seconds(functools.partial(body, loop), options.steps) for _ in range(3))
                texts.append(f"{label} {1e6 * seconds:.0f}")
            print(f"{options.framework} {name}{', donated' if donates else ''}, us: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
