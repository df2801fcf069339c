"""The benchmarks of the loader and of vision run, and check that results agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "line"), [("loader", "all loaders yield the same examples"), ("vision", "gaussian_blur")])
def test_quick_runs(name: str, line: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}", "--quick"]
    assert line in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
