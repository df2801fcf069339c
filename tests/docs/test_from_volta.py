"""The page about Volta is true in what can be looked up: its names can be imported, its files and tests exist, its tables are whole."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import volta_fn as vf

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "from_volta.md").read_text()
SPANS = sorted(set(re.findall(r"`([^`]+)`", PAGE)))
NAMES = [span for span in SPANS if re.fullmatch(r"vf(\.\w+)+", span)]
PATHS = [span for span in SPANS if re.match(r"(tests|examples|benchmarks|volta_fn|\.ci)/", span)]
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and not set(line) <= set("|- ")]


def resolve(name: str) -> Any:
    """Return the object that a dotted name stands for, `vf` being the package."""
    value: Any = vf
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def exists(path: str) -> bool:
    """Return True if there is such a file or folder, and in it a test of the name after "::"."""
    file, _, test = path.partition("::")
    return (ROOT / file).exists() and (not test or f"\ndef {test}(" in (ROOT / file).read_text())


def test_every_name_resolves() -> None:
    assert len(NAMES) > 150
    results = [resolve(name) for name in NAMES]
    assert all(value is not None for value in results)


def test_names_are_written_so_that_they_are_looked_up() -> None:
    assert [span for span in SPANS if re.match(r"(vf|volta_fn)\.", span)] == NAMES


@pytest.mark.parametrize("path", PATHS)
def test_files_and_tests_exist(path: str) -> None:
    assert exists(path)


def test_every_row_says_something_on_both_sides() -> None:
    assert len(ROWS) > 170
    for row in ROWS:
        left, right = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert left and right, row


def test_every_fault_has_its_row() -> None:
    faults = [int(number) for number in re.findall(r"^\| (\d+)\. ", PAGE, re.MULTILINE)]
    assert faults == list(range(1, 13))
    for row in ROWS[-12:]:
        assert "`tests/" in row.split(" | ")[1], row


def test_the_tester_finds_what_does_not_exist() -> None:
    with pytest.raises(AttributeError):
        resolve("vf.nn.TransformerBlock")
    assert not exists("tests/docs/test_from_volta.py::test_nothing") and not exists("examples/gpu.py")
    assert importlib.import_module("volta_fn.scipy.linalg") is resolve("vf.scipy.linalg")
