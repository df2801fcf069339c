"""Collect the names of JAX that released libraries use.

`python tools/jax_uses.py WHEEL …` reads the wheels' sources, keeps the names that the JAX which is installed has, public or private, and
adds them to `tests/jax/used_names.txt`, whose test holds that each is here, too. A name is a path of modules, an attribute of the last
one, and perhaps attributes of that.
"""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

USED = Path(__file__).resolve().parent.parent / "tests" / "jax" / "used_names.txt"


def sources(wheel: Path) -> Iterator[ast.Module]:
    """Yield the modules of a wheel that mention JAX."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and b"jax" in (text := archive.read(name)):
                try:
                    yield ast.parse(text)
                except (SyntaxError, ValueError, RecursionError):  # templates, sources of Python 2, and long generated expressions
                    continue


def used(module: ast.Module) -> Iterator[str]:
    """Yield the names of JAX that a module imports, and the attributes of those."""
    origins: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_jax(alias.name):
                    yield alias.name
                    origins[alias.asname or "jax"] = alias.name if alias.asname else "jax"
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_jax(node.module or ""):
            for alias in node.names:
                if alias.name != "*":
                    origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    yield f"{node.module}.{alias.name}"
    for node in ast.walk(module):
        first, *rest = _path(node)
        if rest and first in origins:
            yield ".".join([origins[first], *rest])


def _is_jax(module: str) -> bool:
    return module.partition(".")[0] == "jax"


def _path(node: ast.AST) -> list[str]:
    """Return the parts of ``a.b.c``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else [""]


def resolves(name: str, root: str = "jax") -> bool:
    """Return True if a name exists in JAX, or in what stands for it, `root`."""
    parts = [root, *name.split(".")[1:]]
    for k in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            try:
                value = getattr(value, part)
            except AttributeError:
                return False
            except Exception:  # a name that is refused with advice
                return True
        return True
    return False


def collect(wheels: Iterable[Path]) -> list[str]:
    """Return the names of JAX that wheels use, and that JAX has."""
    names = {name for wheel in wheels for module in sources(wheel) for name in used(module)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(name for name in names if resolves(name))


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv:
        print(__doc__)
        return 2
    before = set(USED.read_text().split())
    names = {*before, *collect(map(Path, argv))}
    USED.write_text("\n".join(sorted(names)) + "\n")
    print(f"{len(names)} names, {len(names - before)} more by {len(argv)} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
