"""A killed and resumed run ends with the same bits as an uninterrupted one.

What else is killed and resumed, such as loaders, and runs killed between two steps are in tests/test_reproducible.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from volta_fn import io

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8

TRAINING = '''
"""Trains a small network with batch norm and dropout, from the last checkpoint on. Arguments: folder, step to be killed at, when."""
import os, signal, sys
import volta_fn as vf
from volta_fn import io, nn, optim

folder, fatal_step, moment = sys.argv[1], int(sys.argv[2]), sys.argv[3]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
optimizer = optim.adam(1e-2)

def start():
    first, second = vf.random.split(vf.random.key(0))
    parts = nn.Linear.init(first, 4, 16), nn.BatchNorm1d.init(16), nn.relu, nn.Dropout.init(0.5), nn.Linear.init(second, 16, 1)
    model, norms = nn.Sequential.init(*parts)
    return {"model": model, "norms": norms, "moments": optimizer.init(model), "key": vf.random.key(1), "step": 0, "rate": 0.1}

@vf.jit
def train(model, norms, moments, key):
    for_data, for_dropout = vf.random.split(key)
    x = vf.random.normal(for_data, (32, 4))
    def loss(model):
        y, new = model(x, norms, key=for_dropout, training=True)
        return vf.numpy.mean((y[:, 0] - vf.numpy.sin(x.sum(1))) ** 2), new
    (_, norms), gradient = vf.value_and_grad(loss, has_aux=True)(model)
    updates, moments = optimizer.update(gradient, moments, model)
    return optim.apply_updates(model, updates), norms, moments

checkpoints = io.Checkpointer(folder)
state = start()
if checkpoints.latest_step() is not None:
    state = checkpoints.restore(state)
while state["step"] < STEPS:
    key, for_step = vf.random.split(state["key"])
    model, norms, moments = train(state["model"], state["norms"], state["moments"], for_step)
    state = {"model": model, "norms": norms, "moments": moments, "key": key, "step": state["step"] + 1, "rate": state["rate"] * 0.9}
    if state["step"] == fatal_step:
        setattr(os, {"renaming": "replace", "forcing to disk": "fsync"}[moment], die)
    checkpoints.save(state["step"], state)
'''.replace("STEPS", str(STEPS))


def train(folder: Path, fatal_step: int = -1, moment: str = "never") -> int:
    """Run the program; its exit status."""
    command = [sys.executable, "-c", TRAINING, str(folder), str(fatal_step), moment]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, np.ndarray]:
    """Return the last checkpoint of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(folder) == 0
    return contents(folder)


def contents(folder: Path) -> dict[str, np.ndarray]:
    file = io.open_safetensors(folder / f"step_{STEPS:010}.safetensors")
    return {name: file.host(name) for name in file} | {"manifest": np.frombuffer(str(sorted(file.metadata.items())).encode(), np.uint8)}


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
@pytest.mark.parametrize("moment", ["renaming", "forcing to disk"])
def test_killed_and_resumed_runs_give_the_same_bits(moment, undisturbed, tmp_path):
    assert train(tmp_path, 4, moment) == -signal.SIGKILL
    assert io.Checkpointer(tmp_path).latest_step() == 3
    assert train(tmp_path) == 0
    assert not list(tmp_path.glob(".*"))
    resumed = contents(tmp_path)
    assert resumed.keys() == undisturbed.keys()
    for name, values in undisturbed.items():
        assert (values.dtype, values.tobytes()) == (resumed[name].dtype, resumed[name].tobytes()), name
