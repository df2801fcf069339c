"""Any GPU through wgpu: Vulkan, Metal and DirectX 12.

It implements the interface of drivers (`gpu.driver`) for GPUs of every vendor.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.caches import KeyedWeakref
from volta_fn.errors import DeviceError, OutOfMemoryError, VoltaError
from volta_fn.lazy_imports import load
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.threads import compile_uninterrupted, may_compile
from volta_fn.settings import value_of
from volta_fn.targets.gpu.driver import FORKED, LOST, BoundDispatch, BoundRange, Description, ReplayPart
from volta_fn.targets.gpu.pipelines import ALL
from volta_fn.targets.wgsl.target import LARGEST_BUFFER, LIMITS, WgslTarget

# wgpu's C interface, loaded on first use.
#
# Its calls cost a third of those of the Python classes around it, which serve everything that is called rarely.


class Native(NamedTuple):
    """The native library: functions, cffi, checked functions, and the error handler."""

    lib: Any
    ffi: Any
    checked: Any
    errors: Any
    #: The process that loaded it: a forked process has neither its threads nor its driver's state.
    process: int


def wgpu() -> Any:
    """Import the package wgpu on first use."""
    try:
        return load("wgpu")
    except ImportError as error:
        raise DeviceError(f"the platform 'gpu' needs the package wgpu ({error}); pip install wgpu, or use the device 'cpu'") from None


@functools.cache
def native() -> Native:
    """Load the library that the package wraps."""
    wgpu()
    logging.getLogger("wgpu").addHandler(logging.NullHandler())
    module = load("wgpu.backends.wgpu_native._api")
    extras = load("wgpu.backends.wgpu_native.extras")
    with contextlib.suppress(RuntimeError):  # another library has created the instance already, which serves as well
        # Without these flags wgpu would validate each indirect grid by a dispatch of its own. OpenGL offers no further GPU.
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"], flags=["Empty"])
    return Native(module.lib, module.ffi, module.libf, module.error_handler, os.getpid())


# Machine code that writes recorded dispatches to a compute pass.
#
# A compiled loop of the calls that `WgpuDriver.play` makes takes a fraction of its time. It needs llvmlite.

#: The 64-bit words of a packed step: pipeline, bind group, the buffer with the grid or 0, and the grid or its offset.
WORDS = 6

#: A function ``(pass, first step, number of steps)``.
Replay = Callable[[Any, int, int], None]


def packed(steps: Sequence[BoundDispatch]) -> np.ndarray:
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


# The driver.

#: WebGPU's flags for the usage of buffers.
_MAP_READ, _COPY_SRC, _COPY_DST, _STORAGE, _INDIRECT, _QUERY_RESOLVE = 0x1, 0x4, 0x8, 0x80, 0x100, 0x200

_ALLOW_PROCESS_EVENTS = 2

#: Dispatches that are written between checks whether the batch is full.
_PART = 256


class WgpuDriver:
    """A device of wgpu, with its queue. Memory is a buffer of the library."""

    #: It repeats nothing by itself.
    progress_mark = 0

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
        self.release_free_blocks: Callable[[], None] = lambda: None
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

    def can_repeat(self, sources: Iterable[str]) -> bool:
        """Return False: WebGPU has no loops of dispatches."""
        return False

    def play(self, steps: Sequence[BoundDispatch]) -> None:
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

    def replay_parts(self, steps: Sequence[BoundDispatch]) -> Sequence[ReplayPart] | None:
        """Return calls of machine code that write dispatches; None without a compiler.

        Errors are reported when the pass is finished.
        """
        write = compiled_replay()
        if write is None:
            return None
        table = packed(steps)
        first = table.ctypes.data

        def part(start: int) -> ReplayPart:
            address, count = first + 8 * WORDS * start, min(_PART, len(steps) - start)

            def change(changes: Mapping[int, BoundDispatch]) -> bool:  # keeps the table alive, whose address is used
                table[[start + number for number in changes]] = packed([*changes.values()])
                return True

            return ReplayPart(count, lambda: write(self.open_pass(), address, count), change)

        return [part(start) for start in range(0, len(steps), _PART)]

    @property
    def is_pending(self) -> bool:
        """Whether commands were written that are not submitted."""
        return self.encoder is not None

    def submit(self, number: int) -> None:
        """Submit the commands written so far as a batch."""
        self._encoder()  # which may be missing: batches without commands are submitted, too
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


# Copies of device memory to the host: readbacks are requested now and taken later.
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
        self.end: KeyedWeakref[WgpuReadback] | None = None


class WgpuReadback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "copy")

    def __init__(self, copy: _Copy, gone: deque[KeyedWeakref[WgpuReadback]]) -> None:
        self.copy = copy
        copy.end = KeyedWeakref(self, gone.append)
        copy.end.key = copy

    @property
    def submitted(self) -> bool:
        """Whether its batch is submitted."""
        return self.copy.number != 0


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
        self.gone: deque[KeyedWeakref[WgpuReadback]] = deque()
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
            copy = self.gone[0].key
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
            copy = self.gone.popleft().key
            if copy.handle is not None:
                self.lib.wgpuBufferRelease(copy.handle)

    def clear(self) -> None:
        """Release the buffers that are kept for reuse."""
        for handle in [handle for free in self.free.values() for handle in free]:
            self.lib.wgpuBufferRelease(handle)
        self.free.clear()


# The times at which each dispatch begins and ends.
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

    def play(self, step: BoundDispatch) -> None:
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


# The machine's GPUs as wgpu lists them, and their capabilities.
#
# VOLTA_GPU_LIMITS=webgpu restricts features and limits to what every WebGPU device has.

#: Features that shaders may use, and the fields of `TargetCapabilities` for them.
_FEATURES = {"shader-f16": "float16", "shader-f64": "float64", "shader-int64": "int64", "subgroup": "subgroups"}

#: The feature that lets profilers note when dispatches begin and end.
_TIMESTAMPS = "timestamp-query"


def _native_name(limit: str) -> str:
    """Return the library's name of a limit of WebGPU: min-storage-… for minStorage…."""
    return re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", limit)


