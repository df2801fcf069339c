"""Compare processes with those of JAX and PyTorch (`benchmarks.distributed`).

Measures a sum over processes of 1 KB, 1 MB and 100 MB, and a data-parallel training step of an MLP and a LeNet (plain gradient descent),
each with one thread per process. Frameworks alternate, each in processes of its own; the fastest of their medians counts. For
volta_fn it shows the share of communication that was overlapped with the backward pass, too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FRAMEWORKS = ("volta_fn", "torch", "jax")
SIZES = {"psum 1 KB": 256, "psum 1 MB": 1 << 18, "psum 100 MB": 25 << 20}
ROUNDS = {"psum 1 KB": 400, "psum 1 MB": 60, "psum 100 MB": 5, "MLP step": 40, "LeNet step": 30}
BATCH, RATE = 64, 0.01

Call = Callable[[], object]


def parameters(name: str) -> dict[str, np.ndarray]:
    """Return the initial parameters of a network."""
    shapes = (
        {"w1": (784, 512), "b1": (512,), "w2": (512, 512), "b2": (512,), "w3": (512, 10), "b3": (10,)}
        if name == "MLP step"
        else {"k1": (8, 1, 5, 5), "k2": (16, 8, 5, 5), "w1": (784, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
    )
    rng = np.random.default_rng(0)
    return {key: (rng.normal(size=shape) * 0.05).astype(np.float32) for key, shape in shapes.items()}


def examples(name: str, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a process's part of the batch."""
    rng = np.random.default_rng(rank + 1)
    shape = (BATCH, 784) if name == "MLP step" else (BATCH, 1, 28, 28)
    return rng.normal(size=shape).astype(np.float32), rng.integers(0, 10, BATCH).astype(np.int32)


def loss_of(name: str, np_: Any, lax: Any) -> Callable[..., Any]:
    """Return the loss as a function of parameters, written once for JAX and volta_fn."""

    def pooled(x: Any, kernel: Any) -> Any:
        x = np_.maximum(lax.conv_general_dilated(x, kernel, (1, 1), "SAME"), 0)
        return lax.reduce_window(x, -np_.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(p: Any, x: Any, y: Any) -> Any:
        if name == "LeNet step":
            x = pooled(pooled(x, p["k1"]), p["k2"]).reshape(BATCH, -1)
        layers = [key for key in sorted(p) if key.startswith("w")]
        for i, key in enumerate(layers):
            x = x @ p[key] + p["b" + key[1:]]
            x = np_.maximum(x, 0) if i + 1 < len(layers) else x
        logs = x - lax.stop_gradient(x.max(1, keepdims=True))
        logs = logs - np_.log(np_.exp(logs).sum(1, keepdims=True))
        return -np_.mean(np_.take_along_axis(logs, y[:, None], 1))

    return loss


def step_of(name: str, api: Any, np_: Any, lax: Any) -> Callable[..., Any]:
    """Return the training step of one process."""

    def step(p: Any, x: Any, y: Any) -> Any:
        value, grads = api.value_and_grad(loss_of(name, np_, lax))(p, x, y)
        grads, value = lax.pmean((grads, value), "data")
        return {key: p[key] - RATE * grads[key] for key in p}, value

    return step


def _first(values: Any) -> float:
    """Return a scalar that all processes have."""
    return float(np.asarray(values.addressable_data(0) if hasattr(values, "addressable_data") else values))


def jax_like(api: Any, put: Callable[[np.ndarray, Any], Any], mesh: Any, P: Any, name: str, rank: int) -> Call:
    """Return one call of a workload, for JAX and volta_fn."""
    if name in SIZES:
        total = api.jit(api.shard_map(lambda x: api.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()))
        values = put(np.ones(SIZES[name], np.float32), P("data"))
        return lambda: api.block_until_ready(total(values))
    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P())}
    # JAX: pmean's results are typed as varying without this option, and gradients would be summed twice with it.
    checked = {"check_vma": False} if api.__name__ == "jax" else {}
    step = api.jit(api.shard_map(step_of(name, api, api.numpy, api.lax), mesh=mesh, **specs, **checked), donate_argnums=0)
    state = [{key: put(value, P()) for key, value in parameters(name).items()}, None]
    x, y = [put(a, P("data")) for a in examples(name, rank)]

    def call() -> None:
        state[:] = step(state[0], x, y)
        api.block_until_ready(state[0])

    call.loss = lambda: _first(state[1])  # type: ignore[attr-defined]
    return call


