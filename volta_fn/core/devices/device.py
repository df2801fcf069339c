"""Devices, where arrays live and programs run, and the rank of their process."""

from __future__ import annotations

import contextlib
import numbers
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np

from volta_fn.errors import ArgumentError, DeviceError, DeviceTimeoutError

# The rank of the process among those that run a program together.
#
# One process alone has rank 0 of 1. `core.devices.distribution` sets these when a program on several processes begins and ends.

_rank, _size = 0, 1
#: Raises unless all processes compile the same program, for a device of a driver; None for one process, which has no others to ask.
_check_program: Callable[[Any, str], None] | None = None
#: Compiles programs with collectives between devices of this process; None until a mesh has devices with memories of their own.
_compile_for_mesh: Callable[[Any, Device, Any], Executable | None] | None = None


def process_rank() -> int:
    """Return the rank of this process."""
    return _rank


def world_size() -> int:
    """Return the number of processes."""
    return _size


def set_process_rank(rank: int, size: int, check_program: Callable[[Any, str], None] | None) -> None:
    """Set the rank of this process, their number, and the check of programs.

    `check_program` raises unless all processes compile the same program, for a device of the same driver.
    """
    global _rank, _size, _check_program
    _rank, _size, _check_program = rank, size, check_program


def set_mesh_compiler(compile_for_mesh: Callable[[Any, Device, Any], Executable | None]) -> None:
    """Set what compiles programs with collectives between devices of this process.

    It returns None for other programs.
    """
    global _compile_for_mesh
    _compile_for_mesh = compile_for_mesh


# Devices, where arrays live and programs run.
#
# Each belongs to a backend, which registers itself here under the name of its platform.

#: Seconds from a time-out to the next wait.
_BETWEEN_WAITS = 0.1


class MemoryStats(NamedTuple):
    """Memory statistics of a device, in bytes."""

    #: In use by arrays and programs, now and at most.
    in_use: int
    peak: int
    #: Allocated from the system, including memory pooled for reuse.
    held: int
    #: The most that may be allocated; None without a limit.
    limit: int | None


class WorkStats(NamedTuple):
    """Counters of a device's work. The CPU does all work at once and counts none."""

    #: Kernels dispatched, batches submitted, and how many of these are not done.
    dispatches: int = 0
    batches: int = 0
    under_way: int = 0
    #: Copies of arrays to the host.
    reads: int = 0
    #: Waits of the host, their seconds in total, and how many of them ended with a time-out.
    waits: int = 0
    waited: float = 0.0
    timeouts: int = 0


class Hardware(NamedTuple):
    """The kind, features and limits of a device."""

    #: "discrete", "integrated" or "cpu": a GPU may be software.
    kind: str
    #: Optional capabilities that it has.
    features: tuple[str, ...]
    #: Limits by name: WebGPU's for a GPU, none for the CPU.
    limits: dict[str, int]
    #: The driver through which a GPU is used: "wgpu" or "nvidia".
    driver: str = ""


class OfArrays(Protocol):
    """Makes a built-in function of arrays from a program of buffers."""

    def __call__(self, specs: Sequence[Any], within: type[tuple] | type[list] | None, fallback: Callable[..., Any]) -> Callable[..., Any]:
        """Return the built-in, whose results have the types `specs` (`ArraySpec`).

        It returns one array, or several `within` a tuple or a list. Anything unusual, such as non-contiguous arrays, goes to `fallback`.
        """


class Executable(NamedTuple):
    """A compiled program, as `Backend.compile` returns it."""

    #: The function ``(donate, *buffers) -> buffers``; `donate` lets it overwrite the donated inputs.
    run: Callable[..., Sequence[Any]]
    #: Calls the program with arrays in less time than Python takes; None if this program or the backend has no such function.
    of_arrays: OfArrays | None = None
    #: The positions of arguments that `run` had to copy since the list was last cleared, as they were not contiguous. The caller may
    #: replace their buffers by contiguous ones, and clears the list. None if `run` takes buffers with any strides.
    copied: list[int] | None = None
    #: Whether `run` returns once the device has its work, and waits for nothing that another device does.
    submits: bool = False


