"""Check the package's prose and names: `python tools/prose.py [PATH ...]`.

Lists every violation, and how many there are.

- The first line of a docstring is at most 80 characters long and ends with a period. That of a function begins with an imperative verb.
- Words with no settled technical meaning are no names, and stand in no docstring or comment (`BANNED`, with the phrases `ALLOWED`).

`tests/test_prose.py` holds all of it to this.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TREES = ("volta_fn", "benchmarks", "examples", "tools", "tests/laws", "tests/samples")
FIRST_LENGTH = 80

#: Words that stand for no concept of the field: not in identifiers, docstrings or comments.
BANNED = ("turn", "place", "part", "piece", "whole", "apart", "beside", "behind", "among", "company", "somebody", "nobody")
#: Banned as identifiers only; in prose they have their usual sense.
BANNED_NAMES = (*BANNED, "what", "line")

_BANNED_WORD = re.compile(rf"\b({'|'.join(BANNED)})s?\b", re.IGNORECASE)

#: Phrases in which a banned word has its usual, or a technical, sense.
ALLOWED = re.compile(
    r"in[- _]place|last place|takes? place|decimal places?"
    r"|(real|imaginary|integer|integral|fractional|principal) (and imaginary )?parts?"
    r"|apart from|in turn|jnp\.place|place ?holders?|placement|returns?\b|on the whole|part of|parts of speech|whole numbers?"
    r"|among|turn(s|ed)? \w+( \w+)? into",
    re.IGNORECASE,
)
#: Identifiers that are right as they are: public names of NumPy, JAX and the standard library, and lines of text.
ALLOWED_NAMES = re.compile(
    r"(?i:in_?place)|replace|placeholder|line_?search|(max_)?line_?(no|number|feed|length|width|style|search)s?|deadline|baseline|newline"
    r"|(read|write|split|key)lines?|lines?_per|online|inline|multiline|f?first_?line(no)?|co_lines|linestyle|text_?lines?|CACHE_LINE|source_lines?"
    r"|user_lines?|header_lines?|(count|docstring|import)_lines|first_lines?|tb_line\w*|.*backtracking.*|pipeline\w*|partition\w*|partial\w*|particle\w*|depart\w*|.*real_part|.*imag(inary)?_part",
)

#: Names of NumPy that are such words.
PUBLIC = {("volta_fn/numpy/indexing.py", "place")}

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


def _words(name: str) -> list[str]:
    """Split an identifier into lower-case words, without a plural s."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [w.removesuffix("s") for w in spaced.lower().split("_") if w]


def defined_names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield every name that a module defines, with its line number."""
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _prose(source: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a file, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and ast.get_docstring(node):
            value = node.body[0].value  # type: ignore[attr-defined]
            for offset, text in enumerate(value.value.splitlines()):
                yield value.lineno + offset, text


def violations(path: Path) -> Iterator[Violation]:
    """Yield the violations in a file."""
    source = path.read_text()
    nodes, name = list(ast.walk(ast.parse(source))), str(path.relative_to(ROOT))
    for number, text, imperative in first_lines(nodes):
        if len(text) > FIRST_LENGTH:
            yield Violation(name, number, "long first line", text)
        if not text.endswith((".", "!", "?")):
            yield Violation(name, number, "no period", text)
        word = re.split(r"[\s,.:;]", text, maxsplit=1)[0]
        if imperative and (word.lower() in _NOT_IMPERATIVE or not re.match(r"[`A-Z]", word)):
            yield Violation(name, number, "not imperative", text)
    for number, text in _prose(source, nodes) if _BANNED_WORD.search(source) else ():  # tokens take long
        if found := _BANNED_WORD.search(ALLOWED.sub("", text)):
            yield Violation(name, number, f"word {found.group()!r}", text.strip())
    for number, text in defined_names(nodes):
        kept = ALLOWED_NAMES.sub("", text)
        if (found_names := [w for w in _words(kept) if w in BANNED_NAMES]) and (name, text) not in PUBLIC:
            yield Violation(name, number, f"name {found_names[0]!r}", text)
    if set(_words(ALLOWED_NAMES.sub("", path.stem))) & set(BANNED_NAMES):
        yield Violation(name, 1, "file name", path.name)


def files(paths: list[str]) -> list[Path]:
    """Find the Python files below some paths, by default those of `TREES`."""
    roots = [Path(p).resolve() for p in paths] or [ROOT / tree for tree in TREES]
    return sorted(p for root in roots for p in ([root] if root.is_file() else root.rglob("*.py")))


def main() -> None:
    """Print all violations below the paths given."""
    found = [v for path in files(sys.argv[1:]) for v in violations(path)]
    for violation in found:
        print(violation)
    print(f"{len(found)} violations")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
