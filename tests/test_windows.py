"""What is done in another way on Windows, tried on other systems by saying that they are Windows."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from volta_fn import data, launch, signals
from volta_fn.data import loader as loaders
from volta_fn.runtime import caches


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This system calls itself Windows, and lacks what Windows lacks."""
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("sched_getaffinity", "geteuid", "killpg"):
        monkeypatch.delattr(os, name, raising=False)
    return monkeypatch


def folder_of(chosen: Path | None, profile: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Return the cache folder of a user with that profile."""
    monkeypatch.setattr(Path, "home", lambda: profile)
    monkeypatch.setenv("LOCALAPPDATA", str(profile / "AppData" / "Local"))
    if chosen is None:
        monkeypatch.delenv("VOLTA_CACHE_DIR", raising=False)
    else:
        monkeypatch.setenv("VOLTA_CACHE_DIR", str(chosen))
    return caches.cache_dir.__wrapped__()


def test_the_cache_lies_in_the_local_application_data(windows: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert folder_of(None, tmp_path, windows) == tmp_path / "AppData" / "Local" / "volta_fn" / "cache"
    assert folder_of(tmp_path / "other", tmp_path, windows) == tmp_path / "other"


def test_a_cache_outside_of_the_profile_is_not_used(windows: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor one in a link that leaves it."""
    profile, shared = tmp_path / "users" / "me", tmp_path / "shared"
    profile.mkdir(parents=True)
    shared.mkdir()
    (profile / "link").symlink_to(shared)
    for chosen in (shared, profile / "link" / "cache"):
        caplog.clear()
        assert folder_of(chosen, profile, windows) is None
        assert "other users may write to it" in caplog.text


def test_entries_are_written_and_read_without_users(windows: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caches.write(tmp_path, "abc", b"contents")
    assert caches.read(tmp_path, "abc") == b"contents"
    (tmp_path / "a.py").write_text("x = 1\n")
    os.utime(tmp_path / "a.py", (0, 0))
    first = caches.sources_digest(tmp_path, tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")  # of the same size, and by its times as old
    os.utime(tmp_path / "a.py", (0, 0))
    assert caches.sources_digest(tmp_path, tmp_path) != first


def test_processors_are_counted_without_affinity(windows: pytest.MonkeyPatch) -> None:
    windows.setattr(os, "cpu_count", lambda: 8)
    windows.delenv("VOLTA_NUM_THREADS", raising=False)
    options = launch._parser().parse_args(["-n", "4", "script.py"])
    environment = launch._environment(options, "reports")
    assert environment["VOLTA_NUM_THREADS"] == "2"
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in environment.keys() - os.environ.keys()


def test_lines_of_microsofts_mpi_are_numbered() -> None:
    assert launch._flags("Microsoft MPI Startup Program [Version 10.1.12498.52]") == ["-lines"]
    output, target = launch._Output(), io.StringIO()
    output.follow(io.StringIO("[1]a line\n[0]another\n"), target)
    assert target.getvalue() == "[1] a line\n[0] another\n"


def test_processes_are_ended_by_taskkill(windows: pytest.MonkeyPatch) -> None:
    """First asked, then forced, with all that they have started."""
    calls: list[list[str]] = []
    windows.setattr(launch.subprocess, "run", lambda command, **_: calls.append(command))
    windows.setattr(launch.signal, "signal", lambda *_: None)

    def wait(seconds: float) -> int:
        if len(calls) < 2:
            raise subprocess.TimeoutExpired("mpiexec", seconds)
        return 1

    launch._end(SimpleNamespace(pid=12, wait=wait))  # type: ignore[arg-type]
    assert calls == [["taskkill", "/T", "/PID", "12"], ["taskkill", "/F", "/T", "/PID", "12"]]


def test_an_invalid_argument_is_a_closed_pipe(windows: pytest.MonkeyPatch) -> None:
    assert signals.is_broken_pipe(OSError(errno.EINVAL, "Invalid argument"))
    assert signals.is_broken_pipe(BrokenPipeError())
    assert not signals.is_broken_pipe(OSError(errno.ENOSPC, "No space left on device"))
    windows.setattr(sys, "platform", "linux")
    assert not signals.is_broken_pipe(OSError(errno.EINVAL, "Invalid argument"))


def test_signs_that_a_code_page_lacks_are_replaced() -> None:
    """A pipe has the system's code page there, in which "→" has no place."""
    program = "from volta_fn.signals import run; run(lambda: print('a → b'))"
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert (completed.returncode, completed.stdout.strip()) == (0, b"a ? b")


@pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning", r"ignore:.*use of fork\(\):DeprecationWarning")  # as by others
def test_processes_load_batches_without_a_resource_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure_running() -> None:
        raise ModuleNotFoundError("No module named '_posixsubprocess'")

    monkeypatch.setattr(resource_tracker, "ensure_running", ensure_running)
    monkeypatch.setattr(loaders, "sys", SimpleNamespace(platform="win32", exit=sys.exit))
    loader = data.DataLoader(data.ArrayDataset(np.arange(6)), 3, workers=1, processes=True)
    assert [np.asarray(batch).tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
