"""Memory for a program's values: slots, and their layout in one block.

Emission writes commands over numbered *slots*. Slots whose lifetimes do not overlap share memory. The module imports no other of the
package, so that programs from the disk cache run without loading the compiler.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Slots stand for the memory of a program's values while its commands are written.
#
# Their numbers are known at the end.


#: Bytes up to which constants are compared by their elements, larger ones by their address.
SMALL_CONSTANT = 64


class Block:
    """A list of commands inside another, which repeats or may not run.

    Values from outside are live until its end.
    """

    def __init__(self, outer: Block | None) -> None:
        self.outer = outer
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.begin = 0
        self.used: set[Slot] = set()


class Slot:
    """The memory of one value."""

    def __init__(self, block: Block, size: int = 0, backing: tuple[Slot, ...] = (), array: Any = None) -> None:
        self.block = block
        #: Bytes in the arena, if it is there.
        self.size = size
        #: For a slot whose pointer moves: the slots into whose memory it may point.
        self.backing = backing
        #: A constant's value.
        self.array = array
        self.number = -1
        self.begin: int | None = None
        self.end = 0


class Slots:
    """All slots of a program, and the clock of their lifetimes: a tick per command."""

    def __init__(self) -> None:
        self.outermost = Block(None)
        self.callers: list[Slot] = []
        self.constants: dict[Any, Slot] = {}
        #: The constants as they were passed: while they live, no other array has their address.
        self.sources: list[np.ndarray] = []
        self.arena: list[Slot] = []
        self.moving: list[Slot] = []
        self.time = 0

    # making slots

    def caller(self) -> Slot:
        """Add a slot for an array that the caller passes."""
        self.callers.append(Slot(self.outermost))
        return self.callers[-1]

    def constant(self, array: np.ndarray) -> Slot:
        """Return the slot of a constant.

        Equal small constants share one, and so do large ones in the same memory.
        """
        contiguous = np.ascontiguousarray(array).reshape(array.shape)  # `ascontiguousarray` alone makes a 0-d array 1-d
        identity = contiguous.tobytes() if array.nbytes <= SMALL_CONSTANT else (array.ctypes.data, array.strides)
        key = array.dtype, array.shape, identity
        if key not in self.constants:
            self.constants[key] = Slot(self.outermost, array=contiguous)
            self.sources.append(array)
        return self.constants[key]

    def held(self, value: Any) -> Slot:
        """Return the slot of a constant that is already on the device."""
        if id(value) not in self.constants:
            self.constants[id(value)] = Slot(self.outermost, array=value)
        return self.constants[id(value)]

    def memory(self, size: int, block: Block) -> Slot:
        """Add a slot in the arena."""
        self.arena.append(Slot(block, size))
        return self.arena[-1]

    def pointer(self, block: Block, *backing: Slot) -> Slot:
        """Add a slot whose pointer commands set."""
        self.moving.append(Slot(block, backing=backing))
        return self.moving[-1]

    # lifetimes

    def touch(self, slot: Slot, block: Block) -> None:
        """Record that the next command of a block uses a slot."""
        for backing in slot.backing:
            self.touch(backing, block)
        slot.begin = self.time if slot.begin is None else slot.begin
        slot.end = max(slot.end, self.time)
        inner: Block | None = block
        while inner is not None and inner.depth > slot.block.depth:
            inner.used.add(slot)
            inner = inner.outer

    def open_block(self, outer: Block) -> Block:
        """Begin a block inside another."""
        block = Block(outer)
        block.begin = self.time
        return block

    def close_block(self, block: Block) -> None:
        """End a block: slots from outside that it uses live at least until here."""
        for slot in block.used:
            slot.begin = min(block.begin, self.time if slot.begin is None else slot.begin)
            slot.end = max(slot.end, self.time)

    # after the last command

    def assign_numbers(self) -> int:
        """Assign numbers to the caller's slots, the arena's, constants, and pointers.

        Return how many there are.
        """
        slots = [*self.callers, *self.arena, *self.constants.values(), *self.moving]
        for number, slot in enumerate(slots):
            slot.number = number
        return len(slots)

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetime of each of the arena's slots."""
        return [Lifetime(s.begin or 0, s.end, s.size) for s in self.arena]

    def arrays(self) -> tuple[Any, ...]:
        """Return the constants."""
        return tuple([s.array for s in self.constants.values() if s.array is not None])


# The layout of a program's values in one block of memory.
#
# Values whose lifetimes do not overlap may share memory.

#: Every value begins at a multiple of this many bytes (a cache line).
ALIGNMENT = 64


class Lifetime(NamedTuple):
    """A value's size, and the first and last moment at which it is needed."""

    begin: int
    end: int
    bytes: int


def arrange(values: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return an offset for every value, and the size of the block."""
    # Values are assigned in order of time, each to the smallest gap that it fits (best fit), else at the end.
    offsets = [0] * len(values)
    living: list[tuple[int, int]] = []  # (end, value)
    gaps = _Gaps()
    for value in sorted(range(len(values)), key=lambda v: values[v].begin):
        lifetime = values[value]
        while living and living[0][0] < lifetime.begin:
            _, dead = heapq.heappop(living)
            gaps.give(offsets[dead], _rounded(values[dead].bytes))
        offsets[value] = gaps.take(_rounded(lifetime.bytes))
        heapq.heappush(living, (lifetime.end, value))
    return offsets, gaps.size


def _rounded(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


class _Gaps:
    """The free ranges of a block that grows at its end."""

    def __init__(self) -> None:
        self.size = 0
        #: Free ranges by offset, their sizes, and (size, offset) of each in order.
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.by_size: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        position = bisect.bisect_left(self.by_size, (size, -1))
        if position < len(self.by_size):
            room, offset = self.by_size[position]
            self._remove(offset)
            if room > size:
                self._add(offset + size, room - size)
            return offset
        offset = self.size
        if self.starts and self.starts[-1] + self.sizes[self.starts[-1]] == self.size:  # the last gap, made longer
            offset = self.starts[-1]
            self._remove(offset)
        self.size = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a range, and merge it with free neighbours."""
        position = bisect.bisect_left(self.starts, offset)
        if position < len(self.starts) and self.starts[position] == offset + size:
            following = self.starts[position]
            size += self.sizes[following]
            self._remove(following)
        if position and self.starts[position - 1] + self.sizes[self.starts[position - 1]] == offset:
            before = self.starts[position - 1]
            size += self.sizes[before]
            offset = before
            self._remove(before)
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        bisect.insort(self.starts, offset)
        self.sizes[offset] = size
        bisect.insort(self.by_size, (size, offset))

    def _remove(self, offset: int) -> None:
        size = self.sizes.pop(offset)
        self.starts.pop(bisect.bisect_left(self.starts, offset))
        self.by_size.pop(bisect.bisect_left(self.by_size, (size, offset)))


class Memory(NamedTuple):
    """The memory of a program, in bytes."""

    #: Bytes of the arguments, of the results, and at most of the values in between.
    arguments: int
    results: int
    temporaries: int

    @property
    def peak(self) -> int:
        """The total; results in the memory of donated arguments count twice."""
        return self.arguments + self.results + self.temporaries


class Output(NamedTuple):
    """An output of a program: an array that it computes, an argument, or a constant."""

    result: int | None
    argument: int | None
    constant: Any
    shape: tuple[int, ...]
