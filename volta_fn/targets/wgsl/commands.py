"""The commands of programs on a GPU: dispatches, loops, steps on the host.

Copies are dispatches, too. A pass over commands fuses independent dispatches horizontally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.emission import CommandScope, Slot, Slots
from volta_fn.compiler.target import Item, TargetCapabilities
from volta_fn.settings import current as settings
from volta_fn.targets.wgsl.routine import Dispatch, grid
from volta_fn.targets.wgsl.shader import Binding, ShaderModule, hand_written
from volta_fn.targets.wgsl.transforms import fused, fused_memory, fused_size

# Commands, the form in which the runtime executes a program.
#
# `Run` is one dispatch, `For` repeats commands a fixed number of times, `While` as long as a flag on the device is set, `Submit`
# submits the pending commands, and `Host` calls NumPy. Commands work on slots (`compiler.emission`): the
# caller's, then temporary ones, then constants. A `BufferRange` is a range of bytes in a slot, whose offset may advance with the
# iterations of loops.


class MovingSlot(Slot):
    """A range of another slot that advances with the iterations of some loops.

    It has `size` bytes and begins at an offset that grows by `strides`.
    """

    root: Slot

    def __init__(self, scope: CommandScope, base: Slot, size: int, offset: int, strides: tuple[tuple[int, int], ...]) -> None:
        root = base.root if isinstance(base, MovingSlot) else base
        super().__init__(scope, size, backing=(root,))
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
    """Return the range of an array of `size` bytes."""
    # An empty array gets the bytes of one element of any dtype, since bindings must not be empty.
    padded = -(-size // 4) * 4 or _ELEMENT
    if isinstance(slot, MovingSlot):
        return BufferRange(slot.root, slot.offset, padded, slot.strides)
    return BufferRange(slot, 0, padded, ())


def subrange(slot: Slot, offset: int, size: int) -> BufferRange:
    """Return the range of `size` bytes of an array from an offset on."""
    span = range_of(slot, size)
    return span._replace(offset=span.offset + offset)


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
        """Bytes of the buffer, which has room for one grid at least."""
        return self.grid_offset(max(len(self.entries), 1))

    def grid_offset(self, entry: int) -> int:
        """Return the offset of an entry's grid in the buffer, in bytes."""
        return 4 * self.branches + 12 * entry

    def flag(self, branch: int) -> BufferRange:
        """Return the word that tells whether a branch runs."""
        return BufferRange(self.grids, 4 * branch, 4, ())


@dataclass(eq=False)
class Run:
    """A dispatch of a program.

    A routine's `Dispatch` binds buffers by their numbers in the routine, a `Run` ranges of slots, and a `gpu.driver.BoundDispatch` blocks
    of memory.
    """

    shader: ShaderModule
    written_bindings: frozenset[int]
    ranges: tuple[BufferRange, ...]
    workgroups: tuple[int, int, int]
    #: The region from whose buffer it reads its grid, if any, and its entry there.
    region: Region | None = None
    entry: int = 0
    #: Whether it is a deferred product, to be fused with others (see `compiler.node_passes.defer_products`).
    deferred: bool = False
    #: Generates a faster shader that takes longer to compile (see `Dispatch`).
    faster: Callable[[], ShaderModule] | None = None
    #: The items of the program that it computes, for profilers.
    items: tuple[Item, ...] = ()
    #: Whether indices are checked, as the switch said when the program was planned: other threads compile it, some of them later.
    is_checked: bool = field(default_factory=lambda: settings.verify)

    @staticmethod
    def of(dispatch: Dispatch, ranges: Sequence[BufferRange], *, deferred: bool = False) -> Run:
        """Bind a routine's dispatch, given the ranges of all of the routine's buffers."""
        bound = tuple([ranges[number] for number in dispatch.buffers])
        return Run(dispatch.shader, dispatch.written_bindings, bound, dispatch.workgroups, deferred=deferred, faster=dispatch.faster)

    @property
    def source(self) -> str:
        """The text of its shader."""
        return self.shader.text

    @property
    def key(self) -> tuple[str, int, frozenset[int], bool]:
        """The key of its pipeline."""
        return self.source, len(self.ranges), self.written_bindings, self.is_checked

    def changed(self, change: Callable[[ShaderModule], ShaderModule]) -> Run:
        """Return the run with `change` applied to its shader and to the faster one."""
        faster = self.faster
        return replace(self, shader=change(self.shader), faster=None if faster is None else lambda: change(faster()))


@dataclass(eq=False)
class For:
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


Command = Run | For | While | Submit | Host


