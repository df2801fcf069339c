"""The process, its platforms and devices, by JAX's names."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from volta_fn import distributed
from volta_fn.core.arrays.array import Array, ConcreteArray
from volta_fn.core.aval import MemorySpace
from volta_fn.core.devices.device import (
    Device,
    available_devices,
    current_default_device,
    default_backend,
    devices,
    found_devices,
    local_devices,
    process_count,
    process_index,
    synchronize,
)
from volta_fn.lazy_imports import load

#: `jax.memory`, the kinds of memory that `device_put` takes.
memory = SimpleNamespace(Space=MemorySpace)


class _Backends(Mapping[str, "Backend"]):
    """The platforms in use, which some libraries look at."""

    def __getitem__(self, name: str) -> Backend:
        if name not in _platforms_in_use():
            raise KeyError(name)
        return Backend(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_platforms_in_use())

    def __len__(self) -> int:
        return len(_platforms_in_use())

    def __repr__(self) -> str:
        return repr(dict(self))


def _platforms_in_use() -> list[str]:
    return [*dict.fromkeys(device.platform for device in found_devices())]


_backends = _Backends()


def process_indices(backend: str | None = None) -> list[int]:
    """Return the numbers of all processes."""
    return list(range(process_count()))


host_id, host_count, host_ids = process_index, process_count, process_indices


def effects_barrier() -> None:
    """Wait until all devices have done what they were given."""
    for device in found_devices():
        synchronize(device)


def print_environment_info(return_string: bool = False) -> str | None:
    """Print the versions and devices that a report of a fault needs, or return them."""
    facts = [
        f"python: {sys.version.splitlines()[0]}",
        f"numpy:  {np.__version__}",
        f"platform: {platform.platform()}",
        f"devices: {', '.join(map(str, devices()))}",
    ]
    if return_string:
        return "\n".join(facts)
    print("\n".join(facts))
    return None


def get_backend(platform: str | None = None) -> Backend:
    """Return the backend of a platform, by default that of the default device."""
    return Backend(platform or default_backend())


class Backend:
    """A platform, as `jax.extend.backend` describes it."""

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.platform_version = "volta_fn"
        self.runtime_type = "volta_fn"

    def devices(self) -> Sequence[Device]:
        """Return the platform's devices."""
        return devices(self.platform)

    def local_devices(self) -> Sequence[Device]:
        """Return the platform's devices of this process."""
        return local_devices(backend=self.platform)

    def device_count(self) -> int:
        """Return the number of the platform's devices."""
        return len(self.devices())

    def compile_and_load(self, text: str, devices: Sequence[Device] = ()) -> Any:
        """Compile the text of a module that was built by `volta_fn.extend.ir`."""
        return load("volta_fn.extend.ir").compile_and_load(text, devices)

    def live_buffers(self) -> Sequence[Array]:
        """Return the arrays on the platform's devices."""
        return live_arrays(self.platform)

    live_arrays = live_buffers

    def local_device_count(self) -> int:
        """Return the number of the platform's devices of this process."""
        return len(self.local_devices())

    def process_index(self) -> int:
        """Return the number of this process."""
        return process_index()


def backends() -> dict[str, Backend]:
    """Return the backends by platform."""
    return {d.platform: Backend(d.platform) for d in available_devices()}


def live_arrays(platform: str | None = None) -> list[Array]:
    """Return all arrays with elements, on a platform's devices or all, in no order.

    Python's collector is asked for them, so that this takes as long as a collection.

    >>> x = vf.numpy.ones(3)
    >>> any(array is x for array in live_arrays("cpu"))
    True
    """
    arrays = [value for value in gc.get_objects() if type(value) is ConcreteArray and not value.is_deleted()]
    return [array for array in arrays if platform in (None, array.device.platform)]


def _live_buffers(device: Device) -> list[Array]:
    """Return the arrays that lie on a device, in no order; see `live_arrays`."""
    return [array for array in live_arrays() if device in array.devices()]


#: Attributes of devices that need this module.
_ATTRIBUTES: dict[str, Any] = {
    "client": property(lambda device: Backend(device.platform), doc="The platform it belongs to, as `jax.extend.backend` describes it."),
    "live_buffers": _live_buffers,
}
for _name, _value in _ATTRIBUTES.items():
    setattr(Device, _name, _value)


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Any = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
    heartbeat_timeout_seconds: int = 100,
    shutdown_timeout_seconds: int = 300,
    coordinator_bind_address: str | None = None,
    slice_index: int | None = None,
    partition_index: int | None = None,
    *,
    timeout: float | None = None,
) -> None:
    """Call `volta_fn.distributed.initialize`; JAX's other arguments have no effect.

    MPI has started the processes, so that none waits here for others: `timeout` is that of collectives.
    """
    distributed.initialize(coordinator_address, num_processes, process_id, timeout=timeout)


def clear_backends() -> None:
    """Do nothing: devices exist as long as the process."""


def get_default_device() -> Device:
    """Return the device that new arrays are made on."""
    return current_default_device()


def set_cache_dir(path: Any) -> None:
    """Accept a folder for compiled programs; `VOLTA_CACHE_DIR` names the one used."""


def reset_cache() -> None:
    """Do nothing: compiled programs on disk are found by what they are."""
