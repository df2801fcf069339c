"""The stages of a jitted function: `Traced`, `Lowered`, `Compiled`.

Their code, and what they need of a GPU, follow from a program alone: the device need not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from volta_fn import tree
from volta_fn.compiler import pipeline
from volta_fn.compiler.buffers import Memory
from volta_fn.compiler.ir.kernel import KernelCall, format_kernel
from volta_fn.compiler.plans import Plan
from volta_fn.compiler.target import HostStep, Item, LoweredProgram, TargetCapabilities
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct, check_option
from volta_fn.core.devices.device import Device, current_default_device, devices
from volta_fn.core.devices.device_world import first_described
from volta_fn.core.devices.propagation import result_shardings
from volta_fn.core.devices.sharding import SingleDeviceSharding
from volta_fn.core.dimension import is_symbolic_dim
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, constraints_of, devices_of, format_jaxpr
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError, ExecutionError, OutOfMemoryError, TracerError
from volta_fn.jit.compile import TracedProgram, compile_for, cost_of
from volta_fn.jit.eager import PIPELINE, SHARDED, check_usable, on_device
from volta_fn.lazy_imports import load
from volta_fn.settings import current as settings
from volta_fn.targets.wgsl.program_plan import ProgramPlan, plan_program
from volta_fn.targets.wgsl.scalars import is_supported
from volta_fn.targets.wgsl.target import LARGEST_BUFFER, LIMITS, RoutineCache, WgslTarget
from volta_fn.tree.structures import structural_difference

# A lowered program as text: its kernels, or the code that a target runs.

DIALECTS = ("jaxpr", "kernels", "llvm", "wgsl")


def code_of(closed: ClosedJaxpr, dialect: str, device: Device) -> str:
    """Return a program in a dialect other than "jaxpr".

    "kernels" is as the device's target has it, or the CPU's if NumPy runs programs there. "llvm" is for this CPU, "wgsl" for the device if
    it is a GPU, else for one with what every WebGPU device has.

    Raises `ArgumentError` for an unknown dialect.
    """
    check_option(dialect, "as_text: dialect", DIALECTS)
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
        problems[-1] = f"{_largest(_lowered(plan))}: {problems[-1]}"
    problems += _oversized_buffers(plan, profile)
    memory = plan.memory
    if profile.memory is not None and memory.peak > profile.memory:
        largest = _largest(_lowered(plan))
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
        host_steps=tuple([HostStep.of(item, _lowered(plan).target.explain_host(item)) for item in plan.on_host]),
        problems=tuple(problems),
    )


def _plan(traced: TracedProgram, target: WgslTarget) -> ProgramPlan:
    """Return the plan of a traced program for a target."""
    return plan_program(traced.jaxpr, traced.donated, pipeline, target, RoutineCache())


def _lowered(plan: ProgramPlan) -> LoweredProgram:
    """Return what a plan was made from."""
    assert plan.lowered is not None, "it is not from the disk"
    return plan.lowered


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
    for program, item in needed_items(_lowered(plan)):
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


# The stages, as users see them.

T = TypeVar("T")


@runtime_checkable
class Wrapped(Protocol):
    """A jitted function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments."""

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace for arguments like these."""

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and lower for arguments like these."""


@dataclass(frozen=True)
class ArgInfo:
    """An argument's shape and dtype, and whether it is donated."""

    shape: tuple[int, ...]
    dtype: Any
    donated: bool


#: The dialects of XLA that programs of JAX's ask for.
_XLA_DIALECTS = ("hlo", "stablehlo", "mhlo")


