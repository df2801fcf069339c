"""Which GPUs a process has."""

from __future__ import annotations

from typing import Any

import pytest

from volta_fn.errors import DeviceError
from volta_fn.targets.gpu import backend


class Listed:
    """An adapter of which only the name and the driver are asked."""

    def __init__(self, name: str, driver: str = "wgpu") -> None:
        self.name, self.driver = name, driver

    def open(self) -> Any:
        raise DeviceError("not opened here")


#: The function that the fixture replaces.
ADAPTERS = backend.adapters


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


H200, B580 = Listed("NVIDIA H200", "nvidia"), Listed("Intel B580")


@pytest.mark.parametrize(
    ("variables", "of_nvidia", "of_wgpu", "expected"),
    [
        ({}, [H200], [Listed("NVIDIA H200"), B580], [("NVIDIA H200", "nvidia")]),
        ({}, "no driver", [B580], [("Intel B580", "wgpu")]),
        ({}, [], [B580], [("Intel B580", "wgpu")]),
        ({"VOLTA_GPU_DRIVER": "wgpu"}, [H200], [Listed("NVIDIA H200"), B580], [("NVIDIA H200", "wgpu"), ("Intel B580", "wgpu")]),
        ({"VOLTA_GPU_DRIVER": "nvidia"}, [H200], "not asked", [("NVIDIA H200", "nvidia")]),
        ({"VOLTA_GPU_DRIVER": "nvidia"}, "no driver", [B580], "no driver"),
        ({"VOLTA_GPU_ADAPTER": "intel"}, [H200], [Listed("NVIDIA H200"), B580], [("Intel B580", "wgpu")]),
        ({"VOLTA_GPU_ADAPTER": "Voodoo"}, [H200], [B580], r"no GPU is called 'Voodoo' .*there are \['NVIDIA H200', 'Intel B580'\]"),
        ({}, "no driver", "no wgpu", "no wgpu"),
        ({}, "no driver", [], "no GPU was found"),
    ],
)
def test_drivers_are_asked_in_order(
    variables: dict[str, str], of_nvidia: Any, of_wgpu: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's own first, then wgpu; a list is what a driver has, a text why it has none."""

    class Module:
        def __init__(self, listed: Any) -> None:
            self.listed = listed

        def adapters(self) -> Any:
            if isinstance(self.listed, str):
                raise DeviceError(self.listed)
            return self.listed

    modules = {backend._DRIVERS["nvidia"]: Module(of_nvidia), backend._DRIVERS["wgpu"]: Module(of_wgpu)}
    monkeypatch.setattr(backend, "load", modules.__getitem__)
    for name in ("VOLTA_GPU_DRIVER", "VOLTA_GPU_ADAPTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, str):
        with pytest.raises(DeviceError, match=expected):
            ADAPTERS.__wrapped__()
    else:
        assert [(adapter.name, adapter.driver) for adapter in ADAPTERS.__wrapped__()] == expected
