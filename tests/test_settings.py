"""Variables of the environment: what they may be is checked, whatever is done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from volta_fn import settings
from volta_fn.errors import ArgumentError
from volta_fn.runtime.threads import thread_count

ROOT = Path(__file__).resolve().parents[1]
#: Names and paths, of which any text may be one.
TEXTS = {"VOLTA_CACHE_DIR", "VOLTA_DEVICE", "VOLTA_GPU_ADAPTER", "VOLTA_LAUNCH_REPORTS"}
WRONG = {
    "VOLTA_CACHE_BYTES": ("x", "-5", "1e9", "9" * 30),
    "VOLTA_CHECK_INDICES": ("foo", "2", "true"),
    "VOLTA_COLLECTIVE_TIMEOUT": ("x", "-1", "nan"),
    "VOLTA_CPU_DEVICES": ("0", "-1", "99999999", "x", "1.5", "²"),
    "VOLTA_GPU_CHECKS": ("on",),
    "VOLTA_GPU_DEBUG": ("verbose",),
    "VOLTA_GPU_DRIVER": ("vulkan",),
    "VOLTA_GPU_LIMITS": ("none",),
    "VOLTA_GPU_MEMORY": ("much", "-1"),
    "VOLTA_GPU_TIMEOUT": ("x", "nan", "-1"),
    "VOLTA_GPU_TUNE": ("yes",),
    "VOLTA_MEMORY": ("much", "-1", "1.5"),
    "VOLTA_NATIVE": ("maybe", "01"),
    "VOLTA_NUMPY_DTYPE_PROMOTION": ("foo",),
    "VOLTA_NUM_THREADS": ("0", "-1", "many", "999999999999999999999", "100000", "1025"),
    "VOLTA_PEER_MEMORY": ("yes",),
    "VOLTA_TRACEBACK_FILTERING": ("of",),
    "VOLTA_VECTOR_BYTES": ("8", "wide"),
    "VOLTA_VERIFY": ("yes",),
}
RIGHT = {
    "VOLTA_NUM_THREADS": ("1", "1024"),
    "VOLTA_CPU_DEVICES": ("1", "256"),
    "VOLTA_GPU_TIMEOUT": ("0", "1.5", "inf"),
    "VOLTA_NATIVE": ("0", "1", ""),
}


def test_every_variable_is_checked() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    assert set(re.findall(r"`(VOLTA_[A-Z_]+)`", page)) == settings._KINDS.keys() | TEXTS
    assert WRONG.keys() == settings._KINDS.keys()


@pytest.mark.parametrize(("variable", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_a_wrong_value_is_a_typed_error(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ArgumentError, match=f"{variable} is '{text[:40]}.*, but must be "):
        settings.check_variables()


@pytest.mark.parametrize(("variable", "text"), [(name, text) for name, texts in RIGHT.items() for text in texts])
def test_a_right_value_is_taken(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    settings.check_variables()


def test_threads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_NUM_THREADS", "1000000")
    with pytest.raises(ArgumentError, match="VOLTA_NUM_THREADS is '1000000', but must be a number of threads, from 1 to 1024"):
        thread_count()
    with pytest.raises(ArgumentError, match="VOLTA_CPU_DEVICES is '257', but must be a number of devices, from 1 to 256"):
        settings.check_device_count(257)


@pytest.mark.parametrize("variable", ["VOLTA_CACHE_BYTES", "VOLTA_NUMPY_DTYPE_PROMOTION", "VOLTA_CPU_DEVICES", "VOLTA_NUM_THREADS"])
def test_the_first_use_of_the_package_checks_all(variable: str) -> None:
    environment = {**os.environ, variable: "x", "PYTHONPATH": str(ROOT)}
    script = "import volta_fn.numpy as jnp; jnp.ones(3) + 1"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert f"ArgumentError: {variable} is 'x', but must be" in done.stderr
