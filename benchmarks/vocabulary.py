"""Large vocabularies: the loss of a last layer, and the update of an embedding.

Both are measured beside their plain forms, and the loss beside PyTorch's.

    python -m benchmarks.vocabulary [--rows 1024] [--width 256] [--vocabulary 50257] [--rounds 5]

Times are the CPU time of the calling thread, the least of some rounds in turns; run it on one CPU (``taskset -c 0``). Memory is what
volta_fn's plan needs besides arguments and results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import nn, optim


def _ours(function: Callable[..., Any], *arrays: Any, donate: tuple[int, ...] = ()) -> tuple[Callable[[], Any], int]:
    """Return a call that waits for its result, and the bytes of temporaries.

    Donated arguments are the results of the call before.
    """
    jitted = vf.jit(function, donate_argnums=donate)
    memory = jitted.lower(*arrays).memory().temporaries
    current = list(arrays)

    def call() -> None:
        results = vf.block_until_ready(jitted(*current))
        current[: len(donate)] = results[: len(donate)]

    return call, memory


def _losses(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, tuple[Callable[[], Any], int | None]]:
    x = rng.standard_normal((args.rows, args.width), np.float32)
    weight = rng.standard_normal((args.vocabulary, args.width), np.float32) * np.float32(0.05)
    labels = rng.integers(0, args.vocabulary, args.rows, np.int32)
    arrays = [vnp.asarray(a) for a in (x, weight, labels)]
    contestants: dict[str, tuple[Callable[[], Any], int | None]] = {
        "gradient of cross_entropy(x @ w.T)": _ours(vf.grad(lambda x, w, y: nn.cross_entropy(x @ w.T, y), (0, 1)), *arrays),
        "gradient of linear_cross_entropy": _ours(vf.grad(lambda x, w, y: nn.linear_cross_entropy(x, w, y, axis=0), (0, 1)), *arrays),
    }
    try:
        import torch
    except ImportError:
        return contestants
    torch.set_num_threads(1)
    leaves, targets = [torch.from_numpy(a).requires_grad_() for a in (x, weight)], torch.from_numpy(labels).long()
    loss = lambda: torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, targets)
    return contestants | {"gradient by PyTorch": (lambda: torch.autograd.grad(loss(), leaves), None)}


def _updates(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, tuple[Callable[[], Any], int | None]]:
    contestants: dict[str, tuple[Callable[[], Any], int | None]] = {}
    ids = vnp.asarray(rng.integers(0, args.vocabulary, args.rows, np.int32))
    for name, optimizer in (("sgd", optim.sgd(0.1)), ("adam", optim.adam(1e-3))):

        def whole(table: Any, state: Any, ids: Any, optimizer: Any = optimizer) -> Any:
            updates, state = optimizer.update(vf.grad(lambda t: vnp.sum(t[ids] ** 2))(table), state, table)
            return optim.apply_updates(table, updates), state

        def by_rows(table: Any, state: Any, ids: Any, optimizer: Any = optimizer) -> Any:
            return optim.update_rows(optimizer, table, state, ids, vf.grad(lambda rows: vnp.sum(rows**2))(table[ids]))

        for label, step in (("a gradient of the table", whole), ("update_rows", by_rows)):
            table = vnp.asarray(rng.standard_normal((args.vocabulary, args.width), np.float32))
            contestants[f"{name}, {label}"] = _ours(step, table, optimizer.init(table), ids, donate=(0, 1))
    return contestants


def _measure(contestants: dict[str, tuple[Callable[[], Any], int | None]], rounds: int) -> None:
    """Print each contestant's time, relative to the first one's, and memory."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds + 1):
        for name, (call, _) in contestants.items():
            begin = time.thread_time()
            call()
            best[name] = min(best[name], time.thread_time() - begin)
    first = next(iter(best.values()))
    for name, (_, memory) in contestants.items():
        room = "" if memory is None else f"{memory / 2**20:8.1f} MiB"
        print(f"{name:40} {best[name] * 1e3:8.1f} ms {best[name] / first:6.2f} {room}")


def main() -> None:
    """Measure both, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 1024), ("width", 256), ("vocabulary", 50257), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    for contestants in (_losses(args, rng), _updates(args, rng)):
        _measure(contestants, args.rounds)


if __name__ == "__main__":
    main()
