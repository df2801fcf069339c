"""Collectives between GPUs: `python -m benchmarks.gpu.collectives`.

It checks and times them on one machine, with a process for each GPU.
`check` compares every collective of every dtype with NumPy. `speed` times them beside NCCL (`torch.distributed`), by turns in the same
processes, each as a chain in a CUDA graph: a collective's time is that of the chain over its length. `train` trains a GPT by data
parallelism, on one process and on all, with as many examples for each, and compares losses with those of one process with all examples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu.device import opened_gpu
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import Library, arrays_in, library, map_arrays
from volta_fn import P, lax
from volta_fn.targets.nvidia.peers import kernels

Call = Callable[[], Any]

#: Bytes of the largest array of a process.
SIZES = tuple(1 << bits for bits in (12, 16, 20, 22, 24, 26, 28, 30))
MOVED_SIZES = tuple(1 << bits for bits in (16, 20, 24, 28, 30))
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ppermute")
SAMPLES = 7


def on_processes(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a jitted function of each process's array."""
    mesh = vf.make_mesh({"i": vf.process_count()})
    return vf.jit(vf.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False), **options)


# Checks.

DTYPES = (
    "float32", "bfloat16", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "complex64",
    "complex128", "bool",
)  # fmt: skip
LENGTHS = (1, 37, 6 * 1024 + 5)


def drawn(dtype: str, rank: int, *shape: int) -> np.ndarray:
    """Return small numbers, whose sums every dtype has exactly."""
    numbers = np.random.default_rng(rank).integers(-3, 4, shape)
    if dtype == "bool":
        return numbers > 0
    if dtype.startswith("complex"):
        return (numbers + 1j * numbers[::-1]).astype(dtype)
    return np.asarray(vnp.asarray(np.abs(numbers) if dtype[0] == "u" else numbers).astype(dtype))


def check(dtypes: Sequence[str], lengths: Sequence[int]) -> int:
    """Compare collectives with NumPy; return how many results are wrong."""
    n, rank = vf.process_count(), vf.process_index()
    wrong = count = 0
    ring = [(i, (i + 1) % n) for i in range(n)]

    def collectives(x: Any) -> dict[str, Any]:
        total = lax.psum(x, "i")
        wide = x.astype(total.dtype)
        results = {
            "psum": total,
            "all_gather": lax.all_gather(x, "i"),
            "all_gather along the last": lax.all_gather(x, "i", axis=1),
            "psum_scatter": lax.psum_scatter(vnp.stack([wide] * n), "i"),
            "all_to_all": lax.all_to_all(vnp.stack([x] * n, 1), "i", 1, 0),
            "ppermute": lax.ppermute(x, "i", ring),
            "ppermute to one": lax.ppermute(x, "i", ring[:1]),
        }
        if x.dtype.kind != "c":
            results |= {"pmax": lax.pmax(x, "i"), "pmin": lax.pmin(x, "i")}
        return results

    def expected(parts: np.ndarray) -> dict[str, np.ndarray]:
        total = np.asarray(parts.astype(np.int64 if parts.dtype.kind == "b" else parts.dtype).sum(0)).astype(
            np.int32 if parts.dtype.kind == "b" else parts.dtype
        )
        nothing = np.zeros_like(parts[0])
        results = {
            "psum": total, "all_gather": parts, "all_gather along the last": np.moveaxis(parts, 0, 1), "psum_scatter": total,
            "all_to_all": parts, "ppermute": parts[rank - 1], "ppermute to one": parts[0] if rank == 1 % n else nothing,
        }  # fmt: skip
        return results | ({} if parts.dtype.kind == "c" else {"pmax": parts.max(0), "pmin": parts.min(0)})

    for dtype in dtypes:
        for length in lengths:
            parts = np.stack([drawn(dtype, position, length) for position in range(n)])
            program = on_processes(lambda x: {name: value[None] for name, value in collectives(x[0]).items()})
            results = program(parts[rank : rank + 1])
            again = program(parts[rank : rank + 1])
            for name, value in expected(parts).items():
                for round_, result in enumerate((results, again)):
                    have, count = np.asarray(result[name])[0], count + 1
                    if have.dtype != value.dtype or have.tobytes() != np.ascontiguousarray(value).tobytes():
                        wrong += 1
                        print(
                            f"WRONG: {name} of {length} {dtype} in round {round_}: {have.ravel()[:5]} instead of {value.ravel()[:5]}",
                            flush=True,
                        )
    steps = host_steps()
    print(f"{count} results, {wrong} wrong; steps on the host: {steps}", flush=True)
    return wrong + sum(steps.values())


