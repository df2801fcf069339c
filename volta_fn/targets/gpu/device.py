"""An open GPU and what it has; opening it again after a loss; timed schedules."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.caches import Finalized, LruCache
from volta_fn.core.devices.device import MemoryStats
from volta_fn.errors import DeviceError, DTypeError
from volta_fn.settings import value_of
from volta_fn.targets.gpu.driver import Adapter, BoundDispatch, BoundRange, Driver, lost
from volta_fn.targets.gpu.memory import SMALL_READBACK, Buffer, Lease, Pool
from volta_fn.targets.gpu.pipelines import Pipeline, Pipelines, fma_rounds_once, keeps_subnormals, loop_iterations, needed_checks
from volta_fn.targets.gpu.queue import Queue
from volta_fn.targets.wgsl.commands import KEPT_ON_HOST, size_class
from volta_fn.targets.wgsl.matmul.contract import shortlist, tune
from volta_fn.targets.wgsl.matmul.results import Working, rounded
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, Schedule, set_finder, tiled, users_file
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.target import RoutineCache

#: The most constants in the cache through which programs share equal ones.
_MOST_CONSTANTS = 1024


class Counters(NamedTuple):
    """Counters of a device's work."""

    #: Copies from the device to the host.
    reads: int
    #: Equations that NumPy computed, by primitive.
    host_steps: dict[str, int]
    dispatches: int
    submissions: int


