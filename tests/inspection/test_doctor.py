"""`doctor` tries what there is, and says what to do about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import volta_fn as vf
from volta_fn.doctor import main
from volta_fn.inspection import doctor
from volta_fn.inspection.doctor import doctor as run


@pytest.fixture(autouse=True)
def _cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave GPUs out: in software their drivers take seconds to start."""
    monkeypatch.setattr(doctor, "available_devices", lambda: vf.devices("cpu"))


def test_a_healthy_machine() -> None:
    completed = run()
    assert completed.healthy
    names = {diagnosis.name for diagnosis in completed.diagnoses}
    assert {"volta_fn", "machine code", "cpu 0", "cache", "settings"} <= names


def test_what_is_missing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_installed", lambda package: package != "scipy")
    (missing,) = [d for d in run().diagnoses if d.name == "scipy"]
    assert (missing.state, missing.remedy) == ("warning", "pip install scipy")


def test_a_wrong_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_self_test", lambda device: 0.5)
    completed = run()
    assert not completed.healthy and "crosscheck" in str(completed)


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cache_dir", lambda: "/proc/nothing")
    (cache,) = [d for d in run().diagnoses if d.name == "cache"]
    assert cache.state == "failed" and "VOLTA_CACHE_DIR" in cache.remedy


def test_it_is_a_function_and_importing_its_command_leaves_it_callable() -> None:
    program = """
import types, volta_fn as vf
assert isinstance(vf.doctor, types.FunctionType)
import volta_fn.doctor
assert vf.doctor().healthy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert "machine" in capsys.readouterr().out
