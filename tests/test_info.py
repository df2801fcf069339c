"""`python -m volta_fn.info` says what a report of an error should have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import volta_fn as vf

ROOT = Path(__file__).resolve().parents[1]


def test_it_prints_versions_devices_and_settings() -> None:
    environment = os.environ | {"VOLTA_NUM_THREADS": "3", "VOLTA_CACHE_DIR": "", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-m", "volta_fn.info"], capture_output=True, text=True, timeout=120, env=environment, check=True)
    for text in (f"volta_fn {vf.__version__}", f"numpy {np.__version__}", "CpuDevice(id=0)", "3 threads", "'VOLTA_NUM_THREADS': '3'"):
        assert text in run.stdout
    assert "cache: none" in run.stdout
