"""The machine's GPUs as wgpu lists them, and their capabilities.

VOLTA_GPU_LIMITS=webgpu restricts features and limits to what every WebGPU device has.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError
from volta_fn.settings import value_of
from volta_fn.targets.gpu.device.driver import FORKED, Description
from volta_fn.targets.wgpu.driver import WgpuDriver
from volta_fn.targets.wgpu.library import native, wgpu
from volta_fn.targets.wgsl.target import LARGEST_BUFFER, LIMITS

#: Features that shaders may use, and the fields of `TargetCapabilities` for them.
_FEATURES = {"shader-f16": "float16", "shader-f64": "float64", "shader-int64": "int64", "subgroup": "subgroups"}

#: The feature that lets profilers note when dispatches begin and end.
_TIMESTAMPS = "timestamp-query"


def _native_name(limit: str) -> str:
    """Return the library's name of a limit of WebGPU: min-storage-… for minStorage…."""
    return re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", limit)


#: Limits that shaders and programs depend on, with the values that every WebGPU device guarantees.
_LIMITS = {_native_name(name): TargetCapabilities._field_defaults[field] for name, field in LIMITS.items()} | {
    "max-buffer-size": LARGEST_BUFFER,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
}


class WgpuAdapter:
    """A GPU that wgpu can open."""

    driver = "wgpu"

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.name: str = adapter.info["device"]

    @property
    def vendor(self) -> int:
        """The vendor's number on PCI."""
        vendor: int = self.adapter.info["vendor_id"]
        return vendor

    def open(self) -> WgpuDriver:
        """Open the device. Raises `DeviceError` if it cannot be opened."""
        if native().process != os.getpid():
            raise DeviceError(FORKED)
        adapter, info = self.adapter, self.adapter.info
        least = value_of("VOLTA_GPU_LIMITS") == "webgpu"
        features = [] if least else [name for name in (*_FEATURES, _TIMESTAMPS) if name in adapter.features]
        limits = {name: value if least else adapter.limits[name] for name, value in _LIMITS.items()}
        try:
            device = adapter.request_device_sync(required_features=features, required_limits=limits)
        except Exception as error:
            raise DeviceError(f"the GPU {self.name} cannot be opened: {error}") from error
        kind = info["adapter_type"].removesuffix("GPU").lower()
        capabilities = _capabilities(device.limits if not least else limits, features, info)
        all_limits = dict(device.limits) | limits
        return WgpuDriver(device, Description(self.name, kind, capabilities, limits["max-buffer-size"], tuple(features), all_limits))

    def again(self) -> WgpuAdapter:
        """Return the adapter as listed now, by its name and its place among equal ones."""
        before = [a for a in adapters() if a.name == self.name]
        adapters.cache_clear()
        after = [a for a in adapters() if a.name == self.name]
        place = before.index(self) if self in before else 0
        return after[place] if place < len(after) else self


@functools.cache
def adapters() -> list[WgpuAdapter]:
    """Return the GPUs, each once, the fastest first; equal GPUs are several."""
    native()
    with _without_noise():
        available = wgpu().gpu.enumerate_adapters_sync()
    return [WgpuAdapter(adapter) for adapter in each_once(available)]


def each_once(available: list[Any]) -> list[Any]:
    """Return the adapters through which each GPU is listed once.

    A driver lists a GPU once, equal GPUs several times; a GPU that several drivers list is taken from the best of these.
    """
    best: dict[tuple[str, int], list[Any]] = {}
    for adapter in sorted(available, key=_rank):
        info = adapter.info
        same = best.setdefault((info["device"], info["device_id"] if info["adapter_type"] != "CPU" else 0), [])
        if not same or same[0].info["backend_type"] == info["backend_type"]:
            same.append(adapter)
    return sorted([adapter for same in best.values() for adapter in same], key=_rank)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR temporarily: drivers on Linux print a warning without it."""
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


#: Subgroup sizes of vendors whose driver does not report that there is only one.
_SUBGROUPS = {0x10DE: 32}  # NVIDIA


def _capabilities(limits: dict[str, int], features: list[str], info: Any) -> TargetCapabilities:
    one_size = _SUBGROUPS.get(info["vendor_id"])
    facts: dict[str, Any] = {fact: name in features for name, fact in _FEATURES.items()}
    facts |= {field: limits[_native_name(name)] for name, field in LIMITS.items()}
    # Some versions of the package wgpu write "stackgroup" for "subgroup".
    return TargetCapabilities(
        subgroup_least=one_size or info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4,
        subgroup_most=one_size or info.get("subgroup_max_size") or info.get("stackgroup_max_size") or 128,
        adapter=info["device"],
        **facts,
    )
