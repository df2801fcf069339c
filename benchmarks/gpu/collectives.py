"""Collectives between GPUs: `python -m benchmarks.gpu.collectives`.

It checks and times them on one machine: first with a process for each GPU, then with one process that has all of them (`--forms`).
`check` compares every collective of every dtype with NumPy. `speed` times them beside NCCL (`torch.distributed`), by turns in the same
processes, each as a chain in a CUDA graph: a collective's time is that of the chain over its length. Of chains of all-gathers, and of
reduce-scatters, an element of each result is read; "gather and scatter" is one of either, of which the next begins. `train` trains a GPT
by data parallelism, on one GPU and on all, with as many examples for each, and compares losses with those of one GPU with all examples.
Times of one process are beside those of NCCL with several.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import Case, Library, Workload, arrays_in, library, map_arrays
from volta_fn import P, lax
from volta_fn.targets.gpu.backend import GpuBackend
from volta_fn.targets.nvidia import collectives as kernels

Call = Callable[[], Any]

#: Bytes of the largest array of a process.
SIZES = tuple(1 << bits for bits in (12, 16, 20, 22, 24, 26, 28, 30))
MOVED_SIZES = tuple(1 << bits for bits in (16, 20, 24, 28, 30))
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "gather and scatter", "all-to-all", "ppermute")
SAMPLES = 7
FORMS = ("processes", "one")


class Gpus(NamedTuple):
    """The GPUs of a run, and which of them belong to this process."""

    size: int
    positions: Sequence[int]

    @property
    def mesh(self) -> Any:
        """All GPUs along the axis "i"."""
        return vf.make_mesh({"i": self.size})

    @property
    def is_first(self) -> bool:
        """Whether this process prints."""
        return 0 in self.positions

    def put(self, rows: Any, spec: Any) -> Any:
        """Return the rows of this process's GPUs there, or what all have."""
        if len(self.positions) == 1:
            return map_arrays(vnp.asarray, rows)
        sharding = vf.NamedSharding(self.mesh, spec)
        return map_arrays(lambda x: vf.device_put(x, sharding), rows)


def on_gpus(function: Callable[..., Any], gpus: Gpus) -> Callable[..., Any]:
    """Return a jitted function of each GPU's array."""
    return vf.jit(vf.shard_map(function, mesh=gpus.mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False))


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


def check(gpus: Gpus, dtypes: Sequence[str], lengths: Sequence[int]) -> int:
    """Compare collectives with NumPy; return how many results are wrong."""
    n = gpus.size
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

    def expected(parts: np.ndarray, rank: int) -> dict[str, np.ndarray]:
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
            program = on_gpus(lambda x: {name: value[None] for name, value in collectives(x[0]).items()}, gpus)
            results, again = [program(parts[[*gpus.positions]]) for _ in range(2)]
            for (row, rank), (round_, result) in itertools.product(enumerate(gpus.positions), enumerate((results, again))):
                for name, value in expected(parts, rank).items():
                    have, count = np.asarray(result[name])[row], count + 1
                    if have.dtype != value.dtype or have.tobytes() != np.ascontiguousarray(value).tobytes():
                        wrong += 1
                        print(
                            f"WRONG: {name} of {length} {dtype} on GPU {rank} in round {round_}: {have.ravel()[:5]} instead of "
                            f"{value.ravel()[:5]}",
                            flush=True,
                        )
    steps = host_steps()
    print(f"{count} results, {wrong} wrong; steps on the host: {steps}", flush=True)
    return wrong + sum(steps.values())


def host_steps() -> dict[str, int]:
    """Return how many steps of programs ran on the host."""
    steps: Counter[str] = Counter()
    for device in vf.local_devices(backend="gpu"):
        assert isinstance(device.backend, GpuBackend), "devices of the platform 'gpu' have this backend"
        if (gpu := device.backend.handle.current) is not None:
            steps.update(gpu.counters.host_steps)
    return dict(steps)


# Speed.


