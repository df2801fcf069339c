"""Which GPUs of a machine are listed, and how often."""

from __future__ import annotations

import pytest

from volta_fn.targets.wgpu import adapters, each_once


class Listed:
    """An adapter as a driver of the system lists it."""

    def __init__(self, name: str, number: int, kind: str, driver: str) -> None:
        self.info = {"device": name, "device_id": number, "adapter_type": kind, "backend_type": driver}


H200 = ("NVIDIA H200", 0x2335, "DiscreteGPU", "Vulkan")
RADEON = ("Radeon 780M", 0x15BF, "IntegratedGPU")
SOFTWARE = ("llvmpipe", 0, "CPU", "Vulkan")


@pytest.mark.parametrize("count", [1, 2, 8])
def test_equal_gpus_are_several(count: int) -> None:
    gpus = [Listed(*H200) for _ in range(count)]
    assert each_once([Listed(*SOFTWARE), *gpus])[:-1] == gpus


def test_a_gpu_that_several_drivers_list_is_one() -> None:
    """As on Windows: the best driver's entries are taken, all of them and no other's."""
    vulkan, direct = [Listed(*RADEON, "Vulkan") for _ in range(2)], [Listed(*RADEON, "D3D12") for _ in range(2)]
    assert each_once([direct[0], vulkan[0], direct[1], vulkan[1]]) == vulkan


def test_the_fastest_gpu_is_the_first() -> None:
    listed = [Listed(*SOFTWARE), Listed(*RADEON, "Vulkan"), Listed(*H200)]
    assert each_once(listed) == listed[::-1]


def test_a_gpu_is_found_again_at_its_place() -> None:
    adapter = adapters()[0]
    again = adapter.again()
    assert again is adapters()[0] and again is not adapter and again.name == adapter.name
