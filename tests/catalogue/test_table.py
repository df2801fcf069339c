"""docs/api.md: what its rows say is so, every name is exercised, and little is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.catalogue.calls import CALLS
from tests.catalogue.names import JAX, LEFT_OUT, exists, public_names, resolve
from tools.api_table import ROOT, row_of

pytest.importorskip("jax")

PAGE = (ROOT / "docs" / "api.md").read_text()
SOURCES = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "catalogue")

#: The least fraction of a namespace's functions, where it is not 0.95.
GOALS = {"numpy": 0.99, "numpy.linalg": 0.99, "numpy.fft": 0.99, "random": 0.99, "nn": 0.9}


def rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the path and the other cells of each row of the page."""
    namespace = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            namespace = line.removeprefix("## jax.")
        elif line.startswith("| ") and not line.startswith(("| name |", "| --- |")):
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield f"{namespace}.{name}", tuple(cells)


ROWS = dict(rows())


@pytest.mark.parametrize("path", CALLS)
def test_calls_have_rows_that_are_so(path):
    assert path not in ROWS or ROWS[path] == row_of(path), "run python tools/api_table.py"


def test_names_without_calls_are_exercised_elsewhere():
    supported = [path for path, cells in ROWS.items() if cells[0] == "yes" and path not in CALLS]
    assert not [path for path in supported if not exists("volta_fn", path)]
    assert not [path for path in supported if not re.search(rf"\b{path.rpartition('.')[2]}\b", SOURCES)]


def test_what_is_left_out_is_not_here():
    assert not [path for path in LEFT_OUT if exists("volta_fn", path)]


@pytest.mark.parametrize("namespace", JAX)
def test_little_is_missing(namespace):
    values = {name: resolve("jax", f"{namespace}.{name}") for name in public_names("jax", namespace)}
    names = [name for name, value in values.items() if callable(value) and not isinstance(value, type)]
    missing = [name for name in names if not exists("volta_fn", f"{namespace}.{name}")]
    assert len(missing) <= (1 - GOALS.get(namespace, 0.95)) * len(names), missing
