"""Copy device memory to the host: readbacks are requested now and taken later.

A readback arrives when the batch in which it was requested is done, whatever follows. So the readback of a result that is read after each
step, such as a loss, is requested with the step, and taking it waits for no later step.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.errors import DeviceError
from volta_fn.targets.wgsl.runtime.device.memory import Block
from volta_fn.targets.wgsl.runtime.device.wgpu_ffi import LOST, native

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.submission.queue import Queue

_ALLOW_PROCESS_EVENTS = 2
_MAP_READ, _COPY_DST = 0x1, 0x8
_ARRIVED = 1

#: Buffers kept per size, and bytes of the largest that is kept.
_KEPT, _LARGEST = 64, 1 << 24


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
        #: What tells that the readback is gone; None then.
        self.end: _End | None = None


class Readback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "copy")

    def __init__(self, copy: _Copy, gone: deque[_End]) -> None:
        self.copy = copy
        copy.end = _End(self, gone.append)
        copy.end.copy = copy


class _End(weakref.ref[Readback]):
    """The end of a readback.

    As with `memory.LeaseEnd`, no function of Python runs.
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
            self.queue.watched.lost = True  # a valid copy fails for no other reason
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
        if len(free) < _KEPT and capacity <= _LARGEST:
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
