"""Programs on several processes: laws, training, mistakes, and processes that are killed.

VOLTA_STRESS=20 tries kills at as many moments, all models at 1, 2 and 4 processes, and all laws at 1, 2, 4 and 8.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.launching import killed, run

pytest.importorskip("mpi4py", reason="the extra 'distributed' is not installed")
STRESS = int(os.environ.get("VOLTA_STRESS", "0"))
HERE = Path(__file__).parent
TRAINING = "examples/data_parallel.py"


@pytest.mark.parametrize("count", [1, 2, 4, 8] if STRESS else [2])
def test_laws_hold(count: int) -> None:
    found = run(count, str(HERE / "law_cases.py"), "--every", "2" if STRESS else "9")
    assert f"laws hold at {count} processes" in found.stdout, found.stdout + found.stderr


def trained(output: str) -> tuple[list[float], set[str]]:
    """Return the losses and the hashes of the parameters that all processes printed."""
    losses = {tuple(map(float, line.split(", "))) for line in re.findall(r"losses \[(.*)\]", output)}
    assert len(losses) == 1, output
    return list(*losses), set(re.findall(r"parameters (\w+)", output))


@pytest.mark.parametrize("zero", [[], ["--zero"]] if STRESS else [["--zero"]])
@pytest.mark.parametrize("model", ["mlp", "lenet", "lstm", "gpt"] if STRESS else ["lenet"])
def test_losses_are_those_of_one_process(model: str, zero: list[str], tmp_path: Path) -> None:
    """Parameters are the same to the bit in all processes, and half of them go on where all were."""
    steps = ["--steps", "20" if STRESS else "5"]
    alone, _ = trained(run(1, TRAINING, "--model", model, *steps).stdout)
    for count in (2, 4) if STRESS else (2,):
        losses, hashes = trained(run(count, TRAINING, "--model", model, *steps, *zero).stdout)
        np.testing.assert_allclose(losses, alone, rtol=1e-5)
        assert len(hashes) == 1
    if STRESS:
        arguments = [TRAINING, "--model", model, *zero, "--folder", str(tmp_path)]
        run(4, *arguments, "--steps", "20")
        for path in sorted(tmp_path.glob("*.safetensors"))[2:]:
            path.unlink()
        np.testing.assert_allclose(trained(run(2, *arguments, "--steps", "20").stdout)[0], alone, rtol=1e-5)


@pytest.mark.parametrize("seed", range(max(STRESS, 1)))
def test_a_killed_process_ends_all_and_a_restart_ends_with_the_same_bits(seed: int, tmp_path: Path) -> None:
    arguments = [TRAINING, "--model", "mlp", "--steps", "60", "--folder"]
    undisturbed = run(2, *arguments, str(tmp_path / "undisturbed"))
    draw = random.Random(seed)
    rank, after = draw.randrange(2), draw.randrange(5, 50, 5)
    folder = tmp_path / "killed"
    reached = lambda: any(int(path.stem[5:]) >= after for path in folder.glob("step_*.safetensors"))
    out, error, seconds = killed(2, rank, reached, str(folder), *arguments, str(folder), restarts=1)
    assert f"process {rank} has died" in error and "starting again (1 of 1)" in error, out + error
    assert seconds < 10 or not STRESS
    assert trained(out) == trained(undisturbed.stdout)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("an exception", "process 1 has failed: ValueError: the data are missing"),
        ("other programs", r"equation 2 differs:\n  process 0: .*mul . 2\.0:f32\[\].*\n  process 1: .*mul . 3\.0:f32\[\]"),
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
    found = run(2, str(HERE / "mistakes.py"), mistake, options=["--timeout", "2"])
    ending = found.stderr[found.stderr.index("volta_fn.launch: ") :]
    assert found.returncode == 1
    assert re.search(message, ending), found.stderr
    assert len(re.findall("after .* s all processes have ended", ending)) == 1
