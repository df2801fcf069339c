"""Faults that are no NaN are found at their lines, in every mode and on every lane, with the messages of the golden file."""

from __future__ import annotations

from pathlib import Path

import pytest

import volta_fn as vf
from tests.inspection.faults import FAULTS
from tests.inspection.golden_file import GoldenFile, shown
from tests.inspection.habits import HABITS
from tests.inspection.test_faults import MODES

GOLDEN = GoldenFile("habits.txt")


def messages(mode: str) -> dict[str, str]:
    """Return what is found in a mode; each at the marked line."""
    texts = {}
    for name, (fault, find) in HABITS.items():
        text, location = find(fault, MODES[mode])
        assert (Path(location.file).name, location.lineno) == ("habits.py", fault.line()), f"{name}: {text}"
        texts[f"{name} under {mode}"] = shown(text)
    return texts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("native", [False, True], ids=["numpy", "machine code"])
def test_messages_on_the_cpu(mode: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if native:
        pytest.importorskip("llvmlite")
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", native)
    GOLDEN.compare(messages(mode))


@pytest.mark.parametrize("mode", MODES)
def test_messages_on_a_gpu(mode: str) -> None:
    with vf.default_device(vf.devices("gpu")[0]):
        GOLDEN.compare(messages(mode))


def test_the_kinds_of_faults_are_many() -> None:
    assert not FAULTS.keys() & HABITS.keys()
    assert len(HABITS) >= 15
