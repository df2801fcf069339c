"""Build the archives of a release, which say where the project is.

`python tools/dist.py https://example.org/volta_fn` writes both to ``dist/``. The repository does not know its own address, so links in
README.md are relative; on the page of a package index they must be absolute. The archives have links to `FILES`, by default
``ADDRESS/blob/main``, and the project's addresses in their metadata.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What the archives are made of.
SOURCES = ("volta_fn", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
BUILD = "import sys; from setuptools import build_meta as b; _, folder = sys.argv; b.build_sdist(folder); b.build_wheel(folder)"


def absolute(markdown: str, files: str) -> str:
    """Return a document whose relative links lead to the files at an address.

    >>> absolute("[a](docs/a.md#b), [c](https://example.org), [d](#e)", "https://example.org/files")
    '[a](https://example.org/files/docs/a.md#b), [c](https://example.org), [d](#e)'
    """
    return re.sub(r"\]\((?!\w+:|#)", f"]({files.rstrip('/')}/", markdown)


def urls(address: str, files: str) -> str:
    """Return the table of pyproject.toml with the project's addresses."""
    pages = {"Homepage": address, "Documentation": f"{files}/docs", "Changelog": f"{files}/CHANGELOG.md", "Issues": f"{address}/issues"}
    return "\n[project.urls]\n" + "".join(f'{name} = "{page}"\n' for name, page in pages.items())


def build(address: str, files: str, output: Path) -> None:
    """Write a wheel and a source archive to a folder."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, tree)
        (tree / "README.md").write_text(absolute((ROOT / "README.md").read_text(), files))
        (tree / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + urls(address, files))
        subprocess.run([sys.executable, "-c", BUILD, str(output.resolve())], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Build the archives that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="the project's address")
    parser.add_argument("--files", help="where its files are read; default: ADDRESS/blob/main")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    address = options.address.rstrip("/")
    if not re.fullmatch(r"https?://[^\s@\"]+", address):
        parser.error(f"an address begins with https:// and has no user or password, got {options.address!r}")
    build(address, options.files or f"{address}/blob/main", options.output)


if __name__ == "__main__":
    main()
