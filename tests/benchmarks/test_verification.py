"""The benchmark of verification compiles with verification and without, and leaves the setting as it was."""

from __future__ import annotations

import subprocess
import sys


def test_it_prints_a_row_for_each_form() -> None:
    command = [sys.executable, "-m", "benchmarks.verification", "--repeat", "1", "train/mlp"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["program", *["train/mlp"] * 3]
    assert all(row.endswith("%") and row.count("ms") == 2 for row in rows[1:])
