"""Plans of programs, which need no device, their cache, and verification.

A plan consists of slots of memory, commands and their shaders, all of which follow from a device's capabilities. `Program` is a plan on a
device.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from volta_fn.compiler.buffers import Lifetime, Output
from volta_fn.compiler.emission import CommandScope, Slot, reusable
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.target import CommandPass, Item, LoweredProgram, Passes, RoutineKey, TargetCapabilities
from volta_fn.compiler.verification import Extent, SlotUses, describe, verify_extents
from volta_fn.core.arrays.array import ConcreteArray, numbers_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.errors import CompilerError
from volta_fn.runtime import entries
from volta_fn.runtime.caches import cache_dir
from volta_fn.runtime.entries import DTYPES, Contents, NotCacheable, Reader, dtype_name, fingerprint_of
from volta_fn.settings import current as settings
from volta_fn.targets.wgsl.commands import (
    KEPT_ON_HOST,
    BufferRange,
    Command,
    For,
    Host,
    Region,
    Run,
    Submit,
    While,
    most_characters_of,
    runs,
    size_class,
    stays_alone,
)
from volta_fn.targets.wgsl.matmul.tiles import is_measuring, measured
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.shader import ShaderModule
from volta_fn.targets.wgsl.target import WgslTarget
from volta_fn.targets.wgsl.writer import Writer

# Plans.

#: Starts compiling a shader, given by the key of its compute pipeline.
StartCompiling = Callable[[str, int, frozenset[int], bool], None]


class GpuMemory(NamedTuple):
    """Bytes on the device during a call, in blocks as a pool counts them."""

    arguments: int
    #: Results in blocks of their own, not in those of donated arguments.
    results: int
    temporaries: int
    constants: int
    #: The grids of conditional dispatches.
    grids: int

    @property
    def peak(self) -> int:
        """The sum: a program holds all of its memory from its first command to its last."""
        return sum(self)


class ProgramPlan(NamedTuple):
    """A program for devices of some capabilities.

    Its commands refer to slots, which are numbered: arguments come first, then results in memory of their own, temporary values,
    constants, and the grids of regions.
    """

    arguments: tuple[ShapedArray, ...]
    #: The origin of each result: a computed value, an argument or a constant.
    outputs: tuple[Output, ...]
    #: The types of computed values, and which of them take the memory of a donated argument: value -> argument.
    computed: tuple[ShapedArray, ...]
    reuse: dict[int, int]
    commands: tuple[Command, ...]
    #: When each temporary value is needed, by the number of the command.
    lifetimes: list[Lifetime]
    #: Bytes of the blocks of temporary values, and the block of each value.
    block_sizes: list[int]
    block_of: list[int]
    #: Arrays, or buffers on a device.
    constants: tuple[Any, ...]
    #: Bytes of the grids of each region.
    regions: list[int]
    #: What it was planned from, and the equations that run on the host; a plan from the disk has neither.
    lowered: LoweredProgram | None = None
    on_host: tuple[Item, ...] = ()

    @property
    def own_results(self) -> list[int]:
        """Computed values in blocks of their own, by number."""
        return [number for number in range(len(self.computed)) if number not in self.reuse]

    @property
    def result_sizes(self) -> list[int]:
        """Bytes of the blocks of these values."""
        return [max(self.computed[number].nbytes, 4) for number in self.own_results]

    @property
    def memory(self) -> GpuMemory:
        """The memory that a call takes."""
        distinct = {c.tobytes() if c.nbytes <= KEPT_ON_HOST else id(c): c.nbytes for c in self.constants if hasattr(c, "tobytes")}
        held = [c.size for c in self.constants if not hasattr(c, "tobytes")]
        return GpuMemory(
            _in_blocks([max(aval.nbytes, 4) for aval in self.arguments]),
            _in_blocks([*self.result_sizes, *[o.constant.nbytes for o in self.outputs if getattr(o.constant, "nbytes", 0) > KEPT_ON_HOST]]),
            _in_blocks(self.block_sizes),
            _in_blocks([*distinct.values(), *held]),
            _in_blocks(self.regions),
        )

    def dispatches(self) -> int:
        """Return the dispatches of a call; those of a `while` loop count once."""
        return dispatches_of(self.commands)

    def shaders(self) -> set[str]:
        """Return the texts of its shaders."""
        return {run.source for run in runs(self.commands)}


def _in_blocks(sizes: Iterable[int]) -> int:
    return sum(map(size_class, sizes))


def dispatches_of(commands: Sequence[Command]) -> int:
    """Return the dispatches of commands; those of a `while` loop count once."""
    count = 0
    for command in commands:
        if isinstance(command, For):
            count += command.iterations * dispatches_of(command.body)
        elif isinstance(command, While):
            count += dispatches_of(command.body)
        else:
            count += isinstance(command, Run)
    return count


def plan_program(
    closed: ClosedJaxpr,
    donated: Sequence[bool],
    pipeline: Passes,
    target: WgslTarget,
    routines: Callable[[RoutineKey], Routine | None],
    start_compiling: StartCompiling = lambda source, count, written, is_checked: None,
    *,
    on_device: bool = True,
) -> ProgramPlan:
    """Plan a program for a target.

    Args:
        closed: the program as it was traced.
        donated: which arguments may be overwritten.
        pipeline: lowers the program.
        target: the capabilities of the device.
        routines: gives the routine of a key.
        start_compiling: starts compiling a shader. It is called as soon as a shader is certain to be needed, first for those that take
            longest.
        on_device: whether constants that are on a device stay there, or become NumPy's arrays.

    Raises `OutOfMemoryError` if an array is larger than a shader of such a device can address.
    """
    _compile_long_shaders(routines, pipeline.early_routine_keys(closed, target), start_compiling)
    program = pipeline.lower(closed, target)
    reuse = dict(reusable(program, donated))
    _compile_long_shaders(routines, [item.key for item in program.items if item.key and isinstance(item.node, Equation)], start_compiling)
    most_characters = most_characters_of(len({item.key.key for item in program.items if item.key is not None}))
    writer = Writer(target, routines, start_compiling, most_characters, on_device=on_device)
    writer.write(program, reuse)
    commands = writer.commands
    for command_pass in [p for p in target.passes() if isinstance(p, CommandPass)]:
        before, commands = commands, command_pass.run(commands, writer.slots, target.capabilities, most_characters)
        if writer.verifier is not None:
            verify_order(command_pass.name, before, commands)
    for run in runs(commands):
        start_compiling(*run.key)
    first_grids = writer.slots.assign_numbers()
    for number, slot in enumerate(writer.regions, first_grids):
        slot.number = number
    lifetimes = writer.slots.lifetimes()
    block_sizes, block_of = share_blocks(lifetimes)
    if writer.verifier is not None:
        verify_commands(target.capabilities, commands)
        arena = zip(writer.slots.arena, block_of, strict=True)
        extents = {slot: Extent(number, 0, max(slot.size, block_sizes[number])) for slot, number in arena}
        verify_extents("blocks of memory", uses_of(commands), extents, writer.verifier.writers)
    return ProgramPlan(
        tuple(closed.in_avals),
        tuple(program.outputs()),
        tuple([v.aval for v in program.results]),
        reuse,
        tuple(commands),
        lifetimes,
        block_sizes,
        block_of,
        writer.slots.arrays(),
        [slot.size for slot in writer.regions],
        program,
        tuple(writer.on_host),
    )


def _compile_long_shaders(
    routines: Callable[[RoutineKey], Routine | None], keys: Iterable[RoutineKey], start_compiling: StartCompiling
) -> None:
    """Start compiling the shaders that stand alone, which take longest to compile."""
    for key in keys:
        routine = routines(key)
        for dispatch in () if routine is None else routine.dispatches:
            if stays_alone(dispatch, deferred=False):
                start_compiling(dispatch.source, len(dispatch.buffers), dispatch.written_bindings, settings.verify)


def share_blocks(lifetimes: Sequence[Lifetime]) -> tuple[list[int], list[int]]:
    """Assign temporary values to blocks, which values of disjoint lifetimes share.

    Returns the sizes of blocks, and each value's block.
    """
    sizes: list[int] = []
    numbers = [0] * len(lifetimes)
    free: dict[int, list[int]] = {}
    living: list[tuple[int, int, int]] = []
    for value in sorted(range(len(lifetimes)), key=lambda v: lifetimes[v].begin):
        lifetime = lifetimes[value]
        while living and living[0][0] < lifetime.begin:
            _, kind, number = heapq.heappop(living)
            heapq.heappush(free.setdefault(kind, []), number)
        kind = size_class(max(lifetime.bytes, 4))
        if free.get(kind):
            number = heapq.heappop(free[kind])
        else:
            number = len(sizes)
            sizes.append(kind)
        numbers[value] = number
        heapq.heappush(living, (lifetime.end, kind, number))
    return sizes, numbers


# Plans on disk, so that a process that has the same program need neither lower it nor write its shaders.
#
# The key of a plan is the fingerprint of the traced program, and all else that plans depend on: the capabilities of the device, and the
# schedules that were measured on this machine. Plans of some programs are not kept: of those with steps on the host, which are functions of
# Python's, and of those that communicate, which depend on the memory that processes share.

#: The purpose of an entry (`runtime.entries`).
_PURPOSE = "plan"


class PlanEntry(NamedTuple):
    """The entry of a program's plan: its name, and the program's constants."""

    name: str
    constants: tuple[ConcreteArray, ...]
    #: The numbers of constants that no plan depends on the elements of, since they are on the device alone.
    unread: frozenset[int]

    @classmethod
    def of(cls, closed: ClosedJaxpr, donated: Sequence[bool], target: WgslTarget) -> Self | None:
        """Return the entry of a program; None if its plan is not kept."""
        if cache_dir() is None or is_measuring(target.capabilities) or _communicates(closed, set()):
            return None
        fingerprint = fingerprint_of(closed, donated, numbers_of)
        if fingerprint is None:
            return None
        kind = "verified plan" if settings.verify else "plan", target.name, target.capabilities, measured(target.capabilities)
        return cls(entries.name_of(kind, fingerprint.text), fingerprint.constants, fingerprint.unread)

    def write(self, plan: ProgramPlan) -> None:
        """Write a plan, with the faster shaders of its dispatches, if that is possible."""
        if any(numbers_of(self.constants[number]) is not None for number in self.unread):
            return  # another thread has read them, so that the plan may depend on them
        contents, commands = Contents(self._buffers()), _CommandWriter()
        try:
            header = {
                "commands": commands.rows(plan.commands),
                "regions": [[region.grids.number, region.branches] for region in commands.regions],
                "constants": [contents.array(array) for array in plan.constants],
                "outputs": [[o.result, o.argument, _constant(contents, o.constant), o.shape] for o in plan.outputs],
                "computed": [[aval.shape, dtype_name(aval.dtype), aval.weak_type] for aval in plan.computed],
                "reuse": [*plan.reuse.items()],
                "lifetimes": plan.lifetimes,
                "blocks": [plan.block_sizes, plan.block_of, plan.regions],
            }
        except NotCacheable:
            return
        texts = [text.encode() for text in commands.texts]
        header["texts"] = [len(text) for text in texts]
        entries.write(cache_dir(), self.name, _PURPOSE, header, [*contents.parts, *texts])

    def read(self, closed: ClosedJaxpr) -> ProgramPlan | None:
        """Return the plan of the program from the disk; None if it is not there."""

        def parse(header: Any, content: bytes) -> ProgramPlan:
            reader = Reader(content, self._buffers())
            constants = tuple([reader.array(description) for description in header["constants"]])
            outputs = tuple([Output(o[0], o[1], self._value(reader, o[2]), tuple(o[3])) for o in header["outputs"]])
            shaders = [ShaderModule((), 0, (), "", final_text=reader.take(size).decode()) for size in header["texts"]]
            block_sizes, block_of, regions = header["blocks"]
            return ProgramPlan(
                tuple(closed.in_avals),
                outputs,
                tuple([ShapedArray(tuple(shape), DTYPES[name], weak) for shape, name, weak in header["computed"]]),
                dict(header["reuse"]),
                tuple(_CommandReader(shaders, header["regions"]).commands(header["commands"])),
                [Lifetime(*lifetime) for lifetime in header["lifetimes"]],
                block_sizes,
                block_of,
                constants,
                regions,
            )

        return entries.read(cache_dir(), self.name, _PURPOSE, parse)

    def _buffers(self) -> list[Any]:
        return [_buffer(constant) for constant in self.constants]

    def _value(self, reader: Reader, description: Any) -> Any:
        """Return a constant that is an output, by its description; None if it is none."""
        if description is None:
            return None
        (inner,) = description
        return self.constants[inner] if isinstance(inner, int) else reader.array(inner)


def _constant(contents: Contents, value: Any) -> Any:
    """Write a constant that is an output."""
    if value is None:
        return None
    return [contents.array(_buffer(value) if isinstance(value, ConcreteArray) else np.asarray(value))]


def _communicates(closed: ClosedJaxpr, seen: set[int]) -> bool:
    """Return whether a program, or one inside, contains collectives."""
    seen.add(id(closed))
    inner = [program for eqn in closed.eqns for program in sub_jaxprs(eqn.params) if id(program) not in seen]
    return any("axis_names" in eqn.params for eqn in closed.eqns) or any(_communicates(program, seen) for program in inner)


def _buffer(constant: ConcreteArray) -> Any:
    """Return what a plan has of a constant: an array, or a buffer of the device."""
    numbers = numbers_of(constant)
    return constant.buffer() if numbers is None else numbers


# Commands as JSON.
#
# Slots are numbers. A range is (slot, offset, bytes, strides), a command begins with its kind, and shaders are numbers of texts.

_RUN, _LOOP, _WHILE, _SUBMIT = range(4)


class _CommandWriter:
    """Rows of commands, and the texts and regions that they name by number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.regions: dict[Region, int] = {}
        #: The numbers of faster shaders by the texts of those that they replace: to write one takes long.
        self._faster: dict[str, int] = {}

    def rows(self, commands: Iterable[Command]) -> list[list[Any]]:
        """Return the rows of commands; raise `NotCacheable` for a step on the host."""
        return [self._row(command) for command in commands]

    def _row(self, command: Command) -> list[Any]:
        if isinstance(command, Run):
            faster = None if command.faster is None else self._faster.get(command.source)
            if command.faster is not None and faster is None:
                faster = self._faster[command.source] = self._text(command.faster().text)
            region = None if command.region is None else self.regions.setdefault(command.region, len(self.regions))
            shader, ranges = self._text(command.source), [_range(span) for span in command.ranges]
            return [
                _RUN,
                shader,
                sorted(command.written_bindings),
                ranges,
                command.workgroups,
                region,
                command.entry,
                faster,
                command.is_checked,
            ]
        if isinstance(command, For):
            return [_LOOP, command.number, command.iterations, self.rows(command.body)]
        if isinstance(command, While):
            return [_WHILE, _range(command.flag), self.rows(command.body)]
        if isinstance(command, Submit):
            return [_SUBMIT]
        raise NotCacheable

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def _range(span: BufferRange) -> list[Any]:
    return [span.slot.number, span.offset, span.size, span.strides]


