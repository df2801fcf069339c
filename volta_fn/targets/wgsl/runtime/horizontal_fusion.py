"""Fuse independent dispatches horizontally.

Each dispatch may move to an earlier one that follows all its dependences, if both leave much of a GPU idle; otherwise to a later one, if
nothing in between depends on it. This changes the lifetimes of slots, which are computed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volta_fn.compiler.buffers.buffer_assignment import Slot, Slots
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.runtime.commands import Command, Run
from volta_fn.targets.wgsl.transforms.fuse import fused, fused_memory, fused_size

#: The most workgroups of a dispatch that leaves a GPU underused, and of a fused one.
_FEW, _ENOUGH = 600, 1600

#: Limits of a fused dispatch: different shaders, their characters (the second limit is that of deferred products), and buffers; and how
#: many dispatches one may move across.
_SHADERS = 8
_LONGEST, _LONGEST_DEFERRED = 1 << 16, 1 << 18
#: Programs of more routines than this have many shaders to compile, and fewer dispatches save them little: a shorter limit applies.
_MANY, _LONGEST_OF_MANY = 64, 1 << 14
_BUFFERS = 128
_FORWARD = 12

#: A dispatch of at most so many workgroups, which mostly wait for themselves, may be fused with a large one that only moves memory. The
#: large one's shader has at most so many characters. All workgroups get the small one's workgroup memory, at most so many bytes.
_TINY, _MOVES_MEMORY, _SHARED = 16, 1 << 10, 16 << 10


def longest(routines: int) -> int:
    """Return the most characters of a fused shader in a program of many routines."""
    return _LONGEST if routines <= _MANY else _LONGEST_OF_MANY


def fuse_horizontally(commands: Sequence[Command], slots: Slots, capabilities: TargetCapabilities, most: int = _LONGEST) -> list[Command]:
    """Fuse independent dispatches and update the slots' lifetimes.

    Programs with other commands stay as they are. Fused shaders have at most `most` characters.
    """
    runs = [command for command in commands if isinstance(command, Run) and command.region is None]
    if len(runs) < len(commands):
        return list(commands)
    together: list[list[Run]] = []
    #: The dispatch that wrote a slot last, and the last that read it.
    wrote: dict[Slot, int] = {}
    read: dict[Slot, int] = {}
    for run in runs:
        first = 0
        for binding, span in enumerate(run.ranges):
            first = max(first, wrote.get(span.slot, -1) + 1)
            if binding in run.written:
                first = max(first, read.get(span.slot, -1) + 1)
        first = max(first, len(together) - _FORWARD)
        number = _joined(together, run, first, capabilities, most)
        for binding, span in enumerate(run.ranges):
            times = wrote if binding in run.written else read
            times[span.slot] = max(times.get(span.slot, -1), number)
    _moved_back(together, capabilities, most)
    made: list[Command] = [_one(group) for group in together if group]
    _live(made, slots)
    return made


def stays_alone(run: Run | Dispatch, deferred: bool, most: int = _LONGEST) -> bool:
    """Return whether a dispatch is not to be fused.

    It keeps a GPU busy by itself, is longer than `most` characters, or a faster shader will replace it.
    """
    limit = _LONGEST_DEFERRED if deferred else most
    return run.better is not None or run.groups[1:] != (1, 1) or run.groups[0] > _FEW or len(run.source) > limit


def _joined(together: list[list[Run]], run: Run, first: int, capabilities: TargetCapabilities, most: int) -> int:
    """Add a dispatch to the first group from `first` on that it fits, or to a new one.

    Deferred dispatches only join each other. Returns the group's number.
    """
    for number in range(first, len(together)):
        group = together[number]
        if (group[0].deferred or not run.deferred) and _fits(group, run, capabilities, most):
            group.append(run)
            return number
    together.append([run])
    return len(together) - 1


def _moved_back(together: list[list[Run]], capabilities: TargetCapabilities, most: int) -> None:
    """Move single dispatches to later groups, if nothing in between depends on them.

    Others move to the deferred ones.
    """
    last = max([number for number, group in enumerate(together) if group[0].deferred], default=-1)
    for number in reversed(range(len(together))):
        group = together[number]
        for run in [] if group[0].deferred else [*group]:
            following = together[number + 1 : max(last, number + (_FORWARD if len(group) == 1 else 0)) + 1]
            fitting = [other for other in _free(following, run) if _fits(other, run, capabilities, most)]
            # As late as possible, so that its dependences may move as well.
            if fitting and (len(group) == 1 or fitting[-1] is together[last]):
                fitting[-1].append(run)
                group.remove(run)


def _free(following: Sequence[list[Run]], run: Run) -> Iterator[list[Run]]:
    """Yield the groups up to the first that depends on an earlier dispatch."""
    for group in following:
        if any(_waits(other, run) for other in group):
            return
        if group:
            yield group


def _waits(other: Run, run: Run) -> bool:
    """Return whether a dispatch depends on an earlier one."""
    slots = [span.slot for span in run.ranges]
    written = {slots[binding] for binding in run.written}
    return any(span.slot in (slots if binding in other.written else written) for binding, span in enumerate(other.ranges))


def _fits(group: Sequence[Run], run: Run, capabilities: TargetCapabilities, most: int) -> bool:
    """Return whether a dispatch may join a group.

    It depends on the limits of shaders, buffers, workgroups and workgroup memory.
    """
    runs = [*group, run]
    deferred = group[0].deferred
    if sum(len(r.ranges) for r in runs) > min(_BUFFERS, capabilities.buffers):
        return False
    shaders = [r.shader for r in runs]
    if len(runs) == 2 and _fills_a_wait(*sorted(runs, key=lambda r: r.groups[0])):
        small = fused_memory(shaders) <= min(_SHARED, capabilities.workgroup_memory)
        return small and sum(r.groups[0] for r in runs) <= capabilities.groups and fused_size(shaders) > 0
    if any(stays_alone(r, deferred, most) for r in runs) or sum(r.groups[0] for r in runs) > min(_ENOUGH, capabilities.groups):
        return False
    different = {*shaders}
    if len(different) > _SHADERS or sum(len(shader.text) for shader in different) > (_LONGEST_DEFERRED if deferred else most):
        return False
    if not fused_size(shaders):
        return False
    # Deferred ones fill a GPU: with more memory per workgroup than one of them needs, fewer workgroups would be resident.
    return fused_memory(shaders) <= (max([fused_memory([shader]) for shader in different]) if deferred else capabilities.workgroup_memory)


def _fills_a_wait(tiny: Run, large: Run) -> bool:
    """Return whether one dispatch moves memory while a small one waits."""
    if tiny.deferred or large.deferred or tiny.groups[0] > _TINY or stays_alone(tiny, deferred=False):
        return False
    moves = len(large.source) <= _MOVES_MEMORY and not large.shader.workgroup_variables
    return moves and large.better is None and large.groups[1:] == (1, 1) and large.groups[0] > _FEW


def _one(runs: Sequence[Run]) -> Run:
    """Fuse dispatches. Longer shaders come first, since they take longest."""
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: (-len(run.source), run.source, run.groups[0]))
    counts = tuple([run.groups[0] for run in runs])
    shader = fused(tuple([run.shader for run in runs]), counts)
    ranges = tuple([span for run in runs for span in run.ranges])
    written, before = set[int](), 0
    for run in runs:
        written |= {before + binding for binding in run.written}
        before += len(run.ranges)
    items = tuple(dict.fromkeys([item for run in runs for item in run.items]))
    return Run(shader, frozenset(written), ranges, (sum(counts), 1, 1), items=items)


def _live(commands: Sequence[Command], slots: Slots) -> None:
    """Set the lifetimes of slots."""
    times: dict[Slot, tuple[int, int]] = {}
    for time, command in enumerate(commands):
        assert isinstance(command, Run)
        for span in command.ranges:
            times[span.slot] = times.get(span.slot, (time, time))[0], time
    for slot in slots.arena:
        if slot in times:
            slot.begin, slot.end = times[slot]
