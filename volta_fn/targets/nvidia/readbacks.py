"""Copies from a device's memory to the host's, behind the commands written so far.

A copy goes to memory of the host that the GPU reaches, and arrives when its batch is done. That memory is reused: allocating it takes long.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from volta_fn.errors import DeviceError, VoltaError
from volta_fn.targets.gpu.device.driver import LOST
from volta_fn.targets.nvidia.library import CallErrors, Context, Functions


class Progress:
    """The batches that were submitted and that are done, by their numbers."""

    __slots__ = ("done", "is_pending", "submitted")

    def __init__(self) -> None:
        self.submitted = self.done = 0
        #: Whether commands were written that are not submitted.
        self.is_pending = False

    @property
    def last_use(self) -> int:
        """The number of the batch after which no command that was written runs."""
        return self.submitted + self.is_pending


# The host's memory, and the ends of readbacks.

#: The most bytes that are kept for reuse.
_MOST_RETAINED = 1 << 28
#: Capacities are powers of two from the least on, and multiples of the other one beyond that.
_LEAST_CAPACITY, _LARGE_CAPACITY = 1 << 8, 1 << 24


def _capacity(size: int) -> int:
    if size > _LARGE_CAPACITY:
        return -(-size // _LARGE_CAPACITY) * _LARGE_CAPACITY
    return 1 << (max(size, _LEAST_CAPACITY) - 1).bit_length()


class _HostCopy:
    """The host's memory of a readback, which outlives it."""

    __slots__ = ("address", "batch", "capacity", "end", "size")

    def __init__(self, address: int, capacity: int, size: int) -> None:
        #: The address of the host's memory; 0 once it is kept for others.
        self.address, self.capacity, self.size = address, capacity, size
        #: The number of the batch in which it was requested; 0 before that is submitted.
        self.batch = 0
        #: The weak reference that reports the end of the readback.
        self.end: _ReadbackEnd | None = None


class HostReadback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "copy")

    def __init__(self, copy: _HostCopy, dropped: deque[_ReadbackEnd]) -> None:
        self.copy = copy
        end = _ReadbackEnd(self, dropped.append)
        end.copy, copy.end = copy, end

    @property
    def submitted(self) -> bool:
        """Whether the batch in which it was requested is submitted."""
        return self.copy.batch > 0


class _ReadbackEnd(weakref.ref[HostReadback]):
    """A weak reference that appends itself to a list when its readback is collected.

    No Python code runs then: in it, a signal's handler might raise, and Python would only print the exception.
    """

    __slots__ = ("copy",)

    copy: _HostCopy


class HostReadbacks:
    """The copies from a device to the host."""

    def __init__(self, loaded: Functions, errors: CallErrors, context: Context, stream: int, progress: Progress) -> None:
        self._functions, self._errors, self._context, self._stream, self._progress = loaded, errors, context, stream, progress
        #: Copies whose memory is in use: a reference from here keeps the weak references to their readbacks.
        self._used: set[_HostCopy] = set()
        self._requested: list[_HostCopy] = []
        #: The ends of readbacks, and copies of dropped readbacks that may not have arrived.
        self._dropped: deque[_ReadbackEnd] = deque()
        self._orphans: list[_HostCopy] = []
        self._free: dict[int, list[int]] = {}
        self._retained = 0
        #: Held while the host's memory is read, so that the device is not closed meanwhile.
        self.reading = threading.Lock()

    def request(self, memory: int, size: int, offset: int = 0) -> HostReadback:
        """Request a copy of `size` bytes of memory, as of the commands written so far."""
        self._collect()
        capacity = _capacity(size)
        free = self._free.get(capacity)
        with self._context:
            if free:
                address = free.pop()
                self._retained -= capacity
            else:
                result = ctypes.c_void_p()
                self._errors.check(self._functions.cuMemHostAlloc(ctypes.byref(result), capacity, 0), "cuMemHostAlloc")
                address = result.value or 0
            copy = _HostCopy(address, capacity, size)
            try:
                if size:
                    status = self._functions.cuMemcpyDtoHAsync_v2(address, memory + offset, size, self._stream)
                    self._errors.check(status, "cuMemcpyDtoHAsync")
            except VoltaError:
                self._recycle(copy)
                raise
        self._progress.is_pending = True
        self._used.add(copy)
        self._requested.append(copy)
        return HostReadback(copy, self._dropped)

    def mark_submitted(self, batch: int) -> None:
        """Note the number of the batch that is submitted with the copies requested so far."""
        for copy in self._requested:
            copy.batch = batch
        self._requested.clear()

    def _has_arrived(self, copy: _HostCopy) -> bool:
        return 0 < copy.batch <= self._progress.done

    def _collect(self) -> None:
        """Reuse the memory of dropped readbacks that have arrived."""
        while self._dropped:
            self._orphans.append(self._dropped.popleft().copy)
        pending = []
        for copy in self._orphans:
            if self._has_arrived(copy):
                self._recycle(copy)
            elif copy.address:
                pending.append(copy)
        self._orphans = pending

    def arrived(self, readback: Any) -> bool:
        """Return whether a readback that was submitted has arrived, after `poll`."""
        return self._has_arrived(readback.copy)

    def take(self, readback: Any) -> np.ndarray:
        """Return the bytes of a readback that has arrived, once.

        Raises `DeviceError` if the device is lost.
        """
        copy: _HostCopy = readback.copy
        result = np.empty(copy.size, np.uint8)
        with self.reading:
            self._errors.check_device()
            if not self._context.is_open:
                raise DeviceError(LOST)
            ctypes.memmove(result.ctypes.data, copy.address, copy.size)
        return result

    def keep(self, readback: Any) -> None:
        """Keep the host's memory of a readback that was taken, for later ones."""
        self._recycle(readback.copy)

    def _recycle(self, copy: _HostCopy) -> None:
        self._used.discard(copy)
        address, copy.address = copy.address, 0
        if not address:
            return
        if self._retained + copy.capacity <= _MOST_RETAINED:
            self._free.setdefault(copy.capacity, []).append(address)
            self._retained += copy.capacity
        else:
            self._release(address)

    def _release(self, address: int) -> None:
        with contextlib.suppress(DeviceError), self._context:  # the memory of a lost device is released with its context
            self._functions.cuMemFreeHost(address)

    def clear(self) -> None:
        """Release the memory that is kept."""
        self._collect()
        for address in [address for free in self._free.values() for address in free]:
            self._release(address)
        self._free.clear()
        self._retained = 0
