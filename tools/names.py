"""Check the names of variables, and list unusual names: `python tools/names.py`.

A variable is named by what it holds, not by how it came about (CONTRIBUTING.md). Variables, parameters, fields and attributes with a name
in `REFUSED` are listed, and any in the package makes the command fail. `tests/test_prose.py` runs the same check.

`python tools/names.py --unusual [PATH ...]` lists the classes and functions whose names have no word of the field, for a reader to judge.
The words of the field are those in public names of Python, NumPy and JAX (volta_fn/jax/names.txt and the stubs), in docs/glossary.md and in
docs/architecture.md, but for words of every text.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "volta_fn"
#: Names that do not tell what a variable holds.
REFUSED = frozenset({"found", "given", "known", "there", "made", "kept", "own"})

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NUMPY = ("numpy", "numpy.fft", "numpy.linalg", "numpy.polynomial", "numpy.random")
_PYTHON = ("builtins", "functools", "inspect", "io", "itertools", "json", "math", "operator", "os", "re", "struct", "threading", "unittest")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Binding(NamedTuple):
    """A line that binds a variable, parameter, field or attribute."""

    path: str
    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.name}"


def files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python sources of paths, which may be patterns, relative to the root."""
    for path in paths:
        for match in sorted(ROOT.glob(path)):
            yield from sorted(match.rglob("*.py")) if match.is_dir() else [match]


# Variables, parameters, fields and attributes with a refused name.


def bindings(path: Path) -> Iterator[Binding]:
    """Yield the bindings of refused names in a file, except of comprehensions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    targets = {
        id(node)
        for comprehension in nodes
        if isinstance(comprehension, _COMPREHENSIONS)
        for generator in comprehension.generators
        for node in ast.walk(generator.target)
    }
    for node in nodes:
        if id(node) not in targets and (name := _bound_name(node)) in REFUSED:
            yield Binding(str(path.relative_to(ROOT)), node.lineno, str(name))


def _bound_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.alias(asname=name) | ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


# Classes and functions whose names have no word of the field.


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case.

    >>> words("_WgslRoutineKey"), words("is_in_64_bits")
    (['wgsl', 'routine', 'key'], ['is', 'in', 'bits'])
    """
    return [word.lower() for word in _WORD.findall(name)]


@cache
def field_words() -> frozenset[str]:
    """Return the words of the field, without those that say nothing of a subject."""
    texts = [name for module in (*_NUMPY, *_PYTHON) for name in dir(importlib.import_module(module)) if not name.startswith("_")]
    texts += [(ROOT / PACKAGE / "jax" / "names.txt").read_text(), *[stub.read_text() for stub in (ROOT / PACKAGE).rglob("*.pyi")]]
    texts += [(ROOT / "docs" / name).read_text() for name in ("glossary.md", "architecture.md")]
    return frozenset([word for text in texts for word in words(text) if len(word) > 2]) - _ORDINARY


#: Words of every text, which name no subject.
_ORDINARY = REFUSED | frozenset(
    "above afterwards again all also and another any anything anyway are as asks at be became become becomes been before belong "
    "besides between beyond both but by claim delay die do does done during each early eight else elsewhere enters everything find "
    "finds for from further get give gives goes hand has have her here his how hundred idea if import inside instead into is it its "
    "itself keeps knows last late later let like long looks low made make makes making many may more most must need needed needs "
    "neither new next no none nor not nothing of off often on once one only opposed or other others otherwise out outside over part "
    "plus points put rather remain same see set several shows small so some stand stay stays such taken takes tells than that the "
    "them then therefore these they things third this those three through to together too tried tries turn twice two under up use "
    "used uses volta waits walk walks was way well what when where whether which while who whole why with within without worth".split()
)


def is_unusual(name: str) -> bool:
    """Return True if no word of a name, in singular or plural, is of the field.

    >>> is_unusual("lower_program"), is_unusual("enlist")
    (False, True)
    """
    return not any({word, f"{word}s", word.removesuffix("s")} & field_words() for word in words(name))


def unusual_names(path: Path) -> Iterator[Binding]:
    """Yield the definitions in a file whose names have no word of the field."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, _DEFINITIONS) and not node.name.startswith("__") and is_unusual(node.name):
            yield Binding(str(path.relative_to(ROOT)), node.lineno, node.name)


def main(arguments: list[str]) -> int:
    """List refused or unusual names; return 1 for refused ones."""
    lists_unusual = "--unusual" in arguments
    paths = [argument for argument in arguments if argument != "--unusual"] or [PACKAGE]
    listed = [binding for path in files(paths) for binding in (unusual_names if lists_unusual else bindings)(path)]
    print("\n".join(map(str, listed)), f"{len(listed)} {'unusual' if lists_unusual else 'refused'} names", sep="\n" * bool(listed))
    return int(bool(listed) and not lists_unusual)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
