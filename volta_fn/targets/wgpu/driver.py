"""Any GPU through wgpu: the implementation of `Driver` for every vendor."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError, OutOfMemoryError, VoltaError
from volta_fn.targets.gpu.device.driver import LOST, BoundRange, Description, Portion, Step
from volta_fn.targets.gpu.device.pipelines import ALL
from volta_fn.targets.wgpu.library import native, wgpu
from volta_fn.targets.wgpu.replay import WORDS, compiled_replay, packed
from volta_fn.targets.wgsl.target import WgslTarget

#: WebGPU's flags for the usage of buffers.
_MAP_READ, _COPY_SRC, _COPY_DST, _STORAGE, _INDIRECT, _QUERY_RESOLVE = 0x1, 0x4, 0x8, 0x80, 0x100, 0x200

_ALLOW_PROCESS_EVENTS = 2

#: Dispatches that are written between checks whether the batch is full.
_PORTION = 256


class WgpuDriver:
    """A device of wgpu, with its queue. Memory is a buffer of the library."""

    #: It repeats nothing by itself.
    iterations = 0

    def __init__(self, device: Any, description: Description) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.classes = device
        self.device = device._internal
        self.queue = device.queue._internal
        self.description = description
        self.errors = DriverErrors()
        self.encoder: Any = None
        #: The compute pass that is being recorded. A batch is one pass, unless copies interrupt it.
        self.compute_pass: Any = None
        self.done = 0
        self.readbacks = WgpuReadbacks(self)
        self.make_room: Callable[[], None] = lambda: None
        self._layouts: dict[tuple[int, frozenset[int]], tuple[Any, Any]] = {}
        self._layouts_lock = threading.Lock()
        self._callback = self.ffi.callback("WGPUQueueWorkDoneCallback", self._work_done)
        self._info = self.ffi.new("WGPUQueueWorkDoneCallbackInfo *", {"mode": _ALLOW_PROCESS_EVENTS, "callback": self._callback})

    def _work_done(self, status: int, message: Any, number: Any, unused: Any) -> None:
        self.done = max(self.done, int(self.ffi.cast("uintptr_t", number)))

    def target(self, capabilities: TargetCapabilities) -> WgslTarget:
        """Return the target of GPUs of any vendor."""
        return WgslTarget(capabilities)

    # memory

    def allocate(self, size: int, *, grids: bool = False) -> Any:
        """Return a buffer of `size` bytes."""
        return self.create(size, _COPY_SRC | _COPY_DST | _STORAGE | (_INDIRECT if grids else 0))

    def create(self, size: int, usage: int) -> Any:
        """Create a buffer. Raises `OutOfMemoryError` or `DeviceError`."""
        descriptor = self.ffi.new("WGPUBufferDescriptor *", {"usage": usage, "size": size})
        if self.errors.device_lost:
            raise DeviceError(LOST)
        with self.errors:
            return self.lib.wgpuDeviceCreateBuffer(self.device, descriptor)

    def free(self, memory: Any) -> None:
        """Release a buffer; the library retains it as long as submitted commands use it."""
        self.lib.wgpuBufferRelease(memory)

    def check(self) -> None:
        """Raise `DeviceError` if the device is lost: some calls would end the process."""
        self.free(self.allocate(4))

    def write(self, memory: Any, data: np.ndarray, offset: int) -> None:
        """Copy bytes from the host to a buffer, before all pending commands."""
        with self.errors:
            self.lib.wgpuQueueWriteBuffer(self.queue, memory, offset, self.ffi.from_buffer(data), data.nbytes)

    def copy(self, target: Any, source: Any, offset: int, size: int) -> None:
        """Copy `size` bytes at an offset of a buffer to the beginning of another."""
        self._end_pass()
        self.lib.wgpuCommandEncoderCopyBufferToBuffer(self._encoder(), source, offset, target, 0, size)

    # shaders

    def compile(self, source: str, count: int, written: frozenset[int], checks: int, *, is_checked: bool = False) -> tuple[Any, Any]:
        """Return the pipeline of a shader, and its layout."""
        with self._layouts_lock:
            if (count, written) not in self._layouts:
                self._layouts[count, written] = self._layout(count, written)
            layout, pipeline_layout = self._layouts[count, written]
        ffi = self.ffi
        with self.errors:
            module = self._module(source, checks)
        with self.errors:
            entry = ffi.new("char[]", b"main")
            descriptor = ffi.new("WGPUComputePipelineDescriptor *", {"layout": pipeline_layout._internal})
            descriptor.compute.module = module
            descriptor.compute.entryPoint.data = entry
            descriptor.compute.entryPoint.length = 4
            pipeline = self.lib.wgpuDeviceCreateComputePipeline(self.device, descriptor)
        self.lib.wgpuShaderModuleRelease(module)
        return pipeline, layout._internal

    def _module(self, source: str, checks: int) -> Any:
        ffi, text = self.ffi, source.encode()
        characters = ffi.new("char[]", text)
        code = ffi.new("WGPUShaderSourceWGSL *")
        code.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        code.code.data, code.code.length = characters, len(text)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *", {"nextInChain": ffi.addressof(code, "chain")})
        if checks == ALL:
            return self.lib.wgpuDeviceCreateShaderModule(self.device, descriptor)
        return self.lib.wgpuDeviceCreateShaderModuleTrusted(self.device, descriptor, checks)

    def _layout(self, count: int, written: frozenset[int]) -> tuple[Any, Any]:
        """Create the layouts of a bind group and of a pipeline with one."""
        entries = [
            {"binding": i, "visibility": 4, "buffer": {"type": "storage" if i in written else "read-only-storage"}} for i in range(count)
        ]
        with self.errors.classes():
            layout = self.classes.create_bind_group_layout(entries=entries)
            return layout, self.classes.create_pipeline_layout(bind_group_layouts=[layout])

    def release_pipeline(self, pipeline: Any) -> None:
        """Release a pipeline."""
        self.lib.wgpuComputePipelineRelease(pipeline)

    def bind(self, layout: Any, ranges: Sequence[BoundRange]) -> Any:
        """Create a bind group."""
        entries = self.ffi.new("WGPUBindGroupEntry[]", len(ranges))
        for number, (block, offset, size) in enumerate(ranges):
            entry = entries[number]
            entry.binding, entry.buffer, entry.offset, entry.size = number, block.handle, offset, size
        descriptor = self.ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(ranges), entries
        return self.lib.wgpuDeviceCreateBindGroup(self.device, descriptor)

    def release_group(self, group: Any) -> None:
        """Release a bind group."""
        self.lib.wgpuBindGroupRelease(group)

    # commands

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

    def _end_pass(self) -> None:
        if self.compute_pass is not None:
            self.lib.wgpuComputePassEncoderEnd(self.compute_pass)
            self.lib.wgpuComputePassEncoderRelease(self.compute_pass)
            self.compute_pass = None

    def repeats(self, sources: Iterable[str]) -> bool:
        """Return False: WebGPU has no loops of dispatches."""
        return False

    def play(self, steps: Sequence[Step]) -> None:
        """Write dispatches to the open pass, by some 2 to 3 µs for each."""
        lib, null = self.lib, self.ffi.NULL
        set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
        dispatch, indirect = lib.wgpuComputePassEncoderDispatchWorkgroups, lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect
        with self.errors:
            compute_pass = self.open_pass()
            for pipeline, bind_group, (x, y, z), grid_buffer, grid_offset in steps:
                set_pipeline(compute_pass, pipeline)
                set_group(compute_pass, 0, bind_group, 0, null)
                if grid_buffer is None:
                    dispatch(compute_pass, x, y, z)
                else:
                    indirect(compute_pass, grid_buffer, grid_offset)

    def recording(self, steps: Sequence[Step]) -> Sequence[Portion] | None:
        """Return calls of machine code that write dispatches; None without a compiler.

        Errors are reported when the pass is finished.
        """
        write = compiled_replay()
        if write is None:
            return None
        table = packed(steps)
        first = table.ctypes.data

        def portion(start: int) -> Portion:
            address, count = first + 8 * WORDS * start, min(_PORTION, len(steps) - start)
            return Portion(count, lambda table=table: write(self.open_pass(), address, count))  # type: ignore[misc]

        return [portion(start) for start in range(0, len(steps), _PORTION)]

    @property
    def is_pending(self) -> bool:
        """Whether commands were written that are not submitted."""
        return self.encoder is not None

    def submit(self, number: int) -> None:
        """Submit the commands written so far as a batch."""
        self._encoder()
        encoder, self.encoder = self.encoder, None
        commands = None
        try:
            with self.errors:  # submitting invalid commands would abort the process
                self._end_pass()
                commands = self.lib.wgpuCommandEncoderFinish(encoder, self.ffi.NULL)
                self.lib.wgpuCommandEncoderRelease(encoder)
        except DeviceError:
            if commands is not None:
                self.lib.wgpuCommandBufferRelease(commands)
            self.check()  # objects created after a loss are invalid, and the library reports only that
            raise
        self.lib.wgpuQueueSubmit(self.queue, 1, self.ffi.new("WGPUCommandBuffer *", commands))
        self.lib.wgpuCommandBufferRelease(commands)
        self.readbacks.submit()
        self._info.userdata1 = self.ffi.cast("void *", number)
        self.lib.wgpuQueueOnSubmittedWorkDone(self.queue, self._info[0])

    def poll(self) -> int:
        """Return the number of the last batch that is done."""
        with self.errors:
            self.lib.wgpuDevicePoll(self.device, False, self.ffi.NULL)
        return self.done

    def timestamps(self) -> WgpuTimestamps:
        """Return new timestamps; raise `DeviceError` if the device has none."""
        return WgpuTimestamps(self)

    # the end

    def release(self) -> None:
        """Release commands never submitted, and readbacks, of a device no longer in use."""
        if self.compute_pass is not None:
            self.lib.wgpuComputePassEncoderRelease(self.compute_pass)
        if self.encoder is not None:
            self.lib.wgpuCommandEncoderRelease(self.encoder)
        self.compute_pass = self.encoder = None
        self.readbacks.release()

    def destroy(self) -> None:
        """Destroy the device: the library would retain buffers that refused commands use."""
        self.lib.wgpuDeviceDestroy(self.device)


# The errors that the library reports.


def typed(kind: str, message: str) -> VoltaError:
    """Return an error that the library reported as a `VoltaError`."""
    lowered = message.lower()
    if "lost" in lowered:
        return DeviceError(LOST)
    if kind == "OutOfMemory" or "out of memory" in lowered or "not enough memory" in lowered:
        return OutOfMemoryError(f"the GPU has no room: {message}")
    return DeviceError(f"the GPU's driver refused: {message}")


class DriverErrors:
    """A context that raises the errors that the library reports in this thread.

    It is much cheaper than a check per call.
    """

    def __init__(self) -> None:
        self.handler = native().errors
        #: Whether the device is known to be lost; then no further call may be made.
        self.device_lost = False

    def __enter__(self) -> None:
        self.handler.capture("volta_fn")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        failure = self.handler.release("volta_fn")
        if failure is not None:
            self._note(failure[1])
            if error is None:
                raise typed(*failure)

    def _note(self, message: str) -> None:
        self.device_lost = self.device_lost or "lost" in message.lower()

    @contextlib.contextmanager
    def classes(self) -> Iterator[None]:
        """Return a context for the package's classes, whose errors become `VoltaError`s."""
        try:
            yield
        except wgpu().GPUError as error:
            self._note(str(error))
            raise typed("OutOfMemory" if isinstance(error, wgpu().GPUOutOfMemoryError) else "", str(error)) from error


