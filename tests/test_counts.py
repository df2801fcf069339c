"""The size of the package and of its files: lines by `tools/count_lines.py`."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from pathlib import Path

import pytest

from tools.count_lines import ROOT, count, lines_of_others

pytestmark = pytest.mark.usefixtures("no_collections")

#: The most lines, and the most without docstrings, imports, comments and blank lines.
LINES, CODE = 190_000, 106_600
#: The most modules, `__init__` included.
MODULES = 480
#: The most lines of a file. A file is a subject that is read at one sitting, and the largest subjects need as many.
LONGEST = 900
#: The most modules, `__init__` aside, of fewer than `SHORT` lines: a subject is rarely that small.
SHORT, SHORT_MODULES = 60, 9


@functools.cache
def counts() -> dict[Path, Counter[str]]:
    """Return the counts of the package's files."""
    return {path: count(path) for path in sorted(ROOT.rglob("*.py"))}


def test_lines_of_the_package_and_of_its_files() -> None:
    total: Counter[str] = sum(counts().values(), Counter())
    assert total["lines"] <= LINES
    assert total["code"] <= CODE
    lengths = [counted["lines"] for counted in counts().values()]
    assert len(lengths) <= MODULES
    assert max(lengths) <= LONGEST
    assert 200 <= statistics.median(lengths) <= 450


def test_few_modules_are_short() -> None:
    short = [str(path) for path, counted in counts().items() if path.name != "__init__.py" and counted["lines"] < SHORT]
    assert len(short) <= SHORT_MODULES, short


SOURCE = '''"""Two
lines."""

import os

# why
x = """a

b"""


def f():
    """F."""
    return (1,
            2)
'''


def test_counts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    assert count(path) == {"files": 1, "lines": 15, "docstrings": 3, "imports": 1, "code": 6}


def test_lines_that_a_commit_did_not_have() -> None:
    body = "class A:\n    def old(self):\n        pass\n\n    @property\n    def new(self):\n        pass\n\n\ndef old():\n    pass\n"
    assert lines_of_others(body, {"A", "old", "new"}) == 0
    assert lines_of_others(body, {"A", "old"}) == 4  # its decorator, two lines, an empty one
    assert lines_of_others(body, {"old"}) == 11  # of the class 7, and 2 empty ones: more than half of the source
