"""Data parallelism by other frameworks: `python -m benchmarks.gpu.frameworks`.

JAX has all GPUs in one process (`shard_map`, with NCCL); PyTorch has a process for each (`DistributedDataParallel` of a compiled module, in
bfloat16 by autocast): `python -m torch.distributed.run --nproc-per-node 4 -m benchmarks.gpu.frameworks torch`. Examples, initial parameters
and optimizers are those of `benchmarks.gpu.collectives train`, and each GPU has as many examples as one alone.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import Case, Workload, library, map_arrays

WORKLOADS = tuple([f"gpu train/{name}@bfloat16" for name in ("gpt small", "gpt medium", "resnet-18")])


def timed(call: Callable[[], Any], wait: Callable[[], None], steps: int) -> tuple[float, list[float]]:
    """Return the median seconds of a step, and the losses of the first."""
    losses = [float(call()) for _ in range(6)]
    for _ in range(steps):
        call()
    samples = []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            call()
        wait()
        samples.append((time.perf_counter() - start) / steps)
    return statistics.median(samples), losses


def cases(workload: Workload, n: int) -> tuple[Case, Case]:
    """Return a GPU's case and that of all, with n times the examples."""
    sizes = [workload.size | {"batch": k * workload.size["batch"]} for k in (1, n)]
    local, whole = (replace(workload, size=size).case() for size in sizes)
    return local, whole


def by_jax(workload: Workload, n: int) -> tuple[float, list[float]]:
    """Train on n GPUs of this process by JAX."""
    jax = importlib.import_module("jax")
    lib, (local, whole) = library("jax"), cases(workload, n)
    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]), "i")

    def averaging(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params: jax.lax.pmean(jax.value_and_grad(function)(params), "i")

    shim = type("jax", (), {"__name__": "jax", "tree": jax.tree, "value_and_grad": staticmethod(averaging)})
    step = local.functional(lib._replace(jax=shim))
    count = len(whole.inputs) - 1
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(spec(), *[spec("i")] * count), out_specs=spec(), check_vma=False)
    program = jax.jit(mapped, donate_argnums=0)

    def put(values: Any, place: Any) -> Any:
        return map_arrays(lambda x: jax.device_put(x, jax.sharding.NamedSharding(mesh, place)), values)

    state, data = put(whole.inputs[0], spec()), [put(x, spec("i")) for x in whole.inputs[1:]]
    loss: Any = None

    def call() -> Any:
        nonlocal state, loss
        state, loss = program(state, *data)
        return loss

    return timed(call, lambda: jax.block_until_ready(loss), 20)


def by_torch(workload: Workload, n: int, rank: int) -> tuple[float, list[float]]:
    """Train on one of n processes by PyTorch."""
    torch = importlib.import_module("torch")
    parallel = importlib.import_module("torch.nn.parallel")
    _, whole = cases(workload, n)
    local, _ = cases(workload, 1)
    assert local.torch_loss is not None and local.torch_optimizer is not None, "the workload is a training step"
    torch_loss = local.torch_loss
    (params, _), *data = whole.inputs
    examples = workload.size["batch"]
    rows = [x[rank * examples : (rank + 1) * examples] for x in data]
    batch = [torch.tensor(x, dtype=torch.int64 if x.dtype == np.int32 else None, device="cuda") for x in rows]

    class Loss(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.tensor(x, device="cuda")) for name, x in params.items()})

        def forward(self, *batch: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return torch_loss(torch, self.weights, *batch)

    module = Loss()
    update = local.torch_optimizer(torch, list(module.parameters()))
    if n > 1:
        module = parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    compiled = torch.compile(module)

    def call() -> Any:
        update.zero_grad(set_to_none=True)
        value = compiled(*batch)
        value.backward()
        update.step()
        return value.detach()

    seconds, losses = timed(call, torch.cuda.synchronize, 20)
    mean = torch.tensor(losses, device="cuda")
    if n > 1:
        torch.distributed.all_reduce(mean, torch.distributed.ReduceOp.AVG)
    return seconds, mean.tolist()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.frameworks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("framework", choices=["jax", "torch"])
    parser.add_argument("-n", "--gpus", type=int, default=2, help="GPUs of JAX; PyTorch's are the processes that torchrun has started")
    parser.add_argument("--workloads", nargs="+", default=[*WORKLOADS])
    options = parser.parse_args(arguments)
    use_gpu()
    n, rank = options.gpus, 0
    if options.framework == "torch":
        torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
        n, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        torch.cuda.set_device(rank)
        if n > 1:
            dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for name in options.workloads:
        workload = named(name)
        seconds, losses = by_jax(workload, n) if options.framework == "jax" else by_torch(workload, n, rank)
        if rank == 0:
            print(f"{options.framework} {n} GPUs {name:32s} {seconds * 1e3:8.3f} ms  {' '.join(f'{x:.5f}' for x in losses)}", flush=True)
    if options.framework == "torch" and n > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
