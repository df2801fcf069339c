"""The form of docstrings, and the names of variables: `tools/prose.py`, `tools/names.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import names, prose

pytestmark = pytest.mark.usefixtures("no_collections")

#: Sources with one fault each, by the rule that they break.
PLANTED = {
    "long first line": f'"""Return {"very " * 20}much."""\n',
    "no period": 'def f():\n    """Return nothing"""\n',
    "not imperative": 'def f():\n    """The result."""\n',
}

FINE = '''"""Sums of rows and columns."""


class Sum:
    """The sum of a row."""

    @property
    def terms(self) -> int:
        """The number of terms."""
        return 1


def sums():
    """Return all sums."""
'''


@pytest.mark.parametrize("tree", prose.TREES)
def test_nothing_is_objected_to(tree: str) -> None:
    faults = [str(v) for path in prose.files([str(prose.ROOT / tree)]) for v in prose.violations(path)]
    assert not faults, f"{len(faults)} violations:\n" + "\n".join(faults[:50])


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to write sources to."""
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    return tmp_path / "source.py"


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_fault_is_found(rule: str, written: Path) -> None:
    written.write_text(PLANTED[rule])
    assert [v.rule for v in prose.violations(written)] == [rule]


def test_other_docstrings_pass(written: Path) -> None:
    written.write_text(FINE)
    assert not list(prose.violations(written))


def test_variables_are_named_by_what_they_hold() -> None:
    refused = [str(binding) for path in names.files(["volta_fn"]) for binding in names.bindings(path)]
    assert not refused, f"{len(refused)} names:\n" + "\n".join(refused[:50])


#: Bindings of refused names, and the numbers of those that are listed.
BOUND = {
    "found = 1": 1,
    "def f(given, *known, kept=2, **own): ...": 4,
    "class A:\n    made: int\n    def f(self):\n        self.there = 1": 2,
    "if found := f(): ...": 1,
    "from a import b as known": 1,
    "for given, _ in pairs: ...": 1,
    "lambda found: found[0]": 1,
    "[given for given in pairs]": 0,
    "finding, self.unknown = found, a.given": 0,
}


@pytest.mark.parametrize("source", BOUND)
def test_bindings_of_refused_names_are_listed(source: str, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "ROOT", written.parent)
    written.write_text(source)
    assert len(list(names.bindings(written))) == BOUND[source]


@pytest.mark.parametrize(("name", "unusual"), {"enlist": True, "of_nothing": True, "lower_program": False, "WgslRoutineKey": False}.items())
def test_names_without_a_word_of_the_field_are_unusual(name: str, unusual: bool) -> None:
    assert names.is_unusual(name) == unusual
