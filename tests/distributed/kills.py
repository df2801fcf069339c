"""Processes that are killed at random moments of a training run, from their first instruction on.

    python -m tests.distributed.kills [--moments 20] [--seed 0]

All others end, the launcher names the process that was killed, and after its restart the run ends with the bits of an undisturbed one.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.distributed.launching import TooLateError, killed, run
from tests.distributed.training import SCRIPT, Trained, trained

#: Seconds after a kill by which the others should have ended, and by which they must.
SOON, LATEST = 5.0, 10.0
COUNT = 2
ARGUMENTS = (SCRIPT, "--model", "mlp", "--steps", "40", "--folder")


def undisturbed(folder: Path) -> tuple[Trained, float]:
    """Return what a run ends with, and the seconds that it takes."""
    start = time.monotonic()
    completed = run(COUNT, *ARGUMENTS, str(folder))
    return trained(completed.stdout, COUNT), time.monotonic() - start


def kill(rank: int, delay: float, folder: Path, wanted: Trained) -> float:
    """Kill a process `delay` seconds after it has started; return the seconds until all others had ended."""
    out, error, seconds = killed(COUNT, rank, delay, str(folder), *ARGUMENTS, str(folder), restarts=1)
    assert re.search(rf"process {rank} has died", error) and "starting again (1 of 1)" in error, out + error
    ends = [line for line in out.splitlines() if "parameters" in line]
    assert trained("\n".join(ends[-COUNT:]), COUNT) == wanted, out
    return seconds


def kill_at_random(draw: random.Random, longest: float, folder: Path, wanted: Trained) -> tuple[int, float, float]:
    """Kill a process at a random moment; return its number, the moment, and the seconds until all others had ended."""
    rank, delay = draw.randrange(COUNT), draw.uniform(0, longest)
    for attempt in range(8):
        try:
            return rank, delay, kill(rank, delay, folder / str(attempt), wanted)
        except TooLateError:  # this run was faster than the undisturbed one
            delay *= 0.7
    raise AssertionError(f"the run ends within {delay:.2f} s, earlier than a process can be killed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if others did not end in time, or the bits differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.kills")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    draw, all_seconds, failed = random.Random(options.seed), [], 0
    with tempfile.TemporaryDirectory() as folder:
        wanted, longest = undisturbed(Path(folder, "undisturbed"))
        for number in range(options.moments):
            try:
                rank, delay, seconds = kill_at_random(draw, longest, Path(folder, str(number)), wanted)
            except AssertionError as error:
                failed += 1
                print(f"{number + 1}: FAILED: {error}", flush=True)
                continue
            all_seconds.append(seconds)
            print(f"{number + 1}: process {rank} killed after {delay:.2f} s; the others ended {seconds:.2f} s later", flush=True)
    late = sum([seconds > SOON for seconds in all_seconds])
    print(
        f"{len(all_seconds)} of {options.moments} kills named the process and ended with the undisturbed bits; the others ended within "
        f"{max(all_seconds, default=0):.2f} s, {late} later than {SOON:g} s"
    )
    return 1 if failed or max(all_seconds, default=0) > LATEST else 0


if __name__ == "__main__":
    sys.exit(main())
