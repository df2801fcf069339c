"""The queue: commands are collected into batches, batches are submitted, and threads may wait for them.

A batch is one compute pass. Only so many batches may be in flight; whoever submits more waits. All waiting is by polling, quickly at
first: so it ends at once when the GPU is done, Ctrl-C works, and nothing waits forever (VOLTA_GPU_TIMEOUT seconds without progress, 300
unless set).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn.errors import DeviceError, DeviceTimeoutError
from volta_fn.targets.wgsl.runtime import settings
from volta_fn.targets.wgsl.runtime.interrupts import Lock, held_back
from volta_fn.targets.wgsl.runtime.memory import Block, Pool
from volta_fn.targets.wgsl.runtime.readback import Readback, Readbacks
from volta_fn.targets.wgsl.runtime.wgpu_ffi import LOST, Watched, log, native

#: Commands in a batch: the most, and how many are worth submitting; the most batches in flight, and bytes written between batches.
_COMMANDS = 256
_ENOUGH = 64
_UNDER_WAY = 16
#: Seconds after which commands are submitted without waiting for more of them.
_LATE = 1e-3
_WRITTEN = 1 << 26

_ALLOW_PROCESS_EVENTS = 2

#: Seconds that waiting takes without progress, unless something else is set.
_TIMEOUT = 300.0


#: Seconds that the process' end may take, each for threads to let go of a GPU, and without its progress.
_FAREWELL = 10.0

_OPEN: weakref.WeakSet[Queue] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    for queue in list(_OPEN):
        if queue.process == os.getpid():  # a fork has the GPU of its parent in memory only
            queue.close()


def _leave_to_the_parent() -> None:
    """In a forked process: its parent's devices are lost to it."""
    for queue in _OPEN:
        queue.watched.lost = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class Queue:
    """The queue of one device. Methods that write commands are called under `lock`."""

    def __init__(self, device: Any, watched: Watched, pool: Pool) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.device = device._internal
        self.queue = device.queue._internal
        self.pool = pool
        self.lock = Lock()
        self.watched = watched
        self.encoder: Any = None
        #: The compute pass that is being written.
        self.run: Any = None
        self.commands = 0
        self.written = 0
        self.submitted = 0
        self.done = 0
        #: When the last batch was submitted, and how many commands the next one waits for.
        self.last = 0.0
        self.patience = 1
        #: Counters, for statistics.
        self.dispatches = 0
        self.reads = 0
        self.waits = 0
        self.waited = 0.0
        self.timeouts = 0
        #: Held while the library is polled.
        self.hearing = threading.RLock()
        self.process = os.getpid()
        _OPEN.add(self)
        timeout = settings.number("VOLTA_GPU_TIMEOUT", float, "a number of seconds")
        self.timeout = _TIMEOUT if timeout is None else timeout
        self.readbacks = Readbacks(self)
        self._callback = self.ffi.callback("WGPUQueueWorkDoneCallback", self._work_done)
        self._info = self.ffi.new("WGPUQueueWorkDoneCallbackInfo *", {"mode": _ALLOW_PROCESS_EVENTS, "callback": self._callback})

    def _work_done(self, status: int, message: Any, number: Any, unused: Any) -> None:
        self.done = max(self.done, int(self.ffi.cast("uintptr_t", number)))

    # writing commands

    def _encoder(self) -> Any:
        if self.watched.lost:
            raise DeviceError(LOST)
        if self.encoder is None:
            self.encoder = self.lib.wgpuDeviceCreateCommandEncoder(self.device, self.ffi.NULL)
        return self.encoder

    def begin(self) -> Any:
        """The compute pass to write to."""
        if self.run is None:
            self.run = self.lib.wgpuCommandEncoderBeginComputePass(self._encoder(), self.ffi.NULL)
        return self.run

    def copy(self, to: Any, source: Any, offset: int, size: int) -> None:
        """Copy bytes at an offset of a buffer to the beginning of another."""
        self._end_run()
        self.lib.wgpuCommandEncoderCopyBufferToBuffer(self._encoder(), source, offset, to, 0, size)
        self.commands += 1

    def wrote(self, commands: int) -> None:
        """Note that commands were written; submits if there are many."""
        self.commands += commands
        self.dispatches += commands
        if self.commands >= _COMMANDS:
            self.submit()

    def pause(self) -> None:
        """Submit if it is worth while, or if the GPU has too little to do.

        A GPU that is busy is given the next batch before it needs that. One that is done before it has that waits for the host, whose time
        submissions take: batches become larger then, until somebody waits for one.
        """
        if self.commands >= _ENOUGH:
            self.submit()
            return
        late = time.perf_counter() - self.last > _LATE
        if self.commands < self.patience and not late:
            return
        under_way = self._still_under_way()
        if under_way > 1:
            self.patience = max(1, self.patience // 2)
            return
        self.submit()
        if not late and (not under_way or self._still_under_way() == 1):
            self.patience = min(2 * self.patience, _ENOUGH)

    def _still_under_way(self) -> int:
        """How many batches the GPU has not done."""
        if self.submitted != self.done:
            with self.watched:
                self.poll()
        return self.submitted - self.done

    def _end_run(self) -> None:
        if self.run is not None:
            self.lib.wgpuComputePassEncoderEnd(self.run)
            self.lib.wgpuComputePassEncoderRelease(self.run)
            self.run = None

    def submit(self) -> int:
        """Submit what is written; the number of the last batch."""
        with self.lock:
            if self.encoder is None:
                return self.submitted
            encoder, self.encoder, self.commands, self.written = self.encoder, None, 0, 0
            with self.watched:  # what is wrong must not be submitted: the library would end the process
                self._end_run()
                commands = self.lib.wgpuCommandEncoderFinish(encoder, self.ffi.NULL)
                self.lib.wgpuCommandEncoderRelease(encoder)
            self.lib.wgpuQueueSubmit(self.queue, 1, self.ffi.new("WGPUCommandBuffer *", commands))
            self.lib.wgpuCommandBufferRelease(commands)
            self.readbacks.submitted()
            self.submitted += 1
            log.debug("batch %d submitted; %d are under way", self.submitted, self.submitted - self.done)
            self.last = time.perf_counter()
            self.pool.batch = self.submitted
            self._info.userdata1 = self.ffi.cast("void *", self.submitted)
            self.lib.wgpuQueueOnSubmittedWorkDone(self.queue, self._info[0])
            return self.submitted

    # waiting

    def poll(self) -> None:
        """Hear what the GPU has done."""
        with held_back, self.hearing:
            self.lib.wgpuDevicePoll(self.device, False, self.ffi.NULL)

    def wait_for(self, reached: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until a condition holds. Raises `DeviceTimeoutError` if the GPU makes no progress for too long."""
        if reached():
            return
        self.patience = 1
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
        progress, last = self.done, start
        while True:
            if self.watched.lost:
                raise DeviceError(LOST)
            with self.watched:
                self.poll()
            if reached():
                return
            held_back.let_through()
            now = time.perf_counter()
            if self.done != progress:
                progress, last = self.done, now
            elif now - last > timeout:
                raise DeviceTimeoutError(
                    f"the GPU has finished nothing for {timeout:g} seconds. It may be busy with something large, or hang: "
                    "waiting again may help; VOLTA_GPU_TIMEOUT sets the seconds"
                )
            waited = now - start
            if waited > 1e-4:
                time.sleep(min(waited / 16, 1e-3))

    def wait(self, batch: int | None = None, timeout: float | None = None) -> None:
        """Wait for a batch, else for all that is written."""
        number = self.submit() if batch is None else batch
        self.wait_for(lambda: self.done >= number, timeout)

    def close(self) -> None:
        """At the process' end: no other thread asks for anything any more, and what is under way is finished, if it does not take long.

        A thread that Python ends in a function which the library has called back would take the process down.
        """
        with contextlib.suppress(DeviceError):
            if self.lock.keep(_FAREWELL):
                self.wait(timeout=_FAREWELL)
        self.hearing.acquire(timeout=_FAREWELL)

    def hold_back(self) -> None:
        """Wait while too many batches are under way."""
        if self.submitted - self.done >= _UNDER_WAY:
            self.wait(self.submitted - _UNDER_WAY // 2)

    # data

    def write(self, block: Block, data: np.ndarray, offset: int = 0) -> None:
        """Write bytes to a block that no waiting command uses."""
        size = data.nbytes
        if size % 4:
            data = np.concatenate([data, np.zeros(-size % 4, np.uint8)])
        with self.watched:
            self.lib.wgpuQueueWriteBuffer(self.queue, block.handle, offset, self.ffi.from_buffer(data), data.nbytes)
        self.written += data.nbytes
        if self.written > _WRITTEN:
            self.begin()
            self.submit()

    def read(self, block: Block, size: int, offset: int = 0) -> np.ndarray:
        """Bytes of a block, when what is written so far is done."""
        with self.lock:
            readback = self.readbacks.request(block, size, offset)
        return self.take(readback)

    def take(self, readback: Readback) -> np.ndarray:
        """The bytes of a readback, when it has arrived. To be called once."""
        self.reads += 1
        return self.readbacks.take(readback)
