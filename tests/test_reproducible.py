"""Training is reproducible: the same key and data give the same bits in any process, by any number of workers, killed and resumed or not.

What is trained has everything that could go astray: batch norms with their states, dropout and augmentation with keys, a data loader with
its position in the middle of an epoch, and an optimizer whose schedule counts its steps.
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

ROOT = Path(__file__).resolve().parent.parent
EPOCHS, STEPS_PER_EPOCH = 3, 4

TRAINING = f'''
"""Trains from the last checkpoint on, if there is one. Arguments: folder, how many workers load the data, step to be killed after."""
import os, signal, sys
import numpy as np
import volta_fn as vf
from volta_fn import data, io, nn, optim, random

folder, workers, fatal_step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
images = data.ArrayDataset(rng.normal(size=(26, 1, 6, 6)).astype(np.float32), rng.integers(3, size=26, dtype=np.int32))
flip = data.random_horizontal_flip()
loader = data.DataLoader(images, 7, shuffle=True, key=1, augment=lambda key, batch: (flip(key, batch[0]), batch[1]), workers=workers)
optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(optim.cosine_decay_schedule(0.1, 20)))

def start():
    first, second = random.split(random.key(2))
    conv = nn.Sequential.init(nn.Conv2d.init(first, 1, 4, 3), nn.BatchNorm2d.init(4), nn.relu, nn.Dropout.init(0.3))
    model, norms = nn.Sequential.init(conv=conv, flat=nn.Flatten(), out=nn.Linear.init(second, 64, 3))
    return {{"model": model, "norms": norms, "moments": optimizer.init(model), "key": random.key(3), "step": 0, "data": loader.state()}}

@vf.jit
def train(model, norms, moments, key, x, labels):
    def loss(model):
        y, new = model(x, norms, key=key, training=True)
        return nn.cross_entropy(y, labels), new
    (_, norms), gradient = vf.value_and_grad(loss, has_aux=True)(model)
    updates, moments = optimizer.update(gradient, moments, model)
    return optim.apply_updates(model, updates), norms, moments

checkpoints = io.Checkpointer(folder)
state = start()
if checkpoints.latest_step() is not None:
    state = checkpoints.restore(state)
    loader.restore(state["data"])
while loader.state()["epoch"] < {EPOCHS}:
    for x, labels in loader:
        key, for_step = random.split(state["key"])
        model, norms, moments = train(state["model"], state["norms"], state["moments"], for_step, x, labels)
        step = state["step"] + 1
        state = {{"model": model, "norms": norms, "moments": moments, "key": key, "step": step, "data": loader.state()}}
        checkpoints.save(step, state)
        if step == fatal_step:
            os.kill(os.getpid(), signal.SIGKILL)
'''


def train(folder: Path, workers: int = 0, fatal_step: int = -1, hash_seed: int = 0) -> int:
    """Run the program; its exit status."""
    command = [sys.executable, "-c", TRAINING, str(folder), str(workers), str(fatal_step)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}, timeout=120, check=False).returncode


def contents(folder: Path) -> dict[str, bytes]:
    """Return every array of the last checkpoint, and the other values."""
    checkpoints = io.Checkpointer(folder)
    assert checkpoints.latest_step() == EPOCHS * STEPS_PER_EPOCH
    file = io.open_safetensors(folder / f"step_{checkpoints.latest_step():010}.safetensors")
    return {name: file.host(name).tobytes() for name in file} | {"other": "".join(sorted(file.metadata.values())).encode()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run that nobody killed ends with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(folder) == 0
    return contents(folder)


def test_the_checkpoint_has_everything(undisturbed: dict[str, bytes]) -> None:
    """Weights, statistics of batch norms, both moments and the counts of the optimizer, the key, and where the loader stands."""
    for part in ("model", "norms", "moments", "key"):
        assert any(name.startswith(f"['{part}']") for name in undisturbed), part
    assert all(f"['{part}']".encode() in undisturbed["other"] for part in ("step", "data"))
    assert np.isfinite(np.frombuffer(undisturbed["['model'].out.weight"], np.float32)).all()


def test_another_process_and_workers_give_the_same_bits(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert train(tmp_path, workers=3, hash_seed=1) == 0
    assert contents(tmp_path) == undisturbed


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
def test_killed_in_an_epoch_and_at_its_end_and_resumed_gives_the_same_bits(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert train(tmp_path, workers=2, fatal_step=STEPS_PER_EPOCH) == -signal.SIGKILL
    assert train(tmp_path, workers=0, fatal_step=2 * STEPS_PER_EPOCH - 2) == -signal.SIGKILL
    assert train(tmp_path, workers=2) == 0
    assert contents(tmp_path) == undisturbed
