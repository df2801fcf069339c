"""Define commands, the form in which the runtime executes a program.

`Run` is one dispatch, `Loop` repeats commands a fixed number of times, `While` as long as a flag on the device is set, `Submit` submits the
pending commands, and `Host` calls NumPy. Commands work on numbered slots (`compiler.buffers.buffer_assignment`): the caller's, then
temporary ones, then constants. A `BufferRange` is a range of bytes in a slot, whose offset may advance with the iterations of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Block, Slot
from volta_fn.compiler.program import Item
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.shader_module import ShaderModule


class MovingSlot(Slot):
    """A range of another slot that advances with the iterations of some loops.

    It has `size` bytes and begins at an offset that grows by `strides`.
    """

    root: Slot

    def __init__(self, block: Block, base: Slot, size: int, offset: int, strides: tuple[tuple[int, int], ...]) -> None:
        root = base.root if isinstance(base, MovingSlot) else base
        super().__init__(block, size, backing=(root,))
        self.root = root
        self.offset: int = base.offset + offset if isinstance(base, MovingSlot) else offset
        #: Pairs of a loop's number and the bytes per iteration.
        self.strides: tuple[tuple[int, int], ...] = (*base.strides, *strides) if isinstance(base, MovingSlot) else strides


class BufferRange(NamedTuple):
    """A range of bytes in a slot."""

    slot: Slot
    offset: int
    #: Bytes, a multiple of four.
    size: int
    strides: tuple[tuple[int, int], ...]


#: Bytes of an element of the largest dtype.
_ELEMENT = 16


def range_of(slot: Slot, size: int) -> BufferRange:
    """Return the range of an array of `size` bytes.

    An empty array gets the bytes of one element of any dtype, since bindings must not be empty.
    """
    padded = -(-size // 4) * 4 or _ELEMENT
    if isinstance(slot, MovingSlot):
        return BufferRange(slot.root, slot.offset, padded, slot.strides)
    return BufferRange(slot, 0, padded, ())


def subrange(slot: Slot, offset: int, size: int) -> BufferRange:
    """Return the range of `size` bytes of an array from an offset on."""
    found = range_of(slot, size)
    return found._replace(offset=found.offset + offset)


@dataclass(eq=False)
class Region:
    """Commands that run only if flags on the device say so.

    They read their grids from a buffer, which holds zeros otherwise.
    """

    #: The buffer: a flag for each branch, at most one of which is set, then the grids.
    grids: Slot
    branches: int
    #: The branch and the grid of every dispatch.
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
    ranges: tuple[BufferRange, ...]
    groups: tuple[int, int, int]
    #: The region from whose buffer it reads its grid, if any, and its entry there.
    region: Region | None = None
    entry: int = 0
    #: Whether it is a deferred product, to be fused with others (see `compiler.fusion.deferral.defer_products`).
    deferred: bool = False
    #: Generates a faster shader that takes longer to compile (see `Dispatch`).
    better: Callable[[], ShaderModule] | None = None
    #: The items of the program that it computes, for profilers.
    items: tuple[Item, ...] = ()

    @staticmethod
    def of(dispatch: Dispatch, ranges: Sequence[BufferRange], *, deferred: bool = False) -> Run:
        """Bind a routine's dispatch, given the ranges of all of the routine's buffers."""
        bound = tuple([ranges[number] for number in dispatch.buffers])
        return Run(dispatch.shader, dispatch.written_bindings, bound, dispatch.groups, deferred=deferred, better=dispatch.better)

    @property
    def source(self) -> str:
        """The WGSL of its shader."""
        return self.shader.text

    @property
    def key(self) -> tuple[str, int, frozenset[int]]:
        """The key of its pipeline."""
        return self.source, len(self.ranges), self.written

    def changed(self, change: Callable[[ShaderModule], ShaderModule]) -> Run:
        """Return the run with `change` applied to its shader and to the faster one."""
        better = self.better
        return replace(self, shader=change(self.shader), better=None if better is None else lambda: change(better()))


@dataclass(eq=False)
class Loop:
    """Commands repeated `iterations` times; ranges refer to the loop by its `number`."""

    number: int
    iterations: int
    body: list[Command]


@dataclass(eq=False)
class While:
    """Commands repeated while a word on the device, which they set, is not zero."""

    flag: BufferRange
    body: list[Command]


@dataclass(eq=False)
class Submit:
    """Submit the pending commands, which are much work."""


@dataclass(eq=False)
class Host:
    """A call of a function of NumPy arrays on the host."""

    #: The primitive's name, for statistics.
    name: str
    compute: Callable[..., Sequence[np.ndarray]]
    #: Ranges, shapes and dtypes.
    operands: tuple[tuple[BufferRange, tuple[int, ...], Any], ...]
    results: tuple[tuple[BufferRange, tuple[int, ...], Any], ...]
    #: The flag of its branch, if it is in a region.
    flag: BufferRange | None = None


Command = Run | Loop | While | Submit | Host


def uninterrupted(command: Command) -> bool:
    """Return whether a command runs without the host between its dispatches."""
    return isinstance(command, Run) or (isinstance(command, Loop) and all(uninterrupted(c) for c in command.body))


def runs(commands: Sequence[Command]) -> Iterator[Run]:
    """Yield all dispatches in commands, including those in loops."""
    for command in commands:
        if isinstance(command, Run):
            yield command
        elif isinstance(command, Loop | While):
            yield from runs(command.body)
