"""Checks of this machine, with remedies: `python -m volta_fn.doctor`."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from volta_fn.core.arrays.array import from_host
from volta_fn.core.devices.device import Device, available_devices
from volta_fn.errors import VoltaError
from volta_fn.inspection.explanation import aligned
from volta_fn.jit import jit
from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime.caches import cache_dir
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.threads import lacks_compiler, may_compile, thread_count
from volta_fn.settings import value_of
from volta_fn.signals import run

#: Optional packages and their purposes.
PACKAGES = {
    "llvmlite": "machine code for the CPU",
    "scipy": "LAPACK in compiled programs",
    "wgpu": "the GPU",
    "safetensors": "saving and loading models",
    "optree": "fast pytrees",
    "ml_dtypes": "bfloat16",
}
_OK, _WARNING, _FAILED = "ok", "warning", "failed"


class Diagnosis(NamedTuple):
    """The result of one check: its state, details, and the remedy if there is one."""

    name: str
    state: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """All diagnoses; it prints as a table, followed by the remedies."""

    diagnoses: tuple[Diagnosis, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(d.state != _FAILED for d in self.diagnoses)

    def __str__(self) -> str:
        rows = aligned([(d.state, d.name, d.detail) for d in self.diagnoses])
        remedies = [f"- {d.name}: {d.remedy}" for d in self.diagnoses if d.remedy]
        return "\n".join([*rows, *(["", "What to do:", *remedies] if remedies else [])])

    __repr__ = __str__


def doctor() -> Report:
    """Check packages, devices, drivers and caches, by a test of each.

    >>> doctor().healthy
    True
    """
    return Report((*_versions(), *_packages(), _machine_code(), *_devices(), _gpu_driver(), _nvidia_driver(), _cache(), *_settings()))


def _versions() -> Iterator[Diagnosis]:
    version = sys.modules["volta_fn"].__version__
    yield Diagnosis("volta_fn", _OK, f"{version}, Python {platform.python_version()}, NumPy {np.__version__}")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        detail = "without its lock (free-threaded), which is not supported: calls are slower, and threads may meet in the middle of one"
        yield Diagnosis("Python", _WARNING, detail, "use the ordinary build of Python, or set PYTHON_GIL=1")
    yield Diagnosis("machine", _OK, f"{platform.platform()}, {os.cpu_count()} CPUs, {thread_count()} threads")


def _packages() -> Iterator[Diagnosis]:
    for package, purpose in PACKAGES.items():
        if not is_installed(package):
            yield Diagnosis(package, _WARNING, f"not installed: no {purpose}", f"pip install {package}")
            continue
        try:
            yield Diagnosis(package, _OK, str(getattr(load(package), "__version__", "installed")))
        except Exception as error:  # a package may fail in any way
            yield Diagnosis(
                package, _FAILED, f"cannot be imported: {error!r:.120}", f"reinstall it: pip install --force-reinstall {package}"
            )


def _machine_code() -> Diagnosis:
    name = "machine code"
    if may_compile():
        here = host()
        return Diagnosis(name, _OK, f"for {here.cpu}, vectors of {here.vector_bytes} bytes")
    if lacks_compiler():
        return Diagnosis(name, _WARNING, "programs run on NumPy, which may take ten times as long", "pip install llvmlite scipy")
    return Diagnosis(name, _OK, "switched off by VOLTA_NATIVE=0")


def _devices() -> Iterator[Diagnosis]:
    for device in available_devices():
        software = device.platform == "gpu" and device.kind == "cpu"
        description = "in software, slow" if software else device.kind
        diagnosis = _run_test(f"{device.platform} {device.id}", lambda device=device: _self_test(device), description)  # type: ignore[misc]
        yield diagnosis._replace(state=_WARNING) if software and diagnosis.state == _OK else diagnosis


def _run_test(name: str, test: Callable[[], float], description: str) -> Diagnosis:
    try:
        off = test()
    except Exception as error:  # drivers fail in any way
        remedy = "update the driver, or leave the device out with VOLTA_DEVICE=cpu"
        return Diagnosis(name, _FAILED, f"{description}: {error!r:.160}", remedy)
    if off > _TOLERANCE:
        remedy = "crosscheck(f)(*args) tells which operation is wrong; update the driver"
        return Diagnosis(name, _FAILED, f"{description}: a test is off by {off:.2g}", remedy)
    return Diagnosis(name, _OK, f"{description}: a test program is right to {off:.1g}")


_TOLERANCE = 1e-4


def _self_test(device: Device) -> float:
    """Run a small program on a device; return its largest relative error."""
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    on_device = from_host(x.copy(), device=device)
    result = np.asarray(jit(lambda a: (a @ a.T).sum(axis=0) + abs(a).max())(on_device))
    wide = x.astype(np.float64)
    expected = (wide @ wide.T).sum(axis=0) + np.abs(wide).max()
    return float(np.max(np.abs(result - expected) / np.abs(expected).max()))


def _gpu_driver() -> Diagnosis:
    name = "GPU driver"
    gpus = [device for device in available_devices() if device.platform == "gpu"]
    if not gpus:
        if not is_installed("wgpu"):
            return Diagnosis(name, _WARNING, "unknown, as wgpu is not installed", "pip install wgpu")
        remedy = "install a driver for Vulkan, Metal or DirectX 12 (on Linux mesa-vulkan-drivers has one in software)"
        return Diagnosis(name, _WARNING, "no GPU was found", remedy)
    try:
        hardware = gpus[0].backend.hardware()
    except VoltaError as error:
        return Diagnosis(name, _FAILED, error.message, "update the driver")
    missing = [feature for feature in ("shader-f16", "subgroup", "timestamp-query") if feature not in hardware.features]
    features = ", ".join(hardware.features) or "core WebGPU"
    description = f"{hardware.kind}, through {hardware.driver}, {features}" + (f"; without {', '.join(missing)}" if missing else "")
    if hardware.kind == "cpu":
        return Diagnosis(name, _WARNING, f"a GPU in software, slow: {description}", "install the driver of the GPU, if the machine has one")
    return Diagnosis(name, _OK, description)


def _nvidia_driver() -> Diagnosis:
    """Tell whether programs may run through NVIDIA's own driver, and why not."""
    name = "NVIDIA's driver"
    try:
        gpus = load("volta_fn.targets.nvidia.driver").adapters()
    except VoltaError as error:
        return Diagnosis(name, _OK, f"not used: {error.message}")
    used = "not used: VOLTA_GPU_DRIVER=wgpu selects wgpu" if value_of("VOLTA_GPU_DRIVER") == "wgpu" else "used"
    return Diagnosis(name, _OK, f"{', '.join(gpu.name for gpu in gpus)}; {used}")


def _cache() -> Diagnosis:
    folder = cache_dir()
    if folder is None:
        return Diagnosis("cache", _WARNING, "none: each process compiles anew", "set VOLTA_CACHE_DIR to a folder, or unset it")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return Diagnosis("cache", _FAILED, f"{path} cannot be written: {error}", "set VOLTA_CACHE_DIR to a folder that can be written")
    held = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return Diagnosis("cache", _OK, f"{path}, {held / 1e6:,.1f} MB; python -m volta_fn.cache verifies and clears it")


def _settings() -> Iterator[Diagnosis]:
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("VOLTA_")}
    yield Diagnosis("settings", _OK, ", ".join(f"{name}={value}" for name, value in variables.items()) or "none")


# The command.


class _Doctor(ModuleType):
    """A module that can be called like the function whose name it has.

    ``import volta_fn.doctor`` replaces that function by it.
    """

    def __call__(self) -> Report:
        return doctor()


sys.modules[__name__].__class__ = _Doctor


def main() -> int:
    """Print the report of `doctor`; return 1 if a check failed."""
    report = doctor()
    print(report)
    return int(not report.healthy)


if __name__ == "__main__":
    run(main)
