"""Dispatches that need not wait for each other, done by one.

Each dispatch may move forward, to the first one that all it waits for is done before, if both leave much of a GPU without work by
themselves; one that finds none, back to a later one, if nobody waits for it until then. Slots' lifetimes are known afterwards: values
live a little earlier, or later, than they did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.rewriting.beside import beside, shared_beside, size_beside
from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.backends.wgsl.runtime.commands import Command, Run
from volta_fn.compiler.slots import Slot, Slots

#: Workgroups of a dispatch that leaves a GPU without work, and of several together, at most.
_FEW, _ENOUGH = 600, 1600

#: Different shaders put together at most, their characters (of late ones, too), buffers, and how many dispatches one moves.
_SHADERS = 8
_LONGEST, _LONGEST_LATE = 1 << 16, 1 << 18
#: Programs of so many routines have many shaders to compile, and what a few dispatches less would save is little to them.
_MANY, _LONGEST_OF_MANY = 64, 1 << 14
_BUFFERS = 128
_FORWARD = 12


def longest(routines: int) -> int:
    """Characters of shaders put together, at most, in a program of so many different routines."""
    return _LONGEST if routines <= _MANY else _LONGEST_OF_MANY


def abreast(commands: Sequence[Command], slots: Slots, facts: Facts, most: int = _LONGEST) -> list[Command]:
    """Commands, with dispatches put together; only where they are nothing but dispatches. The slots' lifetimes are made to fit.

    Shaders put together have `most` characters.
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


def stays_alone(run: Run | Dispatch, late: bool, most: int = _LONGEST) -> bool:
    """Whether a dispatch keeps a GPU busy by itself, or is longer than `most` characters, or will be so when there is a better shader."""
    return run.better is not None or run.groups[1:] != (1, 1) or run.groups[0] > _FEW or len(run.source) > (_LONGEST_LATE if late else most)


def _joined(together: list[list[Run]], run: Run, first: int, facts: Facts, most: int) -> int:
    """The number of the first dispatch, from one on, that does this one, too; else it is one more. Late ones only join their like."""
    for number in range(first, len(together)):
        group = together[number]
        if (group[0].late or not run.late) and _fits(group, run, facts, most):
            group.append(run)
            return number
    together.append([run])
    return len(together) - 1


def _moved_back(together: list[list[Run]], facts: Facts, most: int) -> None:
    """Dispatches that are alone join later ones, and others the late ones, if nobody waits for them; nothing is left where they were."""
    last = max([number for number, group in enumerate(together) if group[0].late], default=-1)
    for number in reversed(range(len(together))):
        group = together[number]
        for run in [] if group[0].late else [*group]:
            following = together[number + 1 : max(last, number + (_FORWARD if len(group) == 1 else 0)) + 1]
            fitting = [other for other in _free(following, run) if _fits(other, run, facts, most)]
            # As late as possible, so that what it waits for may move, too.
            if fitting and (len(group) == 1 or fitting[-1] is together[last]):
                fitting[-1].append(run)
                group.remove(run)


def _free(following: Sequence[list[Run]], run: Run) -> Iterator[list[Run]]:
    """The dispatches that need not wait for an earlier one, up to the first that must."""
    for group in following:
        if any(_waits(other, run) for other in group):
            return
        if group:
            yield group


def _waits(other: Run, run: Run) -> bool:
    """Whether a dispatch has to come after an earlier one: one of them writes what the other one uses."""
    slots = [place.slot for place in run.places]
    written = {slots[binding] for binding in run.written}
    return any(place.slot in (slots if binding in other.written else written) for binding, place in enumerate(other.places))


def _fits(group: Sequence[Run], run: Run, facts: Facts, most: int) -> bool:
    runs = [*group, run]
    late = group[0].late
    if sum(len(r.places) for r in runs) > min(_BUFFERS, facts.buffers):
        return False
    if any(stays_alone(r, late, most) for r in runs) or sum(r.groups[0] for r in runs) > min(_ENOUGH, facts.groups):
        return False
    sources = [r.source for r in runs]
    different = {*sources}
    if len(different) > _SHADERS or sum(map(len, different)) > (_LONGEST_LATE if late else most):
        return False
    if not size_beside(sources):
        return False
    # Late ones fill a GPU: if workgroups shared more memory than one of them needs, fewer would be at work at a time.
    return shared_beside(sources) <= (max([shared_beside([source]) for source in different]) if late else facts.workgroup_memory)


def _one(runs: Sequence[Run]) -> Run:
    """Dispatches as one. Longer shaders come first: it is they that take long."""
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: (-len(run.source), run.source, run.groups[0]))
    counts = tuple([run.groups[0] for run in runs])
    source = beside(tuple([run.source for run in runs]), counts)
    places = tuple([place for run in runs for place in run.places])
    written, before = set[int](), 0
    for run in runs:
        written |= {before + binding for binding in run.written}
        before += len(run.places)
    return Run(source, frozenset(written), places, (sum(counts), 1, 1))


def _live(commands: Sequence[Command], slots: Slots) -> None:
    """Note when each slot is needed."""
    times: dict[Slot, tuple[int, int]] = {}
    for time, command in enumerate(commands):
        assert isinstance(command, Run)
        for place in command.places:
            times[place.slot] = times.get(place.slot, (time, time))[0], time
    for slot in slots.arena:
        if slot in times:
            slot.begin, slot.end = times[slot]
