"""Ctrl-C in a terminal whose foreground process is the launcher."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.distributed.launching import LIMIT, ROOT, command, finds_processes, needs_mpi, ranks_of

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
pytestmark = [needs_mpi, finds_processes]


def read_to_end(terminal: int) -> str:
    """Return what a terminal shows until its last process has closed it."""
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells the end
        while block := os.read(terminal, 1 << 16):
            shown += block
    return shown.decode(errors="replace")


# The child becomes another program at once: what libraries say of forks (JAX's is printed as unraisable) does not concern it.
@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:.*os.fork:RuntimeWarning"
)
def test_ctrl_c_ends_all_processes_with_one_message(tmp_path: Path) -> None:
    marker = str(tmp_path)
    words = command(2, str(Path(__file__).parent / "mistakes.py"), "waiting", marker)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execve(words[0], words, {**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + LIMIT
    while len(ranks_of(marker)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)  # not to synchronise: whatever the moment, the outcome must be the same
    started = ranks_of(marker)
    os.write(terminal, b"\x03")
    shown = read_to_end(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    assert len(started) == 2, shown
    assert status == 130, shown
    assert shown.count("volta_fn.launch: interrupted: all processes were ended") == 1
    assert "Traceback" not in shown
    while ranks_of(marker) and time.monotonic() < deadline:
        time.sleep(0.01)  # until the system has taken them away
    assert not ranks_of(marker)