# Copy device memory to the host: readbacks are requested now and taken later.
#
# A readback arrives when the batch in which it was requested is done, whatever follows. So the readback of a result that is read after
# each step, such as a loss, is requested with the step, and taking it waits for no later step.

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


class WgpuReadback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "copy")

    def __init__(self, copy: _Copy, gone: deque[_End]) -> None:
        self.copy = copy
        copy.end = _End(self, gone.append)
        copy.end.copy = copy

    @property
    def submitted(self) -> bool:
        """Whether its batch is submitted."""
        return self.copy.number != 0


class _End(weakref.ref[WgpuReadback]):
    """A weak reference that appends itself to a list when its readback is collected.

    As with `memory.LeaseEnd`, no Python code runs then.
    """

    __slots__ = ("copy",)

    copy: _Copy


class WgpuReadbacks:
    """The readbacks of a device."""

    def __init__(self, driver: WgpuDriver) -> None:
        self.lib, self.ffi = driver.lib, driver.ffi
        self.driver = driver
        self.count = 0
        #: Readbacks by state: requested; submitted, by number; arrived, with their status; gone, taken or not.
        self.requested: list[WgpuReadback] = []
        self.expected: set[int] = set()
        self.statuses: dict[int, int] = {}
        self.gone: deque[_End] = deque()
        self.free: dict[int, list[Any]] = {}
        self._callback = self.ffi.callback("WGPUBufferMapCallback", self._arrive)
        self._info = self.ffi.new("WGPUBufferMapCallbackInfo *", {"mode": _ALLOW_PROCESS_EVENTS, "callback": self._callback})

    def _arrive(self, status: int, message: Any, number: Any, unused: Any) -> None:
        which = int(self.ffi.cast("uintptr_t", number))
        if which in self.expected:
            self.statuses[which] = status

    def request(self, memory: Any, size: int, offset: int = 0) -> WgpuReadback:
        """Request a copy of `size` bytes of a buffer, as of the commands written so far."""
        self._collect()
        padded = max(-(-size // 4) * 4, 4)
        capacity = min(1 << max(padded - 1, 255).bit_length(), max(self.driver.description.largest, padded))
        free = self.free.get(capacity)
        handle = free.pop() if free else self.driver.create(capacity, _MAP_READ | _COPY_DST)
        readback = WgpuReadback(_Copy(handle, capacity, size), self.gone)
        self.driver.copy(handle, memory, offset, padded)
        self.requested.append(readback)
        return readback

    def _collect(self) -> None:
        """Reuse the buffers of arrived readbacks that were abandoned, oldest first.

        They must have arrived: the library would otherwise report the next readback in such a buffer when the first one arrives.
        """
        while self.gone:
            copy = self.gone[0].copy
            if copy.handle is not None and copy.number not in self.statuses:
                return
            self.gone.popleft()
            copy.end = None
            if copy.handle is not None:
                self.expected.discard(copy.number)
                del self.statuses[copy.number]
                self.lib.wgpuBufferUnmap(copy.handle)
                self._keep(copy)

    def submit(self) -> None:
        """Ask the library to report the arrival of the readbacks just submitted."""
        for copy in [readback.copy for readback in self.requested]:
            self.count += 1
            copy.number = self.count
            self.expected.add(copy.number)
            self._info.userdata1 = self.ffi.cast("void *", copy.number)
            self.lib.wgpuBufferMapAsync(copy.handle, _MAP_READ, 0, max(-(-copy.size // 4) * 4, 4), self._info[0])
        self.requested.clear()

    def arrived(self, readback: WgpuReadback) -> bool:
        """Return whether a readback has arrived."""
        return readback.copy.number in self.statuses

    def take(self, readback: WgpuReadback) -> np.ndarray:
        """Return the bytes of a readback that has arrived."""
        copy = readback.copy
        self.expected.discard(copy.number)
        if self.statuses.pop(copy.number) != _ARRIVED:
            self.driver.errors.device_lost = True  # a valid copy fails for no other reason
            raise DeviceError(LOST)
        self.driver.check()
        source = self.lib.wgpuBufferGetConstMappedRange(copy.handle, 0, max(-(-copy.size // 4) * 4, 4))
        result = np.empty(copy.size, np.uint8)
        self.ffi.memmove(self.ffi.from_buffer(result), source, copy.size)
        self.lib.wgpuBufferUnmap(copy.handle)
        return result

    def keep(self, readback: WgpuReadback) -> None:
        """Keep the buffer of a readback that was taken for a later one."""
        self._keep(readback.copy)

    def _keep(self, copy: _Copy) -> None:
        handle, copy.handle = copy.handle, None
        free = self.free.setdefault(copy.capacity, [])
        if len(free) < _MOST_RETAINED and copy.capacity <= _LARGEST_RETAINED:
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


# Record when each dispatch begins and ends.
#
# Each is a compute pass of its own, whose begin and end the device records (WebGPU's timestamp queries).

#: Queries of a set, of which each dispatch takes two.
_QUERIES = 4096


class WgpuTimestamps:
    """The begin and the end of dispatches, in sets of queries until they are read."""

    def __init__(self, driver: WgpuDriver) -> None:
        if "timestamp-query" not in driver.description.features:
            raise DeviceError(f"the GPU {driver.description.name} has no timestamp queries, so the times of its dispatches are unknown")
        self.driver = driver
        self.sets: list[Any] = []
        self.count = 0

    def play(self, step: Step) -> None:
        """Write a dispatch to a compute pass of its own."""
        first = 2 * self.count % _QUERIES
        if not first:
            self.sets.append(self.driver.classes.create_query_set(type="timestamp", count=_QUERIES))
        self.count += 1
        self.driver.open_timed_pass(self.sets[-1]._internal, first)
        self.driver.play([step])

    def read(self) -> np.ndarray:
        """Return the begins and ends of dispatches, which are done, in ns from the first."""
        device = self.driver.classes
        raw = []
        for query_set in self.sets:
            buffer = device.create_buffer(size=8 * _QUERIES, usage=_QUERY_RESOLVE | _COPY_SRC)
            encoder = device.create_command_encoder()
            encoder.resolve_query_set(query_set, 0, _QUERIES, buffer, 0)
            device.queue.submit([encoder.finish()])
            raw.append(np.frombuffer(device.queue.read_buffer(buffer), np.uint64))
        if not self.count:
            return np.zeros((0, 2), np.int64)
        moments = np.concatenate(raw)[: 2 * self.count].reshape(-1, 2)
        period = self.driver.lib.wgpuQueueGetTimestampPeriod(self.driver.queue)
        return ((moments - moments.min()).astype(np.float64) * period).astype(np.int64)
