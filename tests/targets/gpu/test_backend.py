"""Which GPUs a process has."""

from __future__ import annotations

from typing import Any

import pytest

from volta_fn.errors import DeviceError
from volta_fn.targets.gpu import backend


class Listed:
    """An adapter of which only the name is asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self) -> Any:
        raise DeviceError("not opened here")


@pytest.fixture(autouse=True)
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "adapters", lambda: (Listed("NVIDIA H200"), Listed("NVIDIA H200")))
    for name in (*backend._LOCAL_RANKS, *backend._LOCAL_RANKS.values()):
        monkeypatch.delenv(name, raising=False)


def test_equal_gpus_are_devices_of_their_own() -> None:
    gpus = backend.discover()
    assert [(gpu.id, gpu.device_kind) for gpu in gpus] == [(0, "NVIDIA H200"), (1, "NVIDIA H200")]
    assert len({gpu.backend for gpu in gpus}) == len(set(gpus)) == 2


@pytest.mark.parametrize("variable", backend._LOCAL_RANKS)
def test_processes_of_one_machine_share_out_its_gpus(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their ranks, in turn if there are more processes than GPUs."""
    chosen = []
    monkeypatch.setenv(backend._LOCAL_RANKS[variable], "4")
    for rank in range(4):
        monkeypatch.setenv(variable, str(rank))
        chosen.append([gpu.id for gpu in backend.discover()])
    assert chosen == [[0], [1], [0], [1]]


@pytest.mark.parametrize("variable", backend._LOCAL_RANKS)
@pytest.mark.parametrize("size", ["1", ""])
def test_a_process_by_itself_has_all_gpus(variable: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm numbers the only process of a job, too."""
    monkeypatch.setenv(variable, "0")
    monkeypatch.setenv(backend._LOCAL_RANKS[variable], size)
    assert [gpu.id for gpu in backend.discover()] == [0, 1]
