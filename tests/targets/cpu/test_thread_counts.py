"""The bits of results depend neither on the number of threads nor on the run, be it compiled or loaded from disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from tests.targets.cpu.shared_work import COUNTS, STEPS

ROOT = Path(__file__).resolve().parents[3]


def digests(cache: Path) -> dict[str, dict[str, list[str]]]:
    """Return what the work gives in a fresh process."""
    environment = os.environ | {"VOLTA_NUM_THREADS": "1", "VOLTA_CACHE_DIR": str(cache), "VOLTA_NATIVE": "1"}
    command = [sys.executable, "-m", "tests.targets.cpu.shared_work"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return result


def test_any_number_of_threads_and_any_run_give_the_same_bits(tmp_path: Path) -> None:
    compiled = digests(tmp_path)
    assert set(STEPS) < set(compiled)
    for name, by_count in compiled.items():
        assert list(by_count) == [str(count) for count in COUNTS]
        assert len({bits for repeats in by_count.values() for bits in repeats}) == 1, name
    assert digests(tmp_path) == compiled
