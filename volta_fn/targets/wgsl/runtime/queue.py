"""The queue: dispatches in batches, submitted, waited for, and read back."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.caches import WeakIdentityDict
from volta_fn.errors import DeviceError, DeviceTimeoutError
from volta_fn.interrupts import Lock, deferred_interrupts
from volta_fn.runtime import threads
from volta_fn.runtime.compiling import compile_uninterrupted
from volta_fn.runtime.llvm.host import may_compile
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.targets.wgsl.runtime.device.driver import LOST, DriverErrors, log, native
from volta_fn.targets.wgsl.runtime.device.memory import Block, Pool

# Collect commands into batches, submit them, and wait for them.
#
# A batch is one compute pass. The number of batches in flight is limited; a thread that submits more waits. Waiting polls, quickly at
# first: so it ends as soon as the GPU is done, Ctrl-C works, and nothing waits forever (VOLTA_GPU_TIMEOUT seconds without progress, 300
# unless set).

#: The most commands of a batch, and the fewest that are submitted in any case.
_COMMANDS = 256
_WORTH_SUBMITTING = 64
#: The most batches in flight.
_MOST_IN_FLIGHT = 16
#: Seconds after which pending commands are submitted, however few.
_LATE = 1e-3
#: The most bytes that the host writes between two batches.
_WRITTEN = 1 << 26

_ALLOW_PROCESS_EVENTS = 2

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

    def __init__(self, device: Any, errors: DriverErrors, pool: Pool) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.device = device._internal
        self.queue = device.queue._internal
        self.pool = pool
        self.lock = Lock()
        self.errors = errors
        self.encoder: Any = None
        #: The compute pass that is being recorded.
        self.compute_pass: Any = None
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
        timeout = threads.value_of("VOLTA_GPU_TIMEOUT")
        self.timeout = _TIMEOUT if timeout is None else timeout
        self.readbacks = Readbacks(self)
        self._callback = self.ffi.callback("WGPUQueueWorkDoneCallback", self._work_done)
        self._info = self.ffi.new("WGPUQueueWorkDoneCallbackInfo *", {"mode": _ALLOW_PROCESS_EVENTS, "callback": self._callback})

    def _work_done(self, status: int, message: Any, number: Any, unused: Any) -> None:
        self.done = max(self.done, int(self.ffi.cast("uintptr_t", number)))

    # writing commands

    def _encoder(self) -> Any:
        if self.errors.device_lost:
            raise DeviceError(LOST)
        if self.encoder is None:
            self.encoder = self.lib.wgpuDeviceCreateCommandEncoder(self.device, self.ffi.NULL)
        return self.encoder

    def open_pass(self) -> Any:
        """Return the compute pass to write to."""
        if self.compute_pass is None:
            self.compute_pass = self.lib.wgpuCommandEncoderBeginComputePass(self._encoder(), self.ffi.NULL)
        return self.compute_pass

    def open_timed_pass(self, queries: Any, first: int) -> None:
        """Begin a compute pass that writes its begin and end to two queries of a set."""
        self._end_pass()
        writes = self.ffi.new("WGPUPassTimestampWrites *", {"querySet": queries})
        writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = first, first + 1
        descriptor = self.ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": writes})
        self.compute_pass = self.lib.wgpuCommandEncoderBeginComputePass(self._encoder(), descriptor)

    def resolve(self, queries: Any, count: int, buffer: Any) -> None:
        """Write the results of queries to a buffer, 64 bits for each."""
        self._end_pass()
        self.lib.wgpuCommandEncoderResolveQuerySet(self._encoder(), queries, 0, count, buffer, 0)
        self.commands += 1

    def copy(self, to: Any, source: Any, offset: int, size: int) -> None:
        """Copy `size` bytes at an offset of a buffer to the beginning of another."""
        self._end_pass()
        self.lib.wgpuCommandEncoderCopyBufferToBuffer(self._encoder(), source, offset, to, 0, size)
        self.commands += 1

    def wrote(self, commands: int) -> None:
        """Count commands that were written; submit if there are many."""
        self.commands += commands
        self.dispatches += commands
        if self.commands >= _COMMANDS:
            self.submit()

    def submit_if_due(self) -> None:
        """Submit if enough commands are pending, or if the GPU is about to run idle.

        It is called between programs. With more than one batch in flight the GPU has work: nothing is submitted, and the next batch is
        smaller. If the GPU has finished all others, the host is the bottleneck, and submissions cost its time: the next batch is twice as
        large, until a thread waits for one.
        """
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
        """Return the number of batches in flight."""
        if self.submitted != self.done:
            with self.errors:
                self.poll()
        return self.submitted - self.done

    def _end_pass(self) -> None:
        if self.compute_pass is not None:
            self.lib.wgpuComputePassEncoderEnd(self.compute_pass)
            self.lib.wgpuComputePassEncoderRelease(self.compute_pass)
            self.compute_pass = None

    def submit(self) -> int:
        """Submit the pending commands; return the number of the last batch."""
        with self.lock:
            if self.encoder is None:
                return self.submitted
            encoder, self.encoder, self.commands, self.written = self.encoder, None, 0, 0
            commands = None
            try:
                with self.errors:  # submitting invalid commands would abort the process
                    self._end_pass()
                    commands = self.lib.wgpuCommandEncoderFinish(encoder, self.ffi.NULL)
                    self.lib.wgpuCommandEncoderRelease(encoder)
            except DeviceError:
                if commands is not None:
                    self.lib.wgpuCommandBufferRelease(commands)
                self.pool.check_device()  # objects created after a loss are invalid, and the library reports only that
                raise
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

    def release(self) -> None:
        """Release commands never submitted, and readbacks, of a device no longer in use."""
        if self.compute_pass is not None:
            self.lib.wgpuComputePassEncoderRelease(self.compute_pass)
        if self.encoder is not None:
            self.lib.wgpuCommandEncoderRelease(self.encoder)
        self.compute_pass = self.encoder = None
        self.readbacks.release()

    # waiting

    def poll(self) -> None:
        """Poll the device for completed submissions."""
        with deferred_interrupts, self.polling:
            self.lib.wgpuDevicePoll(self.device, False, self.ffi.NULL)

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
        progress, last = self.done, start
        while True:
            if self.errors.device_lost:
                raise DeviceError(LOST)
            with self.errors:
                self.poll()
            if reached():
                return
            deferred_interrupts.deliver_pending()
            now = time.perf_counter()
            if self.done != progress:
                progress, last = self.done, now
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
        """Finish at the end of the process.

        Other threads are kept from calling the driver, and the GPU gets a short time to finish. If Python ended a thread within a callback
        of the library, the process would crash.
        """
        with contextlib.suppress(DeviceError):
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
        with self.errors:
            self.lib.wgpuQueueWriteBuffer(self.queue, block.handle, offset, self.ffi.from_buffer(data), data.nbytes)
        self.written += data.nbytes
        if self.written > _WRITTEN:
            self.open_pass()  # without commands, nothing is submitted, and the data stays in the library's memory
            self.submit()

    def read(self, block: Block, size: int, offset: int = 0) -> np.ndarray:
        """Return the bytes of a block as of the commands written so far."""
        with self.lock:
            readback = self.readbacks.request(block, size, offset)
        return self.take(readback)

    def take(self, readback: Readback) -> np.ndarray:
        """Wait for a readback and return its bytes. Call it once."""
        self.reads += 1
        return self.readbacks.take(readback)


# Write dispatches to the queue: from Python, or by machine code if packed.
#
# From Python a dispatch takes three calls of C functions, some 2 to 3 µs; a compiled loop of the same calls takes a fraction of that. It
# needs llvmlite; without it, Python replays recordings.

#: The 64-bit words of a packed step: pipeline, bind group, the buffer with the grid or 0, and the grid or its offset.
WORDS = 6

#: Dispatches that are written between checks whether the batch is full.
STEPS_AT_A_TIME = 256

#: A function ``(pass, first step, number of steps)``.
Replay = Callable[[Any, int, int], None]


class Step(NamedTuple):
    """A dispatch ready to be written: a `commands.Run` with the driver's objects.

    An indirect one reads its grid at an offset in a buffer.
    """

    pipeline: Any
    bind_group: Any
    workgroups: tuple[int, int, int]
    grid_buffer: Any = None
    grid_offset: int = 0


def play(queue: Queue, steps: Sequence[Step]) -> None:
    """Write steps to the queue.

    Call it under the queue's lock, since bind groups may be released otherwise.
    """
    lib, null = queue.lib, queue.ffi.NULL
    set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch, indirect = lib.wgpuComputePassEncoderDispatchWorkgroups, lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect
    for start in range(0, len(steps), STEPS_AT_A_TIME):
        some = steps[start : start + STEPS_AT_A_TIME]
        with queue.errors:
            compute_pass = queue.open_pass()
            for pipeline, bind_group, (x, y, z), grid_buffer, grid_offset in some:
                set_pipeline(compute_pass, pipeline)
                set_group(compute_pass, 0, bind_group, 0, null)
                if grid_buffer is None:
                    dispatch(compute_pass, x, y, z)
                else:
                    indirect(compute_pass, grid_buffer, grid_offset)
        queue.wrote(len(some))


def packed(steps: Sequence[Step]) -> np.ndarray:
    """Pack steps into a table of 64-bit words for `compiled_replay`."""
    ffi = native().ffi
    table = np.empty((len(steps), WORDS), np.uint64)

    def address(handle: Any) -> int:
        return 0 if handle is None else int(ffi.cast("uintptr_t", handle))

    for row, (pipeline, bind_group, workgroups, grid_buffer, grid_offset) in zip(table, steps, strict=True):
        grid = workgroups if grid_buffer is None else (grid_offset, 0, 0)
        row[:] = address(pipeline), address(bind_group), address(grid_buffer), *grid
    return table


@functools.cache
def compiled_replay() -> Replay | None:
    """Return machine code that writes packed steps to a compute pass without the GIL.

    None without a compiler.
    """
    if not may_compile():
        return None
    ffi, lib = native().ffi, native().lib
    names = "SetPipeline", "SetBindGroup", "DispatchWorkgroups", "DispatchWorkgroupsIndirect"
    functions = [int(ffi.cast("uintptr_t", getattr(lib, f"wgpuComputePassEncoder{name}"))) for name in names]
    (address,) = compile_uninterrupted(lambda: load_object(compile_object(_replay_text(*functions)), ["volta_fn_replay"]))
    call = ffi.cast("void (*)(WGPUComputePassEncoder, uintptr_t, size_t)", address)
    return lambda compute_pass, first, count: call(compute_pass, first, count)


#: The loop that writes steps to a pass. It does not set a pipeline that is already set.
_REPLAY_LOOP = """
define void @volta_fn_replay(ptr %pass, ptr %first, i64 %count) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %end, label %begin
begin:
  %step = phi ptr [ %first, %entry ], [ %after, %next ]
  %number = phi i64 [ 0, %entry ], [ %following, %next ]
  %known = phi i64 [ 0, %entry ], [ %w0, %next ]
