"""What a program is to the runtime: a list of commands on slots.

`Run` does one dispatch, `Loop` repeats commands a fixed number of times, `While` as long as a flag says so, `Submit` does not wait for
more, and `Host` calls NumPy.
Slots are numbered (`compiler.slots`): the caller's, then temporary ones, then constants. A `Place` is a part of what is in a slot; within
loops it may move with the number of the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.compiler.slots import Block, Slot


class Moved(Slot):
    """A part of another slot: `size` bytes from an offset on, which moves by some bytes with every turn of some loops."""

    root: Slot

    def __init__(self, block: Block, base: Slot, size: int, offset: int, strides: tuple[tuple[int, int], ...]) -> None:
        root = base.root if isinstance(base, Moved) else base
        super().__init__(block, size, backing=(root,))
        self.root = root
        self.offset: int = base.offset + offset if isinstance(base, Moved) else offset
        #: Pairs of a loop's number and the bytes per turn.
        self.strides: tuple[tuple[int, int], ...] = (*base.strides, *strides) if isinstance(base, Moved) else strides


class Place(NamedTuple):
    """A part of what is in a slot."""

    slot: Slot
    offset: int
    #: Bytes, a multiple of four.
    size: int
    strides: tuple[tuple[int, int], ...]


#: Bytes of an element of the widest dtype.
_ELEMENT = 16


def place(slot: Slot, size: int) -> Place:
    """The place of an array of so many bytes. An array without elements has room for one of any dtype: shaders ask for that."""
    padded = -(-size // 4) * 4 or _ELEMENT
    if isinstance(slot, Moved):
        return Place(slot.root, slot.offset, padded, slot.strides)
    return Place(slot, 0, padded, ())


def part(slot: Slot, offset: int, size: int) -> Place:
    """The place of some bytes of an array."""
    whole = place(slot, size)
    return whole._replace(offset=whole.offset + offset)


@dataclass(eq=False)
class Region:
    """Commands that are done only if flags on the device say so: their grids are read from a buffer, where there are zeros if not."""

    #: The buffer: a flag for each branch, of which one at most is done, then the grids.
    grids: Slot
    branches: int
    #: For every command the number of its branch, and its grid.
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return 4 * self.branches + 12 * len(self.entries)


@dataclass(eq=False)
class Run:
    """A dispatch."""

    source: str
    written: frozenset[int]
    places: tuple[Place, ...]
    groups: tuple[int, int, int]
    #: Where its grid is read, if it belongs to a region: the region, and the number of the entry there.
    region: Region | None = None
    entry: int = 0
    #: Whether it is to be done together with others like it (see `compiler.deferral.defer_products`).
    deferred: bool = False
    #: Writes a shader that does the same in less time, but takes longer to compile (see `Dispatch`).
    better: Callable[[], str] | None = None

    @staticmethod
    def of(dispatch: Dispatch, places: Sequence[Place], *, deferred: bool = False) -> Run:
        """A routine's dispatch, with the places of the routine's buffers by their numbers."""
        bound = tuple([places[number] for number in dispatch.buffers])
        return Run(dispatch.source, dispatch.places_written, bound, dispatch.groups, deferred=deferred, better=dispatch.better)

    @property
    def key(self) -> tuple[str, int, frozenset[int]]:
        """What its pipeline is known by."""
        return self.source, len(self.places), self.written

    def changed(self, change: Callable[[str], str]) -> Run:
        """The same with its shader, and the better one, changed."""
        better = self.better
        return replace(self, source=change(self.source), better=None if better is None else lambda: change(better()))


@dataclass(eq=False)
class Loop:
    """Commands repeated; `number` is the loop's, by which places move."""

    number: int
    turns: int
    body: list[Command]


@dataclass(eq=False)
class While:
    """Commands repeated while a word is not zero, which the commands set."""

    flag: Place
    body: list[Command]


@dataclass(eq=False)
class Submit:
    """What is written goes to the GPU by itself: it is much."""


@dataclass(eq=False)
class Host:
    """A function of NumPy arrays."""

    #: What it computes, for statistics.
    name: str
    compute: Callable[..., Sequence[np.ndarray]]
    #: Places, shapes and dtypes.
    operands: tuple[tuple[Place, tuple[int, ...], Any], ...]
    results: tuple[tuple[Place, tuple[int, ...], Any], ...]
    #: If it belongs to a region: the word that says whether it is to be called.
    flag: Place | None = None


Command = Run | Loop | While | Submit | Host


def uninterrupted(command: Command) -> bool:
    """Whether the host has nothing to do between the dispatches of a command."""
    return isinstance(command, Run) or (isinstance(command, Loop) and all(uninterrupted(c) for c in command.body))


def runs(commands: Sequence[Command]) -> Iterator[Run]:
    """All dispatches among commands, and in them."""
    for command in commands:
        if isinstance(command, Run):
            yield command
        elif isinstance(command, Loop | While):
            yield from runs(command.body)
