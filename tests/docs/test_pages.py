"""The pages of the site: their cells run, and the errors and variables that they list are those of the package."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from volta_fn import errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CELL = re.compile(r"```\{code-cell\} python\n((?::tags: [^\n]*\n)?)(.*?)```", re.DOTALL)
#: The gallery's pages run examples, which have tests of their own, as the page about seeing inside has (`test_inside.py`).
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for folder in ("", "learn", "guides", "reference", "why")
    for path in (DOCS / folder).glob("*.md")
    if "{code-cell}" in path.read_text() and path.name != "inside.md"
)


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a page's cells share; as in a notebook, figures are not shown."""
    matplotlib.use("agg")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = type(sys)("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module.__dict__


def run(code: str, page: str, namespace: dict[str, Any]) -> Exception | None:
    """Run a cell, and return what it raises."""
    try:
        exec(compile(code, page, "exec"), namespace)
    except Exception as error:
        return error
    return None


def cells(page: str) -> list[tuple[bool, str]]:
    """Return a page's cells, and which of them say that they raise."""
    return [("raises-exception" in tags, code) for tags, code in CELL.findall((DOCS / page).read_text())]


@pytest.mark.filterwarnings("ignore:.*float64:UserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_the_cells_run(page: str, namespace: dict[str, Any]) -> None:
    for raises, code in cells(page):
        found = run(code, page, namespace)
        assert isinstance(found, errors.VoltaError) if raises else found is None, f"{code}\n{found!r}"


def sections() -> dict[str, str]:
    """Return the sections of the page of errors by title."""
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (DOCS / "reference" / "errors.md").read_text(), re.DOTALL | re.MULTILINE))


def test_every_error_has_a_section() -> None:
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, errors.VoltaError)}
    assert sections().keys() == classes - {"VoltaError"}


def test_the_examples_of_errors_raise_them(namespace: dict[str, Any]) -> None:
    (_, imports), *_ = cells("reference/errors.md")
    run(imports, "errors", namespace)
    for name, text in sections().items():
        for _, code in CELL.findall(text):
            assert type(run(code, "errors", namespace)).__name__ == name, code


def test_all_variables_are_listed() -> None:
    sources = [*(ROOT / "volta_fn").rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\bVOLTA_[A-Z]+(?:_[A-Z]+)*\b", path.read_text())}
    listed = set(re.findall(r"\bVOLTA_[A-Z]+(?:_[A-Z]+)*\b", (DOCS / "reference" / "environment.md").read_text()))
    assert listed == read


def test_every_page_is_in_a_table_of_contents() -> None:
    """So that a reader finds it; links between pages are checked when the site is built."""
    entries = set()
    for path in DOCS.rglob("*.md"):
        for table in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL):
            names = [row.strip() for row in table.splitlines() if row.strip() and not row.startswith(":")]
            entries |= {(path.parent / name).resolve().relative_to(DOCS).as_posix() for name in names}
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert pages - entries == {"index"}