LOADS
  %same = icmp eq i64 %w0, %known
  br i1 %same, label %bind, label %change
change:
  %pipeline = inttoptr i64 %w0 to ptr
  SET_PIPELINE(ptr %pass, ptr %pipeline)
  br label %bind
bind:
  %group = inttoptr i64 %w1 to ptr
  SET_GROUP(ptr %pass, i32 0, ptr %group, i64 0, ptr null)
  %direct = icmp eq i64 %w2, 0
  br i1 %direct, label %direct_grid, label %indirect_grid
direct_grid:
  DISPATCH(ptr %pass, i32 %n3, i32 %n4, i32 %n5)
  br label %next
indirect_grid:
  %grids = inttoptr i64 %w2 to ptr
  INDIRECT(ptr %pass, ptr %grids, i64 %w3)
  br label %next
next:
  %after = getelementptr i64, ptr %step, i64 WORDS
  %following = add i64 %number, 1
  %done = icmp eq i64 %following, %count
  br i1 %done, label %end, label %begin
end:
  ret void
}
"""

#: Loads a word of a step, and truncates it to 32 bits.
_LOAD = """\
  %p{i} = getelementptr i64, ptr %step, i64 {i}
  %w{i} = load i64, ptr %p{i}
  %n{i} = trunc i64 %w{i} to i32"""


def _replay_text(set_pipeline: int, set_group: int, dispatch: int, indirect: int) -> str:
    """Return the LLVM IR of the loop, with the addresses of the functions it calls."""
    text = _REPLAY_LOOP.replace("LOADS", "\n".join([_LOAD.format(i=i) for i in range(WORDS)])).replace("WORDS", str(WORDS))
    for name, function in (("SET_PIPELINE", set_pipeline), ("SET_GROUP", set_group), ("DISPATCH", dispatch), ("INDIRECT", indirect)):
        text = text.replace(name, f"call void inttoptr (i64 {function} to ptr)")
    return text


# Copy device memory to the host: readbacks are requested now and taken later.
#
# A readback arrives when the batch in which it was requested is done, whatever follows. So the readback of a result that is read after
# each step, such as a loss, is requested with the step, and taking it waits for no later step.

_MAP_READ, _COPY_DST = 0x1, 0x8
_ARRIVED = 1

#: Buffers that are kept for reuse, per size, and bytes of the largest of them.
_MOST_RETAINED, _LARGEST_RETAINED = 64, 1 << 24


class _Copy:
    """The buffer of a readback, which outlives it."""

    __slots__ = ("capacity", "end", "handle", "number", "size")

    def __init__(self, handle: Any, capacity: int, size: int) -> None:
        #: The buffer that the host can read (None once taken), and its bytes.
        self.handle = handle
        self.capacity = capacity
        self.size = size
        #: Its number once it is submitted; 0 before.
        self.number = 0
        #: The weak reference that reports the end of the readback; None afterwards.
        self.end: _End | None = None


class Readback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "copy")

    def __init__(self, copy: _Copy, gone: deque[_End]) -> None:
        self.copy = copy
        copy.end = _End(self, gone.append)
        copy.end.copy = copy


class _End(weakref.ref[Readback]):
    """A weak reference that appends itself to a list when its readback is collected.

    As with `memory.LeaseEnd`, no Python code runs then.
    """

    __slots__ = ("copy",)

    copy: _Copy


class Readbacks:
    """The readbacks of a queue."""

    def __init__(self, queue: Queue) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.queue = queue
        self.count = 0
        #: Readbacks by state: requested; submitted, by number; arrived, with their status; gone, taken or not.
        self.requested: list[Readback] = []
        self.expected: set[int] = set()
        self.arrived: dict[int, int] = {}
        self.gone: deque[_End] = deque()
        self.free: dict[int, list[Any]] = {}
        self._callback = self.ffi.callback("WGPUBufferMapCallback", self._arrive)
        self._info = self.ffi.new("WGPUBufferMapCallbackInfo *", {"mode": _ALLOW_PROCESS_EVENTS, "callback": self._callback})

    def _arrive(self, status: int, message: Any, number: Any, unused: Any) -> None:
        which = int(self.ffi.cast("uintptr_t", number))
        if which in self.expected:
            self.arrived[which] = status

    def request(self, block: Block, size: int, offset: int = 0) -> Readback:
        """Request a copy of `size` bytes of a block, as of the commands written so far.

        Call it under the queue's lock.
        """
        self._collect()
        padded = max(-(-size // 4) * 4, 4)
        capacity = min(1 << max(padded - 1, 255).bit_length(), max(self.queue.pool.largest, padded))
        free = self.free.get(capacity)
        handle = free.pop() if free else self.queue.pool.create(capacity, _MAP_READ | _COPY_DST)
        readback = Readback(_Copy(handle, capacity, size), self.gone)
        self.queue.copy(handle, block.handle, offset, padded)
        self.requested.append(readback)
        return readback

    def _collect(self) -> None:
        """Reuse the buffers of arrived readbacks that were abandoned, oldest first.

        They must have arrived: the library would otherwise report the next readback in such a buffer when the first one arrives.
        """
        while self.gone:
            copy = self.gone[0].copy
            if copy.handle is not None and copy.number not in self.arrived:
                return
            self.gone.popleft()
            copy.end = None
            if copy.handle is not None:
                self.expected.discard(copy.number)
                del self.arrived[copy.number]
                self.lib.wgpuBufferUnmap(copy.handle)
                self._keep(copy.handle, copy.capacity)

    def submitted(self) -> None:
        """Ask the library to report the arrival of the readbacks just submitted."""
        for copy in [readback.copy for readback in self.requested]:
            self.count += 1
            copy.number = self.count
            self.expected.add(copy.number)
            self._info.userdata1 = self.ffi.cast("void *", copy.number)
            self.lib.wgpuBufferMapAsync(copy.handle, _MAP_READ, 0, max(-(-copy.size // 4) * 4, 4), self._info[0])
        self.requested.clear()

    def take(self, readback: Readback) -> np.ndarray:
        """Wait for a readback and return its bytes. Call it once."""
        copy = readback.copy
        if not copy.number:
            self.queue.submit()
        number = copy.number
        self.queue.wait_for(lambda: number in self.arrived)
        self.expected.discard(number)
        if self.arrived.pop(number) != _ARRIVED:
            self.queue.errors.device_lost = True  # a valid copy fails for no other reason
            raise DeviceError(LOST)
        self.queue.pool.check_device()
        source = self.lib.wgpuBufferGetConstMappedRange(copy.handle, 0, max(-(-copy.size // 4) * 4, 4))
        result = np.empty(copy.size, np.uint8)
        self.ffi.memmove(self.ffi.from_buffer(result), source, copy.size)
        self.lib.wgpuBufferUnmap(copy.handle)
        handle, copy.handle = copy.handle, None
        with self.queue.lock:
            self._keep(handle, copy.capacity)
        return result

    def _keep(self, handle: Any, capacity: int) -> None:
        free = self.free.setdefault(capacity, [])
        if len(free) < _MOST_RETAINED and capacity <= _LARGEST_RETAINED:
            free.append(handle)
        else:
            self.lib.wgpuBufferRelease(handle)

    def release(self) -> None:
        """Release all buffers; nothing uses the device any more."""
        self.clear()
        while self.gone:
            copy = self.gone.popleft().copy
            if copy.handle is not None:
                self.lib.wgpuBufferRelease(copy.handle)

    def clear(self) -> None:
        """Release the buffers that are kept for reuse."""
        for handle in [handle for free in self.free.values() for handle in free]:
            self.lib.wgpuBufferRelease(handle)
        self.free.clear()
