"""`doctor` tries what there is, and says what to do about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import volta_fn as vf
from volta_fn.doctor import doctor as run
from volta_fn.doctor import main
from volta_fn.errors import DeviceError
from volta_fn.lazy_imports import load

doctor = load("volta_fn.doctor")  # the module: `vf.doctor` is its function


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


def test_a_free_threaded_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [d for d in run().diagnoses if d.name == "Python"]
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    (lock,) = [d for d in run().diagnoses if d.name == "Python"]
    assert lock.state == "warning" and "PYTHON_GIL=1" in lock.remedy


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


def test_nvidias_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is used, could be used, or why it cannot be."""

    class Listed:
        name = "NVIDIA H200"

    def missing() -> list[Listed]:
        raise DeviceError("NVIDIA's driver is not installed")

    listing = load("volta_fn.targets.nvidia.driver")
    monkeypatch.delenv("VOLTA_GPU_DRIVER", raising=False)
    monkeypatch.setattr(listing, "adapters", missing)
    assert doctor._nvidia_driver()[2] == "not used: NVIDIA's driver is not installed"
    monkeypatch.setattr(listing, "adapters", lambda: [Listed(), Listed()])
    assert doctor._nvidia_driver()[2] == "NVIDIA H200, NVIDIA H200; used"
    monkeypatch.setenv("VOLTA_GPU_DRIVER", "wgpu")
    assert doctor._nvidia_driver()[2] == "NVIDIA H200, NVIDIA H200; not used: VOLTA_GPU_DRIVER=wgpu selects wgpu"
