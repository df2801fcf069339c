"""The blocks of code that are not cells run, too, with what the text around them takes for granted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: What pages speak of without defining it, by page: a training step, a batch, ….
GIVEN = {
    "scaling.md": "",
    "array_api.md": "",
    "learn/from_pytorch.md": "import torch; batches = [(torch.ones(8, 4), torch.ones(8))] * 3",
    "guides/performance_gpu.md": (
        "import volta_fn as vf, volta_fn.numpy as jnp\n"
        "train = vf.jit(lambda model, state, batch: (model - 0.1 * batch, state + 1, jnp.sum(model**2)))\n"
        "model, state, batch = jnp.ones(8), 0, jnp.ones(8)\n"
    ),
}
#: Pages whose blocks have tests of their own, or are lines of a file.
ELSEWHERE = {"architecture.md": "test_architecture.py"}


def blocks(page: str) -> list[str]:
    """Return a page's blocks of Python that are not cells."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def test_every_page_with_blocks_is_listed() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert {page for page in pages if blocks(page)} == {*GIVEN, *ELSEWHERE}


@pytest.mark.parametrize("page", GIVEN)
def test_the_blocks_run(page: str, tmp_path: Path) -> None:
    """In a process of its own: they set defaults, and need variables that libraries read when they are imported."""
    code = "\n".join([GIVEN[page], *blocks(page)])
    code = code.replace('set_default_device("gpu")', 'set_default_device("cpu")').replace("range(10_000)", "range(200)")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_line_of_the_miniature_is_its_own() -> None:
    (line,) = re.findall(r"^tanh = .*", (DOCS / "learn/how_grad_works.md").read_text(), re.MULTILINE)
    assert line in (ROOT / "examples" / "miniature.py").read_text()
