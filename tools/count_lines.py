"""Count the package's lines: `python tools/count_lines.py [DEPTH]`.

Prints the totals for each sub-package, and their sum. With `--since COMMIT` it counts what a commit did not have, too: functions and
classes whose names occur nowhere in its package, and all of a module of which they are more than half. So a renamed function counts as
new, and what an old one has gained as old.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "volta_fn"
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}


def lines(node: ast.stmt) -> range:
    """Return the numbers of a statement's lines."""
    return range(node.lineno, (node.end_lineno or 0) + 1)


def documentation_and_imports(tree: ast.Module) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines of docstrings, and of imports."""
    documented: set[int] = set()
    imported: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported.update(lines(node))
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            documented.update(lines(node.body[0]))
    return documented, imported


def count(path: Path) -> Counter[str]:
    """Count a file's lines: all, docstrings, imports, and code (the rest)."""
    source = path.read_text()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    documented, imported = documentation_and_imports(ast.parse(source))
    rest = {"docstrings": len(documented), "imports": len(imported), "code": len(code - documented - imported)}
    return Counter(files=1, lines=len(source.splitlines()), **rest)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def names_at(commit: str) -> set[str]:
    """Return the names of the functions and classes that a commit has."""
    archive = subprocess.run(["git", "archive", commit, ROOT.name], cwd=ROOT.parent, stdout=subprocess.PIPE, check=True).stdout
    names = set()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.name.endswith(".py") and (file := files.extractfile(member)):
                names.update(node.name for node in ast.walk(ast.parse(file.read())) if isinstance(node, _DEFINITIONS))
    return names


def lines_of_others(source: str, names: set[str]) -> int:
    """Count the lines of functions and classes with other names than these.

    The empty lines after them count, too. Where that is more than half of a source, all of it counts.
    """

    def within(body: Sequence[ast.stmt], empty: int) -> int:
        total = 0
        for node in body:
            if isinstance(node, _DEFINITIONS) and node.name not in names:
                total += len(lines(node)) + len(node.decorator_list) + empty
            elif isinstance(node, ast.ClassDef):
                total += within(node.body, empty=1)
        return total

    new, everything = within(ast.parse(source).body, empty=2), len(source.splitlines())
    return everything if 2 * new > everything else new


def main() -> None:
    """Print a row for each sub-package, and the total."""
    parser = argparse.ArgumentParser(description="Count the package's lines.")
    parser.add_argument("depth", nargs="?", type=int, default=1, help="the depth of the sub-packages (default %(default)s)")
    parser.add_argument("--since", metavar="COMMIT", help="also count what a commit did not have")
    options = parser.parse_args()
    names = names_at(options.since) if options.since else set()
    rows: dict[str, Counter[str]] = {}
    lengths = []
    for path in sorted(ROOT.rglob("*.py")):
        counted = count(path)
        lengths.append(counted["lines"])
        if options.since:
            counted["new"] = lines_of_others(path.read_text(), names)
        name = "/".join(path.relative_to(ROOT).parts[:-1][: options.depth]) or "."
        rows[name] = rows.get(name, Counter()) + counted
    columns = {"files": 7, "lines": 8, "code": 8, "imports": 8, "docstrings": 11} | ({"new": 8} if options.since else {})
    print(" " * 32 + "".join([f"{name:>{width}}" for name, width in columns.items()]))
    for name, row in [*rows.items(), ("all", sum(rows.values(), Counter()))]:
        print(f"{name:32}" + "".join([f"{row[column]:{width}}" for column, width in columns.items()]))
    print(f"median file {statistics.median(lengths):.0f} lines, longest {max(lengths)}")


if __name__ == "__main__":
    main()
