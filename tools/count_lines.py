"""Count the package's lines: `python tools/count_lines.py [DEPTH]`.

Prints the totals for each sub-package, and their sum.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
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


def main() -> None:
    """Print a row for each sub-package (at the depth given, default 1), and the total."""
    depth = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    rows: dict[str, Counter[str]] = {}
    lengths = []
    for path in sorted(ROOT.rglob("*.py")):
        counted = count(path)
        lengths.append(counted["lines"])
        name = "/".join(path.relative_to(ROOT).parts[:-1][:depth]) or "."
        rows[name] = rows.get(name, Counter()) + counted
    print(f"{'':32}{'files':>7}{'lines':>8}{'code':>8}{'imports':>8}{'docs':>8}")
    for name, row in [*rows.items(), ("all", sum(rows.values(), Counter()))]:
        print(f"{name:32}{row['files']:7}{row['lines']:8}{row['code']:8}{row['imports']:8}{row['docstrings']:8}")
    print(f"median file {statistics.median(lengths):.0f} lines, longest {max(lengths)}")


if __name__ == "__main__":
    main()
