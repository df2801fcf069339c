"""When a step's kernels run: `python -m benchmarks.gpu.timeline WORKLOAD`.

A training step is traced by CUPTI, through PyTorch's profiler, on one GPU and by data parallelism on several of one process. volta_fn's
kernels have no names of their own, so a line has the grid, threads, registers and shared bytes of one, with its beginning and duration in
µs on each GPU. With `--torch` it is PyTorch's compiled step, on one GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import volta_fn as vf
from benchmarks.gpu.collectives import Gpus, training_call
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import contestant


class Launch(NamedTuple):
    """A kernel's run: its GPU, beginning and duration in µs, and what it occupies."""

    device: int
    start: float
    duration: float
    shape: str
    name: str


def traced(call: Callable[[], Any], steps: int) -> list[Launch]:
    """Return the kernels of so many steps, which follow one another closely."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            last = call()
        vf.block_until_ready(last)  # only here, so that GPUs begin a step when they have ended the one before
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    launches = []
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        args = event["args"]
        shape = f"{args.get('grid', '')}×{args.get('block', '')} r{args.get('registers per thread', 0)} s{args.get('shared memory', 0)}"
        launches.append(Launch(args["device"], event["ts"], event["dur"], shape, event["name"]))
    return sorted(launches, key=lambda launch: launch.start)


def report(launches: list[Launch], steps: int, lines: int, kinds: int) -> None:
    """Print the last step of each GPU, and sums by the kernels' names and shapes."""
    for device in sorted({launch.device for launch in launches}):
        rows = [launch for launch in launches if launch.device == device]
        rows = rows[len(rows) - len(rows) // steps :]
        begin, end = rows[0].start, max(row.start + row.duration for row in rows)
        busy, until = 0.0, begin
        for row in rows:
            busy += max(0.0, row.start + row.duration - max(until, row.start))
            until = max(until, row.start + row.duration)
        print(f"GPU {device}: {len(rows)} kernels in {end - begin:.0f} µs, of which {busy:.0f} have one at least", flush=True)
        for row in rows[:lines] if device == 0 else []:
            print(f"  {row.start - begin:8.1f} {row.duration:8.1f}  {row.shape} {row.name[:40]}")
        sums: dict[str, list[float]] = {}
        for row in rows:
            sums.setdefault(f"{row.shape} {row.name[:100]}", []).append(row.duration)
        for kind, durations in sorted(sums.items(), key=lambda item: -sum(item[1]))[:kinds]:
            print(f"  sum {sum(durations):8.1f} of {len(durations):3d}  {kind}")


def torch_call(workload: str) -> Callable[[], Any]:
    """Return PyTorch's compiled step."""
    peer = contestant("torch", named(workload).case())

    def call() -> None:
        peer.wait(peer.call())

    return call


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.timeline", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", default="gpu train/gpt medium@bfloat16")
    parser.add_argument("-n", "--gpus", type=int, default=2)
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--kinds", type=int, default=12, help="how many sums to print (default %(default)s)")
    parser.add_argument("--torch", action="store_true", help="PyTorch's step")
    options = parser.parse_args()
    use_gpu()
    if options.torch:
        trace("PyTorch", torch_call(options.workload), options)
        return 0
    examples = named(options.workload).size["batch"]
    for count in sorted({1, options.gpus}):
        trace(f"{count} GPUs", training_call(options.workload, Gpus(count, range(count)), examples), options)
    return 0


def trace(title: str, call: Callable[[], Any], options: argparse.Namespace) -> None:
    """Warm up, trace, and print."""
    for _ in range(12):
        vf.block_until_ready(call())
    print(f"{options.workload}: {title}", flush=True)
    report(traced(call, 3), 3, options.lines, options.kinds)


if __name__ == "__main__":
    sys.exit(main())
