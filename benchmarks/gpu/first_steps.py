"""Take the first training step on NVIDIA apart: `python -m benchmarks.gpu.first_steps WORKLOAD …`."""

from __future__ import annotations

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


VARIANT = os.environ.get("FIRST_VARIANT", "").split()


def worker() -> None:
    note("server python", BEGIN, time.perf_counter())
    start = time.perf_counter()
    from volta_fn.targets.nvidia import compilation, processes

    note("server import", start, time.perf_counter())
    timed(compilation, "_llvm")
    from volta_fn.targets.nvidia import translation

    timed(translation, "translate", "translate", lambda s, **o: str(len(s)))
    timed(compilation, "compile_ptx", "llvm")
    timed(compilation, "_answer", "answer", lambda *a: str(len(a[0])))
    timed(processes, "_fork")
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
    from volta_fn.targets.gpu import adapter
    from volta_fn.targets.nvidia import compilation, driver, library, processes

    note("import targets", start, time.perf_counter())
    command = ("-P", "-m", "benchmarks.gpu.first_steps", "worker")
    most = [int(word) for word in VARIANT if word.isdigit()]
    pool = processes.WorkerPool(command, *most)
    compilation.pool = lambda: pool
    timed(library.Functions, "__init__", "cuInit")
    timed(driver.NvidiaDriver, "__init__", "open driver")
    timed(adapter.Gpu, "__init__", "open gpu")
    timed(compilation.Compiler, "_compiled", "compiled", lambda self, source, *a: str(len(source)))
    timed(processes, "_Server", "Popen")
    timed(driver, "link", "link here", lambda a, b, p: f"{len(p)} {b'wgmma' in p}")
    timed(compilation, "sources_digest")
    timed(compilation.Compiler, "prepare")
    timed(driver, "Context")
    if "lazy" in VARIANT:
        compilation.Compiler.prepare = lambda self: None
    case = named(workload).case()
    start = time.perf_counter()
    call, wait = contestant("volta_fn", case)
    vf.block_until_ready(jnp.zeros(100000))
    if "wait" in VARIANT:
        time.sleep(3)
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
.visible .entry main(.param .u64 x) {{
.reg .f32 %f<{count}>;
.reg .u64 %x<3>;
ld.param.u64 %x1, [x];
cvta.to.global.u64 %x2, %x1;
ld.global.f32 %f0, [%x2];
{body}
st.global.f32 [%x2], %f{last};
ret;
}}
"""


def ptx(lines: int, seed: int) -> bytes:
    body = "\n".join(f"fma.rn.f32 %f{k}, %f{k * 7919 % k}, %f{k - 1}, %f{k // 2};" for k in range(1, lines))
    return (
        PTX.format(count=lines, body=body, last=lines - 1)
        .replace(".entry", f"// {os.getpid()} {seed}\n.visible .entry")
        .replace(".visible // ", "// ")
        .encode()
        + b"\0"
    )


LINES = 1200


def bare() -> None:
    """cuInit, contexts and links, by ctypes alone."""
    note("python", BEGIN, time.perf_counter())
    now = time.perf_counter
    t0 = now()
    lib = ctypes.CDLL("libcuda.so.1")
    t1 = now()
    s0 = lib.cuInit(0)
    t2 = now()
    note("dlopen", t0, t1)
    note(f"cuInit {s0}", t1, t2)

    def link(options: dict[int, int], text: bytes) -> tuple[int, ...]:
        count = len(options)
        keys, values = (ctypes.c_int * max(count, 1))(*options), (ctypes.c_void_p * max(count, 1))(*options.values())
        state, code, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        a = lib.cuLinkCreate_v2(count, keys, values, ctypes.byref(state))
        if a:
            return (a,)
        b = lib.cuLinkAddData_v2(state, 1, text, ctypes.c_size_t(len(text)), b"x", 0, None, None)
        c = lib.cuLinkComplete(state, ctypes.byref(code), ctypes.byref(size))
        return a, b, c, size.value

    small = ptx(10, 0)
    for label, options in (("no context", {}), ("target 90a, no context", {9: 90 + 0x10000}), ("target 90, no context", {9: 90})):
        start = now()
        status = link(options, small)
        note(f"link, {label} {status}", start, now())
    device, context = ctypes.c_int(), ctypes.c_void_p()
    lib.cuDeviceGet(ctypes.byref(device), 0)
    start = now()
    status = lib.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    note(f"cuCtxCreate {status}", start, now())
    if "more" not in sys.argv:
        return

    def load(text: bytes) -> int:
        module = ctypes.c_void_p()
        return int(lib.cuModuleLoadData(ctypes.byref(module), text))

    for _ in range(2):
        start = now()
        status = link({}, small)
        note(f"link small {status}", start, now())

    def library(text: bytes) -> int:
        handle, module = ctypes.c_void_p(), ctypes.c_void_p()
        status = lib.cuLibraryLoadData(ctypes.byref(handle), text, None, None, 0, None, None, 0)
        return int(status or lib.cuLibraryGetModule(ctypes.byref(module), handle))

    contexts = [context] + [ctypes.c_void_p() for _ in range(3)]
    for other in contexts[1:]:
        start = now()
        status = lib.cuCtxCreate_v2(ctypes.byref(other), 0, device)
        note(f"another cuCtxCreate {status}", start, now())
    seeds = iter(range(100, 1000))

    def in_threads(act: Any, count: int) -> list[Any]:
        results: list[Any] = []

        def work(number: int) -> None:
            lib.cuCtxPushCurrent_v2(contexts[number % count])
            results.append(act(ptx(LINES, next(seeds))))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    lib.cuCtxPushCurrent_v2(context)
    for name, act in (("link", lambda text: link({}, text)), ("load", load), ("library", library)):
        start = now()
        statuses = [act(ptx(LINES, next(seeds))) for _ in range(2)]
        note(f"2 times {name} {statuses[0]}", start, now())
        for count in (1, 4):
            start = now()
            statuses = in_threads(act, count)
            note(f"8 threads {name} in {count} contexts {statuses[0]}", start, now())
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
    elif sys.argv[1:2] == ["bare"] and "FIRST_BEGIN" in os.environ:
        bare()
    elif sys.argv[1:] == ["bare", "more"]:
        run("bare", "more")
    elif len(sys.argv) == 1:
        run("bare")
        run("bare", "more")
        for together in (4,):
            run("bare", together=together)
    else:
        frameworks, workload, *variants = sys.argv[1:]
        for variant in variants or [""]:
            os.environ["FIRST_VARIANT"] = variant
            with tempfile.TemporaryDirectory() as cache:
                for _ in range(frameworks.count("o")):
                    print(variant, end=" ")
                    run("ours", workload, cache=cache, shown=float(os.environ.get("FIRST_SHOWN", 0.003)))
        if "j" in frameworks:
            run("jax", workload, shown=0.02)


if __name__ == "__main__":
    main()