def ours(gpus: Gpus, kind: str, size: int, dtype: str, chain: int) -> Call:
    """Return a chain of collectives as a program."""
    n = gpus.size
    count = size // np.dtype(np.float32).itemsize if dtype == "float32" else size // 2
    ring = [(i, (i + 1) % n) for i in range(n)]
    one: dict[str, Callable[[Any], Any]] = {
        "all-reduce": lambda x: lax.psum(x, "i"),
        "all-gather": lambda x: lax.all_gather(x, "i", tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, "i", tiled=True),
        "gather and scatter": lambda x: lax.psum_scatter(lax.all_gather(x, "i", tiled=True), "i", tiled=True),
        "all-to-all": lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "i", ring),
    }
    x = gpus.put(vnp.ones((len(gpus.positions), count // n if "gather" in kind else count), dtype), P("i"))
    if kind in ("all-gather", "reduce-scatter"):  # whose results have other shapes
        # An element of each, so that the host makes one array.
        program = on_gpus(lambda x: vnp.stack([one[kind](x[0])[0] for _ in range(chain)])[None], gpus)
    else:

        def chained(x: Any) -> Any:
            for _ in range(chain):
                x = one[kind](x)
            return x

        program = on_gpus(lambda x: chained(x[0])[None], gpus)
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

    def gather_and_scatter() -> None:
        dist.all_gather_into_tensor(x, part)
        dist.reduce_scatter_tensor(part, x)

    one: dict[str, Call] = {
        "all-reduce": lambda: dist.all_reduce(x),
        "all-gather": lambda: dist.all_gather_into_tensor(x, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "gather and scatter": gather_and_scatter,
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
    share = {"all-reduce": 2 * (n - 1) / n, "gather and scatter": 2 * (n - 1) / n, "ppermute": 1.0}.get(kind, (n - 1) / n)
    return share * size / seconds / 1e9


def speed(gpus: Gpus, kinds: Sequence[str], sizes: Sequence[int], dtypes: Sequence[str], file: Path) -> None:
    """Time collectives beside NCCL, and print a table.

    The file has NCCL's times, which processes write there, and one process reads.
    """
    n, first, is_alone = gpus.size, gpus.is_first, len(gpus.positions) > 1
    peer = not is_alone and has_torch()
    others: dict[str, float] = json.loads(file.read_text()) if is_alone and file.exists() else {}
    if first:
        print(f"{n} GPUs: {vf.local_devices(backend='gpu')[0].name}; µs, GB/s of the bus, and our time as a share of NCCL's")
    for dtype in dtypes:
        for kind in kinds:
            for size in sizes if kind == "all-reduce" else [s for s in MOVED_SIZES if s in sizes or len(sizes) == len(SIZES)]:
                chain = 20 if size <= 1 << 24 else 4
                calls = [ours(gpus, kind, size, dtype, chain), *([nccl(kind, size, dtype, chain)] if peer else [])]
                results, key = medians(calls, chain), f"{n} {kind} {dtype} {size}"
                if peer:
                    others[key] = results[1]
                elif key in others:
                    results.append(others[key])
                if first:
                    columns = [f"{s * 1e6:9.1f} {bus(kind, size, n, s):7.1f}" for s in results]
                    ratio = f"{results[0] / results[1]:6.2f}" if len(results) > 1 else ""
                    print(f"{kind:18s} {dtype:9s} {size:>11d} {'  '.join(columns)} {ratio}", flush=True)
    if peer and first:
        file.write_text(json.dumps(others))


# Training by data parallelism.


def training_program(workload: Workload, gpus: Gpus, examples: int) -> tuple[Callable[..., Any], Any, Sequence[Any]]:
    """Return the training step of a process, its state and its data.

    Its GPUs have a share of the examples. Its loss is that of the examples of all GPUs.
    """
    n = gpus.size
    local, whole = in_precision(workload, examples), in_precision(workload, n * examples)
    step = local.functional(with_value_and_grad(averaging if n > 1 else vf.value_and_grad))
    begin, end = gpus.positions[0] * examples, (gpus.positions[-1] + 1) * examples
    data = gpus.put(map_arrays(lambda x: x[begin:end], whole.inputs[1:]), P("i"))
    if n > 1:
        step = vf.shard_map(step, mesh=gpus.mesh, in_specs=(P(), *[P("i")] * len(data)), out_specs=P())
    return vf.jit(step, donate_argnums=0), gpus.put(whole.inputs[0], P()), data


def training_call(name: str, gpus: Gpus, examples: int) -> Call:
    """Return a call of a training step that keeps its state."""
    return stepping(*training_program(named(name), gpus, examples))


def stepping(program: Callable[..., Any], state: Any, data: Sequence[Any]) -> Call:
    """Return a call that makes a step, and keeps its state.

    The step gives, from a state that it donates, a new one and the loss.
    """

    def call() -> Any:
        nonlocal state
        state, loss = program(state, *data)
        return loss

    return call


def averaging(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the mean over GPUs of a function's values and gradients."""
    return lambda params: lax.pmean(vf.value_and_grad(function)(params), "i")


def with_value_and_grad(value_and_grad: Callable[..., Any]) -> Library:
    """Return the library with another `value_and_grad`."""
    return library("volta_fn")._replace(jax=SimpleNamespace(__name__="volta_fn", tree=vf.tree, value_and_grad=value_and_grad))


def in_precision(workload: Workload, batch: int) -> Case:
    """Return the case of a workload with so many examples, in its precision."""
    return replace(workload, size=workload.size | {"batch": batch}).case()


def train(gpus: Gpus, names: Sequence[str]) -> None:
    """Train on one GPU and on all, and print losses and times."""
    n, first, one = gpus.size, gpus.is_first, Gpus(1, (0,))
    for name in names:
        examples = named(name).size["batch"]
        rows = {}
        for label, those, each in (("one", one, examples), ("all", gpus, examples), ("one with all examples", one, n * examples)):
            call = training_call(name, those, each)
            losses = [float(arrays_in(call())[0]) for _ in range(6)]
            for _ in range(20):
                call()
            samples = []
            for _ in range(5):
                vf.block_until_ready(call())
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
    parser.add_argument("-n", "--gpus", type=int, default=2, help="GPUs (default %(default)s)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS], help="a process for each GPU, one process (default: both)")
    parser.add_argument("--nccl", type=Path, help="a file for NCCL's times, which one process compares with")
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
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        vf.distributed.initialize()
        gpus = Gpus(vf.process_count(), (vf.process_index(),))
    elif options.forms == ["one"]:
        gpus = Gpus(options.gpus, range(options.gpus))
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = options.nccl or Path(folder) / "nccl.json"
            return max([_run_form(form, options.gpus, [*words, "--nccl", str(file)]) for form in options.forms])
    chosen = {name: getattr(options, name) for name in ("blocks", "threads", "unroll") if getattr(options, name)}
    if options.blocks:
        chosen["most_blocks"] = options.blocks
    kernels.SCHEDULE = kernels.SCHEDULE._replace(**chosen)
    if options.shares:
        kernels._reduce_whole = kernels._reduce_shares
    modes = options.modes or ["check", "speed", "train"]
    status = 0
    if "check" in modes:
        status = int(check(gpus, options.dtypes or DTYPES, options.lengths) > 0)
    if "speed" in modes:
        speed(gpus, options.kinds, options.bytes, options.dtypes or ["float32"], options.nccl or Path("nccl.json"))
    if "train" in modes:
        train(gpus, options.workloads)
    return status


def _run_form(form: str, gpus: int, words: Sequence[str]) -> int:
    """Run the command line in one of the forms; return the exit status."""
    launcher = ["volta_fn.launch", "-n", str(gpus), "-m"] if form == "processes" else []
    print(f"{gpus} GPUs, {'a process for each' if form == 'processes' else 'one process'}:", flush=True)
    command = [sys.executable, "-m", *launcher, "benchmarks.gpu.collectives", *words, "--forms", form]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
