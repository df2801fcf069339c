"""Modules and files that docstrings, comments and documents name in backticks exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "volta_fn"
#: Packages whose names stand for nothing else (as `numpy` and `random` do).
OWN = "core|primitives|transforms|compiler|codegen|runtime|targets|jit"
MODULE = re.compile(rf"`(?![^`]*\.py`)((?:volta_fn[./]\w+|{OWN})(?:[./]\w+)+)/?`")
FILE = re.compile(r"`([\w/]+/\w+\.(?:py|md))`")
TEXTS = [
    path
    for pattern in ("volta_fn/**/*.py", "benchmarks/**/*.py", "tools/*.py", "docs/**/*.md", "*.md", "tests/*.md", "volta_fn/errors/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "from_volta.md"  # which names files of another project, and has its own tests
]
FILES = [f"/{path.relative_to(ROOT)}" for pattern in ("[a-z]*/**/*.py", "[a-z]*/**/*.md") for path in ROOT.glob(pattern)]


def defines(module: Path, name: str) -> bool:
    """Return True if a module, or some module of a package, has a name in its text."""
    files = module.glob("*.py*") if module.is_dir() else [module.with_suffix(".py")]
    return any(re.search(rf"\b{name}\b", path.read_text()) for path in files if path.suffix in (".py", ".pyi"))


def is_module(dotted: str) -> bool:
    """Return True if a name is a module of the package, or a name in one."""
    path = PACKAGE
    names = re.split(r"[./]", dotted.removeprefix("volta_fn.").removeprefix("volta_fn/"))
    while names and ((path / names[0]).is_dir() or (path / f"{names[0]}.py").is_file()):
        path /= names.pop(0)
    return not names or defines(path, names[0])


def missing(text: str) -> list[str]:
    """Return the modules and files that a text names and that do not exist."""
    files = [file for file in FILE.findall(text) if not any(path.endswith(f"/{file}") for path in FILES)]
    return files + [name for name in MODULE.findall(text) if not is_module(name)]


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in TEXTS}))
def test_named_modules_and_files_exist(folder: str) -> None:
    texts = [path for path in TEXTS if path.relative_to(ROOT).parts[0] == folder]
    results = [f"{path.relative_to(ROOT)}: {name}" for path in texts for name in missing(path.read_text())]
    assert not results


@pytest.mark.parametrize(
    "name", ["compiler/ir/kernels.py", "jit.lowering", "volta_fn.compiler.passes.no_such", "codegen/no_such", "lowering/no_such.py"]
)
def test_a_planted_name_is_found(name: str) -> None:
    assert missing(f"As `{name}` says.")


@pytest.mark.parametrize("name", ["compiler/ir/kernel.py", "jit.eager", "core.trace.bind", "volta_fn.optim.base", "ir/axes.py", "a.b"])
def test_other_names_pass(name: str) -> None:
    assert not missing(f"As `{name}` says.")
