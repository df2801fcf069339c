"""The package trains, saves and loads within Pyodide's limits.

``python -m tests.pyodide_like tests/transforms tests/optim`` runs more of the suite so, and ``node tests/pyodide.mjs FOLDER`` runs the same
program, and tests, in Pyodide itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import logging, tempfile
import numpy as np
import volta_fn as vf
from volta_fn import data, io, nn, optim, random

messages = []
log = logging.getLogger("volta_fn")
log.setLevel(logging.INFO)
log.addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: messages.append(record.getMessage())})())
network = nn.Sequential.init(nn.Conv2d.init(random.key(0), 1, 2, 3), nn.relu, nn.Flatten(), nn.Linear.init(random.key(1), 32, 1))
optimizer = optim.adam(0.1)
state = optimizer.init(network)

@vf.jit
def step(network, state, x):
    value, grads = vf.value_and_grad(lambda n: vf.numpy.mean((n(x) - 1.0) ** 2))(network)
    updates, state = optimizer.update(grads, state, network)
    return optim.apply_updates(network, updates), state, value

images = np.random.default_rng(0).random((64, 1, 6, 6), np.float32)
losses = []
for _ in range(4):
    for batch in data.DataLoader(data.ArrayDataset(images), batch_size=16, workers=2):
        network, state, value = step(network, state, batch[0] if isinstance(batch, tuple) else batch)
        losses.append(float(value))
assert losses[-1] < 0.5 * losses[0], losses
assert any("no thread" in message for message in messages)
with tempfile.TemporaryDirectory() as folder:
    io.save_safetensors(f"{folder}/m.safetensors", network)
    same = io.load_state_dict(network, io.load_safetensors(f"{folder}/m.safetensors"))
    predict = vf.web.Function(lambda network, x: network(x), ["network", vf.ShapeDtypeStruct((1, 1, 6, 6), "float32")], ["y"])
    assert vf.export_web(f"{folder}/page.html", state={"network": network}, functions={"predict": predict}).shaders > 0
assert all((a == b).all() for a, b in zip(vf.tree.leaves(network), vf.tree.leaves(same), strict=True))
try:
    vf.devices("gpu")
except vf.errors.DeviceError as error:
    assert "needs the package wgpu" in str(error)
else:
    raise AssertionError("there is no GPU without wgpu")
try:
    vf.numpy.int1(1)
except vf.errors.DTypeError as error:
    assert "int1 needs ml_dtypes 0.6 or later" in str(error)
else:
    raise AssertionError("there is no int1")
try:
    vf.onnx.load("model.onnx")
except (vf.errors.MissingDependencyError, FileNotFoundError):
    print("trained")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process that finds the package and the tests."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_network_trains_and_is_saved() -> None:
    done = run("-c", f"from tests.pyodide_like import become\nbecome()\n{PROGRAM}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("trained")


def test_some_of_the_suite_passes() -> None:
    done = run(
        "-m", "tests.pyodide_like", "tests/tree", "--ignore=tests/tree/test_python_trees.py", "tests/data/test_datasets.py", "-k", "not jax"
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