def of_volta() -> tuple[int, Callable[[str], Call]]:
    """Return this process's number, and the calls by workload."""
    import volta_fn as vf

    vf.distributed.initialize()
    mesh = vf.make_mesh({"data": vf.process_count()})
    return vf.process_index(), lambda name: jax_like(vf, lambda x, spec: vf.device_put(x), mesh, vf.P, name, vf.process_index())


def of_jax() -> tuple[int, Callable[[str], Call]]:
    """Return this process's number, and the calls by workload."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    rank = int(os.environ["RANK"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", int(os.environ["WORLD_SIZE"]), rank)
    mesh = jax.make_mesh((jax.process_count(),), ("data",))
    put = lambda x, spec: jax.make_array_from_process_local_data(NamedSharding(mesh, spec), x)
    return rank, lambda name: jax_like(jax, put, mesh, P, name, rank)


def of_torch() -> tuple[int, Callable[[str], Call]]:
    """Return this process's number, and the calls by workload."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Network(torch.nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.p = torch.nn.ParameterDict({key: torch.nn.Parameter(torch.from_numpy(v)) for key, v in parameters(name).items()})

        def forward(self, x: Any) -> Any:
            p = self.p
            for kernel in [key for key in sorted(p.keys()) if key.startswith("k")]:
                x = F.max_pool2d(F.relu(F.conv2d(x, p[kernel], padding=2)), 2)
            x = x.reshape(len(x), -1)
            layers = [key for key in sorted(p.keys()) if key.startswith("w")]
            for i, key in enumerate(layers):
                x = x @ p[key] + p["b" + key[1:]]
                x = F.relu(x) if i + 1 < len(layers) else x
            return x

    def calls(name: str) -> Call:
        if name in SIZES:
            values = torch.ones(SIZES[name])
            return lambda: dist.all_reduce(values.fill_(1.0) if len(values) <= 256 else values)
        network = torch.nn.parallel.DistributedDataParallel(Network(name), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
        x, y = examples(name, rank)
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y).long()
        last: list[Any] = []

        def call() -> None:
            optimizer.zero_grad()
            value = F.cross_entropy(network(inputs), labels)
            value.backward()
            optimizer.step()
            last[:] = [value.detach()]

        def loss() -> float:
            dist.all_reduce(last[0])
            return float(last[0]) / dist.get_world_size()

        call.loss = loss  # type: ignore[attr-defined]
        return call

    return rank, calls