class Backend(Protocol):
    """The interface between `jit` and devices: buffers, kernels and programs."""

    def put(self, values: np.ndarray) -> Any:
        """Return a device buffer with these elements; it may keep the NumPy array."""

    def get(self, buffer: Any) -> np.ndarray:
        """Return a buffer's elements as a NumPy array."""

    def wait(self, buffer: Any) -> None:
        """Return when the buffer's elements are computed."""

    def is_ready(self, buffer: Any) -> bool:
        """Return whether the buffer's elements are computed."""

    def host_elements(self, buffer: Any) -> np.ndarray | None:
        """Return a buffer's elements if they are on the host already, else None."""

    def exclusive(self, buffers: Sequence[Any]) -> bool:
        """Return True if no other buffers share the memory of these (at least one)."""

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if the device has arrays of this dtype."""

    def kernel(self, primitive: Any, avals_in: tuple[Any, ...], params: dict[str, Any], pipeline: Any) -> Callable[..., tuple[Any, ...]]:
        """Return one primitive as a function of buffers; `pipeline` lowers its programs."""

    @property
    def target(self) -> Any:
        """The compiler's target (`compiler/target.py`); None if NumPy runs programs."""

    def compile(self, closed: Any, donated: Sequence[bool], pipeline: Any) -> Executable:
        """Compile a program.

        `donated` has a flag for each input; `core.arrays.memory.Donations` also pairs results with donated inputs. `pipeline` is
        `compiler/pipeline.py`, loaded when it is used.
        """

    def temporaries(self, closed: Any, donated: Sequence[bool], pipeline: Any) -> int:
        """Return the most bytes that a program needs for intermediate values."""

    def timed(self, closed: Any, donated: Sequence[bool], pipeline: Any) -> Any:
        """Return a program that records the time of each kernel, or None."""

    def hardware(self) -> Hardware:
        """Describe the device."""

    def memory(self) -> MemoryStats:
        """Return the state of the device's memory."""

    def work(self) -> WorkStats:
        """Return the work of the device so far."""

    def synchronize(self, timeout: float | None) -> None:
        """Wait until the device is idle.

        Raises `DeviceTimeoutError` when nothing is finished for `timeout` seconds (None: as set).
        """

    def limit_memory(self, most: int | None) -> None:
        """Allow this many bytes at most (None: no limit)."""

    def recover(self, every: int | None) -> None:
        """Recover from device loss, with checkpoints after so many calls (None: never)."""

    def free_memory(self) -> None:
        """Release memory that is pooled for reuse."""


class Device:
    """One processor that holds arrays and runs programs.

    >>> vf.devices("cpu")[0]
    CpuDevice(id=0)
    >>> vf.devices("cpu")[0].kind
    'cpu'

    Attributes:
        platform: "cpu" or "gpu".
        id: its index in `devices(platform)`.
        device_kind: its name.
    """

    __slots__ = ("__weakref__", "backend", "device_kind", "id", "platform")
    #: The sharding of arrays on a group of devices (`core.devices.placement`).
    sharding: ClassVar[Any] = None

    def __init__(self, platform: str, id: int, device_kind: str, backend: Backend) -> None:
        self.platform = platform
        self.id = id
        self.device_kind = device_kind
        self.backend = backend

    def __repr__(self) -> str:
        name = "" if self.device_kind == self.platform else f', "{self.device_kind}"'
        return f"{self.platform.capitalize()}Device(id={self.id}{name})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    def compile(self, closed: Any, donated: Sequence[bool], pipeline: Any) -> Executable:
        """Compile a program, as `Backend.compile` does.

        One with collectives between the devices of a mesh is compiled for all of these.

        Raises `ProgramMismatchError` unless all processes compile it.
        """
        if _compile_for_mesh is not None and (executable := _compile_for_mesh(closed, self, pipeline)) is not None:
            return executable
        self.check_program(closed)
        return self.backend.compile(closed, donated, pipeline)

    def check_program(self, closed: Any) -> None:
        """Raise `ProgramMismatchError` unless all processes compile a program now."""
        if _check_program is not None:
            _check_program(closed, self.backend.hardware().driver)

    def members(self) -> set[Device]:
        """Return a set of the device alone; groups return their devices."""
        return {self}

    @property
    def process_index(self) -> int:
        """The index of the process that it belongs to: this one."""
        return process_rank()

    @property
    def name(self) -> str:
        """The name that its driver gives it."""
        return self.device_kind

    @property
    def kind(self) -> str:
        """One of "discrete", "integrated" and "cpu" (a GPU may be software)."""
        return self.backend.hardware().kind

    @property
    def features(self) -> tuple[str, ...]:
        """The optional capabilities that it has."""
        return self.backend.hardware().features

    @property
    def limits(self) -> dict[str, int]:
        """Limits by name: WebGPU's for a GPU, none for the CPU."""
        return dict(self.backend.hardware().limits)

    @property
    def local_hardware_id(self) -> int:
        """The index of the device, `id`."""
        return self.id

    @property
    def host_id(self) -> int:
        """The index of its process, `process_index`."""
        return self.process_index

    task_id = host_id

    def memory_stats(self) -> dict[str, int]:
        """Return the state of its memory, in bytes.

        These are the bytes in use, at most in use, allocated, and the limit if there is one.

            >>> sorted(vf.devices("cpu")[0].memory_stats())[:2]
            ['bytes_in_use', 'bytes_reserved']
        """
        memory = self.backend.memory()
        stats = {"bytes_in_use": memory.in_use, "peak_bytes_in_use": memory.peak, "bytes_reserved": memory.held}
        return stats if memory.limit is None else {**stats, "bytes_limit": memory.limit}

    def memory(self, kind: str = "device") -> DeviceMemory:
        """Return its memory; raise `ArgumentError` for a kind that it lacks."""
        if kind != "device":
            raise ArgumentError(f"{self} has memory of the kind 'device' alone, got {kind!r}")
        return DeviceMemory(self)

    def default_memory(self) -> DeviceMemory:
        """Return its memory."""
        return DeviceMemory(self)

    def addressable_memories(self) -> list[DeviceMemory]:
        """Return its memory in a list."""
        return [DeviceMemory(self)]

    def __reduce__(self) -> tuple[Any, ...]:
        return find_device, (str(self),)


