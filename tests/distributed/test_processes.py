"""Programs on several processes: laws, training, mistakes, and processes that are killed.

All laws run on 2 processes, on NumPy's target; the rest are samples. `python -m tests.distributed.laws` checks the laws on all targets and
1, 2, 4 and 8 processes, VOLTA_STRESS=1 all mistakes; `python -m tests.distributed.training` trains all models, and
`python -m tests.distributed.kills` kills processes at 20 moments.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.distributed.kills import kill_at_random, undisturbed
from tests.distributed.launching import finds_processes, needs_mpi, run
from tests.distributed.laws import TARGETS
from tests.distributed.training import difference, resumed, train

pytestmark = needs_mpi
STRESS = int(os.environ.get("VOLTA_STRESS", "0"))
HERE = Path(__file__).parent


@pytest.mark.parametrize(("target", "every"), [("numpy", 1), ("native", 9)])
def test_laws_hold(target: str, every: int) -> None:
    completed = run(2, str(HERE / "law_cases.py"), "--every", str(every), **TARGETS[target])
    assert "laws hold at 2 processes" in completed.stdout, completed.stdout + completed.stderr


def test_losses_are_those_of_one_process_and_half_of_the_processes_go_on(tmp_path: Path) -> None:
    """Parameters are the same to the bit in all processes."""
    alone = train(1, "lenet", 10)
    for result in resumed(2, "lenet", 10, tmp_path, "--zero"):
        difference(result, alone)


@finds_processes
def test_a_killed_process_ends_all_and_a_restart_ends_with_the_same_bits(tmp_path: Path) -> None:
    wanted, longest = undisturbed(tmp_path / "undisturbed")
    kill_at_random(random.Random(0), longest, tmp_path, wanted)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("an exception", "process 1 has failed: ValueError: the data are missing"),
        ("other programs", r"equation \d differs:\n  process 0: .*mul . 2\.0:f32\[\].*\n  process 1: .*mul . 3\.0:f32\[\]"),
        ("other shapes", r"the inputs differ:\n  process 0: .*f32\[4\].*\n  process 1: .*f32\[5\]"),
        (
            "one shape more",
            r"process \d waits for process \d in .*: the processes run different programs, or the same with different shapes",
        ),
        ("too few steps", r"process \d waits for process \d in .*distributed.shutdown"),
        ("waiting", r"process 0 has waited longer than 2 s in psum of float32\[3\] over 'data': of the processes \[1\] have not come"),
    ][:: 1 if STRESS else 2],
)
def test_mistakes_end_all_processes_with_one_message(mistake: str, message: str) -> None:
    completed = run(2, str(HERE / "mistakes.py"), mistake, options=["--timeout", "2"])
    ending = completed.stderr[completed.stderr.index("volta_fn.launch: ") :]
    assert completed.returncode == 1
    assert re.search(message, ending), completed.stderr
    assert len(re.findall("after .* s all processes have ended", ending)) == 1
