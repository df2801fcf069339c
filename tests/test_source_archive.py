"""The source archive has the package, and no tests that could not run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"


def test_the_archive_has_the_package_alone(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        tree.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree)
    for path in ("volta_fn/__init__.py", "volta_fn/__init__.pyi", "volta_fn/py.typed", "volta_fn/tree/__init__.pyi", "tests/test_tree.py"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).touch()
    (tree / "volta_fn/tree/__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)], cwd=tree, capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    with tarfile.open(tmp_path / run.stdout.split()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"volta_fn/__init__.py", "volta_fn/__init__.pyi", "volta_fn/py.typed", "volta_fn/tree/__init__.pyi"} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert not any(name.startswith(("tests", "examples", "benchmarks")) for name in names)
