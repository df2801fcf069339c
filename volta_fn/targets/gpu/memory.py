"""Device memory: a pool of blocks, buffers, and a warning when memory grows."""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Callable, Sequence
from operator import attrgetter
from sys import getrefcount
from typing import Any

import numpy as np

from volta_fn.core.caches import KeyedWeakref
from volta_fn.errors import MemoryGrowthWarning, OutOfMemoryError
from volta_fn.targets.gpu.driver import Driver, log
from volta_fn.targets.wgsl.commands import size_class

# Detect memory leaks: warn when memory grows from call to call of a program.
#
# The warning comes long before memory runs out.

#: Samples to compare.
_SAMPLES = 10

#: Growth in bytes that is worth a warning if the limit is unknown.
_WORTH_WARNING = 1 << 30


class Trend:
    """Samples of the memory in use before calls of one program.

    They are compared after 10 calls and at each doubling. A warning is issued if memory in use grew from each sample to the next, and twice
    as many further calls would reach the limit. So steady growth is detected before three quarters of the memory are used.
    """

    def __init__(self) -> None:
        self.calls = 0
        #: Calls between samples.
        self.interval = 1
        self.samples: list[int] = []

    def sample(self, in_use: int, limit: int | None) -> None:
        """Record the memory in use before a call."""
        self.calls += 1
        if self.calls % self.interval:
            return
        self.samples.append(in_use)
        if len(self.samples) < _SAMPLES:
            return
        first, last = self.samples[0], in_use
        grows = all(a < b for a, b in zip(self.samples, self.samples[1:], strict=False))
        self.samples = self.samples[1::2]
        self.interval *= 2
        if grows and (last - first > _WORTH_WARNING if limit is None else 3 * last - 2 * first > limit):
            room = "an unknown limit" if limit is None else f"{limit} at most"
            warnings.warn(
                f"a program has found more of the GPU's memory in use at each call, {first} bytes at first and {last} after {self.calls} "
                f"calls, of {room}. Something keeps arrays from call to call, such as a list of losses: keep float(loss) instead",
                MemoryGrowthWarning,
                stacklevel=4,
            )


# Manage device memory: a pool of blocks in size classes, and buffers.
#
# Buffers are the values that programs take and return. A free block may be reused at once, even if commands that use it are pending:
# the queue executes them in order. Only writes from the host may overtake commands that are not submitted yet, so they must not target
# a block that pending commands use.

#: Results of up to this many bytes that the host has read once are copied to it eagerly in later calls, and kept.
SMALL_READBACK = 1024

#: The reference count of a lease held by one buffer: that reference, and getrefcount's argument.
_UNSHARED_REFERENCES = 2

#: Numbers are unique across devices, so that recordings for a lost device never match another one.
_numbers = itertools.count(1)


class Block:
    """Memory of the driver, which leases give out."""

    __slots__ = ("end", "handle", "number", "returned_after", "size")

    def __init__(self, handle: Any, number: int, size: int) -> None:
        self.handle = handle
        self.number = number
        self.size = size
        #: The last batch that was submitted when it was returned: the batch after that may still use it.
        self.returned_after = -1
        #: The weak reference that returns it when its lease ends; None if it is free.
        self.end: KeyedWeakref[Lease] | None = None


class Lease:
    """The right to use a block, until the last reference to this object is gone.

    That may happen at any moment, in any thread, and so without the lock: then a weak reference is appended to the pool's list
    `returned`. No Python code runs, as a signal's handler might raise in it, an exception that Python would only print.
    """

    __slots__ = ("__weakref__", "block", "returned")

    def __init__(self, block: Block, returned: list[KeyedWeakref[Lease]]) -> None:
        self.block = block
        self.returned = returned
        block.end = KeyedWeakref(self, returned.append)
        block.end.key = block


