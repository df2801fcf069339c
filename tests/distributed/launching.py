"""Programs on several processes, for tests: started, killed, and what they printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from volta_fn.launch import installed_mpiexec

ROOT = Path(__file__).resolve().parent.parent.parent
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or installed_mpiexec() is None, reason="the extra 'distributed', or an MPI, is not installed"
)
finds_processes = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system has no /proc to find processes in")
#: Seconds after which a program counts as hanging.
LIMIT = 120.0


def command(count: int, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a program on `count` processes."""
    return [sys.executable, "-m", "volta_fn.launch", "-n", str(count), "--threads", "1", *options, *arguments]


def run(
    count: int, *arguments: str, options: Sequence[str] = (), limit: float = LIMIT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, for at most `limit` seconds."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}", **variables}
    return subprocess.run(
        command(count, *arguments, options=options), env=environment, cwd=ROOT, text=True, capture_output=True, timeout=limit, check=False
    )


def ranks_of(marker: str) -> dict[int, int]:
    """Return the process ids of the running processes whose command line has a marker, by rank."""
    results = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text()
            rank = re.search(r"\0OMPI_COMM_WORLD_RANK=(\d+)", "\0" + (path / "environ").read_text(errors="replace"))
        except OSError:
            continue
        if marker in words and "volta_fn.launch" not in words and rank:
            results[int(rank[1])] = int(path.name)
    return results


class TooLateError(Exception):
    """A program had ended before one of its processes was killed."""


def killed(count: int, rank: int, delay: float, marker: str, *arguments: str, restarts: int) -> tuple[str, str, float]:
    """Run a program, and kill a process of it some seconds after that has started.

    Returns what it printed to both streams, and the seconds from the kill until all processes had ended.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    options = ["--restarts", str(restarts)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    starter = subprocess.Popen(command(count, *arguments, options=options), env=environment, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
    deadline = time.monotonic() + LIMIT
    while rank not in (old := ranks_of(marker)):
        assert starter.poll() is None and time.monotonic() < deadline, starter.communicate()
    time.sleep(delay)  # not to synchronise: whatever the moment, the outcome must be the same
    old |= ranks_of(marker)
    try:
        os.kill(old[rank], signal.SIGKILL)
    except ProcessLookupError:
        starter.communicate(timeout=LIMIT)
        raise TooLateError from None
    start = time.monotonic()
    while any(process in ranks_of(marker).values() for process in old.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    seconds = time.monotonic() - start
    out, error = starter.communicate(timeout=LIMIT)
    if "has died" not in error and starter.returncode == 0:
        raise TooLateError
    return out, error, seconds
