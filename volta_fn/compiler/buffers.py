"""The layout of a program's values in one block of memory, and what it returns.

The module imports no other of the package, so that programs from the disk cache run without loading the compiler.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

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
