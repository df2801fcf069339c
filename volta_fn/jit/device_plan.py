"""What a program needs of a GPU, and whether it fits some limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from volta_fn.compiler import pipeline
from volta_fn.compiler.target import HostStep, Item, LoweredProgram
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var
from volta_fn.errors import OutOfMemoryError
from volta_fn.jit.compile import TracedProgram
from volta_fn.jit.program_text import needed_items
from volta_fn.targets.wgsl.plans.program_plan import ProgramPlan, plan_program
from volta_fn.targets.wgsl.profiles import DeviceProfile, profile_of
from volta_fn.targets.wgsl.scalars import is_supported
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

#: Enough of everything, to plan a program that does not fit.
_UNLIMITED = {"binding": 1 << 62, "buffers": 1 << 20}


@dataclass(frozen=True)
class DevicePlan:
    """What a program needs of a GPU, known without one.

    Attributes:
        limits: the name of the limits that it was planned for.
        peak_memory: the most bytes in use during a call, arguments and results included, in the blocks that the runtime uses.
        arguments, results, temporaries, constants: what it consists of; results in the memory of donated arguments count once.
        buffers: the number of buffers.
        dispatches: the dispatches of a call. Those of a `while` loop count once, and so do all branches of a conditional.
        shaders: the number of different shaders.
        host_steps: the equations that NumPy computes on the host, for which a page has no way.
        problems: what does not fit the limits, with the equation and the user's line.
    """

    limits: str
    peak_memory: int
    arguments: int
    results: int
    temporaries: int
    constants: int
    buffers: int
    dispatches: int
    shaders: int
    host_steps: tuple[HostStep, ...]
    problems: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the limits allow the program."""
        return not self.problems

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        counts = f"{self.dispatches} dispatches of {self.shaders} shaders, {self.buffers} buffers"
        return "\n".join(
            [f"{self.peak_memory} bytes at most, {counts}: {verdict} {self.limits}", *self.problems, *map(str, self.host_steps)]
        )


def plan_for(traced: TracedProgram, limits: str | Mapping[str, int] | Device | DeviceProfile) -> DevicePlan:
    """Plan a traced program for a GPU of these limits (see `profile_of`)."""
    profile = profile_of(limits)
    problems = list(_unsupported_dtypes(traced.jaxpr, profile))
    plan = None
    try:
        plan = _plan(traced, WgslTarget(profile.capabilities))
    except OutOfMemoryError as error:
        problems.append(error.message)
    if plan is None:
        plan = _plan(traced, WgslTarget(profile.capabilities._replace(**_UNLIMITED)))  # type: ignore[arg-type]  # all of them integers
        problems[-1] = f"{_largest(plan.lowered)}: {problems[-1]}"
    problems += _oversized_buffers(plan, profile)
    memory = plan.memory
    if profile.memory is not None and memory.peak > profile.memory:
        largest = _largest(plan.lowered)
        problems.append(f"{largest} is the largest of the arrays that take {memory.peak} bytes; {profile.name} has {profile.memory}")
    return DevicePlan(
        limits=profile.name,
        peak_memory=memory.peak,
        arguments=memory.arguments,
        results=memory.results,
        temporaries=memory.temporaries,
        constants=memory.constants,
        buffers=len(plan.arguments) + len(plan.own_results) + len(plan.block_sizes) + len(plan.constants) + len(plan.regions),
        dispatches=plan.dispatches(),
        shaders=len(plan.shaders()),
        host_steps=tuple([HostStep.of(item, plan.lowered.target.explain_host(item)) for item in plan.on_host]),
        problems=tuple(problems),
    )


def _plan(traced: TracedProgram, target: WgslTarget) -> ProgramPlan:
    """Return the plan of a traced program for a target."""
    return plan_program(traced.jaxpr, traced.donated, pipeline, target, RoutineCache())


def _unsupported_dtypes(closed: ClosedJaxpr, profile: DeviceProfile) -> Iterator[str]:
    """Yield the equations of dtypes that the device does not have, one for each dtype."""
    seen = set()
    for number, aval in enumerate(closed.in_avals):
        if aval.dtype not in seen and not is_supported(aval.dtype, profile.capabilities):
            seen.add(aval.dtype)
            yield f"argument {number} is {aval}, and {profile.name} has no {aval.dtype.name}; convert it to a 32-bit dtype"
    for eqn in closed.eqns:
        for var in eqn.outvars:
            if var.aval.dtype not in seen and not is_supported(var.aval.dtype, profile.capabilities):
                seen.add(var.aval.dtype)
                yield f"{_description(eqn, var)}: {profile.name} has no {var.aval.dtype.name}; convert to a 32-bit dtype"


def _oversized_buffers(plan: ProgramPlan, profile: DeviceProfile) -> Iterator[str]:
    """Yield the arrays that are larger than a buffer may be."""
    for number, aval in enumerate(plan.arguments):
        if aval.nbytes > profile.largest:
            yield f"argument {number}, {aval}, has {aval.nbytes} bytes; {profile.name} has buffers of at most {profile.largest}"
    for program, item in needed_items(plan.lowered):
        for var in item.results:
            if var.aval.nbytes > profile.largest:
                producer = _producer(program, item, var)
                yield f"{producer} has {var.aval.nbytes} bytes; {profile.name} has buffers of at most {profile.largest}"


def _largest(program: LoweredProgram) -> str:
    """Describe the equation with the largest result or operand."""
    values = [
        (owner, item, var) for owner, item in needed_items(program) for var in (*item.results, *item.operands) if isinstance(var, Var)
    ]
    if not values:
        return "a constant"
    owner, item, var = max(values, key=lambda entry: entry[2].aval.nbytes)
    return _producer(owner, item, var if var in item.results else item.results[0])


def _producer(program: LoweredProgram, item: Item, var: Var) -> str:
    """Describe the equation that computes a variable."""
    eqn = next((eqn for eqn in program.closed.eqns if var in eqn.outvars), item.node if isinstance(item.node, Equation) else None)
    return f"a kernel's result {var.aval}" if eqn is None else _description(eqn, var)


def _description(eqn: Equation, var: Var) -> str:
    """Return an equation, the type of its result, and the user's line."""
    return f"{eqn.primitive.name} -> {var.aval}" + (f", at {eqn.source}" if eqn.source else "")
