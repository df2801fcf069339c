"""Take the first training step on NVIDIA apart: `python -m benchmarks.gpu.first_steps WORKLOAD …`."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

BEGIN = float(os.environ.get("FIRST_BEGIN", "0")) or time.perf_counter()
FILE = os.environ.get("FIRST_TRACE", "")


def note(name: str, start: float, end: float, extra: str = "") -> None:
    line = json.dumps([os.getpid(), threading.get_ident() % 10000, name, start - BEGIN, end - BEGIN, extra])
    if FILE:
        with open(FILE, "a") as file:
            file.write(line + "\n")


def timed(module: Any, name: str, label: str = "", extra: Any = None) -> None:
    inner = getattr(module, name)

    @functools.wraps(inner)
    def outer(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*args, **options)
        finally:
            note(label or name, start, time.perf_counter(), extra(*args) if extra else "")

    setattr(module, name, outer)


def worker() -> None:
    note("worker python", BEGIN, time.perf_counter())
    start = time.perf_counter()
    from volta_fn.targets.nvidia import compilation

    note("worker import", start, time.perf_counter())
    timed(compilation, "_llvm")
    timed(compilation, "_context")
    timed(compilation, "functions")
    timed(compilation, "_llvm_ir_of", "translate", lambda s, **o: str(len(s)))
    timed(compilation, "compile_ptx", "llvm")
    timed(compilation, "link", "link", lambda a, b, p: f"{len(p)} {b'wgmma' in p}")
    timed(compilation, "_answer", "answer", lambda *a: str(len(a[0])))
    compilation.serve()


def ours(workload: str) -> None:
    note("python", 0 + BEGIN, time.perf_counter())
    start = time.perf_counter()
    import volta_fn as vf
    import volta_fn.numpy as jnp

    note("import", start, time.perf_counter())
    from benchmarks.workloads import named
    from benchmarks.workloads.case import contestant

    start = time.perf_counter()
    from volta_fn.targets.gpu import adapter, backend, pipelines, program
    from volta_fn.targets.nvidia import compilation, driver, library

    note("import targets", start, time.perf_counter())
    command = ("-P", "-m", "benchmarks.gpu.first_steps", "worker")
    pool = compilation.CompilerPool(command)
    compilation.pool = lambda: pool
    timed(library.Functions, "__init__", "cuInit")
    timed(driver.NvidiaDriver, "__init__", "open driver")
    timed(adapter.Gpu, "__init__", "open gpu")
    timed(compilation.Compiler, "_compiled", "compiled", lambda self, source, *a: str(len(source)))
    timed(compilation, "_Worker", "Popen")
    timed(driver.NvidiaDriver, "_load", "load", lambda self, code, shared: str(len(code)))
    timed(driver.NvidiaDriver, "_graph")
    timed(program, "plan_program")
    timed(program.Program, "__init__", "Program")
    timed(program.Program, "__call__", "Program call")
    timed(compilation, "sources_digest")
    case = named(workload).case()
    start = time.perf_counter()
    call, wait = contestant("volta_fn", case)
    jnp.zeros(100000).block_until_ready()
    note("contestant", start, time.perf_counter())
    for _ in range(3):
        start = time.perf_counter()
        wait(call())
        note("STEP", start, time.perf_counter())


def jax_step(workload: str) -> None:
    note("python", BEGIN, time.perf_counter())
    start = time.perf_counter()
    import jax

    note("import", start, time.perf_counter())
    from benchmarks.workloads import named
    from benchmarks.workloads.case import contestant

    start = time.perf_counter()
    jax.devices()
    note("devices", start, time.perf_counter())

    def heard(name: str, seconds: float, **_: Any) -> None:
        end = time.perf_counter()
        note(name.rpartition("/")[2], end - seconds, end)

    jax.monitoring.register_event_duration_secs_listener(heard)
    case = named(workload).case()
    start = time.perf_counter()
    call, wait = contestant("jax", case)
    note("contestant", start, time.perf_counter())
    for _ in range(3):
        start = time.perf_counter()
        wait(call())
        note("STEP", start, time.perf_counter())


PTX = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry main(.param .u64 x) { ret; }
"""


