"""`doctor` tries what there is, and says what to do about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import volta_fn as vf
from volta_fn.inspection import doctor


def test_a_healthy_machine() -> None:
    found = vf.doctor()
    assert found.healthy
    names = {diagnosis.name for diagnosis in found.diagnoses}
    assert {"volta_fn", "machine code", "cpu 0", "cache", "settings"} <= names


def test_what_is_missing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_installed", lambda package: package != "scipy")
    (missing,) = [d for d in vf.doctor().diagnoses if d.name == "scipy"]
    assert (missing.state, missing.remedy) == ("warning", "pip install scipy")


def test_a_wrong_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_self_test", lambda device: 0.5)
    found = vf.doctor()
    assert not found.healthy and "crosscheck" in str(found)


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cache_dir", lambda: "/proc/nothing")
    (cache,) = [d for d in vf.doctor().diagnoses if d.name == "cache"]
    assert cache.state == "failed" and "VOLTA_CACHE_DIR" in cache.remedy


def test_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "volta_fn.doctor"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "machine" in done.stdout
