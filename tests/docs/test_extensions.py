"""What the site's extensions of Sphinx add to its pages: notebooks, versions, links to sources, figures that follow the dark mode."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "docs" / "_extensions"
sys.path.insert(0, str(EXTENSIONS))
actions = importlib.import_module("page_actions")
pages = importlib.import_module("reference_pages")
sys.path.remove(str(EXTENSIONS))

PAGE = """---
file_format: mystnb
---
# A page

```{code-cell} python
:tags: [remove-input]
print(1)
```

Text.
"""


def test_a_page_becomes_a_notebook() -> None:
    assert actions.is_executed(PAGE) and not actions.is_executed("# A page\n")
    first, code, last = actions.notebook(PAGE)["cells"]
    assert (first["cell_type"], first["source"]) == ("markdown", "# A page")
    assert (code["cell_type"], code["source"], code["outputs"]) == ("code", "print(1)", [])
    assert (last["cell_type"], last["source"]) == ("markdown", "Text.")


def test_versions_lie_side_by_side() -> None:
    assert actions.versions(["0.1.0"], "0.1.0", "learn/start") == []
    (menu,) = actions.versions(["0.1.0", "0.2.0"], "0.2.0", "learn/start")
    assert '<option value="../../0.1.0/learn/start.html">0.1.0</option>' in menu
    assert '<option value="../../0.2.0/learn/start.html" selected>0.2.0</option>' in menu


@pytest.mark.parametrize(("page", "suffix"), [("learn/start", ".md"), ("reference/api/volta_fn.nn", "")])
def test_generated_pages_have_no_source_to_edit(page: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda _: path), config=SimpleNamespace(site_versions=[], release=""))
    context: dict[str, Any] = {"body": "<h1>A page</h1>", "page_source_suffix": ".md"}
    actions.add_actions(app, page, "page.html", context, doctree=object())
    assert context["page_source_suffix"] == suffix
    assert f'href="{page.rpartition("/")[2]}.ipynb" download' in context["body"]


def test_the_list_of_modules_links_to_their_pages() -> None:
    rows = pages.modules_text().splitlines()
    assert len(rows) == len(pages.PAGES)
    assert "- [`volta_fn.lax`](api/volta_fn.lax.rst): The primitives, control flow and collectives, with JAX's names" in rows


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The extension for outputs of cells, without docutils, which only Sphinx's environment has."""
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    monkeypatch.setitem(sys.modules, "docutils", SimpleNamespace(nodes=SimpleNamespace()))
    return importlib.import_module("outputs")


def test_outputs_do_not_say_where_the_site_was_built(outputs: Any) -> None:
    folder = tempfile.mkdtemp(dir=tempfile.gettempdir())
    os.rmdir(folder)
    text = f"{tempfile.gettempdir()}/ipykernel_12/345.py:3: RecompilationWarning: f\n{ROOT}/volta_fn/advice.py:3: {folder}/a.png"
    assert outputs.without_paths(text) == "cell:3: RecompilationWarning: f\nvolta_fn/advice.py:3: folder/a.png"


def test_outputs_have_the_end_of_progress_bars(outputs: Any) -> None:
    bar = ["training 0/3", "training 1/3 loss 4.5", "step 2: loss 3", "training 3/3 loss 2.0", "training 3/3 loss 2.0"]
    text = "\n".join(["a model", *bar, "1/2 of it", "reading 5/9\n"])
    assert outputs.without_progress(text) == "a model\nstep 2: loss 3\ntraining 3/3 loss 2.0\n1/2 of it\nreading 5/9\n"
    twice = "epoch 1/2\nepoch 2/2\nepoch 1/2\nepoch 2/2"
    assert outputs.without_progress(twice) == "epoch 2/2\nepoch 2/2"


def test_figures_on_white_are_told_from_photographs(outputs: Any, tmp_path: Path) -> None:
    plot = np.ones((20, 30, 3))
    plot[5:15, 5:15] = 0
    clear = np.zeros((20, 30, 4))
    digits = np.zeros((20, 30, 3))
    digits[:, ::10] = digits[::10] = 1
    framed = digits.copy()
    digits[0], digits[:, 0] = 0.1, 0.1
    for name, pixels, expected in [("plot", plot, True), ("clear", clear, True), ("digits", digits, False), ("framed", framed, False)]:
        matplotlib.image.imsave(tmp_path / f"{name}.png", pixels)
        assert outputs.is_on_white(tmp_path / f"{name}.png") is expected, name
