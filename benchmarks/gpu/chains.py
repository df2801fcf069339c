"""Chains of a program's dispatches, which time the device without the host's work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import volta_fn as vf
from benchmarks.gpu.device import opened_gpu
from volta_fn.targets.gpu.driver import BoundDispatch
from volta_fn.targets.gpu.program import Call
from volta_fn.targets.gpu.queue import Queue

#: Seconds that a sample takes at least, and its fewest and most runs of a chain.
_SECONDS, _FEWEST, _MOST = 0.004, 2, 200


def chain(program: Callable[[], Any], repeats: int) -> Callable[[], float]:
    """Return a function that gives the seconds of one call of a jitted program.

    It is one of several that wait for each other: the program's dispatches are repeated in one replay, and write the same memory.
    """
    steps, kept = steps_of(program)
    run = _runner(steps, repeats)

    def sample() -> float:
        assert kept, "memory of the dispatches"
        return run()

    return sample


def repeated(steps: Sequence[BoundDispatch], repeats: int) -> float:
    """Return the seconds of some dispatches.

    They are repeated in one replay. Their memory must last.
    """
    run = _runner(steps, repeats)
    return min(run() for _ in range(3))


def _runner(steps: Sequence[BoundDispatch], repeats: int) -> Callable[[], float]:
    gpu = opened_gpu()
    queue, driver = gpu.queue, gpu.driver
    all_steps = [*steps] * repeats
    with queue.lock:
        parts = driver.replay_parts(all_steps)

    def run(times: int) -> float:
        queue.wait()
        start = time.perf_counter()
        with queue.lock:
            for _ in range(times):
                if parts is None:
                    queue.play(all_steps)
                else:
                    queue.replay(parts)
        queue.wait()
        return (time.perf_counter() - start) / times / repeats

    times = min(_MOST, max(_FEWEST, round(_SECONDS / max(run(_FEWEST) * repeats, 1e-6))))
    return lambda: run(times)


def steps_of(program: Callable[[], Any]) -> tuple[list[BoundDispatch], list[Any]]:
    """Return the dispatches of a call, and what holds their memory."""
    steps: list[BoundDispatch] = []
    kept: list[Any] = []
    play, one = Queue.play, Call.step

    def played(queue: Queue, some: Sequence[BoundDispatch]) -> None:
        steps.extend(some)
        play(queue, some)

    def held(call: Call, run: Any) -> BoundDispatch:
        kept.append(call)
        return one(call, run)

    without_replays = mock.patch.object(type(opened_gpu().driver), "replay_parts", lambda self, steps: None)
    with mock.patch.object(Queue, "play", played), mock.patch.object(Call, "step", held), without_replays:
        vf.block_until_ready(program())
        opened_gpu().pipelines.upgrades.settle()
        steps.clear()
        kept.append(program())
        vf.block_until_ready(kept[-1])
    return steps, kept
