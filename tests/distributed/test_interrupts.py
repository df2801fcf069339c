"""Ctrl-C in a terminal whose foreground process is the launcher: from the start on, and in the middle of training."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.launching import LIMIT, ROOT, command, finds_processes, needs_mpi, ranks_of

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
pytestmark = [needs_mpi, finds_processes]
MISTAKES = str(Path(__file__).with_name("mistakes.py"))


def read_to_end(terminal: int) -> str:
    """Return what a terminal shows until its last process has closed it."""
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells the end
        while block := os.read(terminal, 1 << 16):
            shown += block
    return shown.decode(errors="replace")


def is_waiting(marker: str) -> bool:
    """Tell whether both processes have started."""
    return len(ranks_of(marker)) == 2


def is_training(marker: str) -> bool:
    """Tell whether both processes train, and have saved their tenth step."""
    return any(int(path.stem.removeprefix("step_")) >= 10 for path in Path(marker).glob("step_*.safetensors"))


# The child becomes another program at once: what libraries say of forks (JAX's is printed as unraisable) does not concern it.
@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:.*os.fork:RuntimeWarning"
)
@pytest.mark.parametrize(
    ("words", "is_there"),
    [((MISTAKES, "waiting"), is_waiting), (("examples/data_parallel.py", "--steps", "1000000", "--folder"), is_training)],
    ids=["from the start", "in training"],
)
def test_ctrl_c_ends_all_processes_with_one_message(tmp_path: Path, words: tuple[str, ...], is_there: Callable[[str], bool]) -> None:
    marker = str(tmp_path)
    launcher = command(2, *words, marker)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells have their background jobs ignore it
        os.execve(launcher[0], launcher, {**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + LIMIT
    while not is_there(marker) and time.monotonic() < deadline:
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
