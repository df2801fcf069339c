"""Slots stand for the memory of a program's values while its commands are written.

Their numbers are known at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.compiler.buffers.memory_layout import Lifetime


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
    """All slots of a program, and the clock that measures their lifetimes.

    It ticks once per command.
    """

    def __init__(self) -> None:
        self.outermost = Block(None)
        self.callers: list[Slot] = []
        self.constants: dict[Any, Slot] = {}
        self.arena: list[Slot] = []
        self.moving: list[Slot] = []
        self.time = 0

    # making slots

    def caller(self) -> Slot:
        """Add a slot for an array that the caller passes."""
        self.callers.append(Slot(self.outermost))
        return self.callers[-1]

    def constant(self, array: np.ndarray) -> Slot:
        """Return the slot of a constant; equal small ones share one."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype, array.shape, array.tobytes()) if array.nbytes <= 64 else id(array)
        if key not in self.constants:
            self.constants[key] = Slot(self.outermost, array=array)
        return self.constants[key]

    def held(self, value: Any) -> Slot:
        """Return the slot of a constant that is on the device already."""
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
        """Note that the next command of a block uses a slot."""
        for backing in slot.backing:
            self.touch(backing, block)
        slot.begin = self.time if slot.begin is None else slot.begin
        slot.end = max(slot.end, self.time)
        inner: Block | None = block
        while inner is not None and inner.depth > slot.block.depth:
            inner.used.add(slot)
            inner = inner.outer

    def begin(self, outer: Block) -> Block:
        """Begin a block."""
        block = Block(outer)
        block.begin = self.time
        return block

    def finish(self, block: Block) -> None:
        """End a block: slots from outside that it uses live at least until here."""
        for slot in block.used:
            slot.begin = min(block.begin, self.time if slot.begin is None else slot.begin)
            slot.end = max(slot.end, self.time)

    # after the last command

    def ordered(self) -> list[Slot]:
        """Assign numbers to all slots and return them.

        The caller's come first, then the arena's, constants, and pointers.
        """
        ordered = [*self.callers, *self.arena, *self.constants.values(), *self.moving]
        for number, slot in enumerate(ordered):
            slot.number = number
        return ordered

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetime of each of the arena's slots."""
        return [Lifetime(s.begin or 0, s.end, s.size) for s in self.arena]

    def arrays(self) -> tuple[Any, ...]:
        """Return the constants."""
        return tuple([s.array for s in self.constants.values() if s.array is not None])