class DeviceMemory(NamedTuple):
    """The memory of a device."""

    device: Device
    kind: str = "device"

    @property
    def platform(self) -> str:
        """The platform of the device."""
        return self.device.platform

    def addressable_by_devices(self) -> list[Device]:
        """Return the devices that can read it."""
        return [self.device]


class RemoteDevice(Device):
    """A device of another process: a position of a mesh."""

    __slots__ = ("_process",)

    def __init__(self, platform: str, process: int) -> None:
        self.platform, self.id, self.device_kind, self._process = platform, process, platform, process

    @property
    def backend(self) -> NoReturn:  # type: ignore[override]  # there is none here
        """None: raises `DeviceError`."""
        raise DeviceError(f"{self} belongs to process {self._process}; this is process {process_rank()}, which cannot use it")

    @property
    def process_index(self) -> int:
        """The index of the process that it belongs to."""
        return self._process

    def __str__(self) -> str:
        return f"{self.platform}@{self._process}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteDevice) and (other.platform, other._process) == (self.platform, self._process)

    def __hash__(self) -> int:
        return hash((self.platform, self._process))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteDevice, (self.platform, self._process)


class Platform(Protocol):
    """A module that discovers the devices of a platform."""

    def discover(self) -> list[Device]:
        """Return the devices; raise `DeviceError` if there is none."""


_platforms: dict[str, Platform] = {}
_devices_by_platform: dict[str, list[Device]] = {}
_lock = threading.RLock()
_process_default: Device | None = None
_default_spec: str | None = None
_visible_platforms: frozenset[str] | None = None
_cpu_count: int | None = None
_scoped_default: ContextVar[Device | None] = ContextVar("default_device", default=None)


def register_platform(name: str, platform: Platform) -> None:
    """Register a platform, which is asked for its devices once, when they are needed."""
    _platforms[name] = platform


def devices(backend: str | None = None) -> list[Device]:
    """Return the devices of a platform ("cpu", …), which JAX calls a backend here.

    The default is the platform of the default device. With several processes (`volta_fn.distributed`) they are one device of each, in the
    order of the processes.

    Raises `DeviceError` for an unknown platform.

    >>> vf.devices("cpu")
    [CpuDevice(id=0)]
    """
    local = local_devices(backend=backend)
    if world_size() == 1:
        return local
    return [local[0] if rank == process_rank() else RemoteDevice(local[0].platform, rank) for rank in range(world_size())]


def available_devices() -> tuple[Device, ...]:
    """Return the devices of all platforms that have any, those of the CPU first."""
    available: list[Device] = []
    for platform in _platforms:
        with contextlib.suppress(DeviceError):
            available += local_devices(backend=platform)
    return tuple(available)


