"""The GPU of an adapter, opened when it is first needed and again after a loss."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError
from volta_fn.runtime import threads
from volta_fn.targets.wgsl.matmul.contract import tried, tune
from volta_fn.targets.wgsl.matmul.results import rounded
from volta_fn.targets.wgsl.matmul.schedule import Schedule, Working, find_by, users_file
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, tiled
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.runtime.command_lists import Step, play
from volta_fn.targets.wgsl.runtime.device.adapter import adapters
from volta_fn.targets.wgsl.runtime.device.gpu import Gpu, release_abandoned
from volta_fn.targets.wgsl.runtime.device.memory import Buffer, Lease
from volta_fn.targets.wgsl.runtime.device.pipelines import BoundRange, Pipeline

# ------------------------------------------------------------------------------
# Time schedules of contractions on the device, if VOLTA_GPU_TUNE=1.
#
# It happens while programs are compiled.
# ------------------------------------------------------------------------------

#: The approximate seconds of a measurement, and how many are made, of which the least counts.
_ROUND_SECONDS, _ROUNDS = 0.004, 4
#: Runs that tell how many a measurement needs.
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
                for schedule in tried(c, work, capabilities)
            ]
            keys = [(d.best, len(d.buffers), d.written_bindings) for routine in routines for d in routine.dispatches]
            self._pipelines = self.gpu.pipelines.prepare(keys)
            found = tune(c, work, capabilities, self.trial, path=users_file())
            self._operands, self._leases, self._pipelines = (), [], []
            self.gpu.free_memory()  # so that blocks are few, and given out in the same order again
        return found[0].schedule

    def trial(self, routine: Routine, operands: Sequence[np.ndarray], size: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
        """Run a routine, and return its result and seconds (see `Trial`)."""
        gpu = self.gpu
        if self._operands is not operands:
            self._operands, self._leases = operands, [gpu.lease_of(gpu.put(x)) for x in operands]
        result = gpu.put(np.zeros(size, dtype))  # of which a contraction need not make all
        with gpu.queue.lock:
            leases = [*self._leases, gpu.lease_of(result), *[gpu.pool.lease(n) for n in routine.workspaces]]
        self._run(routine, leases, 1)
        once = self._least(routine, leases, 1, _ROUNDS)  # mostly latency, and one run
        made = gpu.queue.read(leases[len(operands)].block, result.size).view(dtype)
        each = (self._least(routine, leases, 1 + _FEW, 1) - once) / _FEW
        more = int(min(400, max(1, _ROUND_SECONDS / max(each, 1e-6))))
        return made, (self._least(routine, leases, 1 + more, _ROUNDS) - once) / more

    def _least(self, routine: Routine, leases: Sequence[Lease], times: int, iterations: int) -> float:
        """Return the least time of `iterations` measurements of `times` runs."""
        return min(self._run(routine, leases, times) for _ in range(iterations))

    def _run(self, routine: Routine, leases: Sequence[Lease], times: int) -> float:
        """Run a routine `times` times and return the seconds that all take."""
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
            play(queue, steps * times)
        queue.wait()
        return time.perf_counter() - start


# ------------------------------------------------------------------------------
# The GPU of an adapter, opened when it is first needed and again after a loss.
# ------------------------------------------------------------------------------


def open_gpu(adapter: Any) -> Gpu:
    """Open the GPU of an adapter; its products are timed if VOLTA_GPU_TUNE=1."""
    gpu = Gpu(adapter)
    if threads.value_of("VOLTA_GPU_TUNE") == "1":
        find_by(gpu.capabilities.adapter, Trials(gpu))
    return gpu


class GpuHandle:
    """The open GPU of an adapter, which a loss replaces by another one.

    `reopened` is called after that, with the lock of the handle held.
    """

    def __init__(self, adapter: Any, reopened: Callable[[], None]) -> None:
        self.adapter = adapter
        #: The device as it is, which may be lost; None if it was not needed yet.
        self.current: Gpu | None = None
        self._reopened = reopened
        self._lock = threading.Lock()
        #: Makes the elements of a buffer of a lost device again, if there is a policy for that (`recovery`).
        self._remake: Callable[[Gpu, Buffer], None] | None = None

    @property
    def gpu(self) -> Gpu:
        """The open device; a lost one is opened again."""
        before = self.current
        if before is not None and not before.watched.lost:
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
        """Set the function that makes elements of a lost device again, or none."""
        with self._lock:
            self._remake = remake
            if self.current is not None:
                self.current.remake = remake

    def _opened_again(self) -> Gpu:
        """Open the device after a loss; a reset may have changed what the driver calls it."""
        try:
            return open_gpu(self.adapter)
        except DeviceError:
            adapters.cache_clear()
            self.adapter = next((a for a in adapters() if a.info["device"] == self.adapter.info["device"]), self.adapter)
            return open_gpu(self.adapter)
