"""Versions and devices, for reports of errors: `python -m volta_fn.info`."""

from __future__ import annotations

import os
import platform
import sys

from volta_fn.core.devices.device import available_devices
from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime.caches import cache_dir
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.threads import may_compile, thread_count
from volta_fn.signals import run

PACKAGES = ("numpy", "scipy", "llvmlite", "ml_dtypes", "optree", "safetensors", "wgpu")


def report() -> list[str]:
    """Return versions, devices and settings, one line each.

    >>> report()[0].startswith("volta_fn ")
    True
    """
    native = f"machine code for {host().cpu}, vectors of {host().vector_bytes} bytes" if may_compile() else "NumPy"
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("VOLTA_")}
    return [
        f"volta_fn {sys.modules['volta_fn'].__version__}, Python {platform.python_version()} ({sys.executable})",
        f"{platform.platform()}, {os.cpu_count()} CPUs",
        ", ".join(f"{package} {_version(package)}" for package in PACKAGES),
        f"jitted functions on the CPU: {native}, {thread_count()} threads",
        f"devices: {', '.join(map(repr, available_devices()))}",
        f"cache: {cache_dir() or 'none'}",
        f"settings: {settings or 'none'}",
    ]


def _version(package: str) -> str:
    return str(load(package).__version__) if is_installed(package) else "missing"


def main() -> None:
    """Print the report."""
    print("\n".join(report()))


if __name__ == "__main__":
    run(main)
