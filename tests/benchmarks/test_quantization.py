"""The benchmark of quantised weights runs, and its table has a row for each kind."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.quantization import KINDS


def test_a_quick_run() -> None:
    command = [sys.executable, "-m", "benchmarks.quantization", "--quick"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in table if line.startswith("| ")}
    assert rows.keys() >= {"bfloat16", *KINDS}
    assert float(rows["int4, groups of 64"][0]) == 4.25
    errors = {name: float(row[1].removesuffix(" %")) for name, row in rows.items() if name in KINDS}
    assert 0 < errors["int8, groups of 64, offsets"] < errors["int8"] < errors["fp8"] < errors["int4, groups of 32"] < 15
