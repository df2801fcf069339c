"""docs/api.md: what its rows say is so, every name is exercised, and little is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import volta_fn as vf
from tests.catalogue.calls import CALLS
from tests.catalogue.names import LEFT_OUT, NAMESPACES, exists, public_names, resolve
from tools.api_table import ROOT, main, row_of

pytest.importorskip("jax")
pytest.importorskip("optax")

PAGE = (ROOT / "docs" / "api.md").read_text()
WORDS = {
    word for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "catalogue" for word in re.findall(r"\w+", path.read_text())
}

#: The least fraction of a namespace's functions, where it is not 0.95.
GOALS = {"numpy": 0.99, "numpy.linalg": 0.99, "numpy.fft": 0.99, "random": 0.99, "nn": 0.99}


#: States with other fields than Optax's: one class serves both kinds of hyperparameters; the optimizer has Muon's coefficients.
OTHER_FIELDS = ("optim.schedules.InjectHyperparamsState", "optim.contrib.MuonState")


def rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the path and the other cells of each row of the page."""
    ours, namespace = {namespace.title: namespace.ours for namespace in NAMESPACES}, ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            namespace = ours[line.removeprefix("## ")]
        elif line.startswith("| ") and not line.startswith(("| name |", "| --- |")):
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield f"{namespace}.{name}", tuple(cells)


ROWS = dict(rows())


@pytest.mark.parametrize("path", CALLS)
def test_calls_have_rows_that_are_so(path):
    assert path not in ROWS or ROWS[path] == row_of(path), "run python tools/api_table.py"


@pytest.mark.parametrize("path", ["numpy.finfo", "numpy.iinfo"])
def test_descriptions_of_dtypes_are_types(path):
    assert ROWS[path] == row_of(path) == ("yes", "", "", "", "", "type")


def test_help_writes_no_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tools.api_table.ROOT", tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "docs/api.md" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def is_checked_by_itself(path: str, kind: str) -> bool:
    return kind == "dtype" or (kind == "type" and path.startswith("optim."))


def test_names_without_calls_are_exercised_elsewhere():
    supported = [
        path for path, cells in ROWS.items() if cells[0] == "yes" and path not in CALLS and not is_checked_by_itself(path, cells[-1])
    ]
    assert not [path for path in supported if not exists("volta_fn", path)]
    assert not [path for path in supported if path.rpartition(".")[2] not in WORDS]


def test_dtypes_are_those_of_arrays():
    for path in [path for path, cells in ROWS.items() if cells[-1] == "dtype"]:
        dtype = resolve("volta_fn", path)
        assert vf.numpy.zeros(3, dtype).dtype == dtype


def test_states_have_the_fields_of_optaxs():
    for namespace in [namespace for namespace in NAMESPACES if namespace.library == "optax"]:
        for name in public_names(namespace):
            theirs = resolve("optax", f"{namespace.path}.{name}".strip("."))
            path = f"{namespace.ours}.{name}"
            if hasattr(theirs, "_fields") and path not in (*LEFT_OUT, *OTHER_FIELDS):
                assert resolve("volta_fn", path)._fields == theirs._fields, path


def test_what_is_left_out_is_not_here():
    assert not [path for path in LEFT_OUT if exists("volta_fn", path)]


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda namespace: namespace.title)
def test_little_is_missing(namespace):
    values = {name: resolve(namespace.library, ".".join(filter(None, (namespace.path, name)))) for name in public_names(namespace)}
    names = [name for name, value in values.items() if callable(value) and not isinstance(value, type)]
    missing = [name for name in names if not exists("volta_fn", f"{namespace.ours}.{name}")]
    assert len(missing) <= (1 - GOALS.get(namespace.ours, 0.95)) * len(names), missing
