"""Profile a workload's dispatches: `python -m benchmarks.gpu.profile WORKLOAD`.

Each different dispatch of one call is run many times by itself, on the memory that it had; its bytes are those of its bindings. The host's
time around them is shown, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.gpu.device import opened_gpu
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import contestant
from volta_fn.targets.gpu.driver import BoundDispatch
from volta_fn.targets.gpu.program import Call
from volta_fn.targets.gpu.queue import Queue
from volta_fn.targets.wgsl.commands import Run

#: A shader, the sizes of its buffers, and its grid.
_Shader = tuple[str, tuple[int, ...], tuple[int, int, int]]


class Cost(NamedTuple):
    """A shader with its buffers and grid, its runs in a call, and the seconds of one."""

    source: str
    sizes: tuple[int, ...]
    groups: tuple[int, int, int]
    times: int
    seconds: float


def measure(call: Callable[[], Any], wait: Callable[[Any], Any], repeats: int) -> list[Cost]:
    """Measure the costs of all dispatches of one call."""
    #: By the numbers of steps as objects: the call, whose memory must last, the step, and what it was made of.
    dispatches: dict[int, tuple[Call, BoundDispatch, _Shader]] = {}
    seen: dict[_Shader, list[BoundDispatch]] = {}
    one = Call.step

    def recorded(self: Call, run: Run) -> BoundDispatch:
        step = one(self, run)
        dispatches[id(step)] = self, step, (run.source, tuple([p.size for p in run.ranges]), run.workgroups)
        return step

    def watched(queue: Queue, steps: Sequence[BoundDispatch]) -> None:
        for step in steps:
            if id(step) in dispatches and step.grid_buffer is None:
                seen.setdefault(dispatches[id(step)][2], []).append(step)
        play(queue, steps)

    play = Queue.play
    one_by_one = mock.patch.object(type(opened_gpu().driver), "replay_parts", lambda self, steps: None)
    with mock.patch.object(Call, "step", recorded), mock.patch.object(Queue, "play", watched), one_by_one:
        for _ in range(2):
            wait(call())
            opened_gpu().pipelines.upgrades.settle()
        seen.clear()
        wait(call())
    costs = [Cost(*shader, len(steps), _alone(opened_gpu().queue, steps[0], repeats)) for shader, steps in seen.items()]
    return sorted(costs, key=lambda c: -c.seconds * c.times)


def _alone(queue: Queue, step: BoundDispatch, repeats: int) -> float:
    """Return the seconds of one dispatch, repeated until they can be measured."""
    queue.wait()
    while True:
        start = time.perf_counter()
        with queue.lock:
            for _ in range(repeats):
                queue.play([step])
        queue.wait()
        seconds = time.perf_counter() - start
        if seconds > 2e-3 or repeats >= 256:
            return seconds / repeats
        repeats *= 4


def main() -> None:
    """Print the most expensive dispatches, and write their shaders."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.profile", description="What the dispatches of a workload cost.")
    parser.add_argument("workload")
    parser.add_argument("--most", type=int, default=25, help="how many dispatches to print (default %(default)s)")
    parser.add_argument("--shaders", type=Path, metavar="FILE", help="where the texts of those go")
    parser.add_argument("--quick", action="store_true", help="the tiny size")
    options = parser.parse_args()
    use_gpu()
    work = contestant("volta_fn", named(options.workload).case(options.quick))
    costs = measure(work.call, work.wait, 4)
    begun, done = [], []
    for _ in range(10):
        start = time.perf_counter()
        result = work.call()
        begun.append(time.perf_counter() - start)
        work.wait(result)
        done.append(time.perf_counter() - start)
    total = sum(c.seconds * c.times for c in costs)
    returned, finished = (statistics.median(times) * 1e6 for times in (begun, done))
    print(f"{options.workload}: a call returns after {returned:.0f} µs, and is done after {finished:.0f} µs")
    print(f"{sum(c.times for c in costs)} dispatches of {len(costs)} kinds take {total * 1e6:.0f} µs, each by itself")
    for number, cost in enumerate(costs[: options.most]):
        speed = sum(cost.sizes) / cost.seconds / 1e9
        sizes = ",".join(map(str, cost.sizes))
        print(f"#{number:<3d}{cost.times:5d} × {cost.seconds * 1e6:9.1f} µs {speed:8.1f} GB/s  groups {cost.groups}  bytes {sizes}")
    if options.shaders:
        options.shaders.write_text("\n".join(f"// #{i}\n{c.source}" for i, c in enumerate(costs[: options.most])))


if __name__ == "__main__":
    main()
