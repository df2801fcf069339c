"""Copy device memory to the host: readbacks are requested now and taken later.

A readback arrives when the batch in which it was requested is done, whatever follows. So the readback of a result that is read after each
step, such as a loss, is requested with the step, and taking it waits for no later step.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.errors import DeviceError
from volta_fn.targets.wgsl.runtime.memory import Block
from volta_fn.targets.wgsl.runtime.wgpu_ffi import LOST, native

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.queue import Queue

_ALLOW_PROCESS_EVENTS = 2
_MAP_READ, _COPY_DST = 0x1, 0x8
_ARRIVED = 1

#: Buffers kept per size, and bytes of the largest that is kept.
_KEPT, _LARGEST = 64, 1 << 24


class Readback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "capacity", "handle", "number", "readbacks", "size")

    def __init__(self, readbacks: Readbacks, handle: Any, capacity: int, size: int) -> None:
        self.readbacks = readbacks
        #: The buffer that the host can read (None once taken), and its bytes.
        self.handle = handle
        self.capacity = capacity
        self.size = size
        #: Its number once it is submitted; 0 before.
        self.number = 0

    def __del__(self) -> None:
        if self.handle is not None:
            self.readbacks.abandoned.append((self.handle, self.capacity, self.number))


class Readbacks:
    """The readbacks of a queue."""

    def __init__(self, queue: Queue) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.queue = queue
        self.count = 0
        #: Readbacks by state: requested; submitted, by number; arrived, with their status; abandoned before they were taken.
        self.requested: list[Readback] = []
        self.expected: set[int] = set()
        self.arrived: dict[int, int] = {}
        self.abandoned: deque[tuple[Any, int, int]] = deque()
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
        readback = Readback(self, handle, capacity, size)
        self.queue.copy(handle, block.handle, offset, padded)
        self.requested.append(readback)
        return readback

    def _collect(self) -> None:
        """Reuse the buffers of arrived readbacks that were abandoned, oldest first.

        They must have arrived: the library would otherwise report the next readback in such a buffer when the first one arrives.
        """
        while self.abandoned and self.abandoned[0][2] in self.arrived:
            handle, capacity, number = self.abandoned.popleft()
            self.expected.discard(number)
            del self.arrived[number]
            self.lib.wgpuBufferUnmap(handle)
            self._keep(handle, capacity)

    def submitted(self) -> None:
        """Ask the library to report the arrival of the readbacks just submitted."""
        for readback in self.requested:
            self.count += 1
            readback.number = self.count
            self.expected.add(readback.number)
            self._info.userdata1 = self.ffi.cast("void *", readback.number)
            self.lib.wgpuBufferMapAsync(readback.handle, _MAP_READ, 0, max(-(-readback.size // 4) * 4, 4), self._info[0])
        self.requested.clear()

    def take(self, readback: Readback) -> np.ndarray:
        """Wait for a readback and return its bytes. Call it once."""
        if not readback.number:
            self.queue.submit()
        number = readback.number
        self.queue.wait_for(lambda: number in self.arrived)
        self.expected.discard(number)
        if self.arrived.pop(number) != _ARRIVED:
            self.queue.watched.lost = True  # a valid copy fails for no other reason
            raise DeviceError(LOST)
        self.queue.pool.check_device()
        source = self.lib.wgpuBufferGetConstMappedRange(readback.handle, 0, max(-(-readback.size // 4) * 4, 4))
        result = np.empty(readback.size, np.uint8)
        self.ffi.memmove(self.ffi.from_buffer(result), source, readback.size)
        self.lib.wgpuBufferUnmap(readback.handle)
        handle, readback.handle = readback.handle, None
        with self.queue.lock:
            self._keep(handle, readback.capacity)
        return result

    def _keep(self, handle: Any, capacity: int) -> None:
        free = self.free.setdefault(capacity, [])
        if len(free) < _KEPT and capacity <= _LARGEST:
            free.append(handle)
        else:
            self.lib.wgpuBufferRelease(handle)

    def clear(self) -> None:
        """Release the buffers that are kept for reuse."""
        for handle in [handle for free in self.free.values() for handle in free]:
            self.lib.wgpuBufferRelease(handle)
        self.free.clear()
