"""Measure what verification adds to the time of compilation.

    python -m benchmarks.verification [--repeat N] [WORKLOAD ...]

Each program is traced and compiled anew, without any cache, with verification and without in alternation: as machine code of the CPU, as
shaders of a GPU, and as NumPy's plan. Times are seconds of processor time of all threads, of the fastest of several compilations.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["VOLTA_CACHE_DIR"] = ""  # so that everything is compiled

import numpy as np

import volta_fn as vf
from benchmarks.workloads import named
from benchmarks.workloads.case import library, map_arrays
from volta_fn.compiler import pipeline, verification
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.settings import current as settings
from volta_fn.targets.cpu.runtime import compile as cpu
from volta_fn.targets.gpu.program import Program
from volta_fn.targets.numpy.backend import NumpyBackend
from volta_fn.targets.wgsl.target import RoutineCache

WORKLOADS = ("train/mlp", "train/lenet", "train/lstm", "train/gpt")


def _machine_code(closed: ClosedJaxpr, donated: tuple[bool, ...]) -> None:
    cpu.CODE_CACHE.__init__()  # type: ignore[misc]  # forget all routines
    cpu.build(closed, donated, pipeline)


def _shaders(closed: ClosedJaxpr, donated: tuple[bool, ...]) -> None:
    gpu = vf.devices("gpu")[0].backend.gpu  # type: ignore[attr-defined]  # of GPUs only
    gpu.pipelines._recent.clear()
    gpu.routines = RoutineCache()
    Program(gpu, closed, donated, pipeline, allocate=False)


def _plan(closed: ClosedJaxpr, donated: tuple[bool, ...]) -> None:
    NumpyBackend().compile(closed, donated, pipeline)


FORMS: dict[str, Callable[[ClosedJaxpr, tuple[bool, ...]], None]] = {"machine code": _machine_code, "shaders": _shaders, "NumPy": _plan}


def _traced(name: str) -> tuple[Any, list[Any]]:
    case = named(name).case()
    args = map_arrays(lambda x: vf.ShapeDtypeStruct(np.shape(x), vf.numpy.asarray(x).dtype), case.inputs)
    return vf.jit(case.functional(library("volta_fn")), donate_argnums=(0,) if case.stateful else ()), args


def measure(name: str, form: str, repeat: int) -> tuple[float, float]:
    """Return the seconds of a compilation without and with verification."""
    function, args = _traced(name)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeat):
        for settings.verify in (False, True):
            vf.clear_caches()
            verification.violation_of.cache_clear()
            start = time.process_time()
            lowered = function.lower(*args)
            closed = lowered.jaxpr.replace()  # without results that are kept on it
            FORMS[form](closed, lowered._traced.donated)
            seconds[settings.verify].append(time.process_time() - start)
    return min(seconds[False]), min(seconds[True])


def main() -> None:
    """Print a row for each program and form."""
    parser = argparse.ArgumentParser(description="What verification adds to compilation.")
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help="names of workloads")
    parser.add_argument("--repeat", type=int, default=5, help="compilations of each kind")
    options = parser.parse_args()
    print(f"{'program':16} {'form':14} {'without':>9} {'with':>9} {'added':>7}")
    for name in options.workloads:
        for form in FORMS:
            off, on = measure(name, form, options.repeat)
            print(f"{name:16} {form:14} {off * 1e3:7.1f}ms {on * 1e3:7.1f}ms {on / off - 1:7.1%}", flush=True)


if __name__ == "__main__":
    main()
