"""The queue: batches of commands, submitted and awaited.

The number of batches in flight is limited; a thread that submits more waits. Waiting polls, quickly at first: so it ends as soon as the
GPU is done, Ctrl-C works, and nothing waits forever (VOLTA_GPU_TIMEOUT seconds without progress, 300 unless set).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.caches import WeakIdentityDict
from volta_fn.errors import DeviceError, DeviceTimeoutError, DistributedError
from volta_fn.settings import value_of
from volta_fn.signals import Lock, deferred_interrupts
from volta_fn.targets.gpu.driver import LOST, BoundDispatch, Driver, DriverStep, Readback, ReplayPart, Timestamps, log
from volta_fn.targets.gpu.memory import Block, Pool

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

    def play(self, steps: Sequence[DriverStep]) -> None:
        """Write dispatches, and submit if there are many.

        Call it under the lock, since bind groups may be released otherwise.
        """
        for start in range(0, len(steps), _COMMANDS):
            some = steps[start : start + _COMMANDS]
            self.driver.play(some)
            self.wrote(len(some))

    def replay(self, parts: Sequence[ReplayPart]) -> None:
        """Write the dispatches of a recording again."""
        for part in parts:
            part.write()
            self.wrote(part.dispatches)

    def play_timed(self, timestamps: Timestamps, step: BoundDispatch) -> None:
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
        self.pool.submitted = self.submitted

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
        progress, last = (self.done, self.driver.progress_mark), start
        while True:
            if self.errors.device_lost:
                raise DeviceError(LOST)
            self.poll()
            if reached():
                return
            deferred_interrupts.deliver_pending()
            now = time.perf_counter()
            if (self.done, self.driver.progress_mark) != progress:
                progress, last = (self.done, self.driver.progress_mark), now
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

    def is_done(self) -> bool:
        """Submit the pending commands; return whether all are executed."""
        number = self.submit()
        if self.done < number:
            self.poll()
        return self.done >= number

    def close(self) -> None:
        """Finish at the end of the process."""
        # Other threads are kept from calling the driver, and the GPU gets a short time to finish. If Python ended a thread within a
        # callback of the library, the process would crash.
        with contextlib.suppress(DeviceError, DistributedError):
            if self.lock.keep(_EXIT_TIMEOUT):
                self.wait(timeout=_EXIT_TIMEOUT)
        self.polling.acquire(timeout=_EXIT_TIMEOUT)

    def limit_in_flight(self) -> None:
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
