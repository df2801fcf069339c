"""Without llvmlite NumPy runs jitted functions, which a hint tells once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
sys.modules["llvmlite"] = None  # as if it were not installed
import volta_fn as vf
for scale in (2.0, 3.0):
    print(vf.jit(lambda x: x * scale)(vf.numpy.ones(2)))
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_hint_tells_once(native: str) -> None:
    environment = os.environ | {"VOLTA_NATIVE": native, "VOLTA_DEVICE": "cpu", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, env=environment, check=True)
    assert run.stdout.split() == ["[2.", "2.]", "[3.", "3.]"]
    assert run.stderr.count("pip install llvmlite") == int(native)
