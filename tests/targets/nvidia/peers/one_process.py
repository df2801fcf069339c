"""Several emulated GPUs of this process, which share memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.targets.nvidia.fake_cuda import FakeCuda
from tests.targets.nvidia.peers.emulated_peers import SCHEDULE
from tests.targets.nvidia.peers.process import Compiler, Kernels
from volta_fn.core.devices import device
from volta_fn.targets.gpu import backend
from volta_fn.targets.nvidia import compilation, library
from volta_fn.targets.nvidia.peers import exchange, kernels, memory


def install(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[FakeCuda, list[Any]]:
    """Make emulated GPUs the process's only ones until `monkeypatch` is undone; return the stand-in of the driver, and the devices."""
    fake = FakeCuda(("an emulated GPU",) * count, eager=True)
    fake.strict, fake.capability, fake.kernels = False, (8, 0), Kernels()
    monkeypatch.setenv("VOLTA_GPU_DRIVER", "nvidia")
    monkeypatch.setattr(library, "open_library", lambda: fake)
    monkeypatch.setattr(compilation, "pool", Compiler)
    monkeypatch.setattr(compilation, "cache_dir", lambda: None)
    monkeypatch.setattr(kernels, "SCHEDULE", SCHEDULE)
    for module in (exchange, kernels):
        monkeypatch.setattr(module, "CAPACITY", 1 << 10)
    monkeypatch.setattr(exchange, "BLOCKS", SCHEDULE.blocks)
    monkeypatch.setattr(kernels, "_FEWEST", 1 << 9)
    monkeypatch.setattr(memory, "SIZE", memory.SLOTS + memory.AREAS * SCHEDULE.blocks * memory.KINDS * (1 << 10))
    library._functions.cache_clear()
    backend.adapters.cache_clear()
    monkeypatch.setattr(device, "_devices_by_platform", {k: v for k, v in device._devices_by_platform.items() if k != "gpu"})
    return fake, device.local_devices(backend="gpu")
