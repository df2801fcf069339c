"""The launcher's reading of what `mpiexec` prints; programs that it starts are in `distributed/test_processes.py`."""

from __future__ import annotations

import io
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from volta_fn import launch


def test_lines_get_the_numbers_of_their_processes() -> None:
    output, target = launch._Output(), io.StringIO()
    output.follow(io.StringIO("[1,3]<stdout>: a line\n[2] of MPICH\n-----\n"), target)
    assert target.getvalue() == "[3] a line\n[2] of MPICH\n"
    assert output.of_starter == ["-----\n"]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("to do so was:\n\n   Process name: [prterun-vm-26479@1,1]\n   Exit code:    3\n", "process 1 has ended with exit code 3"),
        ("noticed that process rank 0 with PID 5337 on node vm exited on\nsignal 9 (Killed).\n", "process 0 has died of signal 9 (Killed)"),
    ],
)  # fmt: skip
def test_the_process_to_blame_is_found(said: str, text: str) -> None:
    output = launch._Output()
    output.of_starter = said.splitlines(keepends=True)
    result = output.blamed()
    assert result is not None and result.text == text
    assert launch._Output().blamed() is None


def test_mpiexec_is_that_of_an_installed_package_wherever_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mpiexec").touch()
    listed = [SimpleNamespace(name="mpiexec", locate=lambda: tmp_path / "mpiexec")]
    monkeypatch.setattr(launch.shutil, "which", lambda name: f"/system/{name}")
    monkeypatch.setattr(metadata, "files", lambda package: listed if package == "mpich" else [])
    assert launch.installed_mpiexec() == str((tmp_path / "mpiexec").resolve())
    listed.clear()
    assert launch.installed_mpiexec() == "/system/mpiexec"


def test_the_command_line_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.main(["-n", "0", "script.py"])
    assert "at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        launch.main(["-n", "2"])
    assert "name a script, or a module" in capsys.readouterr().err


def test_every_mpi_tags_the_output() -> None:
    assert launch._flags("mpiexec (Open MPI) 5.0.3")[-2:] == ["--output", "tag"]
    assert launch._flags("mpiexec (OpenRTE) 4.1.6")[-1] == "--tag-output"
    assert launch._flags("HYDRA build details:\n    Version: 4.2.1") == ["-prepend-rank"]
    assert launch._TAGGED.match("[1,3]<stderr>:text").groups() == ("3", "stderr", "text")


def test_a_script_and_a_module_have_arguments_of_their_own() -> None:
    for words in (["script.py", "-m", "x", "--timeout", "3"], ["-m", "a.module", "-m", "x", "-n", "3"]):
        assert launch._program(launch._parser().parse_args(["-n", "4", "--timeout", "5", *words])) == words


def test_processes_share_out_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    for name in ("VOLTA_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    options = launch._parser().parse_args(["-n", "4", "--timeout", "5", "script.py", "--its-own", "x"])
    result = launch._environment(options, "reports")
    assert (result["VOLTA_NUM_THREADS"], result["VOLTA_COLLECTIVE_TIMEOUT"]) == ("2", "5.0")
    assert options.arguments == ["--its-own", "x"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch._environment(options, "reports")["OMP_NUM_THREADS"] == "3"
