"""The examples run as their readers run them, and do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT, search_path


def start(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`python examples/program args`, run to its end."""
    environment = os.environ | {"PYTHONPATH": search_path(), "COLUMNS": "160"}
    return subprocess.run([sys.executable, f"examples/{program}", *args], cwd=ROOT, env=environment, capture_output=True, text=True)


def output(program: str, *args: str) -> str:
    """Return what an example that succeeds prints."""
    done = start(program, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_miniature_takes_fewer_than_a_hundred_lines_and_agrees_with_the_framework() -> None:
    assert len((ROOT / "examples" / "miniature.py").read_text().splitlines()) < 100
    assert "tanh" in output("miniature.py")


def test_the_demo_learns_to_read_digits() -> None:
    matches = re.search(r"([\d.]+)% of 360 held-out digits", output("digits.py", "--epochs", "4"))
    assert matches is not None
    assert float(matches[1]) > 93


def test_the_demo_says_which_file_it_misses(tmp_path: Path) -> None:
    done = start("digits.py", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "train-images-idx3-ubyte" in done.stderr
