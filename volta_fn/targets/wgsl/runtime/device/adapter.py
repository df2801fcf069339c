"""Select a GPU and describe its capabilities.

VOLTA_GPU_ADAPTER selects by a substring of the name. VOLTA_GPU_LIMITS=webgpu restricts features and limits to what every WebGPU device has.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError
from volta_fn.runtime import variables
from volta_fn.targets.wgsl.runtime.device.wgpu_ffi import FORKED, native, wgpu

#: Features that shaders may use, and the fields of `TargetCapabilities` that tell of them.
_FEATURES = {"shader-f16": "float16", "shader-f64": "float64", "shader-int64": "int64", "subgroup": "subgroups"}

#: The feature that lets profilers note when dispatches begin and end.
_TIMESTAMPS = "timestamp-query"

#: Limits that `TargetCapabilities` holds, with the values that every WebGPU device guarantees.
_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-buffer-size": 1 << 28,
    "max-compute-workgroup-storage-size": 1 << 14,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
    "min-storage-buffer-offset-alignment": 256,
}


class Opened(NamedTuple):
    """An open device."""

    device: Any
    name: str
    #: "discrete", "integrated", "cpu", …
    kind: str
    capabilities: TargetCapabilities
    #: Bytes of the largest buffer.
    largest: int
    features: tuple[str, ...]
    limits: dict[str, int]


@functools.cache
def adapters() -> list[Any]:
    """Return the machine's GPUs, each through one driver, the fastest first.

    Raises `DeviceError` if there is none.
    """
    native()
    with _without_noise():
        found = wgpu().gpu.enumerate_adapters_sync()
    best: dict[tuple[str, int], Any] = {}
    for adapter in found:
        info = adapter.info
        key = (info["device"], info["device_id"] if info["adapter_type"] != "CPU" else 0)
        if key not in best or _rank(adapter) < _rank(best[key]):
            best[key] = adapter
    wanted = os.environ.get("VOLTA_GPU_ADAPTER", "")
    chosen = [a for a in sorted(best.values(), key=_rank) if wanted.lower() in a.info["device"].lower()]
    if not chosen:
        there = [a.info["device"] for a in found]
        raise DeviceError(
            f"no GPU is called {wanted!r} (VOLTA_GPU_ADAPTER); there are {there}"
            if found
            else "no GPU was found: install a driver for Vulkan, Metal or DirectX 12 (on Linux, mesa-vulkan-drivers has one in software), "
            "or use the device 'cpu'"
        )
    return chosen


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR meanwhile: drivers on Linux complain without it."""
    unset = "XDG_RUNTIME_DIR" not in os.environ
    if unset:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if unset:
            os.environ.pop("XDG_RUNTIME_DIR", None)


def _rank(adapter: Any) -> tuple[int, int]:
    kinds, drivers = ["DiscreteGPU", "IntegratedGPU", "CPU"], ["Vulkan", "Metal", "D3D12"]
    kind, driver = adapter.info["adapter_type"], adapter.info["backend_type"]
    return kinds.index(kind) if kind in kinds else 3, drivers.index(driver) if driver in drivers else 3


def open_device(adapter: Any) -> Opened:
    """Open a device with all features and limits of its adapter.

    VOLTA_GPU_LIMITS=webgpu restricts it to those of every WebGPU device. Raises `DeviceError` if it cannot be opened.
    """
    if native().process != os.getpid():
        raise DeviceError(FORKED)
    least = variables.value_of("VOLTA_GPU_LIMITS") == "webgpu"
    features = [] if least else [name for name in (*_FEATURES, _TIMESTAMPS) if name in adapter.features]
    limits = {name: value if least else adapter.limits[name] for name, value in _LIMITS.items()}
    try:
        device = adapter.request_device_sync(required_features=features, required_limits=limits)
    except Exception as error:
        raise DeviceError(f"the GPU {adapter.info['device']} cannot be opened: {error}") from error
    kind = adapter.info["adapter_type"].removesuffix("GPU").lower()
    capabilities = _capabilities(device.limits if not least else limits, features, adapter.info)
    return Opened(
        device, adapter.info["device"], kind, capabilities, limits["max-buffer-size"], tuple(features), dict(device.limits) | limits
    )


#: Subgroup sizes of vendors whose driver does not report that there is only one.
_SUBGROUPS = {0x10DE: 32}  # NVIDIA


def _capabilities(limits: dict[str, int], features: list[str], info: Any) -> TargetCapabilities:
    one_size = _SUBGROUPS.get(info["vendor_id"])
    return TargetCapabilities(
        **{fact: name in features for name, fact in _FEATURES.items()},
        subgroup_least=one_size or info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4,
        subgroup_most=one_size or info.get("subgroup_max_size") or info.get("stackgroup_max_size") or 128,
        buffers=limits["max-storage-buffers-per-shader-stage"],
        binding=limits["max-storage-buffer-binding-size"],
        workgroup_memory=limits["max-compute-workgroup-storage-size"],
        invocations=limits["max-compute-invocations-per-workgroup"],
        groups=limits["max-compute-workgroups-per-dimension"],
        alignment=limits["min-storage-buffer-offset-alignment"],
        adapter=info["device"],
    )