def host_steps() -> dict[str, int]:
    """Return how many steps of programs ran on the host."""
    return dict(opened_gpu().counters.host_steps)


# Speed.


def ours(kind: str, size: int, dtype: str, chain: int) -> Call:
    """Return a chain of collectives as a program."""
    n = vf.process_count()
    count = size // np.dtype(np.float32).itemsize if dtype == "float32" else size // 2
    ring = [(i, (i + 1) % n) for i in range(n)]
    one: dict[str, Callable[[Any], Any]] = {
        "all-reduce": lambda x: lax.psum(x, "i"),
        "all-gather": lambda x: lax.all_gather(x, "i", tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, "i", tiled=True),
        "all-to-all": lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "i", ring),
    }
    x = vnp.ones((1, count // n if kind == "all-gather" else count), dtype)
    if kind in ("all-gather", "reduce-scatter"):  # whose results have other shapes
        program = on_processes(lambda x: [one[kind](x[0])[None] for _ in range(chain)])
    else:

        def chained(x: Any) -> Any:
            for _ in range(chain):
                x = one[kind](x)
            return x

        program = on_processes(lambda x: chained(x[0])[None])
    return lambda: vf.block_until_ready(program(x))


def nccl(kind: str, size: int, dtype: str, chain: int) -> Call:
    """Return the same chain by NCCL, in a CUDA graph."""
    import torch
    import torch.distributed as dist

    n, rank = vf.process_count(), vf.process_index()
    type_ = getattr(torch, dtype)
    count = size // type_.itemsize
    x = torch.ones(count, dtype=type_, device="cuda")
    y = torch.ones(count, dtype=type_, device="cuda")
    part = torch.ones(count // n, dtype=type_, device="cuda")

    def permute() -> None:
        operations = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    one: dict[str, Call] = {
        "all-reduce": lambda: dist.all_reduce(x),
        "all-gather": lambda: dist.all_gather_into_tensor(x, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "all-to-all": lambda: dist.all_to_all_single(y, x),
        "ppermute": permute,
    }
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        one[kind]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(chain):
            one[kind]()

    def call() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return call


def has_torch() -> bool:
    """Return whether NCCL can be measured; it is then connected."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return False
    if not torch.cuda.is_available():
        return False
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29517")}
    torch.cuda.set_device(int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group(
        "nccl", rank=vf.process_index(), world_size=vf.process_count(), device_id=torch.device("cuda", torch.cuda.current_device())
    )
    return True


def medians(calls: Sequence[Call], chain: int) -> list[float]:
    """Return the median seconds of one collective of each chain, measured by turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
        call()
    for _ in range(SAMPLES):
        for call, seconds in zip(calls, times, strict=True):
            call()  # both processes begin together
            start = time.perf_counter()
            call()
            seconds.append((time.perf_counter() - start) / chain)
    return [statistics.median(seconds) for seconds in times]


def bus(kind: str, size: int, n: int, seconds: float) -> float:
    """Return the bandwidth of a GPU's links in GB/s, as NCCL's tests define it."""
    share = {"all-reduce": 2 * (n - 1) / n, "ppermute": 1.0}.get(kind, (n - 1) / n)
    return share * size / seconds / 1e9


def speed(kinds: Sequence[str], sizes: Sequence[int], dtypes: Sequence[str]) -> None:
    """Time collectives beside NCCL, and print a table."""
    peer, n, first = has_torch(), vf.process_count(), vf.process_index() == 0
    if first:
        print(f"{n} GPUs: {vf.local_devices(backend='gpu')[0].name}; µs, GB/s of the bus, and our time as a share of NCCL's")
    for dtype in dtypes:
        for kind in kinds:
            for size in sizes if kind == "all-reduce" else [s for s in MOVED_SIZES if s in sizes or len(sizes) == len(SIZES)]:
                chain = 20 if size <= 1 << 24 else 4
                calls = [ours(kind, size, dtype, chain), *([nccl(kind, size, dtype, chain)] if peer else [])]
                results = medians(calls, chain)
                if first:
                    columns = [f"{s * 1e6:9.1f} {bus(kind, size, n, s):7.1f}" for s in results]
                    ratio = f"{results[0] / results[1]:6.2f}" if peer else ""
                    print(f"{kind:15s} {dtype:9s} {size:>11d} {'  '.join(columns)} {ratio}", flush=True)


# Training by data parallelism.


def training_call(name: str, n: int, examples: int) -> Callable[[], Any]:
    """Return the training step of a process that has a share of the examples.

    Its loss is that of all `n * examples`.
    """
    workload = named(name)
    case = lambda batch: _in(workload.precision, workload.make(np.random.default_rng(0), **(workload.size | {"batch": batch})))
    local, whole = case(examples), case(n * examples)
    lib = library("volta_fn")

    def averaged(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params: lax.pmean(vf.value_and_grad(function)(params), "i") if n > 1 else vf.value_and_grad(function)(params)

    step = local.functional(_with(lib, averaged))
    begin = vf.process_index() * examples if n > 1 else 0
    data = map_arrays(lambda x: vnp.asarray(x[begin : begin + examples]), whole.inputs[1:])
    state = map_arrays(vnp.asarray, whole.inputs[0])
    if n > 1:
        mesh = vf.make_mesh({"i": n})
        step = vf.shard_map(step, mesh=mesh, in_specs=(P(), *[P("i")] * len(data)), out_specs=P())
    program = vf.jit(step, donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state, loss = program(state, *data)
        return loss

    return call


def _with(lib: Library, averaged: Callable[..., Any]) -> Library:
    return lib._replace(jax=SimpleNamespace(__name__="volta_fn", tree=vf.tree, value_and_grad=averaged))


def _in(precision: str, case: Any) -> Any:
    return case.in_precision(precision) if precision else case


def train(names: Sequence[str]) -> None:
    """Train on one process and on all, and print losses and times."""
    n, first = vf.process_count(), vf.process_index() == 0
    for name in names:
        examples = named(name).size["batch"]
        rows = {}
        for label, count, each in (("one", 1, examples), ("all", n, examples), ("one with all examples", 1, n * examples)):
            call = training_call(name, count, each)
            losses = [float(arrays_in(call())[0]) for _ in range(6)]
            for _ in range(20):
                call()
            samples = []
            for _ in range(5):
                vf.synchronize()
                start = time.perf_counter()
                for _ in range(30):
                    loss = call()
                vf.block_until_ready(loss)
                samples.append((time.perf_counter() - start) / 30)
            rows[label] = statistics.median(samples)
            if first:
                print(f"{name} {label:22s} {rows[label] * 1e3:8.3f} ms  " + " ".join(f"{loss:.6f}" for loss in losses), flush=True)
        if first:
            ratio = n * rows["one"] / rows["all"]
            print(f"{name}: {n} GPUs do {ratio:.3f} times the work of one; steps on the host: {host_steps()}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.collectives", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modes", nargs="*", default=[], help="check, speed, train (default: all)")
    parser.add_argument("-n", "--processes", type=int, default=2, help="GPUs (default %(default)s)")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    parser.add_argument("--dtypes", nargs="+")
    parser.add_argument("--bytes", nargs="+", type=int, default=[*SIZES])
    parser.add_argument("--lengths", nargs="+", type=int, default=[*LENGTHS])
    parser.add_argument("--workloads", nargs="+", default=["gpu train/gpt small@bfloat16", "gpu train/gpt medium@bfloat16"])
    parser.add_argument("--shares", action="store_true", help="let each process reduce a share of every array, also of two processes")
    for name in ("blocks", "threads", "unroll"):
        parser.add_argument(f"--{name}", type=int, help=f"{name} of the kernels, to try others")
    options, words = parser.parse_args(arguments), [*(sys.argv[1:] if arguments is None else arguments)]
    use_gpu()
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        command = [sys.executable, "-m", "volta_fn.launch", "-n", str(options.processes), "-m", "benchmarks.gpu.collectives", *words]
        return subprocess.run(command, check=False).returncode
    vf.distributed.initialize()
    chosen = {name: getattr(options, name) for name in ("blocks", "threads", "unroll") if getattr(options, name)}
    kernels.SCHEDULE = kernels.SCHEDULE._replace(**chosen)
    if options.shares:
        kernels._reduce_whole = kernels._reduce_shares
    modes = options.modes or ["check", "speed", "train"]
    status = 0
    if "check" in modes:
        status = int(check(options.dtypes or DTYPES, options.lengths) > 0)
    if "speed" in modes:
        speed(options.kinds, options.bytes, options.dtypes or ["float32"])
    if "train" in modes:
        train(options.workloads)
    return status


if __name__ == "__main__":
    sys.exit(main())
