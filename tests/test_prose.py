"""The first lines of docstrings have the form that `tools/prose.py` checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose

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