class _Stage:
    """A function, traced for arguments of one structure and types."""

    #: The structure of the arguments.
    in_tree: Any

    def __init__(self, traced: TracedProgram, in_tree: Any, device: Device) -> None:
        self._traced = traced
        self._device = device
        #: The structure of the dynamic arguments, ``(args, kwargs)``.
        self.in_tree = in_tree
        #: What passes values in place of references, outermost first: each has the last values as another result.
        self.passings: list[Callable[..., Any]] = []

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as it was traced."""
        return self._traced.jaxpr

    @property
    def fun_name(self) -> str:
        """The function's name."""
        return self._traced.name

    @property
    def out_tree(self) -> Any:
        """The structure of the result."""
        structure = self._traced.out_tree
        for _ in self.passings:
            structure, _ = structure.children()
        return structure

    def _result(self, leaves: Sequence[Any]) -> Any:
        """Return leaves as the function's result; values of references come last."""
        structure = self.out_tree
        return tree.unflatten(structure, leaves[: structure.num_leaves])

    @property
    def out_info(self) -> Any:
        """The results' shapes and dtypes, as a pytree of `ShapeDtypeStruct`."""
        avals = self._traced.jaxpr.out_avals
        return self._result([struct_of(a, s) for a, s in zip(avals, self._out_shardings(), strict=True)])

    def _in_shardings(self) -> list[Any]:
        """Return the sharding of each argument that the program splits, else None."""
        jaxpr = self._traced.jaxpr.jaxpr
        return [jaxpr.shardings.get(v) for v in jaxpr.invars]

    def _out_shardings(self) -> list[Any]:
        """Return the sharding of each result that is split, else None."""
        closed = self._traced.jaxpr
        if not constraints_of(closed):
            return [None] * len(closed.outvars)
        return list(result_shardings(closed, self._in_shardings()))

    @property
    def out_avals(self) -> Any:
        """The types of the results, as a pytree."""
        return self._result(self._traced.jaxpr.out_avals)

    @property
    def in_avals(self) -> Any:
        """The types of the arguments, as ``(args, kwargs)``."""
        return tree.unflatten(self.in_tree, self._arguments)

    @property
    def args_info(self) -> Any:
        """An `ArgInfo` for each array in ``(args, kwargs)``."""
        avals = self._arguments
        donated = self._traced.donated[: len(avals)]
        return tree.unflatten(self.in_tree, [ArgInfo(a.shape, a.dtype, d) for a, d in zip(avals, donated, strict=True)])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the arrays among the arguments that are donated."""
        return tuple([i for i, donated in enumerate(self._traced.donated) if donated])

    @property
    def _arguments(self) -> list[ShapedArray]:
        avals = self._traced.jaxpr.in_avals[len(self._traced.captured) :]
        return avals[: len(avals) - len(self._traced.wide_inputs)]


class Traced(_Stage):
    """A traced function, from ``jit(f).trace(*args)``: its program and types.

    >>> traced = vf.jit(lambda x: 2.0 * x).trace(vf.numpy.ones(3))
    >>> traced.jaxpr
    { lambda ; a:f32[3]. let
        b:f32[3] = mul 2.0:f32[] a
      in (b,) }
    >>> traced.lower().compile()(vf.numpy.ones(3))
    Array([2., 2., 2.], dtype=float32)
    """

    def lower(self, *, lowering_platforms: Any = None) -> Lowered:
        """Return the lowered function for the default device.

        `lowering_platforms` is accepted for compatibility. Raises `InconclusiveDimensionOperation` if an argument has symbolic sizes.
        """
        for aval in self._traced.jaxpr.in_avals:
            for size in filter(is_symbolic_dim, aval.shape):
                size.__index__()
        lowered = Lowered(self._traced, self.in_tree, self._device)
        lowered.passings = self.passings
        return lowered


class Lowered(_Stage):
    """A traced function: its program, the simplified program, its memory, its code.

    `jaxpr` and `simplified` are the same for all targets. `numpy_plan` is what the NumPy target runs: a straight line of steps. The CPU and
    GPU targets fuse the simplified program into kernels instead, and `memory` and `compile` ask the target of the default device. `plan`
    says what a GPU needs, without one.
    """

    @property
    def simplified(self) -> ClosedJaxpr:
        """The program after simplification, which is the same for all targets."""
        return pipeline.simplify(self._traced.jaxpr)

    @property
    def numpy_plan(self) -> Plan:
        """The steps that the NumPy target runs; other targets compile kernels instead."""
        return pipeline.plan(self._traced.jaxpr, self._traced.donated)

    def memory(self) -> Memory:
        """Return the bytes that the compiled program needs, known without running it.

        >>> vf.jit(lambda x: x @ x + 1.0).lower(vf.numpy.ones((16, 16))).memory().results
        1024
        """
        program, donated = self._traced.jaxpr, self._traced.donated
        arguments, results = (sum(a.nbytes for a in avals) for avals in (program.in_avals, program.out_avals))
        return Memory(arguments, results, self._of_device(lambda closed, device: device.backend.temporaries(closed, donated, PIPELINE)))

    def plan(self, limits: str | Mapping[str, int] | Device = "webgpu") -> DevicePlan:
        """Return what the program needs of a GPU, and whether it fits these limits.

        No GPU is needed.

        Args:
            limits: "webgpu", what every WebGPU device has; "phone", the same with the memory that browsers give a page there; limits by
                WebGPU's names, such as ``{"maxBufferSize": 1 << 30}``, where they differ from "webgpu"; a GPU of this machine, or some
                letters of its name.

        Raises `ArgumentError` for other limits.

        >>> plan = vf.jit(lambda x: x @ x + 1.0).lower(vf.numpy.ones((64, 64))).plan("webgpu")
        >>> plan.fits, plan.peak_memory, plan.dispatches, plan.shaders
        (True, 32768, 1, 1)
        """
        return plan_for(self._traced, limits)

    def host_steps(self) -> list[HostStep]:
        """Return the equations that NumPy computes on the host, each with the reason.

        The device's target has no code for them. On a GPU each such step copies its operands to the host and its results back. On the CPU
        without llvmlite NumPy runs all equations, and the list is empty.

        >>> steps = vf.jit(lambda x: vf.pure_callback(abs, x, x)).lower(-1.0).host_steps()
        >>> {step.reason for step in steps} <= {"it calls a Python function"}
        True
        """

        def steps(closed: ClosedJaxpr, device: Device) -> list[HostStep]:
            target = device.backend.target
            return [] if target is None else list(pipeline.lower(closed, target).host_steps())

        return self._of_device(steps)

    def _of_device(self, describe: Callable[[ClosedJaxpr, Device], T]) -> T:
        """Return what a function says of the device's program.

        The device is the first of those between which the program has collectives, if it has any.
        """
        program = self._traced.jaxpr
        return first_described(program, PIPELINE, describe) if devices_of(program) else describe(program, self._device)

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the program as text.

        Args:
            dialect: "jaxpr", or None, is the program in JAX's notation, with a comment for each host step (with `volta_fn.jax`, "hlo" and
                "stablehlo" are, too); "kernels" the loops that it is
                fused into; "llvm" and "wgsl" the code of these for the CPU and for GPUs, of whatever kind the default device is.
            debug_info: whether each equation of the jaxpr has the user's line after it.

        Raises `ArgumentError` for another dialect.

        >>> lowered = vf.jit(lambda x: (2.0 * x).sum()).lower(vf.numpy.ones(1000))
        >>> print(lowered.as_text("kernels"))
        for each row:
          for each i<1000>:
            v0:f32 = x0[1000] at (i)
            v1:f32 = mul 2.0 v0
            v2 <- reduce_sum:f32 v1
          y0[] at () = v2
        >>> "define void" in lowered.as_text("llvm"), "@compute" in lowered.as_text("wgsl")
        (True, True)
        """
        if dialect in _XLA_DIALECTS and settings.permissive:
            dialect = "jaxpr"
        if dialect is not None and dialect != "jaxpr":
            return self._of_device(lambda closed, device: code_of(closed, dialect, device))
        return "\n".join([format_jaxpr(self._traced.jaxpr.jaxpr, sources=debug_info), *[f"# {step}" for step in self.host_steps()]])

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """Return the program, of which there is no MLIR, whatever `dialect` says."""
        return self._traced.jaxpr

    def cost_analysis(self) -> dict[str, float]:
        """Estimate the program's floating-point operations and the bytes of its operands.

        >>> vf.jit(lambda x: x @ x).lower(vf.numpy.ones((4, 4))).cost_analysis()
        {'flops': 128.0, 'bytes accessed': 128.0}
        """
        return cost_of(self._traced.jaxpr)

    def compile(self, compiler_options: Any = None, *, device_assignment: Any = None) -> Compiled:
        """Return the compiled function of the dynamic arguments.

        `compiler_options` are those of XLA, which have no effect, nor has `device_assignment`. Raises `ExecutionError` for names that XLA
        cannot have, as JAX does.
        """
        if unknown := [name for name in compiler_options or () if not name.startswith("xla_")]:
            raise ExecutionError(f"No such compile option: {unknown[0]!r}; those of XLA begin with xla_, and have no effect here")
        return Compiled(self)


