"""Reading arrays back: a copy to a buffer that the host can read is a *letter*, which is written now and opened later.

A letter arrives when the batch in which it was written is done, whatever comes behind. So a result that is read each time, such as a loss,
can be written a letter at once, and reading it waits for no later step.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.backends.wgsl.runtime.memory import Block
from volta_fn.backends.wgsl.runtime.raw import LOST, native
from volta_fn.errors import DeviceError

if TYPE_CHECKING:
    from volta_fn.backends.wgsl.runtime.queue import Queue

_ALLOW_PROCESS_EVENTS = 2
_MAP_READ, _COPY_DST = 0x1, 0x8
_ARRIVED = 1

#: Buffers kept of a size, and bytes of the largest that is kept.
_KEPT, _LARGEST = 64, 1 << 24


class Letter:
    """A copy on its way to the host."""

    __slots__ = ("__weakref__", "box", "handle", "number", "room", "size")

    def __init__(self, box: Mailbox, handle: Any, room: int, size: int) -> None:
        self.box = box
        #: The buffer that the host can read, and its bytes; None when it has been opened.
        self.handle = handle
        self.room = room
        self.size = size
        #: By which it is known to have arrived; 0 until it is submitted.
        self.number = 0

    def __del__(self) -> None:
        if self.handle is not None:
            self.box.unread.append((self.handle, self.room, self.number))


class Mailbox:
    """The letters of a queue."""

    def __init__(self, queue: Queue) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.queue = queue
        self.count = 0
        #: Written, but not submitted; on their way, by number; arrived, with their status; and never opened.
        self.outgoing: list[Letter] = []
        self.expected: set[int] = set()
        self.arrived: dict[int, int] = {}
        self.unread: deque[tuple[Any, int, int]] = deque()
        self.free: dict[int, list[Any]] = {}
        self._callback = self.ffi.callback("WGPUBufferMapCallback", self._arrive)
        self._info = self.ffi.new("WGPUBufferMapCallbackInfo *", {"mode": _ALLOW_PROCESS_EVENTS, "callback": self._callback})

    def _arrive(self, status: int, message: Any, number: Any, unused: Any) -> None:
        which = int(self.ffi.cast("uintptr_t", number))
        if which in self.expected:
            self.arrived[which] = status

    def write(self, block: Block, size: int, offset: int = 0) -> Letter:
        """A copy of some bytes of a block, as they are after what is written to the queue so far. Under the queue's lock."""
        self._collect()
        padded = max(-(-size // 4) * 4, 4)
        room = min(1 << max(padded - 1, 255).bit_length(), max(self.queue.pool.largest, padded))
        free = self.free.get(room)
        handle = free.pop() if free else self.queue.pool.create(room, _MAP_READ | _COPY_DST)
        letter = Letter(self, handle, room, size)
        self.queue.copy(handle, block.handle, offset, padded)
        self.outgoing.append(letter)
        return letter

    def _collect(self) -> None:
        """Take back the buffers of letters that were never opened and have arrived, oldest first.

        Not before that: the library would deliver the next letter in such a buffer when the first one arrives, with what that one says.
        """
        while self.unread and self.unread[0][2] in self.arrived:
            handle, room, number = self.unread.popleft()
            self.expected.discard(number)
            del self.arrived[number]
            self.lib.wgpuBufferUnmap(handle)
            self._keep(handle, room)

    def send(self) -> None:
        """What is written is submitted now."""
        for letter in self.outgoing:
            self.count += 1
            letter.number = self.count
            self.expected.add(letter.number)
            self._info.userdata1 = self.ffi.cast("void *", letter.number)
            self.lib.wgpuBufferMapAsync(letter.handle, _MAP_READ, 0, max(-(-letter.size // 4) * 4, 4), self._info[0])
        self.outgoing.clear()

    def open(self, letter: Letter) -> np.ndarray:
        """The bytes of a letter, when it has arrived. To be called once."""
        if not letter.number:
            self.queue.submit()
        number = letter.number
        self.queue.wait_for(lambda: number in self.arrived)
        self.expected.discard(number)
        if self.arrived.pop(number) != _ARRIVED:
            self.queue.watched.lost = True  # there is no other reason why a copy that was asked for rightly does not arrive
            raise DeviceError(LOST)
        source = self.lib.wgpuBufferGetConstMappedRange(letter.handle, 0, max(-(-letter.size // 4) * 4, 4))
        result = np.empty(letter.size, np.uint8)
        self.ffi.memmove(self.ffi.from_buffer(result), source, letter.size)
        self.lib.wgpuBufferUnmap(letter.handle)
        handle, letter.handle = letter.handle, None
        with self.queue.lock:
            self._keep(handle, letter.room)
        return result

    def _keep(self, handle: Any, room: int) -> None:
        free = self.free.setdefault(room, [])
        if len(free) < _KEPT and room <= _LARGEST:
            free.append(handle)
        else:
            self.lib.wgpuBufferRelease(handle)

    def clear(self) -> None:
        """Give back the buffers that are kept."""
        for handle in [handle for free in self.free.values() for handle in free]:
            self.lib.wgpuBufferRelease(handle)
        self.free.clear()
