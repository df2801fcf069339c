"""The GPU of an adapter: opened on first use and after a loss; timed schedules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError
from volta_fn.settings import value_of
from volta_fn.targets.gpu.device.driver import Adapter, BoundRange, Step
from volta_fn.targets.gpu.device.gpu import Gpu, release_abandoned
from volta_fn.targets.gpu.device.memory import Buffer, Lease
from volta_fn.targets.gpu.device.pipelines import Pipeline
from volta_fn.targets.wgsl.matmul.contract import shortlist, tune
from volta_fn.targets.wgsl.matmul.results import Working, rounded
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, Schedule, set_finder, tiled, users_file
from volta_fn.targets.wgsl.routine import Routine


def open_gpu(adapter: Adapter) -> Gpu:
    """Open the GPU of an adapter; its products are timed if VOLTA_GPU_TUNE=1."""
    gpu = Gpu(adapter)
    if value_of("VOLTA_GPU_TUNE") == "1":
        set_finder(gpu.capabilities.adapter, Trials(gpu))
    return gpu


class GpuHandle:
    """The open GPU of an adapter, which a loss replaces by another one.

    `reopened` is called after that, with the lock of the handle held.
    """

    def __init__(self, adapter: Adapter, reopened: Callable[[], None]) -> None:
        self.adapter = adapter
        #: The device as it is, which may be lost; None if it was not needed yet.
        self.current: Gpu | None = None
        self._reopened = reopened
        self._lock = threading.Lock()
        #: Recomputes the elements of a buffer of a lost device, if there is a policy for that (`backend.Recovery`).
        self._remake: Callable[[Gpu, Buffer], None] | None = None

    @property
    def gpu(self) -> Gpu:
        """The open device; a lost one is opened again."""
        before = self.current
        if before is not None and not before.errors.device_lost:
            return before
        with self._lock:
            if self.current is before:  # no other thread has opened it in the meantime
                gpu = open_gpu(self.adapter) if before is None else self._opened_again()
                if before is not None:
                    gpu.pool.limit = before.pool.limit
                gpu.remake = self._remake
                self.current = gpu
                if before is not None:
                    self._reopened()
            release_abandoned()
            assert self.current is not None
            return self.current

    def remake_by(self, remake: Callable[[Gpu, Buffer], None] | None) -> None:
        """Set the function that recomputes elements of a lost device, or none."""
        with self._lock:
            self._remake = remake
            if self.current is not None:
                self.current.remake = remake

    def _opened_again(self) -> Gpu:
        """Open the device after a loss; a reset may have changed the driver's name of it."""
        try:
            return open_gpu(self.adapter)
        except DeviceError:
            self.adapter = self.adapter.again()
            return open_gpu(self.adapter)


# Schedules of contractions, timed on the device if VOLTA_GPU_TUNE=1.
#
# That happens while programs are compiled.

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