class Pool:
    """A device's blocks; methods run under the queue's lock; leases end at any time."""

    def __init__(self, driver: Driver, limit: int | None, *, grids: bool = False) -> None:
        """Begin without blocks; if `grids`, they may hold grids of indirect dispatches."""
        self.driver = driver
        self.grids = grids
        self.largest = driver.description.largest
        #: The most bytes in all blocks (None: no limit).
        self.limit = limit
        #: The numbers of free blocks by size (heaps), and all blocks by number.
        self.free: dict[int, list[int]] = {}
        self.blocks: dict[int, Block] = {}
        #: Of leases that have ended, with their blocks as keys.
        self.returned: list[KeyedWeakref[Lease]] = []
        self.held = 0
        self.in_use = 0
        self.peak = 0
        #: The number of the last batch that was submitted.
        self.submitted = 0
        #: The number of times that blocks were released: older recordings refer to released blocks.
        self.releases = 0
        #: Called when memory is short: ends the leases of all programs' temporary values, waits for the GPU, and trims all of its pools.
        self.release_unused: Callable[[], None] = self.trim

    def lease(self, size: int) -> Lease:
        """Lease a block of at least `size` bytes, with undefined contents."""
        return self.leases((size,))[0]

    def leases(self, sizes: Sequence[int]) -> list[Lease]:
        """Lease a block for each of some sizes, as `lease` does for one."""
        self.collect()
        leases, free, blocks, returned = [], self.free, self.blocks, self.returned
        for size in sizes:
            block_size = self._block_size(size)
            numbers = free.get(block_size)
            block = blocks[heapq.heappop(numbers)] if numbers else self._new(block_size, size)
            self.in_use += block.size
            leases.append(Lease(block, returned))
        self.peak = max(self.peak, self.in_use)
        return leases

    def lease_unused(self, size: int) -> Lease | None:
        """Lease a block that no pending command uses; None if all free ones are used."""
        self.collect()
        block_size = self._block_size(size)
        free = self.free.get(block_size, [])
        block_number = next((number for number in free if self.blocks[number].returned_after < self.submitted), None)
        if block_number is not None:
            free.remove(block_number)
            heapq.heapify(free)
            return self._leased(self.blocks[block_number])
        return None if free else self._leased(self._new(block_size, size))

    def _block_size(self, size: int) -> int:
        """Return the size of a block for `size` bytes: a class, or the largest."""
        return min(size_class(size), max(self.largest, size))

    def _leased(self, block: Block) -> Lease:
        self.in_use += block.size
        self.peak = max(self.peak, self.in_use)
        return Lease(block, self.returned)

    def collect(self) -> None:
        """Take back the blocks whose leases have ended."""
        returned = self.returned
        while returned:
            block: Block = returned.pop().key
            block.returned_after, block.end = self.submitted, None
            self.in_use -= block.size
            heapq.heappush(self.free.setdefault(block.size, []), block.number)

    def _new(self, block_size: int, requested: int) -> Block:
        """Allocate a block for an array of `requested` bytes."""
        if requested > self.largest:
            raise OutOfMemoryError(f"an array of {requested} bytes is larger than the GPU's largest buffer, {self.largest} bytes; split it")
        if self._full(block_size):
            self.trim()
        if self._full(block_size):
            self.release_unused()
        if self._full(block_size):
            raise OutOfMemoryError(
                f"{requested} bytes more than the {self.held} that are in use on the GPU would be beyond the limit of {self.limit} bytes. "
                "Delete arrays, donate arguments (jit's donate_argnums), use smaller batches, or raise the limit"
            )
        try:
            handle = self.driver.allocate(block_size, grids=self.grids)
        except OutOfMemoryError:
            self.release_unused()
            handle = self.driver.allocate(block_size, grids=self.grids)
        self.held += block_size
        block = Block(handle, next(_numbers), block_size)
        self.blocks[block.number] = block
        log.debug("a block of %d bytes; %d bytes are held, %d in use", block_size, self.held, self.in_use)
        return block

    def _full(self, size: int) -> bool:
        return self.limit is not None and self.held + size > self.limit

    def trim(self) -> None:
        """Release all free blocks."""
        self.collect()
        for number in [number for numbers in self.free.values() for number in numbers]:
            block = self.blocks.pop(number)
            self.held -= block.size
            self.driver.free(block.handle)
        self.free.clear()
        self.releases += 1
        log.debug("free blocks given back; %d bytes are held, %d in use", self.held, self.in_use)

    def release(self) -> None:
        """Release all blocks; nothing uses the device any more."""
        for block in self.blocks.values():
            self.driver.free(block.handle)
        self.blocks.clear()


class Buffer:
    """An array's elements on the GPU, or about to be uploaded."""

    __slots__ = ("__weakref__", "dtype", "host_values", "lease", "on_read", "origin", "readback", "shape", "size")

    def __init__(
        self, lease: Lease | None, shape: tuple[int, ...], dtype: np.dtype, size: int, host_values: np.ndarray | None = None
    ) -> None:
        #: None until the GPU needs the elements.
        self.lease = lease
        self.shape = shape
        self.dtype = dtype
        #: Bytes.
        self.size = size
        #: The elements, if they are also on the host.
        self.host_values = host_values
        #: A pending copy to the host, and a callback for when the elements are read.
        self.readback: Any = None
        self.on_read: Callable[[], None] | None = None
        #: The origin from which the elements can be recomputed if the device is lost (`backend.Origin`).
        self.origin: Any = None

    def renew(self) -> Buffer:
        """Forget the old elements: the buffer receives a new result."""
        self.host_values = self.readback = self.on_read = None
        return self

    def __repr__(self) -> str:
        return f"Buffer({self.dtype}{list(self.shape)})"


_lease = attrgetter("lease")


def exclusive(buffers: Sequence[Buffer]) -> bool:
    """Return whether no other buffer shares its memory with one of these."""
    leases = map(_lease, buffers)
    return max(map(getrefcount, leases)) <= _UNSHARED_REFERENCES or not any(
        b.lease is not None and getrefcount(b.lease) > _UNSHARED_REFERENCES for b in buffers
    )
