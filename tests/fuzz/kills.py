"""Kill a training run with SIGKILL at random moments, and resume it.

`python -m tests.fuzz.kills --count 200` kills 200 times. After each kill the latest checkpoint is whole and at most one save older than
what the run had reached; a run that ends has the bits of an undisturbed one.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from volta_fn import io

ROOT = Path(__file__).resolve().parents[2]
STEPS, SAVE_EVERY = 400, 5

#: Trains in a folder and prints each step; at the end, a digest of the parameters.
TRAINING = f"""
import hashlib, sys
import numpy as np
import volta_fn as vf
from volta_fn import data, io
import volta_fn.numpy as jnp

loader = data.DataLoader(data.ArrayDataset(np.arange(44, dtype=np.float32)), 4, shuffle=True, key=1)

@vf.jit
def step(w, batch, key):
    return jnp.tanh(w * 0.9 + batch.sum() * 0.01 + vf.random.normal(key, w.shape) * 0.1)

state = {{"w": jnp.zeros(20_000), "key": vf.random.key(0), "step": 0}}
with io.Checkpointer(sys.argv[1], save_every={SAVE_EVERY}, asynchronous=True, loader=loader) as checkpoints:
    if checkpoints.latest_step() is not None:
        state = checkpoints.restore(state)
    while state["step"] < {STEPS}:
        for batch in loader:
            key, used = vf.random.split(state["key"])
            state = {{"w": step(state["w"], batch, used), "key": key, "step": state["step"] + 1}}
            checkpoints.save(state["step"], state)
            print(state["step"], flush=True)
            if state["step"] == {STEPS}:
                break
print("end", hashlib.sha256(np.asarray(state["w"]).tobytes()).hexdigest(), flush=True)
"""


class Report(NamedTuple):
    """What became of the runs."""

    kills: int
    finished: int
    #: Descriptions of what was wrong.
    wrong: list[str]


def _run(folder: Path, seconds: float | None) -> list[str]:
    """Train for so long, then kill; return the lines that were printed."""
    environment = {**os.environ, "VOLTA_DEVICE": "cpu", "VOLTA_NATIVE": "0", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", TRAINING, str(folder)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        if seconds is not None and process.stdout.readline():  # the run has begun
            time.sleep(seconds)
            process.kill()
        return process.stdout.read().split("\n")[:-1]


def check(count: int, seed: int = 0) -> Report:
    """Kill `count` times, and compare the runs that end with an undisturbed one."""
    draw, wrong, kills, finished = random.Random(seed), list[str](), 0, 0
    with tempfile.TemporaryDirectory() as parent:
        wanted = _run(Path(parent) / "undisturbed", None)[-1]
        folder = Path(parent) / "run"
        while kills < count or folder.exists():
            lines = _run(folder, 10 ** draw.uniform(-4, -0.5) if kills < count else None)
            if lines and lines[-1].startswith("end"):
                finished += 1
                wrong += [] if lines[-1] == wanted else [f"another end: {lines[-1]}"]
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
                continue
            kills += 1
            reached = int(lines[-1]) if lines else 0
            latest = io.Checkpointer(folder).latest_step() or 0
            if latest < reached // SAVE_EVERY * SAVE_EVERY - SAVE_EVERY:
                wrong.append(f"at step {reached} the latest checkpoint was {latest}")
    return Report(kills, finished, wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="how often to kill (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    report = check(options.count, options.seed)
    print(f"{report.kills} kills, {report.finished} runs ended, {len(report.wrong)} wrong")
    print(*report.wrong, sep="\n")
    return bool(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