def median_of(call: Call, rounds: int) -> float:
    """Return the median of a call's seconds."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def constants() -> None:
    """Measure the constants of docs/scaling.md; the first process prints them."""
    import volta_fn as vf

    rank, calls = of_volta()
    from mpi4py import MPI

    comm, other = MPI.COMM_WORLD, 1 - rank

    def exchange(size: int) -> float:
        sent, received = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        return median_of(lambda: comm.Sendrecv(sent, other, recvbuf=received, source=other), 200)

    operands, total = np.ones(256, np.float32), np.empty(256, np.float32)
    host = median_of(calls("psum 1 KB"), 400) - median_of(lambda: comm.Allreduce(operands, total), 400)
    latency = exchange(1)
    rate = (16 << 20) / (exchange(16 << 20) - latency)
    result = {"alpha, microseconds": latency * 1e6, "beta, GB/s each way": rate / 1e9, "leaving the program, microseconds": host * 1e6}
    for name in ("MLP step", "LeNet step"):
        loss, data = loss_of(name, vf.numpy, vf.lax), examples(name, rank)
        arguments = vf.device_put((parameters(name), *data))
        forward, both = [
            median_of(functools.partial(lambda f, xs: vf.block_until_ready(f(*xs)) and None, vf.jit(f), arguments), 30)
            for f in (loss, vf.value_and_grad(loss))
        ]
        result[f"backward share, {name.split()[0]}"] = 1 - forward / both
    if rank == 0:
        print("\n".join([f"{name}: {value:.3g}" for name, value in result.items()]), flush=True)


def work(framework: str, only: str) -> None:
    """Measure in one process of a framework; the first one prints the medians."""
    rank, calls = {"volta_fn": of_volta, "torch": of_torch, "jax": of_jax}[framework]()
    before = 0.0, 0.0
    for name, rounds in ROUNDS.items():
        if only not in name:
            continue
        call = calls(name)
        for _ in range(3):
            call()
        loss = call.loss() if hasattr(call, "loss") else None
        result = {"name": name, "seconds": median_of(call, rounds), "loss": loss}
        if framework == "volta_fn":
            import volta_fn as vf

            now = vf.distributed.statistics()
            result["hidden"] = now._replace(seconds=now.seconds - before[0], waited=now.waited - before[1]).hidden
            before = now.seconds, now.waited
        if rank == 0:
            print("RESULT " + json.dumps(result), flush=True)


def measure(framework: str, count: int, only: str) -> list[dict[str, Any]]:
    """Run a framework once in processes of its own."""
    arguments = [os.path.abspath(__file__), "--work", framework, "--only", only]
    single = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VOLTA_NUM_THREADS"], "1")
    single["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    if framework == "volta_fn":
        starts: list[tuple[list[str], dict[str, str]]] = [([sys.executable, "-m", "volta_fn.launch", "-n", str(count), *arguments], {})]
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        ranks = [{"RANK": str(i), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for i in range(count)]
        starts = [([sys.executable, *arguments], rank) for rank in ranks]
    processes = [
        subprocess.Popen(command, env={**os.environ, **single, **extra}, stdout=subprocess.PIPE, text=True) for command, extra in starts
    ]
    output = "".join([process.communicate()[0] for process in processes])
    return [json.loads(text.partition("RESULT ")[2]) for text in output.splitlines() if "RESULT " in text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command text; the exit status is 1 if losses disagree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description="Processes beside PyTorch's and JAX's.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of each framework (default %(default)s)")
    parser.add_argument("--only", default="", help="a part of a workload's name")
    parser.add_argument("--constants", action="store_true", help="measure those of the cost model instead, between two processes")
    parser.add_argument("--work", choices=(*FRAMEWORKS, "constants"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work == "constants":
        constants()
        return 0
    if options.constants:
        command = [sys.executable, "-m", "volta_fn.launch", "-n", "2", "--threads", "1", os.path.abspath(__file__), "--work", "constants"]
        return subprocess.run(command, check=False).returncode
    if options.work:
        work(options.work, options.only)
        return 0
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for _ in range(options.rounds):
        for framework in FRAMEWORKS:
            for result in measure(framework, options.processes, options.only):
                fastest = best.setdefault((result["name"], framework), result)
                if result["seconds"] < fastest["seconds"]:
                    best[result["name"], framework] = result
    print(f"{'milliseconds':14s}" + "".join([f"{framework:>12s}" for framework in FRAMEWORKS]) + "   of the faster peer   hidden")
    agree = True
    for name in dict.fromkeys(name for name, _ in best):
        rows = [best.get((name, framework)) for framework in FRAMEWORKS]
        seconds = [row["seconds"] if row else float("nan") for row in rows]
        losses = [row["loss"] for row in rows if row and row["loss"] is not None]
        agree = agree and (not losses or max(losses) - min(losses) < 1e-4)
        hidden = f"{rows[0]['hidden']:.0%}" if rows[0] and "step" in name else ""
        ratio = seconds[0] / np.nanmin(seconds[1:])
        print(f"{name:14s}" + "".join([f"{s * 1e3:12.3f}" for s in seconds]) + f"{ratio:21.2f}   {hidden:>6s}")
    print("losses agree" if agree else f"LOSSES DIFFER: {best}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
