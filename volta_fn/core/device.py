"""Devices: where arrays live and run. Each belongs to a backend, which registers itself here under its platform's name."""

from __future__ import annotations

import contextlib
import numbers
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import numpy as np

from volta_fn.errors import ArgumentError, DeviceError, DeviceTimeoutError

#: Seconds from a time-out to the next wait.
_BETWEEN_WAITS = 0.1


class MemoryStats(NamedTuple):
    """The memory of a device, in bytes."""

    #: What arrays and programs use now, and used at most at a time.
    in_use: int
    peak: int
    #: What is taken from the system: also what is kept to be used again.
    held: int
    #: What may be held at most; None if as much as there is room for.
    limit: int | None


class WorkStats(NamedTuple):
    """What a device has been given to do so far. The CPU does everything at once, and counts nothing."""

    #: Kernels started, batches of them that were handed over, and how many of these are not done.
    dispatches: int = 0
    batches: int = 0
    under_way: int = 0
    #: Copies of arrays to the host.
    reads: int = 0
    #: How often somebody had to wait, for how many seconds altogether, and how many of these waits ended with a time-out.
    waits: int = 0
    waited: float = 0.0
    timeouts: int = 0


class Hardware(NamedTuple):
    """What a device is, besides its name."""

    #: "discrete", "integrated" or "cpu": a GPU may be software.
    kind: str
    #: What it can do beyond what all of its platform can.
    features: tuple[str, ...]
    #: How much it can do at once, by names: of a GPU WebGPU's limits.
    limits: dict[str, int]


class Backend(Protocol):
    """What a device must be able to do. It knows nothing of derivatives or pytrees."""

    def put(self, values: np.ndarray) -> Any:
        """A device buffer with these elements; the backend may keep the NumPy array itself."""

    def get(self, buffer: Any) -> np.ndarray:
        """A buffer's elements as a NumPy array."""

    def wait(self, buffer: Any) -> None:
        """Return when the buffer's elements are computed."""

    def known(self, buffer: Any) -> np.ndarray | None:
        """A buffer's elements, if they are there to read at once."""

    def exclusive(self, buffers: Sequence[Any]) -> bool:
        """Whether no other buffers have the same memory as one of these (at least one)."""

    def kernel(self, primitive: Any, avals_in: tuple[Any, ...], params: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
        """One primitive as a function from buffers to a tuple of buffers."""

    def compile(self, closed: Any, donated: Sequence[bool]) -> Callable[..., tuple[Any, ...]]:
        """A whole program as a function ``(donate, *buffers)`` to a tuple of buffers; `donate` lets it overwrite the donated inputs."""

    def temporaries(self, closed: Any, donated: Sequence[bool]) -> int:
        """The bytes that a program needs at most for values that are neither arguments nor results."""

    def hardware(self) -> Hardware:
        """What the device is."""

    def memory(self) -> MemoryStats:
        """The device's memory."""

    def work(self) -> WorkStats:
        """What the device has been given to do."""

    def synchronize(self, timeout: float | None) -> None:
        """Return when all of it is done. Raises `DeviceTimeoutError` when nothing is finished for so many seconds (None: as set)."""

    def limit_memory(self, most: int | None) -> None:
        """Allow so many bytes at most (None: as many as there is room for)."""

    def free_memory(self) -> None:
        """Give back memory that is only kept to be used again."""


class Device:
    """One processor that holds arrays and runs programs.

    >>> import volta_fn as vf
    >>> vf.devices("cpu")[0]
    CpuDevice(id=0)
    >>> vf.devices("cpu")[0].kind
    'cpu'

    Attributes:
        platform: "cpu" or "gpu".
        id: its number among the devices of its platform.
        device_kind: its name.
    """

    __slots__ = ("__weakref__", "backend", "device_kind", "id", "platform")

    def __init__(self, platform: str, id: int, device_kind: str, backend: Backend) -> None:
        self.platform = platform
        self.id = id
        self.device_kind = device_kind
        self.backend = backend

    def __repr__(self) -> str:
        return f"{self.platform.capitalize()}Device(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    @property
    def name(self) -> str:
        """What its driver calls it."""
        return self.device_kind

    @property
    def kind(self) -> str:
        """ "discrete", "integrated" or "cpu": a GPU may be software."""
        return self.backend.hardware().kind

    @property
    def features(self) -> tuple[str, ...]:
        """What it can do beyond what all devices of its platform can."""
        return self.backend.hardware().features

    @property
    def limits(self) -> dict[str, int]:
        """How much it can do at once, by names: of a GPU WebGPU's limits, of the CPU none."""
        return dict(self.backend.hardware().limits)

    def __reduce__(self) -> tuple[Any, ...]:
        return find_device, (str(self),)


_discoverers: dict[str, Callable[[], list[Device]]] = {}
_found: dict[str, list[Device]] = {}
_lock = threading.RLock()
_process_default: Device | None = None
_scoped_default: ContextVar[Device | None] = ContextVar("default_device", default=None)


def register_platform(platform: str, discover: Callable[[], list[Device]]) -> None:
    """Announce a backend: `discover` is called once, when its devices are first asked for."""
    _discoverers[platform] = discover


def devices(backend: str | None = None) -> list[Device]:
    """The devices of a platform ("cpu", …), which JAX calls a backend here, or of the default device's platform.

    Raises `DeviceError` for an unknown platform.

    >>> import volta_fn as vf
    >>> vf.devices("cpu")
    [CpuDevice(id=0)]
    """
    name = backend or current_default_device().platform
    with _lock:
        if name not in _found:
            if name not in _discoverers:
                raise DeviceError(f"unknown platform {name!r}; this installation knows {sorted(_discoverers)}")
            _found[name] = _discoverers[name]()
        return list(_found[name])


def device_count(backend: str | None = None) -> int:
    """The number of devices of a platform (default: the default device's).

    >>> import volta_fn as vf
    >>> vf.device_count() == len(vf.devices())
    True
    """
    return len(devices(backend))


def default_backend() -> str:
    """The platform of the default device: "cpu", …

    >>> import volta_fn as vf
    >>> vf.default_backend() in ("cpu", "gpu")
    True
    """
    return current_default_device().platform


def find_device(spec: str | Device) -> Device:
    """The device that "cpu", "cpu:0", … names; devices pass through."""
    if isinstance(spec, Device):
        return spec
    platform, _, number = str(spec).partition(":")
    found = devices(platform)
    index = int(number) if number.isdigit() else 0
    if (number and not number.isdigit()) or index >= len(found):
        raise DeviceError(f"no device {spec!r}; platform {platform!r} has {[str(d) for d in found]}")
    return found[index]


def device_memory_stats(device: str | Device | None = None) -> MemoryStats:
    """The memory of a device (default: the default device). On the CPU it is that of the process.

    >>> import volta_fn as vf
    >>> stats = vf.device_memory_stats("cpu")
    >>> 0 < stats.in_use <= stats.peak
    True
    """
    return _device(device).backend.memory()


def device_work_stats(device: str | Device | None = None) -> WorkStats:
    """What a device (default: the default device) has been given to do so far.

    >>> import volta_fn as vf
    >>> vf.device_work_stats("cpu").under_way
    0
    """
    return _device(device).backend.work()


def synchronize(device: str | Device | None = None, *, timeout: float | None = None, retries: int = 0) -> None:
    """Return when a device (default: the default device) has done all that it was given to do.

    Args:
        timeout: seconds without progress after which a wait ends; VOLTA_GPU_TIMEOUT, or else 300, if None.
        retries: how often to wait again after a time-out, a tenth of a second later.

    Raises `DeviceTimeoutError` after the last wait, and `DeviceError` if the device was lost.
    """
    if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout >= 0):
        raise ArgumentError(f"synchronize: timeout must be a number of seconds or None, got {timeout!r}")
    for left in reversed(range(retries + 1)):
        try:
            return _device(device).backend.synchronize(timeout)
        except DeviceTimeoutError:
            if not left:
                raise
            time.sleep(_BETWEEN_WAITS)
    raise ArgumentError(f"synchronize: retries must not be negative, got {retries}")


