"""Parallel training beside that of one process with the whole batch (`examples/data_parallel.py`).

    python -m tests.distributed.training [--models mlp lenet lstm gpt] [--processes 2 4] [--steps 20]

Each model is trained with and without ZeRO-1: the losses are those of one process, all processes have the same bits of parameters, and half
of the processes go on from the checkpoint that all of them wrote in the middle.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.distributed.launching import run

SCRIPT = "examples/data_parallel.py"
MODELS = ("mlp", "lenet", "lstm", "gpt")
#: What runs a model. The maxima of LeNet, of pools and of zero, turn rounding into other gradients: within 20 steps its losses in float32
#: are 2e-4 from those in float64 on one process already. So it is compared in float64.
SCRIPTS = {"lenet": "tests/distributed/wide.py"}
#: The relative difference of losses that another order of additions may make.
TOLERANCE = 1e-5

Trained = tuple[list[float], str]


def trained(output: str, count: int) -> Trained:
    """Return the losses and the hash of the parameters, which all processes have printed alike."""
    matches = re.findall(r"losses \[(.*)\] parameters (\w+)", output)
    assert len(matches) == count, output
    assert len(set(matches)) == 1, output
    losses, parameters = matches[0]
    return [float(value) for value in losses.split(", ")], parameters


def train(count: int, model: str, steps: int, *arguments: str) -> Trained:
    """Train on `count` processes."""
    completed = run(count, SCRIPTS.get(model, SCRIPT), "--model", model, "--steps", str(steps), *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return trained(completed.stdout, count)


def difference(actual: Trained, wanted: Trained) -> float:
    """Return the largest relative difference of losses; raise `AssertionError` if it is too large."""
    np.testing.assert_allclose(actual[0], wanted[0], rtol=TOLERANCE)
    return float(np.max(np.abs(np.divide(actual[0], wanted[0]) - 1)))


def resumed(count: int, model: str, steps: int, folder: Path, *arguments: str) -> tuple[Trained, Trained]:
    """Train on `count` processes, and once more from the middle on with half of them; return what both end with."""
    by_all = train(count, model, steps, "--folder", str(folder), *arguments)
    for path in folder.glob("step_*.safetensors"):
        if int(path.stem.removeprefix("step_")) > steps // 2:
            path.unlink()
    assert [*folder.glob("step_*.safetensors")], f"no checkpoint of the first {steps // 2} steps in {[*folder.iterdir()]}"
    return by_all, train(count // 2, model, steps, "--folder", str(folder), *arguments)


def check(model: str, processes: Sequence[int], steps: int) -> Iterator[str]:
    """Check a model, and yield what was compared."""
    alone = train(1, model, steps)
    for zero in ([], ["--zero"]):
        name = f"{model:6s}{'ZeRO-1' if zero else '':8s}"
        for count in processes:
            gap = difference(train(count, model, steps, *zero), alone)
            yield f"{name}{count} processes: losses differ by {gap:.1e}, parameters are the same bits in all"
        with tempfile.TemporaryDirectory() as folder:
            gap = difference(resumed(max(processes), model, steps, Path(folder), *zero)[1], alone)
            yield f"{name}{max(processes)} processes, then {max(processes) // 2}: losses differ by {gap:.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if a model fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.training")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    failed = 0
    for model in options.models:
        start = time.monotonic()
        try:
            for line in check(model, options.processes, options.steps):
                print(line, flush=True)
        except AssertionError as error:
            failed += 1
            print(f"{model} FAILED: {error}", flush=True)
        print(f"{model}: {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
