"""The pages of the gallery: their cells run, with the examples in their quick form, and show pictures and numbers.

`make test` draws a quarter of the pages, another one after each commit; `python -m pytest tests/examples/test_gallery.py` runs all of them,
and `make docs` as they are.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import pytest

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
PAGES = sorted(path.stem for path in GALLERY.glob("*.md") if path.stem != "index")
CELL = re.compile(r"```\{code-cell\} python\n(.*?)```", re.DOTALL)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the cells display: the pixels of pictures."""
    matplotlib.use("agg")
    displayed: list[Any] = []
    package, notebook = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.__dict__.update(version_info=(9, 0), get_ipython=lambda: None)  # Matplotlib asks
    notebook.__dict__.update(Image=matplotlib.image.imread, display=displayed.append)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return displayed


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_a_picture_and_numbers(page: str, shown: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib.pyplot as plt

    module = types.ModuleType("page")
    for code in CELL.findall((GALLERY / f"{page}.md").read_text()):
        quick = re.sub(r', "--steps", "\d+"', "", code.replace('"--out", folder]', '"--out", folder, "--quick"]'))
        exec(compile(quick, page, "exec"), module.__dict__)
    drawn = len(shown) + len(plt.get_fignums())
    plt.close("all")
    printed = capsys.readouterr().out
    assert drawn
    assert re.search(r"\b\d+(\.\d+)?\b(?! saved)", printed.replace(str(module.__dict__["folder"]), "")), printed
    assert all(picture.std() > 0.01 for picture in shown)


def test_every_page_has_its_program() -> None:
    for page in PAGES:
        program = re.findall(r"```\{literalinclude\} \.\./\.\./examples/(\w+)\.py", (GALLERY / f"{page}.md").read_text())
        assert program == [page]
        assert (ROOT / "examples" / f"{page}.py").is_file()
