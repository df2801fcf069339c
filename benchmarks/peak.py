"""Measure the peak memory of a training step in this fresh process.

    python -m benchmarks.peak WORKLOAD FRAMEWORK [--quick]

The process's resident memory with the framework and its compiler loaded is the baseline. Beyond it are counted parameters, data, moments,
what the framework keeps of its compilation, and the most that was in use during some steps. Memory that only the compiler needed is counted
separately: before the steps the kernel is told to forget the peak, where it can (Linux's /proc/self/clear_refs).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import sys
from pathlib import Path

from benchmarks.workloads import named
from benchmarks.workloads.case import contestant

STEPS = 5
WARM_UP = "call/jitted value and gradient"  # loads what a framework needs, its compiler included, before memory is counted
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status(field: str) -> int | None:
    """Read a field of the kernel's account of this process, in bytes."""
    if not STATUS.exists():
        return None
    entry = next((entry for entry in STATUS.read_text().splitlines() if entry.startswith(field + ":")), None)
    return None if entry is None else int(entry.split()[1]) * 1024


def highest() -> int:
    """Return the most resident memory since the start or since `forget_peak`."""
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return _status("VmHWM") or total


def settle() -> None:
    """Give back free memory: Python's cycles, and the pages that the C library keeps."""
    gc.collect()
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)


def forget_peak() -> bool:
    """Restart the peak from the memory in use; return False where the kernel cannot."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def measure(name: str, framework: str, quick: bool) -> dict[str, int]:
    """Return peak bytes of training steps, without and with compilation."""
    contestant(framework, named(WARM_UP).case()).call()
    settle()
    baseline = _status("VmRSS") or highest()
    call = contestant(framework, named(name).case(quick)).call
    call()
    everything = highest()
    settle()
    forget_peak()
    for _ in range(STEPS):
        call()
    steps = highest()
    return {"steps": max(steps - baseline, 0), "with_compilation": max(everything, steps) - baseline}


def main() -> None:
    """Measure one workload in one framework and print the result as JSON."""
    parser = argparse.ArgumentParser(description="Peak memory of one framework's training steps.")
    parser.add_argument("workload")
    parser.add_argument("framework")
    parser.add_argument("--quick", action="store_true", help="a tiny size")
    options = parser.parse_args()
    print(json.dumps(measure(options.workload, options.framework, options.quick)))


if __name__ == "__main__":
    main()
