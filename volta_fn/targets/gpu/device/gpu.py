"""An open GPU: its memory, queue, pipelines and routines, and timed schedules."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.caches import Finalized, LruCache, WeakIdentityDict
from volta_fn.core.devices.device import MemoryStats
from volta_fn.errors import DeviceError, DeviceTimeoutError, DistributedError, DTypeError
from volta_fn.interrupts import Lock, deferred_interrupts
from volta_fn.settings import value_of
from volta_fn.targets.gpu.device.driver import LOST, Adapter, AnyStep, BoundRange, Driver, Portion, Readback, Step, Timestamps, log, lost
from volta_fn.targets.gpu.device.memory import SMALL_READBACK, Block, Buffer, Lease, Pool
from volta_fn.targets.gpu.device.pipelines import Pipeline, Pipelines, fma_rounds_once, keeps_subnormals, loop_iterations, needed_checks
from volta_fn.targets.wgsl.matmul.contract import shortlist, tune
from volta_fn.targets.wgsl.matmul.results import Working, rounded
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, Schedule, set_finder, tiled, users_file
from volta_fn.targets.wgsl.plans.commands import SMALL, size_class
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.target import RoutineCache

# The queue: batches of commands, submitted and awaited.
#
# The number of batches in flight is limited; a thread that submits more waits. Waiting polls, quickly at first: so it ends as soon as the
# GPU is done, Ctrl-C works, and nothing waits forever (VOLTA_GPU_TIMEOUT seconds without progress, 300 unless set).

#: The most commands of a batch, and the fewest that are submitted in any case.
_COMMANDS = 256
_WORTH_SUBMITTING = 64
#: The most batches in flight.
_MOST_IN_FLIGHT = 16
#: Seconds after which pending commands are submitted, however few.
_LATE = 1e-3
#: The most bytes that the host writes between two batches.
_WRITTEN = 1 << 26

#: Seconds without progress after which waiting fails, by default.
_TIMEOUT = 300.0


#: Seconds to wait at the end of the process for other threads to release a GPU, and for its progress.
_EXIT_TIMEOUT = 10.0

_OPEN: WeakIdentityDict[Queue, None] = WeakIdentityDict()


@atexit.register
def _close() -> None:
    for queue in _OPEN:
        if queue.process == os.getpid():  # a forked process cannot use its parent's GPU
            queue.close()


def _mark_lost_in_child() -> None:
    """Mark all devices as lost in a forked process."""
    for queue in _OPEN:
        queue.errors.device_lost = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_lost_in_child)


class Queue:
    """The queue of one device. Methods that write commands are called under `lock`."""

    def __init__(self, driver: Driver, pool: Pool) -> None:
        self.driver = driver
        self.errors = driver.errors
        self.pool = pool
        self.lock = Lock()
        self.commands = 0
        self.written = 0
        self.submitted = 0
        self.done = 0
        #: When the last batch was submitted, and how many commands the next one collects.
        self.last = 0.0
        self.batch_commands = 1
        #: Counters, for statistics.
        self.dispatches = 0
        self.reads = 0
        self.waits = 0
        self.waited = 0.0
        self.timeouts = 0
        #: Held while the device is polled.
        self.polling = threading.RLock()
        self.process = os.getpid()
        _OPEN.set(self, None)
        timeout = value_of("VOLTA_GPU_TIMEOUT")
        self.timeout = _TIMEOUT if timeout is None else timeout

    # writing commands

    def play(self, steps: Sequence[AnyStep]) -> None:
        """Write dispatches, and submit if there are many.

        Call it under the lock, since bind groups may be released otherwise.
        """
        for start in range(0, len(steps), _COMMANDS):
            some = steps[start : start + _COMMANDS]
            self.driver.play(some)
            self.wrote(len(some))

    def replay(self, portions: Sequence[Portion]) -> None:
        """Write the dispatches of a recording again."""
        for dispatches, write in portions:
            write()
            self.wrote(dispatches)

    def play_timed(self, timestamps: Timestamps, step: Step) -> None:
        """Write a dispatch between two timestamps."""
        timestamps.play(step)
        self.wrote(1)

    def copy(self, to: Any, source: Any, offset: int, size: int) -> None:
        """Copy `size` bytes at an offset of a block to the beginning of another."""
        self.driver.copy(to, source, offset, size)
        self.commands += 1

    def wrote(self, dispatches: int) -> None:
        """Count dispatches that were written; submit if there are many."""
        self.commands += dispatches
        self.dispatches += dispatches
        if self.commands >= _COMMANDS:
            self.submit()

    def submit_if_due(self) -> None:
        """Submit if enough commands are pending, or if the GPU is about to run idle."""
        # It is called between programs. With more than one batch in flight the GPU has work: nothing is submitted, and the next batch is
        # smaller. If the GPU has finished all others, the host is the bottleneck, and submissions cost its time: the next batch is twice as
        # large, until a thread waits for one.
        if self.commands >= _WORTH_SUBMITTING:
            self.submit()
            return
        late = time.perf_counter() - self.last > _LATE
        if self.commands < self.batch_commands and not late:
            return
        in_flight = self._in_flight()
        if in_flight > 1:
            self.batch_commands = max(1, self.batch_commands // 2)
            return
        self.submit()
        if not late and (not in_flight or self._in_flight() == 1):
            self.batch_commands = min(2 * self.batch_commands, _WORTH_SUBMITTING)

    def _in_flight(self) -> int:
        if self.submitted != self.done:
            self.poll()
        return self.submitted - self.done

    def submit(self) -> int:
        """Submit the pending commands; return the number of the last batch."""
        with self.lock:
            if self.driver.is_pending:
                self._submit()
            return self.submitted

    def _submit(self) -> None:
        self.commands = self.written = 0
        self.driver.submit(self.submitted + 1)
        self.submitted += 1
        log.debug("batch %d submitted; %d are under way", self.submitted, self.submitted - self.done)
        self.last = time.perf_counter()
        self.pool.batch = self.submitted

    # waiting

    def poll(self) -> None:
        """Poll the device for completed batches."""
        with deferred_interrupts, self.polling:
            self.done = max(self.done, self.driver.poll())

    def wait_for(self, reached: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for a condition; raise `DeviceTimeoutError` without progress for too long."""
        if reached():
            return
        self.batch_commands = 1
        self.waits += 1
        start = time.perf_counter()
        try:
            self._poll_until(reached, start, self.timeout if timeout is None else timeout)
        except DeviceTimeoutError:
            self.timeouts += 1
            raise
        finally:
            seconds = time.perf_counter() - start
            self.waited += seconds
            log.debug("waited %.6f s; %d batches are under way", seconds, self.submitted - self.done)

    def _poll_until(self, reached: Callable[[], bool], start: float, timeout: float) -> None:
        progress, last = (self.done, self.driver.iterations), start
        while True:
            if self.errors.device_lost:
                raise DeviceError(LOST)
            self.poll()
            if reached():
                return
            deferred_interrupts.deliver_pending()
            now = time.perf_counter()
            if (self.done, self.driver.iterations) != progress:
                progress, last = (self.done, self.driver.iterations), now
            elif now - last > timeout:
                raise DeviceTimeoutError(
                    f"the GPU has finished nothing for {timeout:g} seconds. It may be busy with a large computation, or hang: "
                    "waiting again may help; VOLTA_GPU_TIMEOUT sets the seconds"
                )
            waited = now - start
            if waited > 1e-4:
                time.sleep(min(waited / 16, 1e-3))

    def wait(self, batch: int | None = None, timeout: float | None = None) -> None:
        """Wait for a batch; without one, for all commands."""
        number = self.submit() if batch is None else batch
        self.wait_for(lambda: self.done >= number, timeout)

    def close(self) -> None:
        """Finish at the end of the process."""
        # Other threads are kept from calling the driver, and the GPU gets a short time to finish. If Python ended a thread within a
        # callback of the library, the process would crash.
        with contextlib.suppress(DeviceError, DistributedError):
            if self.lock.keep(_EXIT_TIMEOUT):
                self.wait(timeout=_EXIT_TIMEOUT)
        self.polling.acquire(timeout=_EXIT_TIMEOUT)

    def wait_for_room(self) -> None:
        """Wait while too many batches are in flight."""
        if self.submitted - self.done >= _MOST_IN_FLIGHT:
            self.wait(self.submitted - _MOST_IN_FLIGHT // 2)

    # data

    def write(self, block: Block, data: np.ndarray, offset: int = 0) -> None:
        """Write bytes to a block that no pending command uses."""
        size = data.nbytes
        if size % 4:
            data = np.concatenate([data, np.zeros(-size % 4, np.uint8)])
        self.driver.write(block.handle, data, offset)
        self.written += data.nbytes
        if self.written > _WRITTEN:  # until something is submitted, the data may stay in the driver's memory
            self._submit()

    def read(self, block: Block, size: int, offset: int = 0) -> np.ndarray:
        """Return the bytes of a block as of the commands written so far."""
        with self.lock:
            readback = self.request(block, size, offset)
        return self.take(readback)

    def request(self, block: Block, size: int, offset: int = 0) -> Readback:
        """Request a copy of bytes to the host, as of the commands written so far."""
        # It waits for no later command. So the readback of a result that is read after each step, such as a loss, is requested with the
        # step.
        readback = self.driver.readbacks.request(block.handle, size, offset)
        self.commands += 1
        return readback

    def take(self, readback: Readback) -> np.ndarray:
        """Wait for a readback and return its bytes. Call it once."""
        self.reads += 1
        readbacks = self.driver.readbacks
        if not readback.submitted:
            self.submit()
        self.wait_for(lambda: readbacks.arrived(readback))
        data = readbacks.take(readback)
        with self.lock:
            readbacks.keep(readback)
        return data


# An open GPU: its memory, queue, pipelines and routines.

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
        # Not a bound method: objects to be released later must not refer to this one.
        self.pool.make_room = partial(_make_room, self.scratch, self.queue)
        driver.make_room = partial(_free_unused, self.pool, self.queue)
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
        buffer = Buffer(None, values.shape, values.dtype, size, values if size <= SMALL else None)
        if size > SMALL:
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

    def constant(self, value: Any) -> Buffer:
        """Return the buffer of a program's constant; equal small ones share one."""
        if isinstance(value, Buffer):
            return value
        key = value.tobytes() if value.nbytes <= SMALL else None
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
        """Return blocks for a program's temporary values.

        All programs that are one command list share them.
        """
        leases: dict[int, list[Lease]] = {}
        temporaries = []
        for size in sizes:
            kind = size_class(size)
            of_kind, shared = leases.setdefault(kind, []), self.scratch.get(kind, [])
            of_kind.append(shared[len(of_kind)] if len(of_kind) < len(shared) else self.pool.lease(size))
            temporaries.append(of_kind[-1])
        # Only now, since leasing drops all scratch blocks if memory is short. A recording would keep writing to those that are not in the
        # table, which the pool gives to others after this call.
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
            self.pool.make_room()
            self.pool.trim()
            self.grids.trim()
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
            self.queue.play([Step(pipeline.handle, group, (1, 1, 1))])

    @property
    def recordings_epoch(self) -> int:
        """A number that changes when recorded command lists become invalid."""
        # All four only grow, so that the sum changes if one does.
        return self.pool.releases + self.grids.releases + self.pipelines.group_releases + self.pipelines.upgrades.replacements

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


def _make_room(scratch: dict[int, list[Lease]], queue: Queue) -> None:
    # Recordings that write to these blocks end now: the wait may raise, and the pool gives the blocks to others after that, too.
    queue.pool.releases += 1
    scratch.clear()
    queue.wait()


def _free_unused(pool: Pool, queue: Queue) -> None:
    # Scratch blocks stay: nothing else keeps them while the graph is made of a recording that uses them.
    with queue.lock:
        queue.wait()
        pool.trim()


def _lost(buffer: Buffer) -> DeviceError:
    return DeviceError(lost(f"The array {buffer.dtype}{list(buffer.shape)} that was there"))


# The GPU of an adapter, opened when it is first needed and again after a loss.


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
# It happens while programs are compiled.

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
