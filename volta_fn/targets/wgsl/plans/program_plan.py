"""Plans of programs, which need no device.

A plan consists of slots of memory, commands and their shaders, all of which follow from a device's capabilities. `Program` is a plan on a
device.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from volta_fn.compiler.buffers import Lifetime, Output
from volta_fn.compiler.emission import reusable
from volta_fn.compiler.memory_verification import Extent, verify_extents
from volta_fn.compiler.target import CommandPass, Item, LoweredProgram, RoutineKey
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.settings import current as settings
from volta_fn.targets.wgsl.plans.commands import SMALL, Command, Loop, Run, While, most_characters_of, runs, size_class, stays_alone
from volta_fn.targets.wgsl.plans.control_flow import CONTROL_FLOW
from volta_fn.targets.wgsl.plans.verification import uses_of, verify_commands, verify_order
from volta_fn.targets.wgsl.plans.writer import Writer
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.target import WgslTarget

if TYPE_CHECKING:
    from volta_fn.compiler.target import Pipeline

#: Starts compiling a shader, given by its pipeline's key.
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

    Its commands refer to slots by number: arguments come first, then results in memory of their own, temporary values, constants, and the
    grids of regions.
    """

    lowered: LoweredProgram
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
    #: Equations that run on the host.
    on_host: tuple[Item, ...]

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
        distinct = {c.tobytes() if c.nbytes <= SMALL else id(c): c.nbytes for c in self.constants if hasattr(c, "tobytes")}
        held = [c.size for c in self.constants if not hasattr(c, "tobytes")]
        return GpuMemory(
            _in_blocks([max(aval.nbytes, 4) for aval in self.arguments]),
            _in_blocks([*self.result_sizes, *[o.constant.nbytes for o in self.outputs if getattr(o.constant, "nbytes", 0) > SMALL]]),
            _in_blocks(self.block_sizes),
            _in_blocks([*distinct.values(), *held]),
            _in_blocks(self.regions),
        )

    def dispatches(self) -> int:
        """Return the dispatches of a call; those of a `while` loop count once."""
        return dispatches_of(self.commands)

    def shaders(self) -> set[str]:
        """Return the WGSL of its shaders."""
        return {run.source for run in runs(self.commands)}


def _in_blocks(sizes: Iterable[int]) -> int:
    return sum(map(size_class, sizes))


def dispatches_of(commands: Sequence[Command]) -> int:
    """Return the dispatches of commands; those of a `while` loop count once."""
    count = 0
    for command in commands:
        if isinstance(command, Loop):
            count += command.iterations * dispatches_of(command.body)
        elif isinstance(command, While):
            count += dispatches_of(command.body)
        else:
            count += isinstance(command, Run)
    return count


def plan_program(
    closed: ClosedJaxpr,
    donated: Sequence[bool],
    pipeline: Pipeline,
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
    writer = Writer(target.capabilities, routines, CONTROL_FLOW, start_compiling, most_characters, on_device=on_device)
    writer.write(program, reuse)
    commands = writer.commands
    for command_pass in [p for p in target.passes() if isinstance(p, CommandPass)]:
        before, commands = commands, command_pass.run(commands, writer.slots, target.capabilities, most_characters)
        if writer.verifier is not None:
            verify_order(command_pass.name, before, commands)
    for run in runs(commands):
        start_compiling(*run.key)
    for number, slot in enumerate(writer.regions, writer.slots.assign_numbers()):
        slot.number = number  # those of grids come last
    lifetimes = writer.slots.lifetimes()
    block_sizes, block_of = share_blocks(lifetimes)
    if writer.verifier is not None:
        verify_commands(target.capabilities, commands)
        arena = zip(writer.slots.arena, block_of, strict=True)
        extents = {slot: Extent(number, 0, max(slot.size, block_sizes[number])) for slot, number in arena}
        verify_extents("blocks of memory", uses_of(commands), extents, writer.verifier.writers)
    return ProgramPlan(
        program,
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