class Gpu:
    """An open GPU."""

    def __init__(self, adapter: Adapter) -> None:
        self.driver = driver = adapter.open()
        self.description, self.errors = driver.description, driver.errors
        self.capabilities = self.description.capabilities
        self.pool = Pool(driver, value_of("VOLTA_GPU_MEMORY"))
        self.queue = Queue(driver, self.pool)
        #: Recomputes the elements of a buffer of a lost device, if there is a policy for that (`backend.Recovery`).
        self.remake: Callable[[Gpu, Buffer], None] | None = None
        #: Blocks that hold the grids of indirect dispatches.
        self.grids = Pool(driver, None, grids=True)
        self.pipelines = Pipelines(driver)
        self.target = driver.target(self._test(self.capabilities))  # runs shaders, for which all of the above must exist
        self.capabilities = self.target.capabilities
        #: Gives the routine of a key, generated once.
        self.routines = RoutineCache()
        self.host_steps: Counter[str] = Counter()
        #: Blocks for temporary values, by size class; all programs share them.
        self.scratch: dict[int, list[Lease]] = {}
        # Not bound methods: objects to be released later must not refer to this one.
        pools = self.pool, self.grids
        for pool in pools:
            pool.release_unused = partial(_release_unused, self.scratch, pools, self.queue)
        driver.release_free_blocks = partial(_release_free_blocks, pools, self.queue)
        self._constants: LruCache[Buffer] = LruCache(_MOST_CONSTANTS)
        _abandoned.add(self, (driver, self.pool, self.grids, self.pipelines))
        if value_of("VOLTA_GPU_CHECKS") != "1":
            self.pipelines.checks = needed_checks(self)

    def _test(self, capabilities: TargetCapabilities) -> TargetCapabilities:
        """Return the capabilities with what only running shaders tells."""
        capabilities = capabilities._replace(fma=fma_rounds_once(self), subnormals=keeps_subnormals(self))
        return capabilities._replace(iterations=loop_iterations(self)) if self.description.kind == "cpu" else capabilities

    # buffers

    def put(self, values: np.ndarray) -> Buffer:
        """Return a buffer with an array's elements; small ones are uploaded on first use."""
        self.check_dtype(values.dtype)
        size = values.nbytes
        buffer = Buffer(None, values.shape, values.dtype, size, values if size <= KEPT_ON_HOST else None)
        if size > KEPT_ON_HOST:
            self._upload(buffer, values)
        return buffer

    def lease_of(self, buffer: Buffer) -> Lease:
        """Return the memory of a buffer, uploading its elements first if necessary."""
        lease = buffer.lease
        if lease is None or lease.returned is not self.pool.returned:
            if buffer.host_values is not None:
                self._upload(buffer, buffer.host_values)
            elif self.remake is not None:
                self.remake(self, buffer)
            else:
                raise _lost(buffer)
            assert buffer.lease is not None
            return buffer.lease
        return lease

    def holds(self, buffer: Buffer) -> bool:
        """Return True if a buffer's elements are in the memory of this device."""
        return buffer.lease is not None and buffer.lease.returned is self.pool.returned

    def _upload(self, buffer: Buffer, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        with self.queue.lock:
            lease = self.pool.lease_unused(max(data.nbytes, 4))
            if lease is None:
                self.queue.submit()
                lease = self.pool.lease(max(data.nbytes, 4))
            if data.nbytes:
                self.queue.write(lease.block, data)
            buffer.lease = lease

    def get(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of a buffer."""
        if buffer.host_values is not None:
            return buffer.host_values
        if not buffer.size:
            return np.empty(buffer.shape, buffer.dtype)
        lease = self.lease_of(buffer)
        readback, buffer.readback = buffer.readback, None
        if buffer.on_read is not None:
            buffer.on_read()
        try:
            data = self.queue.read(lease.block, buffer.size) if readback is None else self.queue.take(readback)
        except DeviceError:
            if self.errors.device_lost:
                raise _lost(buffer) from None
            raise
        values = data.view(buffer.dtype).reshape(buffer.shape)
        if buffer.size <= SMALL_READBACK:
            buffer.host_values = values
        return values

    def wait(self, buffer: Buffer) -> None:
        """Wait until the elements of a buffer are computed."""
        if buffer.lease is not None:
            self.queue.wait()

    def is_ready(self, buffer: Buffer) -> bool:
        """Return whether a buffer, and all else that was submitted, is computed."""
        return buffer.lease is None or self.queue.is_done()

    def constant(self, value: Any) -> Buffer:
        """Return the buffer of a program's constant; equal small ones share one."""
        if isinstance(value, Buffer):
            return value
        key = value.tobytes() if value.nbytes <= KEPT_ON_HOST else None
        buffer = None if key is None else self._constants.get(key)
        if buffer is None:
            buffer = Buffer(None, value.shape, value.dtype, value.nbytes, value)
            self.lease_of(buffer)
            if key is not None:
                buffer = self._constants.setdefault(key, buffer)
        return buffer

    def check_dtype(self, dtype: np.dtype) -> None:
        """Raise `DTypeError` for a dtype that the device does not have."""
        if (dtype.name in ("float64", "complex128") and not self.capabilities.float64) or (
            dtype.name in ("int64", "uint64") and not self.capabilities.int64
        ):
            raise DTypeError(f"the GPU {self.description.name} has no {dtype.name}; convert to a 32-bit dtype, or use the device 'cpu'")

    # memory

    def lease_scratch(self, sizes: Sequence[int]) -> list[Lease]:
        """Return leases of blocks for a program's temporary values.

        All programs that nothing interrupts share these *scratch* blocks, since the queue executes one after another. So their addresses
        are the same in every call, and recordings stay valid.
        """
        leases: dict[int, list[Lease]] = {}
        temporaries = []
        for size in sizes:
            kind = size_class(size)
            of_kind, shared = leases.setdefault(kind, []), self.scratch.get(kind, [])
            of_kind.append(shared[len(of_kind)] if len(of_kind) < len(shared) else self.pool.lease(size))
            temporaries.append(of_kind[-1])
        # The table is updated last: a lease that runs out of memory empties it. A block that this program uses, but that is not in the
        # table, returns to the pool after this call, while the program's recordings still write to it.
        for kind, of_kind in leases.items():
            if len(of_kind) > len(self.scratch.get(kind, [])):
                self.scratch[kind] = of_kind
        return temporaries

    def memory(self) -> MemoryStats:
        """Return the memory in use, its peak, and the memory held."""
        with self.queue.lock:
            self.pool.collect()
            scratch_size = sum(lease.block.size for leases in self.scratch.values() for lease in leases)
            return MemoryStats(self.pool.in_use - scratch_size, self.pool.peak, self.pool.held, self.pool.limit)

    def free_memory(self) -> None:
        """Release memory that is only kept for reuse."""
        with self.queue.lock:
            self.pool.release_unused()
            self.driver.readbacks.clear()
            self.queue.poll()

    def copied(self, lease: Lease, size: int) -> Lease:
        """Copy the first bytes of a block to a new one."""
        copy = self.pool.lease(max(size, 4))
        self.queue.copy(copy.block.handle, lease.block.handle, 0, max(-(-size // 4) * 4, 4))
        return copy

    def dispatch(self, source: str, buffers: Sequence[Buffer], written: frozenset[int], checks: int) -> None:
        """Run one workgroup of a shader by itself."""
        pipeline = self.pipelines.make(source, len(buffers), written, checks)
        with self.queue.lock:
            bindings = tuple([BoundRange(self.lease_of(b).block, 0, b.size) for b in buffers])
            group = self.pipelines.group(pipeline, bindings)
            self.queue.play([BoundDispatch(pipeline.handle, group, (1, 1, 1))])

    @property
    def recordings_epoch(self) -> int:
        """A number that changes when recorded command lists become invalid."""
        # All four only grow, so that the sum changes if one does.
        return self.pool.releases + self.grids.releases + self.pipelines.group_releases + self.pipelines.upgrades.rounds

    @property
    def counters(self) -> Counters:
        """The counters of the device's work."""
        return Counters(self.queue.reads, dict(self.host_steps), self.queue.dispatches, self.queue.submitted)


#: The driver's objects of devices that were collected; they are released later.
_abandoned: Finalized[tuple[Driver, Pool, Pool, Pipelines]] = Finalized()


def release_abandoned() -> None:
    """Release the driver's objects of lost devices that nothing uses."""
    for driver, pool, grids, pipelines in _abandoned.drain():
        for owner in (driver, pool, grids, pipelines):
            owner.release()
        driver.destroy()


def _release_unused(scratch: dict[int, list[Lease]], pools: Sequence[Pool], queue: Queue) -> None:
    # Recordings that write to the scratch blocks become invalid before the wait: if it raises, the pool gives the blocks to others, too.
    queue.pool.releases += 1
    scratch.clear()
    _release_free_blocks(pools, queue)


def _release_free_blocks(pools: Sequence[Pool], queue: Queue) -> None:
    # The scratch blocks stay, as this is called while a graph is made of a recording that uses them: nothing but the table keeps them.
    with queue.lock:
        queue.wait()
        for pool in pools:
            pool.trim()


def _lost(buffer: Buffer) -> DeviceError:
    return DeviceError(lost(f"The array {buffer.dtype}{list(buffer.shape)} that was there"))


# The GPU of an adapter: opened on first use and after a loss; timed schedules.


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
            keys = [(d.fastest, len(d.buffers), d.written_bindings, False) for routine in routines for d in routine.dispatches]
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
            pipeline = pipelines.find(d.fastest, len(d.buffers), d.written_bindings)
            blocks = [leases[number].block for number in d.buffers]
            bound.append((pipeline, tuple([BoundRange(block, 0, block.size) for block in blocks]), d.workgroups))
        queue.wait()
        start = time.perf_counter()
        with queue.lock:
            steps = [BoundDispatch(pipeline.handle, pipelines.group(pipeline, bindings), groups) for pipeline, bindings, groups in bound]
            queue.play(steps * times)
        queue.wait()
        return time.perf_counter() - start