def _with_values(passing: Callable[..., Any], compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return passing(args, kwargs, compiled)


class Compiled(_Stage):
    """A compiled function of arrays, from ``jit(f).lower(*args).compile()``.

    It raises `ArgumentTypeError` for types other than those it was lowered for, and `TracerError` inside of a transform.
    """

    def __init__(self, lowered: Lowered) -> None:
        super().__init__(lowered._traced, lowered.in_tree, lowered._device)
        self._lowered = lowered
        self.passings = lowered.passings
        self._run: Callable[..., Any] = compile_for(self._traced, self._device).run
        self._wanted = [(a.shape, a.dtype) for a in self._arguments]
        self._is_split = bool(constraints_of(self._traced.jaxpr))
        self._run_by_shardings: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        call = self._call
        for passing in reversed(self.passings):
            call = partial(_with_values, passing, call)
        return call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        values = [as_value(x) for x in leaves]
        if structure != self.in_tree or [(v.shape, v.dtype) for v in values] != self._wanted:
            raise ArgumentTypeError(f"{self.fun_name} was compiled {self._difference(structure, values)}; lower it for other types anew")
        if any(isinstance(v, Tracer) for v in values):
            raise TracerError(
                f"{self.fun_name} was lowered and compiled, so no transform can see into it, but it was called with traced arrays. "
                "Transform the function itself, or its jit, and call the compiled one with arrays."
            )
        check_usable(values)
        shardings = tuple([v.device.sharding for v in values])
        if not self._is_split and not any(shardings):
            return self._run(self._moved(values))
        run = self._run_by_shardings.get(shardings)
        if run is None:
            run = self._run_by_shardings[shardings] = SHARDED.sharded_program(self._traced, values)
        return run(values)

    call = __call__

    def _moved(self, values: Sequence[Array]) -> Sequence[Array]:
        """Return the arguments, copied from the default device to the program's."""
        devices = {v.device for v in values} - {self._device}
        if others := devices - {current_default_device()}:
            raise DeviceError(
                f"{self.fun_name} was compiled for {self._device}, but an argument is on {others.pop()}; move it with device_put, or lower "
                "the function for arrays of that device"
            )
        return on_device(values, self._device) if devices else values

    @property
    def input_shardings(self) -> Any:
        """The sharding of each argument, as ``(args, kwargs)``.

        >>> vf.jit(lambda x: x + 1).lower(1.0).compile().input_shardings
        ((SingleDeviceSharding(device=CpuDevice(id=0)),), {})
        """
        shardings = self._in_shardings()[len(self._traced.captured) :]
        return tree.unflatten(self.in_tree, [s or SingleDeviceSharding(self._device) for s in shardings[: len(self._arguments)]])

    @property
    def output_shardings(self) -> Any:
        """The sharding of each result, as a pytree."""
        return self._result([s or SingleDeviceSharding(self._device) for s in self._out_shardings()])

    def _difference(self, structure: tree.TreeDef, values: Sequence[Array]) -> str:
        """Say for which arguments the function was compiled, and which others it got."""
        if structure != self.in_tree:
            path, expected, got = structural_difference(self.in_tree, structure)
            return f"for arguments of another structure: at {_location(path)} it takes {expected}, got {got}"
        places = [_location(path) for path, _ in tree.leaves_with_path(self.in_avals)]
        pairs = zip(places, self._arguments, values, strict=True)
        wrong = [f"{place} is {a}, got {v.aval}" for place, a, v in pairs if (a.shape, a.dtype) != (v.shape, v.dtype)]
        return f"for arguments of other types: {', '.join(wrong[:4])}{', …' if len(wrong) > 4 else ''}"

    def as_text(self) -> str:
        """Return the program in JAX's notation, with a comment for each host step."""
        return self._lowered.as_text()

    def cost_analysis(self) -> dict[str, float]:
        """Do what `Lowered.cost_analysis` does."""
        return self._lowered.cost_analysis()

    def memory_analysis(self) -> MemoryAnalysis:
        """Return the bytes that a call needs, by JAX's names.

        >>> vf.jit(lambda x: x @ x).lower(vf.numpy.ones((4, 4))).compile().memory_analysis().output_size_in_bytes
        64
        """
        memory = self._lowered.memory()
        return MemoryAnalysis(memory.arguments, memory.results, memory.temporaries)


def _location(path: tree.KeyPath) -> str:
    """Return the place of an argument in ``(args, kwargs)``."""
    return f"{'args' if getattr(path[0], 'idx', 0) == 0 else 'kwargs'}{tree.keystr(path[1:])}" if path else "the arguments"


class MemoryAnalysis(NamedTuple):
    """The bytes that a call of a program needs."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    #: Bytes of results in the memory of donated arguments.
    alias_size_in_bytes: int = 0
    #: 0, as on JAX's CPU: machine code, and memory of the host beside that of a device.
    generated_code_size_in_bytes: int = 0
    host_generated_code_size_in_bytes: int = 0
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0

    @property
    def peak_memory_in_bytes(self) -> int:
        """The bytes of arguments, results and intermediate values together."""
        return self.argument_size_in_bytes + self.output_size_in_bytes + self.temp_size_in_bytes - self.alias_size_in_bytes


def struct_of(aval: ShapedArray, sharding: Any) -> ShapeDtypeStruct:
    """Return the public description of an aval."""
    return ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
