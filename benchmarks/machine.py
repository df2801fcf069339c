"""The machine and its limits: so many cores and threads for every library, and what there is to say about the computer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

FRAMEWORKS = ("volta_fn", "jax", "torch")
ROOT = Path(__file__).resolve().parent.parent
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # NPROC is XLA's


def installed() -> tuple[str, ...]:
    """The frameworks that can be imported, ours first."""
    return tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name))


def search_path() -> str:
    """PYTHONPATH for other processes: they find these sources first, and what this process finds."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads(threads: int) -> None:
    """Keep this process, and those that it starts, to so many cores, and every thread pool to so many threads.

    To be called before any framework is imported.
    """
    if threads > cores():
        raise SystemExit(f"--threads {threads}: there are {cores()} cores")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for variable in POOLS:
        os.environ[variable] = str(threads)


def on_gpu() -> bool:
    """Whether the frameworks compute on the GPU in this run."""
    return os.environ.get("BENCHMARK_DEVICE") == "gpu"


def use_gpu() -> None:
    """Let all frameworks that are started from now on compute on the GPU, in true float32: no TF32 anywhere."""
    os.environ |= {"BENCHMARK_DEVICE": "gpu", "VOLTA_DEVICE": "gpu", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    os.environ |= {"NVIDIA_TF32_OVERRIDE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def native_lane() -> bool:
    """Whether volta_fn may compile machine code: llvmlite is here, and VOLTA_NATIVE does not say no."""
    return importlib.util.find_spec("llvmlite") is not None and os.environ.get("VOLTA_NATIVE") != "0"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def describe(threads: int) -> dict[str, Any]:
    """What the numbers depend on."""
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "jax", "torch") if importlib.util.find_spec(name)}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": threads,
        "native_lane": native_lane(),
        "load_at_start": load,
    }
