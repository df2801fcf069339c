"""A program without its device: its text, and what it needs of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.kernel import KernelCall, format_kernel
from volta_fn.compiler.target import HostStep, Item, LoweredProgram, TargetCapabilities
from volta_fn.core.devices.device import Device, devices
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var
from volta_fn.errors import ArgumentError, DeviceError, OutOfMemoryError
from volta_fn.jit.compile import TracedProgram
from volta_fn.lazy_imports import load
from volta_fn.targets.wgsl.plans.program_plan import ProgramPlan, plan_program
from volta_fn.targets.wgsl.scalars import is_supported
from volta_fn.targets.wgsl.target import LARGEST_BUFFER, LIMITS, RoutineCache, WgslTarget

# A lowered program as text: its kernels, or the code that a target runs.

DIALECTS = ("jaxpr", "kernels", "llvm", "wgsl")


def code_of(closed: ClosedJaxpr, dialect: str, device: Device) -> str:
    """Return a program in a dialect other than "jaxpr".

    "kernels" is as the device's target has it, or the CPU's if NumPy runs programs there. "llvm" is for this CPU, "wgsl" for the device if
    it is a GPU, else for one with what every WebGPU device has.

    Raises `ArgumentError` for an unknown dialect.
    """
    if dialect not in DIALECTS:
        raise ArgumentError(f"as_text: the dialects are {', '.join(map(repr, DIALECTS))}, got {dialect!r}")
    program = pipeline.lower(closed, _target(dialect, device))
    if dialect == "kernels":
        return "\n\n".join([item_text(item) for _, item in needed_items(program)])
    comment = ";" if dialect == "llvm" else "//"
    texts = [text for owner, item in needed_items(program) for text in _code(owner, item, comment)]
    return "\n\n".join([f"{comment} {number} of {len(texts)}\n{text}" for number, text in enumerate(texts, 1)])


def _target(dialect: str, device: Device) -> Any:
    if dialect == "wgsl" and device.platform != "gpu":
        return WgslTarget(TargetCapabilities())
    if dialect == "llvm" or device.backend.target is None:
        return load("volta_fn.targets.cpu.target").TARGET
    return device.backend.target


def needed_items(program: LoweredProgram) -> Iterator[tuple[LoweredProgram, Item]]:
    """Yield the items that do something, those of nested programs after their own."""
    for item in program.items:
        if item.is_needed:
            yield program, item
        for nested in item.programs:
            yield from needed_items(nested)


def item_text(item: Item) -> str:
    """Return a kernel, or an equation that a target has another routine for."""
    if isinstance(item.node, KernelCall):
        return format_kernel(item.node.kernel)
    operands = " ".join(str(v.aval) for v in item.operands)
    results = " ".join(str(v.aval) for v in item.results)
    return f"{item.node.primitive} {operands} -> {results}".rstrip()


def item_code(program: LoweredProgram, item: Item) -> str:
    """Return the LLVM IR or WGSL of an item; of what runs on the host, why it does."""
    return "\n\n".join(_code(program, item, "//" if program.target.name == "wgsl" else ";"))


def _code(program: LoweredProgram, item: Item, comment: str) -> list[str]:
    """Return the modules of an item, or a comment that says why it has none."""
    reason = program.target.host_reason(item)
    if reason is not None:
        return [f"{comment} {HostStep.of(item, reason)}"]
    routine = None if item.key is None else item.key.make()
    if routine is None:
        return []
    return [routine.text] if hasattr(routine, "text") else [dispatch.source for dispatch in routine.dispatches]


# Profiles of devices that programs are planned for, by name, limits or a GPU.

#: Bytes that a page may use on a phone: browsers end pages that take more than about a gibibyte, scripts and pictures included.
_PHONE_MEMORY = 3 << 28


class DeviceProfile(NamedTuple):
    """The resources of a device that a program may use."""

    name: str
    capabilities: TargetCapabilities
    #: Bytes of the largest buffer, and of all memory (None: not known).
    largest: int = LARGEST_BUFFER
    memory: int | None = None


#: A page's GPU is unknown: it may round a fused multiply-add twice, and flush subnormal numbers.
WEBGPU = DeviceProfile("webgpu", TargetCapabilities(subnormals=False))
PHONE = WEBGPU._replace(name="phone", memory=_PHONE_MEMORY)


def profile_of(limits: str | Mapping[str, int] | Device | DeviceProfile) -> DeviceProfile:
    """Return the profile of a device, by a name, limits, or a device.

    Args:
        limits: "webgpu", what every WebGPU device has; "phone", the same with the memory that browsers give a page there; limits by
            WebGPU's names, such as ``{"maxBufferSize": 1 << 30}``, where they differ from "webgpu"; a GPU of this machine, or some
            letters of its name.

    Raises `ArgumentError` for other limits, and names that no GPU has.

    >>> profile_of({"maxBufferSize": 1 << 30}).largest
    1073741824
    """
    if isinstance(limits, DeviceProfile):
        return limits
    if isinstance(limits, Mapping):
        return _changed(limits)
    if isinstance(limits, Device):
        return _of_device(limits)
    profiles = {profile.name: profile for profile in (WEBGPU, PHONE)}
    if limits in profiles:
        return profiles[limits]
    gpus = _gpus()
    for device in gpus:
        if str(limits).lower() in device.device_kind.lower():
            return _of_device(device)
    names = [device.device_kind for device in gpus]
    raise ArgumentError(f"limits: expected 'webgpu', 'phone', limits by name, or a GPU of this machine ({names}), got {limits!r}")


def _gpus() -> list[Device]:
    try:
        return list(devices("gpu"))
    except DeviceError:
        return []


def _changed(limits: Mapping[str, int]) -> DeviceProfile:
    unknown = [name for name in limits if name not in LIMITS and name != "maxBufferSize"]
    if unknown:
        raise ArgumentError(f"limits: WebGPU has no {', '.join(unknown)} that programs depend on; known are {[*LIMITS, 'maxBufferSize']}")
    fields: dict[str, Any] = {LIMITS[name]: int(value) for name, value in limits.items() if name in LIMITS}
    largest = int(limits.get("maxBufferSize", LARGEST_BUFFER))
    return WEBGPU._replace(name="the given limits", capabilities=WEBGPU.capabilities._replace(**fields), largest=largest)


def _of_device(device: Device) -> DeviceProfile:
    if device.platform != "gpu":
        raise ArgumentError(f"limits: expected a GPU, got {device}; programs for the CPU have no limits")
    backend: Any = device.backend
    gpu = backend.gpu
    return DeviceProfile(device.device_kind, gpu.capabilities, gpu.description.largest, gpu.pool.limit)


# What a program needs of a GPU, and whether it fits some limits.

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
