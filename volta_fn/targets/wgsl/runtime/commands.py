"""Commands: the form in which the runtime executes a program.

`Run` is one dispatch, `Loop` repeats commands a fixed number of times, `While` as long as a flag on the device is set, `Submit` submits
what is written so far, and `Host` calls NumPy. Commands work on numbered slots (`compiler.slots`): the caller's, then temporary ones,
then constants. A `Place` is a range of bytes in a slot; within loops it may move with the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Block, Slot
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.shader_module import ShaderModule


class Moved(Slot):
    """A part of another slot: `size` bytes from an offset on, which moves by `strides` with every iteration of some loops."""

    root: Slot

    def __init__(self, block: Block, base: Slot, size: int, offset: int, strides: tuple[tuple[int, int], ...]) -> None:
        root = base.root if isinstance(base, Moved) else base
        super().__init__(block, size, backing=(root,))
        self.root = root
        self.offset: int = base.offset + offset if isinstance(base, Moved) else offset
        #: Pairs of a loop's number and the bytes per iteration.
        self.strides: tuple[tuple[int, int], ...] = (*base.strides, *strides) if isinstance(base, Moved) else strides


class Place(NamedTuple):
    """A range of bytes in a slot."""

    slot: Slot
    offset: int
    #: Bytes, a multiple of four.
    size: int
    strides: tuple[tuple[int, int], ...]


#: Bytes of an element of the widest dtype.
_ELEMENT = 16


def place(slot: Slot, size: int) -> Place:
    """The place of an array of `size` bytes. An empty array has room for an element of any dtype, as bindings must not be empty."""
    padded = -(-size // 4) * 4 or _ELEMENT
    if isinstance(slot, Moved):
        return Place(slot.root, slot.offset, padded, slot.strides)
    return Place(slot, 0, padded, ())


def part(slot: Slot, offset: int, size: int) -> Place:
    """The place of `size` bytes of an array, from an offset on."""
    whole = place(slot, size)
    return whole._replace(offset=whole.offset + offset)


@dataclass(eq=False)
class Region:
    """Commands that run only if flags on the device say so: their grids are read from a buffer, where they are zero if not."""

    #: The buffer: a flag for each branch, of which at most one is taken, then the grids.
    grids: Slot
    branches: int
    #: For every dispatch the number of its branch, and its grid.
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return 4 * self.branches + 12 * len(self.entries)


@dataclass(eq=False)
class Run:
    """A dispatch."""

    shader: ShaderModule
    written: frozenset[int]
    places: tuple[Place, ...]
    groups: tuple[int, int, int]
    #: The region it belongs to, if any, from whose buffer its grid is read, and the number of its entry there.
    region: Region | None = None
    entry: int = 0
    #: Whether it is a deferred product, to be fused with others (see `compiler.deferral.defer_products`).
    deferred: bool = False
    #: Writes a shader that does the same in less time, but takes longer to compile (see `Dispatch`).
    better: Callable[[], ShaderModule] | None = None

    @staticmethod
    def of(dispatch: Dispatch, places: Sequence[Place], *, deferred: bool = False) -> Run:
        """A routine's dispatch, with the places of the routine's buffers by their numbers."""
        bound = tuple([places[number] for number in dispatch.buffers])
        return Run(dispatch.shader, dispatch.places_written, bound, dispatch.groups, deferred=deferred, better=dispatch.better)

    @property
    def source(self) -> str:
        """The WGSL of its shader."""
        return self.shader.text

    @property
    def key(self) -> tuple[str, int, frozenset[int]]:
        """The key of its pipeline."""
        return self.source, len(self.places), self.written

    def changed(self, change: Callable[[ShaderModule], ShaderModule]) -> Run:
        """The same with its shader, and that of its upgrade, changed."""
        better = self.better
        return replace(self, shader=change(self.shader), better=None if better is None else lambda: change(better()))


@dataclass(eq=False)
class Loop:
    """Commands repeated `turns` times; places refer to the loop by its `number`."""

    number: int
    turns: int
    body: list[Command]


@dataclass(eq=False)
class While:
    """Commands repeated while a word on the device, which they set, is not zero."""

    flag: Place
    body: list[Command]


@dataclass(eq=False)
class Submit:
    """Submit what is written so far, as it is much work by itself."""


@dataclass(eq=False)
class Host:
    """A call of a function of NumPy arrays on the host."""

    #: What it computes, for statistics.
    name: str
    compute: Callable[..., Sequence[np.ndarray]]
    #: Places, shapes and dtypes.
    operands: tuple[tuple[Place, tuple[int, ...], Any], ...]
    results: tuple[tuple[Place, tuple[int, ...], Any], ...]
    #: The flag of the branch it belongs to, if it is in a region.
    flag: Place | None = None


Command = Run | Loop | While | Submit | Host


def uninterrupted(command: Command) -> bool:
    """Whether a command needs no host between its dispatches."""
    return isinstance(command, Run) or (isinstance(command, Loop) and all(uninterrupted(c) for c in command.body))


def runs(commands: Sequence[Command]) -> Iterator[Run]:
    """All dispatches in commands, those in loops included."""
    for command in commands:
        if isinstance(command, Run):
            yield command
        elif isinstance(command, Loop | While):
            yield from runs(command.body)
