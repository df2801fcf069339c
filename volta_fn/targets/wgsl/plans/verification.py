"""Verification of a plan's commands: bindings, limits, order, lifetimes.

It needs no device. Drivers validate the text of shaders when their pipelines are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from volta_fn.compiler.emission import Slot
from volta_fn.compiler.ir.program import KernelCall
from volta_fn.compiler.memory_verification import SlotUses
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.compiler.verification import describe
from volta_fn.core.jaxpr import Equation
from volta_fn.errors import CompilerError
from volta_fn.targets.wgsl.plans.commands import BufferRange, Command, Host, Loop, Run, Submit, While, runs


def verify_commands(capabilities: TargetCapabilities, commands: Sequence[Command]) -> None:
    """Raise `CompilerError` unless dispatches bind the buffers of their shaders.

    Ranges lie in their slots, and all is within the limits of a device.
    """
    for run, iterations in _runs(commands, {}):
        shader = run.shader
        _require(len(shader.bindings) == len(run.ranges), f"{len(shader.bindings)} bindings are bound to {len(run.ranges)} ranges", run)
        written = frozenset([number for number, binding in enumerate(shader.bindings) if binding.written])
        _require(written == run.written, f"bindings {sorted(written)} are written, but {sorted(run.written)} are said to be", run)
        _require(shader.invocations <= capabilities.invocations, f"{shader.invocations} invocations exceed the device's", run)
        memory = sum(variable.bytes for variable in shader.workgroup_variables)
        _require(memory <= capabilities.workgroup_memory, f"{memory} bytes of workgroup memory exceed the device's", run)
        _require(all(0 <= n <= capabilities.groups for n in run.groups), f"{run.groups} workgroups exceed the device's", run)
        _require(len(run.ranges) <= capabilities.buffers, f"{len(run.ranges)} buffers exceed the device's", run)
        for span in run.ranges:
            moves = [stride * (iterations[loop] - 1) for loop, stride in span.strides]
            first, end = span.offset + sum(min(m, 0) for m in moves), span.offset + span.size + sum(max(m, 0) for m in moves)
            aligned = all(n % capabilities.alignment == 0 for n in (span.offset, *[stride for _, stride in span.strides]))
            _require(aligned, f"a range begins at byte {span.offset}, which is not aligned", run)
            room = -(-span.slot.size // 4) * 4
            _require(first >= 0 and (not room or end <= max(room, 16)), f"bytes {first} to {end} are bound of a slot of {room}", run)
        for number in run.written:
            others = [span for other, span in enumerate(run.ranges) if other != number]
            _require(not any(_overlap(run.ranges[number], other) for other in others), f"binding {number} is written and bound twice", run)


def _runs(commands: Sequence[Command], loops: Mapping[int, int]) -> Iterator[tuple[Run, Mapping[int, int]]]:
    """Yield dispatches, with the iterations of the loops around each."""
    for command in commands:
        if isinstance(command, Run):
            yield command, loops
        elif isinstance(command, Loop):
            yield from _runs(command.body, {**loops, command.number: command.iterations})
        elif isinstance(command, While):
            yield from _runs(command.body, loops)


def _overlap(x: BufferRange, y: BufferRange) -> bool:
    if x.slot is not y.slot or x.strides != y.strides:
        return False
    return x.offset < y.offset + y.size and y.offset < x.offset + x.size


def _require(condition: bool, problem: str, run: Run) -> None:
    if not condition:
        _fail("dispatches", problem, run)


def _fail(stage: str, problem: str, run: Run) -> NoReturn:
    kernels = [item for item in run.items if isinstance(item.node, KernelCall)]
    equations = [item.node for item in run.items if isinstance(item.node, Equation)]
    names = [f"a kernel of {' '.join(str(v.aval) for v in item.results)}" for item in kernels] + list(map(describe, equations))
    raise CompilerError.of(stage, problem, ", ".join(names), next((eqn.source for eqn in equations), None))


# order


def verify_order(stage: str, before: Sequence[Command], after: Sequence[Command]) -> None:
    """Raise `CompilerError` if a pass over commands reordered dependent dispatches.

    Each dispatch is in one of the new commands, after all earlier ones that write a slot that it reads or writes, or read one that it
    writes.
    """
    if [*map(id, before)] == [*map(id, after)]:
        return
    positions = _positions(stage, before, after)
    wrote: dict[Slot, int] = {}
    read: dict[Slot, int] = {}
    for run in before:
        assert isinstance(run, Run)
        position = positions[id(run)]
        for binding, span in enumerate(run.ranges):
            earlier = max(wrote.get(span.slot, -1), read.get(span.slot, -1) if binding in run.written else -1)
            if earlier >= position:
                _fail(stage, "a dispatch was moved before, or fused with, one that it depends on", run)
        for binding, span in enumerate(run.ranges):
            times = wrote if binding in run.written else read
            times[span.slot] = max(times.get(span.slot, -1), position)


def _positions(stage: str, before: Sequence[Command], after: Sequence[Command]) -> dict[int, int]:
    """Return the new position of each dispatch, by its identity."""
    # Fused dispatches are found by their ranges.
    positions = {id(command): position for position, command in enumerate(after)}
    unplaced = [command for command in before if id(command) not in positions]
    earlier = set(map(id, before))
    for position, command in enumerate(after):
        if id(command) in earlier:
            continue
        assert isinstance(command, Run)
        ranges = command.ranges
        while ranges:
            member = next(
                (run for run in unplaced if isinstance(run, Run) and run.ranges and ranges[: len(run.ranges)] == run.ranges), None
            )
            if member is None:
                _fail(stage, "a new dispatch binds what none did before", command)
            positions[id(member)] = position
            unplaced.remove(member)
            ranges = ranges[len(member.ranges) :]
    if unplaced:
        _fail(stage, "a dispatch was lost", next(runs(unplaced)))
    return positions


# lifetimes


def uses_of(commands: Iterable[Command]) -> SlotUses:
    """Return when commands use each slot."""
    uses = SlotUses()
    _add_uses(uses, commands)
    return uses


def _add_uses(uses: SlotUses, commands: Iterable[Command]) -> None:
    for command in commands:
        if isinstance(command, Run):
            grids = [] if command.region is None else [command.region.grids]
            uses.command([*[span.slot for span in command.ranges], *grids])
        elif isinstance(command, Host):
            flags = [] if command.flag is None else [command.flag]
            uses.command([*[span.slot for span, _, _ in (*command.operands, *command.results)], *[flag.slot for flag in flags]])
        elif not isinstance(command, Submit):
            begin = uses.time
            if isinstance(command, While):
                uses.command([command.flag.slot])
            _add_uses(uses, command.body)
            if uses.time > begin:
                uses.loop(begin)
