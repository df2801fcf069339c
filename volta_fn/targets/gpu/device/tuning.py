"""Schedules of contractions, timed on the device if VOLTA_GPU_TUNE=1.

It happens while programs are compiled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.gpu.device.driver import BoundRange, Step
from volta_fn.targets.gpu.device.gpu import Gpu
from volta_fn.targets.gpu.device.memory import Lease
from volta_fn.targets.gpu.device.pipelines import Pipeline
from volta_fn.targets.wgsl.matmul.contract import shortlist, tune
from volta_fn.targets.wgsl.matmul.results import Working, rounded
from volta_fn.targets.wgsl.matmul.schedule import Schedule, users_file
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, tiled
from volta_fn.targets.wgsl.routine import Routine

#: The approximate seconds of a measurement, and the number of measurements, of which the least counts.
_ROUND_SECONDS, _ROUNDS = 0.004, 4
#: Runs from which the number of runs of a measurement is estimated.
_FEW = 8


class Trials:
    """A finder of schedules (see `remembered`)."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._lock = threading.Lock()
        self._operands: Sequence[np.ndarray] = ()
        self._leases: list[Lease] = []
        self._pipelines: list[Pipeline] = []

    def __call__(self, c: IndexedContraction, work: Working, capabilities: TargetCapabilities) -> Schedule:
        """Return the fastest schedule."""
        with self._lock:
            routines = [
                tiled(c, work, schedule, capabilities, rounded(c.target.dtype), BufferNumbers())
                for schedule in shortlist(c, work, capabilities)
            ]
            keys = [(d.best, len(d.buffers), d.written_bindings, False) for routine in routines for d in routine.dispatches]
            self._pipelines = self.gpu.pipelines.prepare(keys)
            measurements = tune(c, work, capabilities, self.trial, path=users_file())
            self._operands, self._leases, self._pipelines = (), [], []
            self.gpu.free_memory()  # so that blocks are few, and given out in the same order again
        return measurements[0].schedule

    def trial(self, routine: Routine, operands: Sequence[np.ndarray], size: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
        """Run a routine, and return its result and seconds (see `Trial`)."""
        gpu = self.gpu
        if self._operands is not operands:
            self._operands, self._leases = operands, [gpu.lease_of(gpu.put(x)) for x in operands]
        result = gpu.put(np.zeros(size, dtype))  # a contraction need not write all of it
        with gpu.queue.lock:
            leases = [*self._leases, gpu.lease_of(result), *[gpu.pool.lease(n) for n in routine.workspaces]]
        self._time_runs(routine, leases, 1)
        once = self._least(routine, leases, 1, _ROUNDS)  # mostly latency, and one run
        values = gpu.queue.read(leases[len(operands)].block, result.size).view(dtype)
        each = (self._least(routine, leases, 1 + _FEW, 1) - once) / _FEW
        more = int(min(400, max(1, _ROUND_SECONDS / max(each, 1e-6))))
        return values, (self._least(routine, leases, 1 + more, _ROUNDS) - once) / more

    def _least(self, routine: Routine, leases: Sequence[Lease], times: int, iterations: int) -> float:
        """Return the least time of `iterations` measurements of `times` runs."""
        return min(self._time_runs(routine, leases, times) for _ in range(iterations))

    def _time_runs(self, routine: Routine, leases: Sequence[Lease], times: int) -> float:
        """Run a routine `times` times and return the total time in seconds."""
        pipelines, queue = self.gpu.pipelines, self.gpu.queue
        bound = []
        for d in routine.dispatches:
            pipeline = pipelines.find(d.best, len(d.buffers), d.written_bindings)
            blocks = [leases[number].block for number in d.buffers]
            bound.append((pipeline, tuple([BoundRange(block, 0, block.size) for block in blocks]), d.groups))
        queue.wait()
        start = time.perf_counter()
        with queue.lock:
            steps = [Step(pipeline.handle, pipelines.group(pipeline, bindings), groups) for pipeline, bindings, groups in bound]
            queue.play(steps * times)
        queue.wait()
        return time.perf_counter() - start