class _CommandReader:
    """Commands from their rows, with shaders of which only the texts are known."""

    def __init__(self, shaders: Sequence[ShaderModule], regions: Sequence[Sequence[int]]) -> None:
        self._shaders = shaders
        self._scope, self._slots = CommandScope(None), dict[int, Slot]()
        self._regions = [Region(self._slot(grids), branches) for grids, branches in regions]

    def commands(self, rows: Iterable[Sequence[Any]]) -> Iterator[Command]:
        """Yield the commands of rows."""
        for kind, *fields in rows:
            if kind == _RUN:
                yield self._run(*fields)
            elif kind == _LOOP:
                number, iterations, body = fields
                yield For(number, iterations, [*self.commands(body)])
            elif kind == _WHILE:
                flag, body = fields
                yield While(self._range(*flag), [*self.commands(body)])
            else:
                yield Submit()

    def _run(
        self,
        shader: int,
        written: list[int],
        ranges: list[list[Any]],
        groups: list[int],
        region: int | None,
        entry: int,
        faster: int | None,
        is_checked: bool,
    ) -> Run:
        x, y, z = groups
        run = Run(self._shaders[shader], frozenset(written), tuple([self._range(*span) for span in ranges]), (x, y, z), entry=entry)
        run.region = None if region is None else self._regions[region]
        run.faster = None if faster is None else partial(self._shaders.__getitem__, faster)
        run.is_checked = is_checked
        return run

    def _range(self, slot: int, offset: int, size: int, strides: list[list[int]]) -> BufferRange:
        return BufferRange(self._slot(slot), offset, size, tuple([(loop, stride) for loop, stride in strides]))

    def _slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(self._scope)
            slot.number = number
        return slot


