"""The machine, and limits of cores and threads for every library."""

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
    """Return the frameworks that can be imported, ours first."""
    return tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name))


def has_onnxruntime() -> bool:
    """Return True if onnxruntime can run models that are built here."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def search_path() -> str:
    """Return a PYTHONPATH by which other processes find these sources first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads(threads: int) -> None:
    """Limit this process and its children to so many cores and threads.

    To be called before any framework is imported.
    """
    if threads > cores():
        raise SystemExit(f"--threads {threads}: there are {cores()} cores")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for variable in POOLS:
        os.environ[variable] = str(threads)


def on_gpu() -> bool:
    """Return True if the frameworks compute on the GPU in this run."""
    return os.environ.get("BENCHMARK_DEVICE") == "gpu"


def use_gpu() -> None:
    """Let frameworks started later compute on the GPU, in float32 without TF32.

    Workloads that ask for TF32 have it. PyTorch is told so where it is started: NVIDIA_TF32_OVERRIDE=0 would keep its libraries from TF32
    where it is asked for, too.
    """
    os.environ |= {"BENCHMARK_DEVICE": "gpu", "VOLTA_DEVICE": "gpu", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def machine_code() -> bool:
    """Return True if volta_fn may compile machine code: llvmlite, no VOLTA_NATIVE=0."""
    return importlib.util.find_spec("llvmlite") is not None and os.environ.get("VOLTA_NATIVE") != "0"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((entry.split(":")[1].strip() for entry in text.splitlines() if entry.startswith("model name")), platform.machine())


def describe(threads: int) -> dict[str, Any]:
    """Describe what the numbers depend on."""
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "jax", "torch") if importlib.util.find_spec(name)}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": threads,
        "machine_code": machine_code(),
        "load_at_start": load,
    }
