"""Select a GPU and describe its capabilities, through wgpu's C interface."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError, OutOfMemoryError, VoltaError
from volta_fn.lazy_imports import load
from volta_fn.runtime import threads

# ------------------------------------------------------------------------------
# Bind wgpu's C interface.
#
# Its calls cost a third of those of the Python classes around it, which serve everything that is called rarely.
# ------------------------------------------------------------------------------


class Native(NamedTuple):
    """The native library: functions, cffi, checked functions, and the error handler."""

    lib: Any
    ffi: Any
    checked: Any
    errors: Any
    #: The process that loaded it: a forked process has neither its threads nor its driver's state.
    process: int


#: The logger of the runtime; it writes to stderr if VOLTA_GPU_DEBUG=1.
log = logging.getLogger("volta_fn.gpu")
if os.environ.get("VOLTA_GPU_DEBUG", "0") != "0":
    log.setLevel(logging.DEBUG)
    log.addHandler(logging.StreamHandler())
    log.handlers[-1].setFormatter(logging.Formatter("%(relativeCreated).3f ms %(threadName)s: %(message)s"))

FORKED = (
    "this process was forked from one that had begun to use the GPU, which is not there in a fork. "
    "Start processes by multiprocessing's methods 'spawn' or 'forkserver', or use the device 'cpu' in forked ones"
)

_LOST = (
    "the GPU was lost, by a failure of its driver or a reset. {} again. "
    "set_recovery('checkpoint') has copies kept, with which programs go on"
)
LOST = _LOST.format("Arrays that were there are gone; make them")


def lost(array: str) -> str:
    """Return the message for the loss of an array of this description."""
    return _LOST.format(f"{array} is gone; make it")


def wgpu() -> Any:
    """Import the package wgpu on first use."""
    try:
        return load("wgpu")
    except ImportError as error:
        raise DeviceError(f"the platform 'gpu' needs the package wgpu ({error}); pip install wgpu, or use the device 'cpu'") from None


@functools.cache
def native() -> Native:
    """Load the library that the package wraps."""
    wgpu()
    logging.getLogger("wgpu").addHandler(logging.NullHandler())
    module = load("wgpu.backends.wgpu_native._api")
    extras = load("wgpu.backends.wgpu_native.extras")
    with contextlib.suppress(RuntimeError):  # another library has created the instance already, which serves as well
        # Without these flags wgpu would validate each indirect grid by a dispatch of its own. OpenGL offers no further GPU.
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"], flags=["Empty"])
    return Native(module.lib, module.ffi, module.libf, module.error_handler, os.getpid())


def typed(kind: str, message: str) -> VoltaError:
    """Return an error that the library reported as a `VoltaError`."""
    lowered = message.lower()
    if "lost" in lowered:
        return DeviceError(LOST)
    if kind == "OutOfMemory" or "out of memory" in lowered or "not enough memory" in lowered:
        return OutOfMemoryError(f"the GPU has no room: {message}")
    return DeviceError(f"the GPU's driver refused: {message}")


class Watched:
    """A context that raises the errors that the library reports in this thread.

    It is much cheaper than a check per call.
    """

    def __init__(self) -> None:
        self.errors = native().errors
        #: Whether the device is known to be lost; then no further call may be made.
        self.lost = False

    def __enter__(self) -> None:
        self.errors.capture("volta_fn")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        failure = self.errors.release("volta_fn")
        if failure is not None:
            self._note(failure[1])
            if error is None:
                raise typed(*failure)

    def _note(self, message: str) -> None:
        self.lost = self.lost or "lost" in message.lower()

    @contextlib.contextmanager
    def classes(self) -> Iterator[None]:
        """Return a context for the package's classes, whose errors become `VoltaError`s."""
        try:
            yield
        except wgpu().GPUError as error:
            self._note(str(error))
            raise typed("OutOfMemory" if isinstance(error, wgpu().GPUOutOfMemoryError) else "", str(error)) from error


# ------------------------------------------------------------------------------
# Select a GPU and describe its capabilities.
#
# VOLTA_GPU_ADAPTER selects by a substring of the name. VOLTA_GPU_LIMITS=webgpu restricts features and limits to what every WebGPU
# device has.
# ------------------------------------------------------------------------------

#: Features that shaders may use, and the fields of `TargetCapabilities` for them.
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
        available = wgpu().gpu.enumerate_adapters_sync()
    best: dict[tuple[str, int], Any] = {}
    for adapter in available:
        info = adapter.info
        key = (info["device"], info["device_id"] if info["adapter_type"] != "CPU" else 0)
        if key not in best or _rank(adapter) < _rank(best[key]):
            best[key] = adapter
    wanted = os.environ.get("VOLTA_GPU_ADAPTER", "")
    chosen = [a for a in sorted(best.values(), key=_rank) if wanted.lower() in a.info["device"].lower()]
    if not chosen:
        names = [a.info["device"] for a in available]
        raise DeviceError(
            f"no GPU is called {wanted!r} (VOLTA_GPU_ADAPTER); there are {names}"
            if available
            else "no GPU was found: install a driver for Vulkan, Metal or DirectX 12 (on Linux, mesa-vulkan-drivers has one in software), "
            "or use the device 'cpu'"
        )
    return chosen


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


def open_device(adapter: Any) -> Opened:
    """Open a device with all features and limits of its adapter.

    VOLTA_GPU_LIMITS=webgpu restricts it to those of every WebGPU device. Raises `DeviceError` if it cannot be opened.
    """
    if native().process != os.getpid():
        raise DeviceError(FORKED)
    least = threads.value_of("VOLTA_GPU_LIMITS") == "webgpu"
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