def uninterrupted(command: Command, can_repeat: Callable[[While], bool]) -> bool:
    """Return whether a command runs without the host between its dispatches.

    `can_repeat` says whether the device repeats dispatches by itself.
    """
    if isinstance(command, For | While):
        return (isinstance(command, For) or can_repeat(command)) and all(uninterrupted(c, can_repeat) for c in command.body)
    return isinstance(command, Run)


def runs(commands: Sequence[Command]) -> Iterator[Run]:
    """Yield all dispatches in commands, including those in loops."""
    for command in commands:
        if isinstance(command, Run):
            yield command
        elif isinstance(command, For | While):
            yield from runs(command.body)


# Memory: blocks in size classes, so that they are reused.

#: Arrays of up to this many bytes are also kept on the host.
KEPT_ON_HOST = 64


def size_class(size: int) -> int:
    """Return the size of the block that holds `size` bytes."""
    # There are four classes per power of two, and sixteen where four would waste megabytes.
    if size <= 256:
        return 256
    bits = (size - 1).bit_length()
    step = 1 << (bits - (3 if bits < 24 else 5))
    return -(-size // step) * step


# Copies of bytes on the device: arrays, and rows at offsets that cannot be bound.
#
# A row's index is read from a word of the *index constants*, an array that holds 0, 1, 2, … at offsets that can be bound.

_THREADS = 64

_COPY = f"""\
  let i = id.x + id.y * groups.x * {_THREADS}u;
  if (i < arrayLength(&target_)) {{ target_[i] = source[i]; }}
"""

#: Rows are moved in units of four, two or one bytes, PER of which are a word: arrays may have more bytes than 32 bits can number.
_UNIT = """\
fn unit(i: u32) -> u32 {
  return (ARRAY[i / PERu] >> (BITSu * (i % PERu))) & MASKu;
}
"""

_TAKE = """\
  let i = id.x + id.y * groups.x * THREADSu;
  if (i >= WORDSu) { return; }
  let first = index[0] * UNITSu + PERu * i;
  var word = 0u;
  for (var k = 0u; k < PERu; k++) {
    if (PERu * i + k < UNITSu) { word |= unit(first + k) << (BITSu * k); }
  }
  row[i] = word;
"""

_PUT = """\
  let i = id.x + id.y * groups.x * THREADSu;
  if (i > WORDSu) { return; }
  let first = index[0] * UNITSu;
  let word = first / PERu + i;
  if (PERu * word >= first + UNITSu) { return; }
  var value = all[word];
  for (var k = 0u; k < PERu; k++) {
    let at = PERu * word + k;
    if (at >= first && at < first + UNITSu) {
      value = (value & ~(MASKu << (BITSu * k))) | (unit(at - first) << (BITSu * k));
    }
  }
  all[word] = value;
"""


def copy(to: BufferRange, source: BufferRange, capabilities: TargetCapabilities) -> Run:
    """Copy the bytes of an array to another one."""
    shader = _shader(("target_", "source"), _COPY)
    return Run(shader, frozenset([0]), (to, source), grid(-(-to.size // (4 * _THREADS)), capabilities.groups))


def take_row(row: BufferRange, all_: BufferRange, index: BufferRange, size: int, capabilities: TargetCapabilities) -> Run:
    """Copy a row of `size` bytes out of an array; `index` is the word with its number."""
    shader = _shader(("row", "all", "index"), _of_size(_TAKE, size), _of_size(_UNIT, size).replace("ARRAY", "all"))
    return Run(shader, frozenset([0]), (row, all_, index), grid(-(-row.size // (4 * _THREADS)), capabilities.groups))


def put_row(all_: BufferRange, row: BufferRange, index: BufferRange, size: int, capabilities: TargetCapabilities) -> Run:
    """Copy a row of `size` bytes into an array; `index` is the word with its number."""
    shader = _shader(("all", "row", "index"), _of_size(_PUT, size), _of_size(_UNIT, size).replace("ARRAY", "row"))
    return Run(shader, frozenset([0]), (all_, row, index), grid(row.size // (4 * _THREADS) + 1, capabilities.groups))


def _of_size(body: str, size: int) -> str:
    """Return WGSL for rows of `size` bytes."""
    unit = math.gcd(size, 4)
    numbers = {
        "THREADS": _THREADS,
        "WORDS": -(-size // 4),
        "UNITS": size // unit,
        "PER": 4 // unit,
        "BITS": 8 * unit,
        "MASK": 2 ** (8 * unit) - 1,
    }
    for name, number in numbers.items():
        body = body.replace(name, str(number))
    return body


def _shader(names: tuple[str, ...], body: str, functions: str = "") -> ShaderModule:
    """Make a shader that writes the first of some arrays of words."""
    bindings = tuple([Binding(name, "u32", written=not number) for number, name in enumerate(names)])
    builtins = {"global_invocation_id": ("id", "vec3<u32>"), "num_workgroups": ("groups", "vec3<u32>")}
    return hand_written(bindings, body, builtins, _THREADS, functions)


# Horizontal fusion of independent dispatches.
#
# Each dispatch may move to an earlier one that follows all its dependences, if both leave much of a GPU idle; otherwise to a later one,
# if nothing in between depends on it. This changes the lifetimes of slots, which are computed afterwards.
#
# Small kernels that follow each other were merged before, while commands were written (`MergedKernels`): their code is generated together,
# so that arrays that several of them read are bound once, and that also happens in the bodies of loops and between steps on the host. This
# pass joins whatever is independent, of any origin and also across other dispatches, by rewriting its shaders; but only in programs that
# consist of dispatches alone.

#: The most workgroups of a dispatch that leaves a GPU underused, and of a fused one.
_UNDERUSED, _FULL = 600, 1600

#: The most invocations of a fused dispatch that are idle because their shader has fewer in a workgroup than another one: they occupy room
#: in which others could wait for memory. (Sums of 384 workgroups of 64 invocations took 20 µs with six workgroups of 256, and 7 alone.)
_IDLE = 1 << 14

#: Limits of a fused dispatch: different shaders, their characters (the second limit is that of deferred products), and buffers; and how
#: many dispatches one may move across.
_SHADERS = 8
_CHARACTERS, _DEFERRED_CHARACTERS = 1 << 16, 1 << 18
#: Programs of more routines than this have many shaders to compile, and fewer dispatches save them little: a shorter limit applies.
_MANY_ROUTINES, _CHARACTERS_OF_MANY = 64, 1 << 14
_BUFFERS = 128
_FORWARD = 12

#: Limits for fusing a tiny dispatch, whose workgroups mostly wait for each other, with a large one that only moves memory: workgroups of
#: the tiny one; characters of the large one's shader; and bytes of the tiny one's workgroup memory, which all workgroups get.
_TINY_WORKGROUPS, _MOVING_CHARACTERS, _TINY_MEMORY = 16, 1 << 10, 16 << 10


def most_characters_of(routines: int) -> int:
    """Return the most characters of a fused shader in a program of many routines."""
    return _CHARACTERS if routines <= _MANY_ROUTINES else _CHARACTERS_OF_MANY


def fuse_horizontally(
    commands: Sequence[Command], slots: Slots, capabilities: TargetCapabilities, most_characters: int = _CHARACTERS
) -> list[Command]:
    """Fuse independent dispatches and update the slots' lifetimes.

    Programs with other commands stay as they are. Fused shaders have at most `most_characters`.
    """
    runs = [command for command in commands if isinstance(command, Run) and command.region is None]
    if len(runs) < len(commands):
        return list(commands)
    groups: list[list[Run]] = []
    #: The dispatch that wrote a slot last, and the last that read it.
    wrote: dict[Slot, int] = {}
    read: dict[Slot, int] = {}
    for run in runs:
        first = 0
        for binding, span in enumerate(run.ranges):
            first = max(first, wrote.get(span.slot, -1) + 1)
            if binding in run.written_bindings:
                first = max(first, read.get(span.slot, -1) + 1)
        first = max(first, len(groups) - _FORWARD)
        number = _join(groups, run, first, capabilities, most_characters)
        for binding, span in enumerate(run.ranges):
            times = wrote if binding in run.written_bindings else read
            times[span.slot] = max(times.get(span.slot, -1), number)
    _move_later(groups, capabilities, most_characters)
    dispatches: list[Command] = [_fuse_group(group) for group in groups if group]
    _update_lifetimes(dispatches, slots)
    return dispatches


def stays_alone(run: Run | Dispatch, deferred: bool, most_characters: int = _CHARACTERS) -> bool:
    """Return whether a dispatch is not to be fused.

    It is not WGSL, keeps a GPU busy by itself, is longer than `most_characters`, or a faster shader will replace it.
    """
    limit = _DEFERRED_CHARACTERS if deferred else most_characters
    if not run.shader.is_rewritable:
        return True
    return run.faster is not None or run.workgroups[1:] != (1, 1) or run.workgroups[0] > _UNDERUSED or len(run.source) > limit


def _join(groups: list[list[Run]], run: Run, first: int, capabilities: TargetCapabilities, most_characters: int) -> int:
    """Add a dispatch to the first group from `first` on that it fits, or to a new one.

    Deferred dispatches only join each other. Returns the group's number.
    """
    for number in range(first, len(groups)):
        group = groups[number]
        if (group[0].deferred or not run.deferred) and _fits(group, run, capabilities, most_characters):
            group.append(run)
            return number
    groups.append([run])
    return len(groups) - 1


def _move_later(groups: list[list[Run]], capabilities: TargetCapabilities, most_characters: int) -> None:
    """Move single dispatches to later groups, if nothing in between depends on them.

    Others move to the deferred ones.
    """
    last = max([number for number, group in enumerate(groups) if group[0].deferred], default=-1)
    deferred = groups[last] if last >= 0 else None
    for number in reversed(range(len(groups))):
        group = groups[number]
        for run in [] if group[0].deferred else [*group]:
            following = groups[number + 1 : max(last, number + (_FORWARD if len(group) == 1 else 0)) + 1]
            fitting = [other for other in _independent_groups(following, run) if _fits(other, run, capabilities, most_characters)]
            # As late as possible, so that its dependences may move as well.
            if fitting and (len(group) == 1 or fitting[-1] is deferred):
                fitting[-1].append(run)
                group.remove(run)


def _independent_groups(following: Sequence[list[Run]], run: Run) -> Iterator[list[Run]]:
    """Yield the groups up to the first that depends on an earlier dispatch."""
    for group in following:
        if any(_depends(other, run) for other in group):
            return
        if group:
            yield group


def _depends(other: Run, run: Run) -> bool:
    """Return whether a dispatch depends on an earlier one."""
    slots = [span.slot for span in run.ranges]
    written = {slots[binding] for binding in run.written_bindings}
    return any(span.slot in (slots if binding in other.written_bindings else written) for binding, span in enumerate(other.ranges))


def _fits(group: Sequence[Run], run: Run, capabilities: TargetCapabilities, most_characters: int) -> bool:
    """Return whether a dispatch may join a group.

    It depends on the limits of shaders, buffers, workgroups and workgroup memory.
    """
    runs = [*group, run]
    deferred = group[0].deferred
    if sum(len(r.ranges) for r in runs) > min(_BUFFERS, capabilities.buffers):
        return False
    shaders = [r.shader for r in runs]
    if len(runs) == 2 and _hides_latency(*sorted(runs, key=lambda r: r.workgroups[0])):
        small = fused_memory(shaders) <= min(_TINY_MEMORY, capabilities.workgroup_memory)
        return small and sum(r.workgroups[0] for r in runs) <= capabilities.groups and fused_size(shaders) > 0
    if any(stays_alone(r, deferred, most_characters) for r in runs) or sum(r.workgroups[0] for r in runs) > min(_FULL, capabilities.groups):
        return False
    different = {*shaders}
    if len(different) > _SHADERS or sum(len(shader.text) for shader in different) > (_DEFERRED_CHARACTERS if deferred else most_characters):
        return False
    size = fused_size(shaders)
    if not size or sum(r.workgroups[0] * (size - r.shader.invocations) for r in runs) > _IDLE:
        return False
    # Deferred ones fill a GPU: with more memory per workgroup than one of them needs, fewer workgroups would be resident.
    return fused_memory(shaders) <= (max([fused_memory([shader]) for shader in different]) if deferred else capabilities.workgroup_memory)


def _hides_latency(tiny: Run, large: Run) -> bool:
    """Return whether one dispatch moves memory while a small one waits."""
    if tiny.deferred or large.deferred or tiny.workgroups[0] > _TINY_WORKGROUPS or stays_alone(tiny, deferred=False):
        return False
    moves = len(large.source) <= _MOVING_CHARACTERS and not large.shader.workgroup_variables
    return moves and large.faster is None and large.workgroups[1:] == (1, 1) and large.workgroups[0] > _UNDERUSED


def _fuse_group(runs: Sequence[Run]) -> Run:
    """Fuse dispatches. Longer shaders come first, since they take longest."""
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: (-len(run.source), run.source, run.workgroups[0]))
    counts = tuple([run.workgroups[0] for run in runs])
    shader = fused(tuple([run.shader for run in runs]), counts)
    ranges = tuple([span for run in runs for span in run.ranges])
    written, before = set[int](), 0
    for run in runs:
        written |= {before + binding for binding in run.written_bindings}
        before += len(run.ranges)
    items = tuple(dict.fromkeys([item for run in runs for item in run.items]))
    return Run(shader, frozenset(written), ranges, (sum(counts), 1, 1), items=items)


def _update_lifetimes(commands: Sequence[Command], slots: Slots) -> None:
    """Set the lifetimes of slots."""
    times: dict[Slot, tuple[int, int]] = {}
    for time, command in enumerate(commands):
        assert isinstance(command, Run)
        for span in command.ranges:
            times[span.slot] = times.get(span.slot, (time, time))[0], time
    for slot in slots.arena:
        if slot in times:
            slot.begin, slot.end = times[slot]
