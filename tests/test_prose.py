"""Docstrings, comments and names are in plain words: `tools/prose.py` finds nothing to object to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose

#: Sources with one fault each, by the rule that they break.
PLANTED = {
    "long first line": f'"""Return {"very " * 20}much."""\n',
    "no period": 'def f():\n    """Return nothing"""\n',
    "not imperative": 'def f():\n    """The result."""\n',
    "word 'place'": "# an element's place\n",
    "word 'behind'": 'class A:\n    """A kernel behind a product."""\n',
    "name 'turn'": "for turn in range(3):\n    pass\n",
    "name 'whole'": "class WholeNumber:\n    pass\n",
    "name 'what'": "def f(what):\n    pass\n",
    "name 'line'": "self.line = 1\n",
}

FINE = '''"""Sums: the real part of a result, in place of its operand, is returned in turn."""


class Sum:
    """The sum of a row."""

    @property
    def placeholder(self) -> int:
        """The number of partial sums."""
        lineno = self.newline = 1
        return lineno


def sums():
    """Return all sums."""
'''


@pytest.mark.parametrize("tree", prose.TREES)
def test_nothing_is_objected_to(tree: str) -> None:
    found = [str(v) for path in prose.files([str(prose.ROOT / tree)]) for v in prose.violations(path)]
    assert not found, f"{len(found)} violations:\n" + "\n".join(found[:50])


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to write sources to."""
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    return tmp_path / "source.py"


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_fault_is_found(rule: str, written: Path) -> None:
    written.write_text(PLANTED[rule])
    assert [v.rule for v in prose.violations(written)] == [rule]


def test_file_names_are_words_of_the_field(written: Path) -> None:
    path = written.with_name("pieces.py")
    path.touch()
    assert [v.rule for v in prose.violations(path)] == ["file name"]


def test_plain_prose_is_fine(written: Path) -> None:
    written.write_text(FINE)
    assert not list(prose.violations(written))
