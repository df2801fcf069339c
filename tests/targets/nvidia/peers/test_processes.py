"""Programs of two processes, whose emulated GPUs share memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.distributed.launching import ROOT, needs_mpi, run

pytestmark = [
    needs_mpi,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="emulated GPUs share memory by files that are found there"),
]
PROCESS = str(Path(__file__).with_name("process.py"))
FOLDER = ROOT / "tests" / "distributed"


def test_collectives_are_those_of_numpy() -> None:
    completed = run(
        3, PROCESS, str(ROOT / "benchmarks/gpu/collectives.py"), "check", "--forms", "processes", "--dtypes", "bfloat16", "--lengths", "37"
    )
    assert completed.stdout.count("18 results, 0 wrong; steps on the host: {}") == 3, completed.stdout + completed.stderr


def test_laws_hold() -> None:
    completed = run(2, PROCESS, str(FOLDER / "law_cases.py"), "--every", "61")
    assert "laws hold at 2 processes" in completed.stdout, completed.stdout + completed.stderr


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("too few steps", r"process \d waits for process \d in .*: the processes run different programs"),
        (
            "waiting",
            r"process 0 .* collective (of the processes \[0, 1\] on their GPUs: process 1 has|on their devices: .* \[1\] have) not come",
        ),
    ],
)
def test_a_process_that_does_not_come_is_named(mistake: str, message: str) -> None:
    completed = run(2, PROCESS, str(FOLDER / "mistakes.py"), mistake, options=["--timeout", "4"])
    assert completed.returncode == 1
    assert re.search(message, completed.stderr), completed.stderr
