"""The page of a LeNet with its training and its weights is small.

`PYTHONPATH=examples python -m tests.web.test_page_of_lenet` prints its size and how long it takes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import volta_fn as vf
from tests.web.chromium import FAST, Chromium
from tests.web.test_pages import READY
from tests.web.test_training import lenet
from volta_fn import nn

#: Bytes that the page may have.
MOST = 300_000

TIMES = """async () => {
  const inputs = {images: new Float32Array(64 * 64), labels: new Int32Array(64)};
  const median = times => times.sort((a, b) => a - b)[times.length >> 1];
  const steps = [];
  await app.run('train', inputs, ['loss']);
  for (let step = 0; step < 20; step++) {
    const begun = performance.now();
    await app.run('train', {}, ['loss']);
    steps.push(performance.now() - begun);
  }
  const program = app.program('train'), begun = performance.now();
  for (let step = 0; step < 50; step++) await program.run();
  const script = (performance.now() - begun) / 50;
  await app.device.queue.onSubmittedWorkDone();
  return [Number(document.documentElement.dataset.ready), median(steps), script];
}"""


def export(folder: Path) -> vf.web.ExportedPage:
    """Write the page."""
    step, state, _ = lenet()
    images, labels = vf.ShapeDtypeStruct((64, 1, 8, 8), "float32"), vf.ShapeDtypeStruct((64,), "int32")

    def predict(state: Any, image: Any) -> Any:
        return nn.softmax(state["model"](image[None], state["statistics"])[0])[0]

    functions = {
        "train": vf.web.Function(step, ["state", images, labels], ["state", "loss"]),
        "predict": vf.web.Function(predict, ["state", vf.ShapeDtypeStruct((1, 8, 8), "float32")], ["probabilities"]),
    }
    page = vf.web.Digits(image="image", train="train")
    return vf.export_web(folder / "lenet.html", state={"state": state}, functions=functions, page=page)


def test_the_page_is_small(tmp_path: Path) -> None:
    assert export(tmp_path).bytes <= MOST


def main() -> int:
    """Print the page's size and times."""
    with tempfile.TemporaryDirectory() as folder, Chromium(FAST) as browser:
        exported = export(Path(folder))
        browser.open(exported.files[0])
        browser.evaluate(READY)
        ready, step, script = browser.run(TIMES)
    print(
        f"{exported.bytes / 1000:.0f} KB; ready in {ready} ms; a step of 64 takes {step:.0f} ms, of which JavaScript takes {script:.2f} ms"
    )
    return exported.bytes > MOST


if __name__ == "__main__":
    sys.exit(main())
