"""Check the form of docstrings (PEP 257): `python tools/prose.py [PATH ...]`.

The first line of a docstring is at most 80 characters long and ends with a period; that of a function begins with an imperative verb. Every
violation is listed, then their number. `tests/test_prose.py` runs the same check.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TREES = ("volta_fn", "benchmarks", "examples", "tools", "tests/laws", "tests/samples")
FIRST_LENGTH = 80

_NOT_IMPERATIVE = frozenset(
    "a an the this that these those it its they there what whether how which who whose why when where of in on at to from for with without "
    "by as if is are was all any each every both some no none nothing not one two three several many most more so such only like same "
    "first last next either neither".split()
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Violation(NamedTuple):
    """A rule that a line of a file breaks."""

    path: str
    number: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.rule}: {self.text}"


def _is_property(node: ast.AST) -> bool:
    decorators = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
    return any(
        d.split(".")[-1] in ("property", "cached_property", "setter", "fixture") or "property" in d or "fixture" in d for d in decorators
    )


def first_lines(nodes: list[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """Yield each docstring's line number, first line, and if it must be imperative."""
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and (text := ast.get_docstring(node)):
            imperative = isinstance(node, FUNCTIONS) and not _is_property(node)
            yield getattr(node, "lineno", 1), text.splitlines()[0], imperative


def violations(path: Path) -> Iterator[Violation]:
    """Yield the violations in a file."""
    nodes, name = list(ast.walk(ast.parse(path.read_text()))), str(path.relative_to(ROOT))
    for number, text, imperative in first_lines(nodes):
        if len(text) > FIRST_LENGTH:
            yield Violation(name, number, "long first line", text)
        if not text.endswith((".", "!", "?")):
            yield Violation(name, number, "no period", text)
        word = re.split(r"[\s,.:;]", text, maxsplit=1)[0]
        if imperative and (word.lower() in _NOT_IMPERATIVE or not re.match(r"[`A-Z]", word)):
            yield Violation(name, number, "not imperative", text)


def files(paths: list[str]) -> list[Path]:
    """Find the Python files below some paths, by default those of `TREES`."""
    roots = [Path(p).resolve() for p in paths] or [ROOT / tree for tree in TREES]
    return sorted(p for root in roots for p in ([root] if root.is_file() else root.rglob("*.py")))


def main() -> None:
    """Print all violations below the paths of the command line."""
    faults = [v for path in files(sys.argv[1:]) for v in violations(path)]
    for violation in faults:
        print(violation)
    print(f"{len(faults)} violations")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
