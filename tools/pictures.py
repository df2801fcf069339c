"""Make the pictures of the documents that no cell makes.

python tools/pictures.py

They are screenshots by headless Chromium: the report of `explain`, and a page that trains a network on digits. The third, of speed, is the
chart of `make bench`.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
import web_digits  # noqa: E402

import volta_fn as vf  # noqa: E402
from tests.web.chromium import FAST, Chromium  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"

#: The training step that is explained, under the name that the report shows.
NAME = "train.py"
PROGRAM = """import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, random

k1, k2, k3 = random.split(random.key(0), 3)
model = nn.Sequential(nn.Linear.init(k1, 256, 512), nn.gelu, nn.Linear.init(k2, 512, 10))
x, y = random.normal(k3, (512, 256)), jnp.zeros(512, "int32")


def loss(model, x, y):
    return nn.cross_entropy(model(x), y)


def step(model, x, y):
    grads = vf.grad(loss)(model, x, y)
    return vf.tree.map(lambda p, g: p - 0.1 * g, model, grads)
"""
TWO = [(-0.4, -0.35), (-0.1, -0.7), (0.35, -0.5), (0.25, -0.1), (-0.45, 0.65), (0.55, 0.65)]
DRAW = """points => {
  const {x, y, width, height} = document.getElementById('drawing').getBoundingClientRect();
  return points.map(([a, b]) => [x + width * (1 + a) / 2, y + height * (1 + b) / 2]);
}"""


def explained(folder: Path) -> Path:
    """Write the report of a training step."""
    linecache.cache[NAME] = (len(PROGRAM), None, PROGRAM.splitlines(keepends=True), NAME)
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(PROGRAM, NAME, "exec"), names)
    page = folder / "explain.html"
    vf.explain(names["step"])(names["model"], names["x"], names["y"]).html(page)
    return page


def until(browser: Chromium, condition: str) -> None:
    """Wait until an expression is true in the page."""
    browser.evaluate(f"new Promise(done => {{ const look = () => {condition} ? done() : setTimeout(look, 50); look(); }})")


def train_and_draw(browser: Chromium, page: Path) -> None:
    """Train the network in the page, and draw a two."""
    browser.open(page)
    until(browser, "document.documentElement.dataset.ready")
    button = "document.getElementById('train')"
    browser.evaluate(f"{button}.click()")
    until(browser, "parseFloat(document.getElementById('unseen').textContent) >= 97")
    browser.evaluate(f"{button}.click()")
    until(browser, f"{button}.textContent === 'Train'")
    points = browser.run(DRAW, TWO)
    browser.pointer("Pressed", *points[0])
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        for k in range(1, 7):
            browser.pointer("Moved", ax + (bx - ax) * k / 6, ay + (by - ay) * k / 6)
    browser.pointer("Released", *points[-1])
    until(browser, "document.getElementById('seen').textContent !== ''")
    until(browser, "document.getAnimations().length === 0")  # the bars have grown


def main() -> None:
    """Make both pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Chromium(size=(1200, 980)) as browser:
            browser.open(explained(folder))
            browser.screenshot(PICTURES / "explain.png")
        web_digits.main(["--out", name])
        with Chromium(FAST, size=(1100, 733)) as browser:
            train_and_draw(browser, folder / "digits.html")
            browser.screenshot(PICTURES / "digits_page.png")


if __name__ == "__main__":
    main()
