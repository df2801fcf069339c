"""Models train in Chromium as on Python's GPU, and their weights come back.

`PYTHONPATH=examples python -m tests.web.test_training` prints how far they are from each other. With
`VK_ICD_FILENAMES=/usr/lib/chromium/vk_swiftshader_icd.json` Python's GPU is Chromium's.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mnist_cnn
import numpy as np
import pytest

import volta_fn as vf
from benchmarks.workloads import named
from benchmarks.workloads.case import library
from tests.web.chromium import FAST, Chromium
from tests.web.pages import open_application
from volta_fn import optim, random
from volta_fn.web.export import Function

STEPS = 50

TRAIN = """async (steps, loss) => {
  const losses = [];
  for (let step = 0; step < steps; step++) losses.push((await app.run('train', {}, [loss]))[loss][0]);
  return losses;
}"""

Step = Callable[..., tuple[Any, Any]]


def workload(name: str, **size: Any) -> tuple[Step, Any, tuple[Any, ...]]:
    """Return a step, the state, and the inputs of a benchmark at some size."""
    case = named(name).make(np.random.default_rng(0), **size)
    state, *inputs = vf.tree.map(vf.numpy.asarray, case.inputs)
    return case.functional(library("volta_fn")), state, tuple(inputs)


def lenet() -> tuple[Step, Any, tuple[Any, ...]]:
    """Return the same of a convolutional network with batch normalisation, trained by AdamW."""
    model, statistics = mnist_cnn.build(random.key(0), 8)
    optimizer = optim.adamw(3e-3)

    def step(state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        (loss, statistics), grads = vf.value_and_grad(mnist_cnn.loss, has_aux=True)(state["model"], state["statistics"], images, labels)
        updates, moments = optimizer.update(grads, state["moments"], state["model"])
        return {"model": optim.apply_updates(state["model"], updates), "statistics": statistics, "moments": moments}, loss

    first, second = random.split(random.key(1))
    images, labels = random.normal(first, (16, 1, 8, 8)), random.randint(second, (16,), 0, 10)
    return step, {"model": model, "statistics": statistics, "moments": optimizer.init(model)}, (images, labels)


MODELS: dict[str, Callable[[], tuple[Step, Any, tuple[Any, ...]]]] = {
    "mlp": lambda: workload("train/mlp", batch=32, widths=(64, 128, 10)),
    "lenet": lenet,
    "lstm": lambda: workload("train/lstm", batch=8, steps=12, width=32),
    "gpt": lambda: workload("train/gpt", batch=2, tokens=16, width=32, layers=2, heads=2, vocabulary=64),
}


#: The arrays of the page as the page itself has them.
READ = """async names => Object.fromEntries(await Promise.all(
  names.map(async name => [name, toText(new Uint8Array((await app.read(name)).buffer))])))"""


class Trained(NamedTuple):
    """A model after the same steps in the page and in Python."""

    #: The losses of the steps.
    losses: tuple[list[float], list[float]]
    #: The state: that of the file which the page saves, and Python's.
    states: tuple[Any, Any]
    #: The page's arrays by name: those of the file, and as the page itself has them.
    saved: dict[str, Any]
    shown: dict[str, bytes]


def trained(name: str, folder: Path) -> Trained:
    """Train a model in the page and on Python's GPU."""
    step, state, inputs = MODELS[name]()
    function = Function(step, ["state", *inputs], ["state", "loss"])
    path = folder / "weights.safetensors"
    with Chromium(FAST) as browser:
        open_application(browser, {"state": state}, {"train": function})
        result = browser.run(TRAIN, STEPS, "loss")
        path.write_bytes(base64.b64decode(browser.evaluate("app.save().then(toText)")))
        saved = vf.io.load_safetensors(path)
        shown = {key: base64.b64decode(text) for key, text in browser.run(READ, list(saved)).items()}
    losses, ours = trained_in_python(step, state, inputs)
    return Trained((result, losses), (vf.io.load_state_dict({"state": state}, saved)["state"], ours), saved, shown)


def trained_in_python(step: Step, state: Any, inputs: tuple[Any, ...]) -> tuple[list[float], Any]:
    """Return the losses and the state after the same steps on Python's GPU."""
    run, gpu, losses = vf.jit(step), vf.devices("gpu")[0], []
    state, inputs = vf.device_put((state, inputs), gpu)
    for _ in range(STEPS):
        state, loss = run(state, *inputs)
        losses.append(loss.item())
    assert {leaf.device for leaf in vf.tree.leaves(state)} == {gpu}
    return losses, state


def differences(result: Trained) -> dict[str, float]:
    """Return by how much each array of the downloaded state differs from Python's."""
    pairs = zip(vf.tree.leaves_with_path(result.states[0]), vf.tree.leaves(result.states[1]), strict=True)
    return {vf.tree.keystr(path): float(np.abs(np.asarray(ours) - np.asarray(theirs)).max()) for (path, ours), theirs in pairs}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_python(name: str, tmp_path: Path) -> None:
    result = trained(name, tmp_path)
    np.testing.assert_allclose(*result.losses, rtol=0, atol=1e-5)
    assert result.losses[0][-1] < result.losses[0][0]
    assert {key: np.asarray(array).tobytes() for key, array in result.saved.items()} == result.shown
    assert max(differences(result).values()) <= 1e-5


def main() -> int:
    """Print how far each model in the page is from Python's."""
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            result = trained(name, Path(folder))
        loss = np.abs(np.subtract(*result.losses)).max()
        off, where = max((value, key) for key, value in differences(result).items())
        print(f"{name}: after {STEPS} steps losses differ by at most {loss:.1e}, arrays of the state by {off:.1e} ({where})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