# Verification of a plan's commands: bindings, limits, order, lifetimes.
#
# It needs no device. Drivers validate the text of shaders when their pipelines are made.


def verify_commands(capabilities: TargetCapabilities, commands: Sequence[Command]) -> None:
    """Raise `CompilerError` unless dispatches bind the buffers of their shaders.

    Ranges lie in their slots, and all is within the limits of a device.
    """
    for run, iterations in _runs(commands, {}):
        shader = run.shader
        _require(len(shader.bindings) == len(run.ranges), f"{len(shader.bindings)} bindings are bound to {len(run.ranges)} ranges", run)
        written = frozenset([number for number, binding in enumerate(shader.bindings) if binding.written])
        _require(
            written == run.written_bindings,
            f"bindings {sorted(written)} are written, but {sorted(run.written_bindings)} are said to be",
            run,
        )
        _require(shader.invocations <= capabilities.invocations, f"{shader.invocations} invocations exceed the device's", run)
        memory = sum(variable.bytes for variable in shader.workgroup_variables)
        _require(memory <= capabilities.workgroup_memory, f"{memory} bytes of workgroup memory exceed the device's", run)
        _require(all(0 <= n <= capabilities.groups for n in run.workgroups), f"{run.workgroups} workgroups exceed the device's", run)
        _require(len(run.ranges) <= capabilities.buffers, f"{len(run.ranges)} buffers exceed the device's", run)
        for span in run.ranges:
            moves = [stride * (iterations[loop] - 1) for loop, stride in span.strides]
            first, end = span.offset + sum(min(m, 0) for m in moves), span.offset + span.size + sum(max(m, 0) for m in moves)
            aligned = all(n % capabilities.alignment == 0 for n in (span.offset, *[stride for _, stride in span.strides]))
            _require(aligned, f"a range begins at byte {span.offset}, which is not aligned", run)
            room = -(-span.slot.size // 4) * 4
            _require(first >= 0 and (not room or end <= max(room, 16)), f"bytes {first} to {end} are bound of a slot of {room}", run)
        for number in run.written_bindings:
            others = [span for other, span in enumerate(run.ranges) if other != number]
            _require(not any(_overlap(run.ranges[number], other) for other in others), f"binding {number} is written and bound twice", run)


def _runs(commands: Sequence[Command], loops: Mapping[int, int]) -> Iterator[tuple[Run, Mapping[int, int]]]:
    """Yield dispatches, with the iterations of the loops around each."""
    for command in commands:
        if isinstance(command, Run):
            yield command, loops
        elif isinstance(command, For):
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
            earlier = max(wrote.get(span.slot, -1), read.get(span.slot, -1) if binding in run.written_bindings else -1)
            if earlier >= position:
                _fail(stage, "a dispatch was moved before, or fused with, one that it depends on", run)
        for binding, span in enumerate(run.ranges):
            times = wrote if binding in run.written_bindings else read
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
