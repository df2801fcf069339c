"""Models train in Chromium as in Python, and their weights come back."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import mnist_cnn
import numpy as np
import pytest

import volta_fn as vf
from benchmarks.workloads import named
from benchmarks.workloads.case import library
from tests.web.chromium import FAST, Chromium
from tests.web.pages import open_application
from volta_fn import optim, random
from volta_fn.web.function import Function

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


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_python(name: str, tmp_path: Any) -> None:
    step, state, inputs = MODELS[name]()
    function = Function(step, ["state", *inputs], ["state", "loss"])
    with Chromium(FAST) as browser:
        open_application(browser, {"state": state}, {"train": function})
        found = browser.run(TRAIN, STEPS, "loss")
        saved = base64.b64decode(browser.evaluate("app.save().then(toText)"))
    (tmp_path / "weights.safetensors").write_bytes(saved)
    downloaded = vf.io.load_state_dict({"state": state}, vf.io.load_safetensors(tmp_path / "weights.safetensors"))["state"]
    losses = []
    with vf.default_device(vf.devices("gpu")[0]):
        run, trained = vf.jit(step), vf.device_put(state)
        given = vf.device_put(inputs)
        for _ in range(STEPS):
            trained, loss = run(trained, *given)
            losses.append(float(np.asarray(loss)))
    np.testing.assert_allclose(found, losses, rtol=0, atol=1e-3)
    assert losses[-1] < losses[0]
    compare(downloaded, trained)


def compare(downloaded: Any, trained: Any) -> None:
    """Assert that parameters are equal."""
    for (path, ours), theirs in zip(vf.tree.leaves_with_path(downloaded), vf.tree.leaves(trained), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-3, atol=1e-3, err_msg=vf.tree.keystr(path))
