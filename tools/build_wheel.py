"""Build the wheel of a commit, with the same bytes wherever it is built.

`python tools/build_wheel.py [--commit HEAD] [--out dist]`. The files are those of the commit, with its date and with fixed permissions;
only the version of setuptools matters beyond that.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import setuptools

ROOT = Path(__file__).resolve().parents[1]
#: Zip files have no earlier dates.
_EARLIEST = 315_532_800


def build(tree: Path, out: Path, date: int) -> Path:
    """Build the wheel of a folder of sources, dated so many seconds after 1970.

    The permissions of the files in `tree` are changed, those of files that links lead to are not.
    """
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.glob("*.whl"))
    program = f"from setuptools import build_meta as b; b.build_wheel({str(out.resolve())!r})"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(max(date, _EARLIEST)), "PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, "-c", program], cwd=tree, env=environment, check=True, capture_output=True)
    return max(set(out.glob("*.whl")) - before or before, key=lambda path: path.stat().st_mtime_ns)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", options.commit))) as archive:
            archive.extractall(folder, filter="data")
        wheel = build(Path(folder), options.out, int(_git("log", "-1", "--format=%ct", options.commit)))
    print(f"{wheel}\nSHA-256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}, by setuptools {setuptools.__version__}")


if __name__ == "__main__":
    main()
