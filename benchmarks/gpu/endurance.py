"""Run thousands of training steps: `python -m benchmarks.gpu.endurance`.

Memory must stay flat and the queue short. The loss is read now and then, as in training. Ends with an error if memory grows, if more work
is queued than allowed, if the loss is not finite, or if Ctrl-C, sent in the middle, does not end a step at once.
"""

from __future__ import annotations

import argparse
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import volta_fn as vf
from benchmarks.gpu.device import opened_gpu
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import contestant
from volta_fn.errors import DonatedBufferError

#: After so many steps all memory that steps need has been taken; losses are read so often; and more batches are never under way.
_SETTLED, _READ, _UNDER_WAY = 200, 100, 17


def endure(call: Callable[[], Any], steps: int) -> None:
    """Run steps, and print their state now and then."""
    queue = opened_gpu().queue
    held, most, start = 0, 0, time.perf_counter()
    for number in range(1, steps + 1):
        loss = call()
        most = max(most, queue.submitted - queue.done)
        if number % _READ == 0 and not math.isfinite(float(loss)):
            raise SystemExit(f"the loss of step {number} is {float(loss)}")
        stats = vf.device_memory_stats("gpu")
        if number == _SETTLED:
            held = stats.held
        if number > _SETTLED and stats.held > held:
            raise SystemExit(f"memory grew from {held} to {stats.held} bytes by step {number}")
        if number % max(steps // 5, 1) == 0:
            milliseconds = (time.perf_counter() - start) / number * 1e3
            print(f"step {number}: {stats.held >> 10} KiB, at most {most} batches under way, {milliseconds:.3f} ms a step, loss {loss}")
    if most > _UNDER_WAY:
        raise SystemExit(f"{most} batches were under way")


def interrupt(call: Callable[[], Any], begin: Callable[[], Callable[[], Any]]) -> None:
    """Send Ctrl-C after a tenth of a second, and check that the next steps work.

    An interrupted step may have taken its donated state and not returned the new one: then training begins again, as from a checkpoint.
    """
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    start = time.perf_counter()
    try:
        while True:
            call()
            if time.perf_counter() - start > 60:
                raise SystemExit("Ctrl-C was not heard for a minute")
    except KeyboardInterrupt:
        print(f"interrupted after {time.perf_counter() - start:.2f} s", end="; ")
    try:
        print(f"the loss of a step after that is {float(call())}")
    except DonatedBufferError:
        print(f"the state was donated; the loss of a step from the beginning is {float(begin()())}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train some networks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.endurance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000, help="of each network (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("workloads", nargs="*", default=["gpu train/mlp", "gpu train/lenet"], help="which (default: an MLP and LeNet)")
    options = parser.parse_args(arguments)
    use_gpu()
    for name in options.workloads:
        print(name, flush=True)

        def begin(name: str = name) -> Callable[[], Any]:
            return contestant("volta_fn", named(name).case(options.quick)).call

        call = begin()
        endure(call, options.steps)
        interrupt(call, begin)


if __name__ == "__main__":
    main()
