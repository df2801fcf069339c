"""Profiles of devices that programs are planned for, by name, limits or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.devices.device import Device, devices
from volta_fn.errors import ArgumentError, DeviceError
from volta_fn.targets.wgsl.target import LARGEST_BUFFER, LIMITS

#: Bytes that a page may use on a phone: browsers end pages that take more than about a gibibyte, scripts and pictures included.
_PHONE_MEMORY = 3 << 28


class DeviceProfile(NamedTuple):
    """The resources of a device that a program may use."""

    name: str
    capabilities: TargetCapabilities
    #: Bytes of the largest buffer, and of all memory (None: not known).
    largest: int = LARGEST_BUFFER
    memory: int | None = None


#: A page's GPU is unknown: it may round a fused multiply-add twice, and flush subnormal numbers.
WEBGPU = DeviceProfile("webgpu", TargetCapabilities(subnormals=False))
PHONE = WEBGPU._replace(name="phone", memory=_PHONE_MEMORY)


def profile_of(limits: str | Mapping[str, int] | Device | DeviceProfile) -> DeviceProfile:
    """Return the profile of a device, by a name, limits, or a device.

    Args:
        limits: "webgpu", what every WebGPU device has; "phone", the same with the memory that browsers give a page there; limits by
            WebGPU's names, such as ``{"maxBufferSize": 1 << 30}``, where they differ from "webgpu"; a GPU of this machine, or some
            letters of its name.

    Raises `ArgumentError` for other limits, and names that no GPU has.

    >>> profile_of({"maxBufferSize": 1 << 30}).largest
    1073741824
    """
    if isinstance(limits, DeviceProfile):
        return limits
    if isinstance(limits, Mapping):
        return _changed(limits)
    if isinstance(limits, Device):
        return _of_device(limits)
    profiles = {profile.name: profile for profile in (WEBGPU, PHONE)}
    if limits in profiles:
        return profiles[limits]
    gpus = _gpus()
    for device in gpus:
        if str(limits).lower() in device.device_kind.lower():
            return _of_device(device)
    names = [device.device_kind for device in gpus]
    raise ArgumentError(f"limits: expected 'webgpu', 'phone', limits by name, or a GPU of this machine ({names}), got {limits!r}")


def _gpus() -> list[Device]:
    try:
        return list(devices("gpu"))
    except DeviceError:
        return []


def _changed(limits: Mapping[str, int]) -> DeviceProfile:
    unknown = [name for name in limits if name not in LIMITS and name != "maxBufferSize"]
    if unknown:
        raise ArgumentError(f"limits: WebGPU has no {', '.join(unknown)} that programs depend on; known are {[*LIMITS, 'maxBufferSize']}")
    fields: dict[str, Any] = {LIMITS[name]: int(value) for name, value in limits.items() if name in LIMITS}
    largest = int(limits.get("maxBufferSize", LARGEST_BUFFER))
    return WEBGPU._replace(name="the given limits", capabilities=WEBGPU.capabilities._replace(**fields), largest=largest)


def _of_device(device: Device) -> DeviceProfile:
    if device.platform != "gpu":
        raise ArgumentError(f"limits: expected a GPU, got {device}; programs for the CPU have no limits")
    backend: Any = device.backend
    gpu = backend.gpu
    return DeviceProfile(device.device_kind, gpu.capabilities, gpu.description.largest, gpu.pool.limit)