def bare() -> None:
    """cuInit, a context and a link, by ctypes alone."""
    note("python", BEGIN, time.perf_counter())
    now = time.perf_counter
    t0 = now()
    lib = ctypes.CDLL("libcuda.so.1")
    t1 = now()
    s0 = lib.cuInit(0)
    t2 = now()

    def link(options: dict[int, int]) -> tuple[int, ...]:
        count = len(options)
        keys, values = (ctypes.c_int * max(count, 1))(*options), (ctypes.c_void_p * max(count, 1))(*options.values())
        state, code, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        a = lib.cuLinkCreate_v2(count, keys, values, ctypes.byref(state))
        text = PTX.encode() + b"\0"
        if a:
            return (a,)
        b = lib.cuLinkAddData_v2(state, 1, text, ctypes.c_size_t(len(text)), b"x", 0, None, None)
        c = lib.cuLinkComplete(state, ctypes.byref(code), ctypes.byref(size))
        return a, b, c, size.value

    for label, options in (("link without context", {}), ("link for target 90a without context", {9: 90 + 0x10000}), ("target 90", {9: 90})):
        start = now()
        status = link(options)
        note(f"{label} {status}", start, now())
    device, context = ctypes.c_int(), ctypes.c_void_p()
    lib.cuDeviceGet(ctypes.byref(device), 0)
    t3 = now()
    s1 = lib.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    t4 = now()
    note(f"dlopen", t0, t1)
    note(f"cuInit {s0}", t1, t2)
    note(f"cuCtxCreate {s1}", t3, t4)
    for _ in range(2):
        start = now()
        status = link({})
        note(f"link {status}", start, now())
    start = now()
    module = ctypes.c_void_p()
    status = lib.cuModuleLoadData(ctypes.byref(module), PTX.encode() + b"\0")
    note(f"load PTX {status}", start, now())
    start = now()
    lib.cuCtxDestroy_v2(context)
    note("destroy", start, now())


def run(*arguments: str, cache: str = "", together: int = 1, show: bool = True, shown: float = 0.0) -> float:
    with tempfile.NamedTemporaryFile("r") as trace:
        begin = time.perf_counter()
        environment = os.environ | {"FIRST_BEGIN": str(begin), "FIRST_TRACE": trace.name}
        if cache:
            environment |= {"VOLTA_CACHE_DIR": f"{cache}/volta", "CUDA_CACHE_PATH": f"{cache}/nv"}
        command = [sys.executable, "-m", "benchmarks.gpu.first_steps", *arguments]
        processes = [subprocess.Popen(command, env=environment) for _ in range(together)]
        for process in processes:
            process.wait()
        whole = time.perf_counter() - begin
        rows = sorted([json.loads(line) for line in trace], key=lambda row: row[3])
    print(f"== {' '.join(arguments)} × {together}: {whole:.2f} s", flush=True)
    names: dict[int, int] = {}
    for pid, thread, name, start, end, extra in rows:
        number = names.setdefault(pid, len(names))
        if show and end - start >= shown:
            print(f"{number:2d} {thread:5d} {start * 1e3:8.1f} {end * 1e3:8.1f} {(end - start) * 1e3:8.1f} {name} {extra}")
    return whole


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "worker":
        worker()
    elif len(sys.argv) > 2 and sys.argv[1] == "ours":
        ours(sys.argv[2])
    elif len(sys.argv) > 2 and sys.argv[1] == "jax":
        jax_step(sys.argv[2])
    elif sys.argv[1:] == ["bare"]:
        bare()
    else:
        for together in (1, 8, 16) if len(sys.argv) == 1 else ():
            run("bare", together=together)
        for workload in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as cache:
                run("ours", workload, cache=cache, shown=0.003)
                run("ours", workload, cache=cache, shown=0.003)
            run("jax", workload, shown=0.02)


if __name__ == "__main__":
    main()
