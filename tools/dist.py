"""Build the archives of a release, which say where the project is.

`python tools/dist.py https://example.org/volta_fn` writes both to ``dist/``. The repository does not know its own address, so links in
README.md are relative; on the page of a package index they must be absolute. The archives have links to ``ADDRESS/blob/REF``, the pages
that show files, pictures from ``ADDRESS/raw/REF``, the files themselves, and the project's addresses in their metadata.
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
BUILD = "import sys; from setuptools import build_meta as b; _, folder = sys.argv; b.build_sdist(folder); b.build_wheel(folder)"
#: A picture's or a link's text and its relative address; the text of a link may contain a picture.
_RELATIVE = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]\[])*)\]\((?!\w+:|#)([^)]*)\)")


def absolute(markdown: str, address: str, ref: str = "main") -> str:
    """Return a document whose relative links and pictures are absolute.

    >>> absolute("[a](docs/a.md#b), [c](https://example.org), [d](#e)", "https://example.org/p")
    '[a](https://example.org/p/blob/main/docs/a.md#b), [c](https://example.org), [d](#e)'
    >>> absolute("[![a](b.png)](b.png)", "https://example.org/p", "v0.1.0")
    '[![a](https://example.org/p/raw/v0.1.0/b.png)](https://example.org/p/blob/v0.1.0/b.png)'
    """

    def replaced(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        return f"{picture}[{absolute(text, address, ref)}]({address}/{'raw' if picture else 'blob'}/{ref}/{target})"

    return _RELATIVE.sub(replaced, markdown)


def urls(address: str, ref: str = "main") -> str:
    """Return the table of pyproject.toml with the project's addresses."""
    files = f"{address}/blob/{ref}"
    pages = {
        "Homepage": address,
        "Documentation": f"{files}/docs/index.md",
        "Repository": address,
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{page}"\n' for name, page in pages.items())


def copy_tree(folder: Path) -> None:
    """Copy the files that git tracks to a folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # one that was deleted since the last commit is listed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build(address: str, ref: str, output: Path) -> None:
    """Write a wheel and a source archive to a folder."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        readme, project = tree / "README.md", tree / "pyproject.toml"
        readme.write_text(absolute(readme.read_text(encoding="utf-8"), address, ref), encoding="utf-8")
        project.write_text(project.read_text(encoding="utf-8") + urls(address, ref), encoding="utf-8")
        subprocess.run([sys.executable, "-c", BUILD, str(output.resolve())], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Build the archives that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="the project's address")
    parser.add_argument("--ref", default="main", help="the branch or tag whose files links lead to; default: main")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    address = options.address.rstrip("/")
    if not re.fullmatch(r"https?://[^\s@\"]+", address):
        parser.error(f"an address begins with https:// and has no user or password, got {options.address!r}")
    build(address, options.ref, options.output)


if __name__ == "__main__":
    main()
