"""Print where the first step of this process spends its time: python -m benchmarks.gpu.warm WORKLOAD [--profile N]."""

from __future__ import annotations

import time

START = time.perf_counter()

import cProfile  # noqa: E402
import io  # noqa: E402
import pstats  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402

import volta_fn as vf  # noqa: E402
from benchmarks.workloads import named  # noqa: E402
from benchmarks.workloads.case import contestant  # noqa: E402

IMPORTED = time.perf_counter()
EVENTS: list[tuple[str, float, float, float, str]] = []


def watch(owner, name, label=None, size=None):
    function = getattr(owner, name)
    label = label or name

    def timed(*args, **kwargs):
        begin, cpu = time.perf_counter(), time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            end = time.perf_counter()
            EVENTS.append(
                (label, begin, end, time.thread_time() - cpu, threading.current_thread().name[:4] + (size(*args) if size else ""))
            )

    setattr(owner, name, timed)


def main() -> None:
    workload, profiled = sys.argv[1], "--profile" in sys.argv
    if True:
        from volta_fn.targets.gpu import adapter, program
        from volta_fn.targets.nvidia import compilation, driver, library, stream
    from importlib import import_module

    compile_ = import_module("volta_fn.jit.compile")
    import volta_fn.targets.wgsl.program_plan as plan
    import volta_fn.targets.gpu.pipelines as pipelines
    from volta_fn.compiler import pipeline
    from volta_fn.targets.wgsl.writer import Writer
    from volta_fn.runtime import caches

    watch(driver.NvidiaDriver, "__init__", "open driver")
    watch(library.Functions, "__init__", "cuInit")
    watch(library.Context, "__init__", "cuCtxCreate")
    watch(adapter.Gpu, "__init__", "open Gpu")
    function_ = import_module("volta_fn.jit.cache")
    for module in (compile_, function_):
        if hasattr(module, "trace_function"):
            watch(module, "trace_function", "trace")
    watch(program, "plan_program")
    watch(Writer, "write", "writer")
    for name in ("needed_checks", "fma_rounds_once", "keeps_subnormals", "loop_iterations"):
        watch(adapter, name) if hasattr(adapter, name) else watch(pipelines, name)
    watch(program.Program, "__init__", "Program")
    watch(program.Program, "__call__", "call")
    watch(compilation.Compiler, "binary")
    watch(compilation.caches, "read", "disk read")
    watch(driver.NvidiaDriver, "_load", "load", lambda self, code, shared: f" {code[:4]!r} {len(code)}")
    watch(driver.NvidiaDriver, "_graph", "graph")
    watch(driver, "instantiate")
    watch(caches, "sources_digest", "digest")
    if profiled:
        threading.setprofile(None)
    began = time.perf_counter()
    call, wait = contestant("volta_fn", named(f"gpu {workload}").case(False))
    wait(vf.numpy.zeros(3) + 1)
    prepared = time.perf_counter()
    mark = len(EVENTS)
    profile = cProfile.Profile()
    times, results = [], []
    for number in range(4):
        if profiled and not number:
            profile.enable()
        start = time.perf_counter()
        result = call()
        returned = time.perf_counter()
        wait(result)
        end = time.perf_counter()
        results.append(float(result).hex())
        if profiled and not number:
            profile.disable()
        times.append(f"{end - start:.4f} ({returned - start:.4f})")
        if not number:
            first, first_end = start, end
    print(f"== {workload}: import {IMPORTED - START:.3f}, prepare {prepared - began:.3f}, steps {' '.join(times)}, losses {' '.join(results)}")
    for title, events in (("before the first step", EVENTS[:mark]), ("first step", [e for e in EVENTS[mark:] if e[1] < first_end])):
        print(f"-- {title}: label, number, sum of wall, sum of CPU, first begin, last end")
        labels = {}
        for e in events:
            labels.setdefault(e[0], []).append(e)
        origin = began if title.startswith("before") else first
        for label, es in labels.items():
            print(
                f"{label:18s} {len(es):5d} {sum(e[2] - e[1] for e in es):8.3f} {sum(e[3] for e in es):8.3f} {min(e[1] for e in es) - origin:8.3f} {max(e[2] for e in es) - origin:8.3f}"
            )
    loads = sorted([e for e in EVENTS if e[0] == "load"], key=lambda e: e[1] - e[2])
    for e in loads[:8]:
        print(f"load {e[2] - e[1]:.4f} cpu {e[3]:.4f} {e[4]}")
    ptx = [e for e in loads if "ELF" not in e[4]]
    print(
        f"loads {len(loads)} of which PTX {len(ptx)}: PTX {sum(e[2] - e[1] for e in ptx):.3f} s, others {sum(e[2] - e[1] for e in loads) - sum(e[2] - e[1] for e in ptx):.3f}"
    )
    if profiled:
        text = io.StringIO()
        stats = pstats.Stats(profile, stream=text)
        stats.sort_stats("cumulative").print_stats(45)
        stats.sort_stats("tottime").print_stats(25)
        print("\n".join(line[:130] for line in text.getvalue().splitlines() if line.strip()))


main()