def set_memory_limit(most: int | None, device: str | Device | None = None) -> None:
    """Let arrays and programs hold at most so many bytes of a GPU's memory (None: as many as there is room for).

    What goes beyond raises `OutOfMemoryError`. Raises `DeviceError` for the CPU, whose memory the system shares out.
    """
    if most is not None and not (isinstance(most, numbers.Integral) and most >= 0):
        raise ArgumentError(f"set_memory_limit: the limit must be a number of bytes or None, got {most!r}")
    _device(device).backend.limit_memory(most)


def free_memory(device: str | Device | None = None) -> None:
    """Give memory back to the system that a device only keeps to use it again, after waiting for what it is doing."""
    _device(device).backend.free_memory()


def _device(device: str | Device | None) -> Device:
    return current_default_device() if device is None else find_device(device)


def current_default_device() -> Device:
    """Where new arrays go: `default_device`'s scope, else its setting, else VOLTA_DEVICE, else the CPU."""
    global _process_default
    scoped = _scoped_default.get()
    if scoped is not None:
        return scoped
    if _process_default is None:
        _process_default = find_device(os.environ.get("VOLTA_DEVICE") or "cpu")
    return _process_default


def set_default_device(device: str | Device) -> None:
    """Make `device` the default of the whole process."""
    global _process_default
    _process_default = find_device(device)


@contextlib.contextmanager
def default_device(device: str | Device) -> Iterator[Device]:
    """Make `device` the default of this thread or asyncio task within a ``with`` block.

    >>> import volta_fn as vf
    >>> with vf.default_device("cpu"):
    ...     x = vf.numpy.zeros(3)
    >>> x.device
    CpuDevice(id=0)
    """
    token = _scoped_default.set(find_device(device))
    try:
        yield _scoped_default.get() or current_default_device()
    finally:
        _scoped_default.reset(token)