#: Limits that shaders and programs depend on, with the values that every WebGPU device guarantees.
_LIMITS = {_native_name(name): TargetCapabilities._field_defaults[field] for name, field in LIMITS.items()} | {
    "max-buffer-size": LARGEST_BUFFER,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
}


class WgpuAdapter:
    """A GPU that wgpu can open."""

    driver = "wgpu"

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.name: str = adapter.info["device"]

    @property
    def vendor(self) -> int:
        """The vendor's number on PCI."""
        vendor: int = self.adapter.info["vendor_id"]
        return vendor

    def open(self) -> WgpuDriver:
        """Open the device. Raises `DeviceError` if it cannot be opened."""
        if native().process != os.getpid():
            raise DeviceError(FORKED)
        adapter, info = self.adapter, self.adapter.info
        least = value_of("VOLTA_GPU_LIMITS") == "webgpu"
        features = [] if least else [name for name in (*_FEATURES, _TIMESTAMPS) if name in adapter.features]
        limits = {name: value if least else adapter.limits[name] for name, value in _LIMITS.items()}
        try:
            device = adapter.request_device_sync(required_features=features, required_limits=limits)
        except Exception as error:
            raise DeviceError(f"the GPU {self.name} cannot be opened: {error}") from error
        kind = info["adapter_type"].removesuffix("GPU").lower()
        capabilities = _capabilities(device.limits if not least else limits, features, info)
        all_limits = dict(device.limits) | limits
        return WgpuDriver(device, Description(self.name, kind, capabilities, limits["max-buffer-size"], tuple(features), all_limits))

    def again(self) -> WgpuAdapter:
        """Return the adapter as listed now, by its name and its place among equal ones."""
        before = [a for a in adapters() if a.name == self.name]
        adapters.cache_clear()
        after = [a for a in adapters() if a.name == self.name]
        place = before.index(self) if self in before else 0
        return after[place] if place < len(after) else self


@functools.cache
def adapters() -> list[WgpuAdapter]:
    """Return the GPUs, each once, the fastest first; equal GPUs are several."""
    native()
    with _without_noise():
        available = wgpu().gpu.enumerate_adapters_sync()
    return [WgpuAdapter(adapter) for adapter in each_once(available)]


def each_once(available: list[Any]) -> list[Any]:
    """Return the adapters through which each GPU is listed once.

    A driver lists a GPU once, equal GPUs several times; a GPU that several drivers list is taken from the best of these.
    """
    best: dict[tuple[str, int], list[Any]] = {}
    for adapter in sorted(available, key=_rank):
        info = adapter.info
        same = best.setdefault((info["device"], info["device_id"] if info["adapter_type"] != "CPU" else 0), [])
        if not same or same[0].info["backend_type"] == info["backend_type"]:
            same.append(adapter)
    return sorted([adapter for same in best.values() for adapter in same], key=_rank)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR temporarily: drivers on Linux print a warning without it."""
    unset = "XDG_RUNTIME_DIR" not in os.environ
    if unset:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if unset:
            os.environ.pop("XDG_RUNTIME_DIR", None)


def _rank(adapter: Any) -> tuple[int, int]:
    kinds, drivers = ["DiscreteGPU", "IntegratedGPU", "CPU"], ["Vulkan", "Metal", "D3D12"]
    kind, driver = adapter.info["adapter_type"], adapter.info["backend_type"]
    return kinds.index(kind) if kind in kinds else 3, drivers.index(driver) if driver in drivers else 3


#: Subgroup sizes of vendors whose driver does not report that there is only one.
_SUBGROUPS = {0x10DE: 32}  # NVIDIA


def _capabilities(limits: dict[str, int], features: list[str], info: Any) -> TargetCapabilities:
    one_size = _SUBGROUPS.get(info["vendor_id"])
    facts: dict[str, Any] = {fact: name in features for name, fact in _FEATURES.items()}
    facts |= {field: limits[_native_name(name)] for name, field in LIMITS.items()}
    # Some versions of the package wgpu write "stackgroup" for "subgroup".
    return TargetCapabilities(
        subgroup_least=one_size or info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4,
        subgroup_most=one_size or info.get("subgroup_max_size") or info.get("stackgroup_max_size") or 128,
        adapter=info["device"],
        **facts,
    )
