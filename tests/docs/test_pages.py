"""The pages of the site: their cells run, and the errors and variables that they list are those of the package."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from volta_fn import errors
from volta_fn.errors.__main__ import sections

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = ROOT / "volta_fn" / "errors" / "index.md"
CELL = re.compile(r"```\{code-cell\} python\n((?::tags: [^\n]*\n)?)(.*?)```", re.DOTALL)
#: The gallery's pages run examples, which have tests of their own, as the page about seeing inside has (`test_inside.py`); errors: below.
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for folder in ("", "learn", "guides", "reference", "why")
    for path in (DOCS / folder).glob("*.md")
    if "{code-cell}" in path.read_text() and path.name not in ("inside.md", "errors.md")
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
        completed = run(code, page, namespace)
        assert isinstance(completed, errors.VoltaError) if raises else completed is None, f"{code}\n{completed!r}"


def test_the_network_of_the_landing_page_learns(namespace: dict[str, Any]) -> None:
    (_, code), _ = cells("index.md")
    assert run(code, "index.md", namespace) is None
    model, points, labels = (namespace[name] for name in ("model", "points", "labels"))
    assert float((model(points).argmax(1) == labels).mean()) > 0.99


#: Errors whose examples need several processes, another environment or a busy GPU: the tests that raise them, and what these look for.
ELSEWHERE = {
    "DeviceTimeoutError": ("debug/test_monitor.py", "DeviceTimeoutError"),
    "DistributedError": ("distributed/test_parts.py", "DistributedError"),
    "ProgramMismatchError": ("distributed/test_processes.py", '("other programs", r"equation \\d differs'),
    "MissingDependencyError": ("io/test_loggers.py", "MissingDependencyError"),
    "MemoryGrowthWarning": ("targets/gpu/test_failures.py", "MemoryGrowthWarning"),
}
#: Examples of whole programs, which change how the process imports modules.
PROGRAMS = ("IntegerOverflowError", "AlreadyImportedError")
ENTRIES = sections(INDEX.read_text())


def test_every_error_has_an_entry_with_an_example() -> None:
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, (errors.VoltaError, Warning))}
    assert ENTRIES.keys() == classes - {"VoltaError"}
    assert [name for name, text in ENTRIES.items() if "```" not in text] == ["KeyReuseError"]  # its entry says why
    without = {name for name, text in ENTRIES.items() if "```" in text and not CELL.search(text)}
    assert without == {*ELSEWHERE, *PROGRAMS, "ExecutionError"}  # the last is a base, which has no message of its own


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_have_cause_example_and_remedy(name: str) -> None:
    cause, *_, remedy = re.split(r"```.*?```", ENTRIES[name], flags=re.DOTALL) if name != "KeyReuseError" else ENTRIES[name].split("\n\n")
    assert len(cause.split()) > 4 and len(remedy.split()) > 3


@pytest.mark.parametrize("name", ELSEWHERE)
def test_errors_whose_examples_cannot_run_here_are_raised_by_another_test(name: str) -> None:
    path, sought = ELSEWHERE[name]
    assert sought in (ROOT / "tests" / path).read_text()


@pytest.mark.filterwarnings("ignore:.*float64:UserWarning")
def test_the_examples_of_errors_raise_them(namespace: dict[str, Any]) -> None:
    (_, imports), *_ = cells("reference/errors.md")
    run(imports, "errors", namespace)
    for name, text in ENTRIES.items():
        warns = name.endswith("Warning")
        for _, code in CELL.findall(text):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                completed = run(code, "errors", namespace)
            kinds = {entry.category.__name__ for entry in caught} if warns else {type(completed).__name__}
            assert name in kinds or (name == "PromotionWarning" and not kinds), code  # that warning is given once in a process


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_examples_of_programs_raise_them(name: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", ENTRIES[name], re.DOTALL)
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    *_, note = completed.stderr.splitlines()
    assert f"{name}: " in completed.stderr and f"More: python -m volta_fn.errors {name}" in completed.stderr, note


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
