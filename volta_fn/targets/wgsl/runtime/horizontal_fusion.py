"""Horizontal fusion: dispatches that do not depend on each other become one.

Each dispatch may move to an earlier one that comes after all that it depends on, if both by themselves leave much of a GPU idle; or else to
a later one, if nothing before that depends on it. This changes slots' lifetimes, which are computed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volta_fn.compiler.buffers.buffer_assignment import Slot, Slots
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.runtime.commands import Command, Run
from volta_fn.targets.wgsl.transforms.fuse import fused, fused_memory, fused_size

#: Workgroups of a dispatch that leaves a GPU partly idle, and of a fused one, at most.
_FEW, _ENOUGH = 600, 1600

#: Of a fused dispatch, at most: different shaders, their characters (the second limit is that of deferred products), and buffers; and
#: how many dispatches one moves across.
_SHADERS = 8
_LONGEST, _LONGEST_DEFERRED = 1 << 16, 1 << 18
#: Programs of more routines than this have many shaders to compile, and a few dispatches less save them little: a shorter limit then.
_MANY, _LONGEST_OF_MANY = 64, 1 << 14
_BUFFERS = 128
_FORWARD = 12


def longest(routines: int) -> int:
    """Characters of a fused shader, at most, in a program of `routines` different routines."""
    return _LONGEST if routines <= _MANY else _LONGEST_OF_MANY


def fuse_horizontally(commands: Sequence[Command], slots: Slots, facts: TargetCapabilities, most: int = _LONGEST) -> list[Command]:
    """The commands with independent dispatches fused; the same ones if they are not all dispatches. Updates the slots' lifetimes.

    Fused shaders have `most` characters, at most.
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
        for binding, place in enumerate(run.places):
            first = max(first, wrote.get(place.slot, -1) + 1)
            if binding in run.written:
                first = max(first, read.get(place.slot, -1) + 1)
        first = max(first, len(together) - _FORWARD)
        number = _joined(together, run, first, facts, most)
        for binding, place in enumerate(run.places):
            times = wrote if binding in run.written else read
            times[place.slot] = max(times.get(place.slot, -1), number)
    _moved_back(together, facts, most)
    made: list[Command] = [_one(group) for group in together if group]
    _live(made, slots)
    return made


def stays_alone(run: Run | Dispatch, deferred: bool, most: int = _LONGEST) -> bool:
    """Whether a dispatch is not to be fused: it keeps a GPU busy by itself, is longer than `most` characters, or waits for an upgrade."""
    limit = _LONGEST_DEFERRED if deferred else most
    return run.better is not None or run.groups[1:] != (1, 1) or run.groups[0] > _FEW or len(run.source) > limit


def _joined(together: list[list[Run]], run: Run, first: int, facts: TargetCapabilities, most: int) -> int:
    """The number of the first group from `first` on that a dispatch joins, or of a new one. Deferred ones only join their like."""
    for number in range(first, len(together)):
        group = together[number]
        if (group[0].deferred or not run.deferred) and _fits(group, run, facts, most):
            group.append(run)
            return number
    together.append([run])
    return len(together) - 1


def _moved_back(together: list[list[Run]], facts: TargetCapabilities, most: int) -> None:
    """Move single dispatches to later groups, and others to the deferred ones, if nothing in between depends on them."""
    last = max([number for number, group in enumerate(together) if group[0].deferred], default=-1)
    for number in reversed(range(len(together))):
        group = together[number]
        for run in [] if group[0].deferred else [*group]:
            following = together[number + 1 : max(last, number + (_FORWARD if len(group) == 1 else 0)) + 1]
            fitting = [other for other in _free(following, run) if _fits(other, run, facts, most)]
            # As late as possible, so that what it depends on may move, too.
            if fitting and (len(group) == 1 or fitting[-1] is together[last]):
                fitting[-1].append(run)
                group.remove(run)


def _free(following: Sequence[list[Run]], run: Run) -> Iterator[list[Run]]:
    """The groups that do not depend on an earlier dispatch, up to the first that does."""
    for group in following:
        if any(_waits(other, run) for other in group):
            return
        if group:
            yield group


def _waits(other: Run, run: Run) -> bool:
    """Whether a dispatch depends on an earlier one: one of them writes what the other uses."""
    slots = [place.slot for place in run.places]
    written = {slots[binding] for binding in run.written}
    return any(place.slot in (slots if binding in other.written else written) for binding, place in enumerate(other.places))


def _fits(group: Sequence[Run], run: Run, facts: TargetCapabilities, most: int) -> bool:
    """Whether a dispatch may join a group, by the limits of shaders, buffers, workgroups and workgroup memory."""
    runs = [*group, run]
    deferred = group[0].deferred
    if sum(len(r.places) for r in runs) > min(_BUFFERS, facts.buffers):
        return False
    if any(stays_alone(r, deferred, most) for r in runs) or sum(r.groups[0] for r in runs) > min(_ENOUGH, facts.groups):
        return False
    shaders = [r.shader for r in runs]
    different = {*shaders}
    if len(different) > _SHADERS or sum(len(shader.text) for shader in different) > (_LONGEST_DEFERRED if deferred else most):
        return False
    if not fused_size(shaders):
        return False
    # Deferred ones fill a GPU: if workgroups took more memory than one of them needs, fewer would be resident at a time.
    return fused_memory(shaders) <= (max([fused_memory([shader]) for shader in different]) if deferred else facts.workgroup_memory)


def _one(runs: Sequence[Run]) -> Run:
    """Dispatches as one. Longer shaders come first: it is they that take long."""
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: (-len(run.source), run.source, run.groups[0]))
    counts = tuple([run.groups[0] for run in runs])
    shader = fused(tuple([run.shader for run in runs]), counts)
    places = tuple([place for run in runs for place in run.places])
    written, before = set[int](), 0
    for run in runs:
        written |= {before + binding for binding in run.written}
        before += len(run.places)
    return Run(shader, frozenset(written), places, (sum(counts), 1, 1))


def _live(commands: Sequence[Command], slots: Slots) -> None:
    """Set the lifetimes of slots."""
    times: dict[Slot, tuple[int, int]] = {}
    for time, command in enumerate(commands):
        assert isinstance(command, Run)
        for place in command.places:
            times[place.slot] = times.get(place.slot, (time, time))[0], time
    for slot in slots.arena:
        if slot in times:
            slot.begin, slot.end = times[slot]
