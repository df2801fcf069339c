"""The benchmark of convolutions runs, and prints each operation of a layer with ratios."""

from __future__ import annotations

import subprocess
import sys


def test_a_quick_run() -> None:
    command = [sys.executable, "-m", "benchmarks.convolutions", "--quick"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    operations = [line.strip().partition("  ")[0] for line in lines if line.startswith("  ")]
    assert operations == ["forward", "by the input", "by the weights"] * 2
    assert all("float32 " in line for line in lines if line.startswith("  "))
    assert sum("int8 " in line for line in lines) == 2