def set_cpu_devices(count: int) -> None:
    """Split the CPU into several devices, which share its memory and cores.

    This serves to try programs for several devices. JAX's setting for it is `jax_num_cpu_devices`. Raises `ArgumentError` if `count` is
    less than 1, or than the number of devices that are in use: before the CPU's first use any number can replace another.

    >>> vf.set_cpu_devices(len(vf.devices("cpu")))
    """
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or count < 1:
        raise ArgumentError(f"set_cpu_devices: the number of devices must be a positive integer, got {count!r}")
    global _cpu_count
    with _lock:
        if "cpu" not in _devices_by_platform:
            _cpu_count = int(count)
            return
        existing = local_devices(backend="cpu")
        if count < len(existing):
            raise ArgumentError(f"set_cpu_devices: there are {len(existing)} devices in use already, more than {count}")
        first = existing[0]
        _devices_by_platform["cpu"] = existing + [
            Device("cpu", i, first.device_kind, first.backend) for i in range(len(existing), int(count))
        ]


def chosen_cpu_count() -> int | None:
    """Return the number that `set_cpu_devices` chose before the CPU was used, or None."""
    return _cpu_count


def found_devices() -> tuple[Device, ...]:
    """Return the devices discovered so far; no other device has had any work."""
    with _lock:
        return tuple([device for group in _devices_by_platform.values() for device in group])


def device_count(backend: str | None = None) -> int:
    """Return the number of devices of a platform (default: the default device's).

    >>> vf.device_count() == len(vf.devices())
    True
    """
    return len(devices(backend))


def _check_platform(name: str) -> None:
    """Raise `DeviceError` unless a platform is registered."""
    if name not in _platforms:
        remedy = "; GPUs of all makers are 'gpu', the second is 'gpu:1'" if name in ("cuda", "rocm", "mps", "xpu") else ""
        raise DeviceError(f"Unknown backend {name!r}; this installation knows {sorted(_platforms)}{remedy}")
    if _visible_platforms is not None and name not in _visible_platforms:
        raise DeviceError(f"Unknown backend {name!r}: the setting jax_platforms hides all but {sorted(_visible_platforms)}")


def local_devices(process_index: int | None = None, backend: str | None = None, host_id: int | None = None) -> list[Device]:
    """Return the devices of this process; see `devices`.

    Raises `ArgumentError` for another process, whose devices this one does not know.
    """
    for index in (process_index, host_id):
        if index is not None and index != process_rank():
            raise ArgumentError(f"local_devices: this is process {process_rank()}, which does not know the devices of {index}")
    name = backend or current_default_device().platform
    with _lock:
        _check_platform(name)
        if name not in _devices_by_platform:
            _devices_by_platform[name] = _platforms[name].discover()
        return list(_devices_by_platform[name])


def local_device_count(backend: str | None = None) -> int:
    """Return the number of devices of this process."""
    return len(local_devices(backend=backend))


def process_index(backend: str | None = None) -> int:
    """Return the rank of this process; 0 without `distributed.initialize`.

    It is the same for all platforms; raises `DeviceError` for the name of none.
    """
    if backend is not None:
        _check_platform(backend)
    return process_rank()


def process_count(backend: str | None = None) -> int:
    """Return the number of processes, 1 without `initialize`; see `process_index`."""
    if backend is not None:
        _check_platform(backend)
    return world_size()


def default_backend() -> str:
    """Return the platform of the default device, such as "cpu".

    >>> vf.default_backend() in ("cpu", "gpu")
    True
    """
    return current_default_device().platform


def find_device(spec: str | Device) -> Device:
    """Return the device that "cpu", "cpu:0", … names; devices pass through."""
    if isinstance(spec, Device):
        return spec
    platform, _, number = str(spec).partition(":")
    candidates = local_devices(backend=platform)
    index = int(number) if number.isdigit() else 0
    if (number and not number.isdigit()) or index >= len(candidates):
        raise DeviceError(f"no device {spec!r}; platform {platform!r} has {[str(d) for d in candidates]}")
    return candidates[index]


def device_memory_stats(device: str | Device | None = None) -> MemoryStats:
    """Return the state of a device's memory (default: the default device).

    On the CPU it is that of the process.

    >>> stats = vf.device_memory_stats("cpu")
    >>> 0 < stats.in_use <= stats.peak
    True
    """
    return _device(device).backend.memory()


def device_work_stats(device: str | Device | None = None) -> WorkStats:
    """Return the work of a device (default: the default device) so far.

    >>> vf.device_work_stats("cpu").under_way
    0
    """
    return _device(device).backend.work()


