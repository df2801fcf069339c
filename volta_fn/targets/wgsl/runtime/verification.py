"""Verify the commands of programs for GPUs: bindings, limits, order, lifetimes.

That needs no device. wgpu validates the text of shaders when their pipelines are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from volta_fn.compiler.buffers.buffer_assignment import Slot
from volta_fn.compiler.ir.nodes import KernelCall
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.compiler.verification.memory import SlotUses
from volta_fn.compiler.verification.programs import describe
from volta_fn.core.jaxpr import Equation
from volta_fn.errors import CompilerError
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Command, Host, Loop, Run, Submit, While


def verify_commands(capabilities: TargetCapabilities, commands: Sequence[Command]) -> None:
    """Raise `CompilerError` unless dispatches bind what their shaders declare.

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
            first, end = _extent(span, iterations)
            aligned = all(n % capabilities.alignment == 0 for n in (span.offset, *[stride for _, stride in span.strides]))
            _require(aligned, f"a range begins at byte {span.offset}, which is not aligned", run)
            room = -(-span.slot.size // 4) * 4
            _require(first >= 0 and (not room or end <= max(room, 16)), f"bytes {first} to {end} are bound of a slot of {room}", run)
        for number in run.written:
            others = [span for other, span in enumerate(run.ranges) if other != number]
            _require(not any(_meet(run.ranges[number], other) for other in others), f"binding {number} is written and bound twice", run)


def _runs(commands: Sequence[Command], loops: Mapping[int, int]) -> Iterator[tuple[Run, Mapping[int, int]]]:
    """Yield dispatches, with the iterations of the loops around each."""
    for command in commands:
        if isinstance(command, Run):
            yield command, loops
        elif isinstance(command, Loop):
            yield from _runs(command.body, {**loops, command.number: command.iterations})
        elif isinstance(command, While):
            yield from _runs(command.body, loops)


def _extent(span: BufferRange, iterations: Mapping[int, int]) -> tuple[int, int]:
    """Return the first byte, and the one after the last, of a range in all iterations."""
    moves = [stride * (iterations[loop] - 1) for loop, stride in span.strides]
    return span.offset + sum(min(m, 0) for m in moves), span.offset + span.size + sum(max(m, 0) for m in moves)


def _meet(one: BufferRange, other: BufferRange) -> bool:
    if one.slot is not other.slot or one.strides != other.strides:
        return False
    return one.offset < other.offset + other.size and other.offset < one.offset + one.size


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
    """Raise `CompilerError` if a pass over commands reordered dependent dispatches."""
    old, new = _accesses(before), _accesses(after)
    for slot in old.keys() | new.keys():
        if old.get(slot) != new.get(slot):
            runs = [run for run, _ in _runs(after, {}) if any(span.slot is slot for span in run.ranges)]
            _fail(stage, f"reads and writes of a slot were reordered or fused: {old.get(slot)} became {new.get(slot)}", runs[0])


def _accesses(commands: Sequence[Command]) -> dict[Slot, list[tuple[int, int]]]:
    """Return the reads and writes of each slot, in order.

    Each entry counts those of a dispatch that writes, or of all dispatches that only read between two that write.
    """
    found: dict[Slot, list[tuple[int, int]]] = {}
    for run, _ in _runs(commands, {}):
        counts: dict[Slot, tuple[int, int]] = {}
        for binding, span in enumerate(run.ranges):
            reads, writes = counts.get(span.slot, (0, 0))
            counts[span.slot] = (reads, writes + 1) if binding in run.written else (reads + 1, writes)
        for slot, (reads, writes) in counts.items():
            sequence = found.setdefault(slot, [])
            if not writes and sequence and not sequence[-1][1]:
                sequence[-1] = (sequence[-1][0] + reads, 0)
            else:
                sequence.append((reads, writes))
    return found


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