def synchronize(device: str | Device | None = None, *, timeout: float | None = None, retries: int = 0) -> None:
    """Wait until a device (default: the default device) is idle.

    Args:
        timeout: seconds without progress after which a wait fails (None: VOLTA_GPU_TIMEOUT, or 300).
        retries: how often to wait again after a time-out, a tenth of a second later.

    Raises `DeviceTimeoutError` after the last wait, and `DeviceError` if the device was lost.
    """
    if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout >= 0):
        raise ArgumentError(f"synchronize: timeout must be a number of seconds or None, got {timeout!r}")
    for retries_left in reversed(range(retries + 1)):
        try:
            return _device(device).backend.synchronize(timeout)
        except DeviceTimeoutError:
            if not retries_left:
                raise
            time.sleep(_BETWEEN_WAITS)
    raise ArgumentError(f"synchronize: retries must not be negative, got {retries}")


def limit_memory(most: int | None, device: str | Device | None) -> None:
    """Limit a device's memory; `jit.cache.set_memory_limit` also clears its programs."""
    if most is not None and not (isinstance(most, numbers.Integral) and most >= 0):
        raise ArgumentError(f"set_memory_limit: the limit must be a number of bytes or None, got {most!r}")
    _device(device).backend.limit_memory(most)


def set_recovery(policy: str | None, *, every: int = 100, device: str | Device | None = None) -> None:
    """Choose the policy for a GPU's loss by a reset, its driver or suspension.

    By default operations on its arrays raise `DeviceError`. With the policy "checkpoint" they take longer, and give the same bits: the
    device is opened again, and what was lost is computed by the same programs from copies on the host.

    Args:
        policy: "checkpoint", or None to end it.
        every: how many calls of programs and eager operations are between two copies of the arrays in use. More calls cost less time while
            nothing is lost, and more time and host memory when something is: copies of what is put on the device are kept, too.
        device: the device (default: the default device). The CPU is not lost; on it nothing changes.

    Callbacks, such as `io_callback`, of the call that was under way are called again; those of other calls are not. Set the policy before
    arrays are made: those from before it are copied when they are first used. Threads that use the device wait for each other.

    Raises `ArgumentError` for an unknown policy, or if `every` is no positive integer.

    >>> vf.set_recovery("checkpoint", every=50)
    >>> vf.set_recovery(None)
    """
    if policy not in (None, "checkpoint"):
        raise ArgumentError(f"set_recovery: the policy is 'checkpoint' or None, got {policy!r}")
    if isinstance(every, bool) or not isinstance(every, numbers.Integral) or every < 1:
        raise ArgumentError(f"set_recovery: every is a positive number of calls, got {every!r}")
    _device(device).backend.recover(None if policy is None else int(every))


def free_memory(device: str | Device | None = None) -> None:
    """Return memory that an idle device keeps for reuse to the system."""
    _device(device).backend.free_memory()


def _device(device: str | Device | None) -> Device:
    return current_default_device() if device is None else find_device(device)


def current_default_device() -> Device:
    """Return the device of new arrays.

    It is that of `default_device`'s scope, else of `set_default_device`, else VOLTA_DEVICE, else the CPU.
    """
    global _process_default
    scoped = _scoped_default.get()
    if scoped is not None:
        return scoped
    if _process_default is None:
        _process_default = find_device(_default_spec or os.environ.get("VOLTA_DEVICE") or "cpu")
    return _process_default


def set_default_device(device: str | Device) -> None:
    """Make `device` the default of the process."""
    global _process_default
    _process_default = find_device(device)


def set_default_spec(spec: str | None) -> None:
    """Name the default device of the process, which its first use finds.

    None means that no default was set. Raises `DeviceError` for an unknown platform, and starts none.
    """
    global _process_default, _default_spec
    if spec is not None:
        _check_platform(spec.partition(":")[0])
    _process_default, _default_spec = None, spec


def set_visible_platforms(names: Sequence[str] | None) -> None:
    """Hide the devices of all platforms but these and the CPU; None hides none."""
    global _visible_platforms
    _visible_platforms = None if names is None else frozenset([*names, "cpu"])


@contextlib.contextmanager
def default_device(new_val: str | Device) -> Iterator[Device]:
    """Make a device the default of this thread or asyncio task in a ``with`` block.

    >>> with vf.default_device("cpu"):
    ...     x = vf.numpy.zeros(3)
    >>> x.device
    CpuDevice(id=0)
    """
    token = _scoped_default.set(find_device(new_val))
    try:
        yield _scoped_default.get() or current_default_device()
    finally:
        _scoped_default.reset(token)
