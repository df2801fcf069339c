"""Targets of code generation, and programs as they are lowered for one.

A target has capabilities, routines of kernels and equations, and passes of its own. A lowered program has an item for each routine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from volta_fn.compiler.buffers import Output
from volta_fn.compiler.contractions import accumulators
from volta_fn.compiler.ir.axes import overwritable
from volta_fn.compiler.ir.index import is_elementwise, reduces
from volta_fn.compiler.ir.kernel import FusedProgram, Kernel, KernelCall, ProgramNode
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, has_effects
from volta_fn.core.primitive import Primitive
from volta_fn.dtypes import STORAGE
from volta_fn.primitives.call import pure_callback_p
from volta_fn.primitives.collectives import psum_done_p
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p

if TYPE_CHECKING:
    from volta_fn.compiler.plans import Plan


class TargetCapabilities(NamedTuple):
    """The limits, dtypes and features of a target, and its limits of fusion.

    The defaults are what every WebGPU device has, except for `subnormals`: a device may lack them.
    """

    #: 16-bit floats (WGSL's ``enable f16``), 64-bit floats, and 64-bit integers.
    float16: bool = False
    float64: bool = False
    int64: bool = False
    #: Whether ``fma`` rounds once: WGSL lets it round twice.
    fma: bool = False
    #: Whether compilers may contract a product and a sum to one operation, rounded once: in one kernel and not in another.
    fp_contract: bool = True
    #: Whether float32 arithmetic keeps subnormal numbers: WGSL lets it flush them to zero.
    subnormals: bool = True
    #: Whether subgroup operations may be used, and the least and greatest number of invocations in a subgroup.
    subgroups: bool = False
    subgroup_least: int = 4
    subgroup_most: int = 128
    #: Storage buffers that a shader may bind.
    buffers: int = 8
    #: Bytes of one binding.
    binding: int = 1 << 27
    #: Bytes of workgroup memory.
    workgroup_memory: int = 1 << 14
    #: Invocations in a workgroup.
    invocations: int = 256
    #: Workgroups along a dimension.
    groups: int = 65535
    #: Offsets of bindings are multiples of this many bytes.
    alignment: int = 256
    #: Iterations that all loops of an invocation may take together: software drivers end loops that take more.
    iterations: int = 1 << 32
    #: The matrix units that may be used: "wgmma" (of compute capability 9.0), "mma" (of 8.0 and later), or none.
    matrix_units: str = ""
    #: The multiprocessors of a device with matrix units, and the bytes of shared memory that a launch may give a block there.
    processors: int = 0
    block_memory: int = 0
    #: The adapter's name, by which tuned schedules are found.
    adapter: str = ""
    # Limits of fusion: choices, not properties of a device.

    #: Inputs and outputs that fusion gives a kernel, at most.
    kernel_buffers: int = 8
    #: Equations that fusion gives a kernel, at most: code generators may recurse over them.
    kernel_equations: int = 200
    #: Elements of the longest row that a kernel visits again after a reduction over it.
    longest_row: int = 1 << 16
    #: Whether a kernel that reduces rows may store a row's elements far from each other: a transpose is a kernel of its own otherwise.
    scatters_rows: bool = True
    #: Bytes up to which a value is stored rather than recomputed.
    recompute_above: int = 4096


def forced(options: Any) -> str:
    """Return the fields of options that differ from their defaults, as text."""
    fields = {name: value for name, value in options._asdict().items() if value != options._field_defaults[name]}
    return ", ".join(f"{name}=({forced(value)})" if hasattr(value, "_asdict") else f"{name}={value}" for name, value in fields.items())


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline, with a one-line description."""

    name: str
    description: str
    run: Callable[..., Any]


@dataclass(frozen=True)
class ProgramPass(Pass):
    """A pass from jaxpr to jaxpr, before fusion."""

    run: Callable[[ClosedJaxpr], ClosedJaxpr]
    #: Whether it leaves work for the simplification passes, which run again if it changed the program.
    simplify_after: bool = False
    #: The primitives that it rewrites: it does not run on programs without them. If empty, it runs on all programs.
    subjects: frozenset[Primitive] = frozenset()


@dataclass(frozen=True)
class NodePass(Pass):
    """A pass over the kernel calls and equations of a fused program."""

    run: Callable[[FusedProgram], FusedProgram]


@dataclass(frozen=True)
class CommandPass(Pass):
    """A pass over the target's own commands, which the target runs."""


#: A generator of an equation's routine: (operands' types, parameters) -> routine, or None if there is none for these.
RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any]], Any]

#: The reasons for which callbacks, and collectives between processes, run on the host.
CALLS_PYTHON = "it calls a Python function"
CALLS_PROCESSES = "it talks to other processes"

CONTROL_FLOW = frozenset({scan_p, while_p, cond_p})


class Target:
    """A target of code generation.

    A subclass says what it can generate; this one generates nothing, and has core WebGPU's limits.
    """

    name = "none"
    #: The level at which steps on the host are logged: they are slow where arrays must be copied to the host and back.
    host_log_level = logging.INFO
    capabilities = TargetCapabilities()
    #: The routines of equations, by their primitives' names.
    equations: Mapping[str, RoutineMaker] = {}
    #: Primitives whose routines may store the first result in the memory of an operand, with that operand's position.
    in_place: Mapping[str, int] = {}

    def supports(self, op: str, dtypes: Sequence[Any], params: Mapping[str, Any]) -> bool:
        """Return True if kernels can do a scalar operation on operands of these dtypes."""
        return True

    def supports_reduction(self, dtype: Any) -> bool:
        """Return True if kernels can reduce numbers of this dtype."""
        return bool(dtype.kind != "c")

    def keeps_as_kernel(self, kernel: Kernel) -> bool:
        """Return True if a matrix product is worth a kernel, of tiles of sums or of loops.

        It reads its operands through views, and what follows the product joins it; other products stay equations.
        """
        return False

    def uses_product_routine(self, kernel: Kernel) -> bool:
        """Return True if a kernel runs as a product and its epilogue, not as loops.

        A product reads its other inputs only after a sum is complete, so that results may overwrite more of them.
        """
        return False

    def kernel_routine(self, kernel: Kernel, deferred_work: int = 0) -> Any:
        """Generate the routine of a kernel; None if there is none.

        For `deferred_work` see `KernelCall`.
        """
        return None

    def loop_key(self, eqn: Equation, programs: Sequence[LoweredProgram]) -> RoutineKey | None:
        """Return the key of a routine for control flow, of its lowered programs; or None."""
        return None

    def routine(self, key: RoutineKey) -> Any:
        """Generate the routine of a key; None if there is none."""
        return key.make()

    def keep_calls(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return the program with equations for calls that the target has routines for."""
        return closed

    def passes(self) -> Sequence[Pass]:
        """Return the passes that the target adds to the pipeline, in order."""
        return ()

    # derived from the above

    def computes(self, eqn: Equation) -> bool:
        """Return True if kernels can compute an equation of these dtypes."""
        operands = [v.aval.dtype for v in eqn.invars]
        if not STORAGE.isdisjoint([*operands, *[v.aval.dtype for v in eqn.outvars]]):
            return False
        if is_elementwise(eqn):
            return self.supports(eqn.primitive.name, operands, eqn.params)
        reduction = eqn.primitive.reduction
        if reduction is None or not reduces(eqn):
            return True
        return self.supports_reduction(operands[0]) and self.supports(reduction.step, [reduction.accumulator(operands[0])] * 2, {})

    def overwritable(self, item: Item, result: int) -> tuple[int, ...]:
        """Return the operands read for the last time, whose memory may hold a result."""
        if isinstance(item.node, KernelCall):
            return self.overwritable_inputs(item.node.kernel, result)
        name = item.node.primitive.name
        return (self.in_place[name],) if item.key is not None and name in self.in_place and result == 0 else ()

    def overwritable_inputs(self, kernel: Kernel, output: int) -> tuple[int, ...]:
        """Return the inputs of a kernel whose memory may hold an output.

        Those of a product's routine are what its sums are added to.
        """
        return accumulators(kernel, output) if self.uses_product_routine(kernel) else overwritable(kernel, output)

    def host_reason(self, item: Item) -> str | None:
        """Return the reason for running an item on the host; None if there is code."""
        if item.key is None and isinstance(item.node, Equation) and item.node.primitive in CONTROL_FLOW:
            return None
        return None if item.key is not None and self.routine(item.key) is not None else self.explain_host(item)

    def explain_host(self, item: Item) -> str:
        """Explain why an item that the target generates no code for runs on the host."""
        if isinstance(item.node, Equation) and (item.node.primitive.effectful or item.node.primitive is pure_callback_p):
            return CALLS_PYTHON
        if isinstance(item.node, Equation) and ("axis_names" in item.node.params or item.node.primitive is psum_done_p):
            return CALLS_PROCESSES
        if item.key is None:
            return f"the {self.name} target has no routine for it"
        return f"the {self.name} target has no routine for {', '.join(str(v.aval) for v in item.operands)} with these parameters"


# Programs that the pipeline has lowered for a target, which generates their code.


class RoutineKey(NamedTuple):
    """A routine's identity, and the function that makes it."""

    #: Describes the routine completely. Its repr is complete, too, and the same in every process: it names the routine on disk. A process
    #: finds routines by ``==``, so numbers in it that are equal have the same code: parameters hold no -0.0 (see `gather`).
    key: Any
    #: Generates the routine, or returns None if the target cannot.
    make: Callable[[], Any]


class Item(NamedTuple):
    """A node of a lowered program, with its routine's key.

    The key is None for control flow, and for equations of primitives that the target has no routines for. Another key may turn out to have
    no routine, too. NumPy computes such items on the host (`Target.host_reason` explains it to users).
    """

    node: ProgramNode
    operands: tuple[Atom, ...]
    results: tuple[Var, ...]
    key: RoutineKey | None
    #: The lowered programs of control flow: a scan's body; a while loop's condition and body; a conditional's branches.
    programs: tuple[LoweredProgram, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether it has an effect, or a result with elements."""
        return any(v.aval.size for v in self.results) or (isinstance(self.node, Equation) and has_effects(self.node))

    @property
    def is_deferred(self) -> bool:
        """Whether it is a deferred product that runs in one dispatch with others."""
        return isinstance(self.node, KernelCall) and self.node.deferred_work > 0


class HostStep(NamedTuple):
    """An equation that NumPy computes on the host, and why."""

    primitive: str
    reason: str
    #: The user's line that the equation comes from.
    source: str

    @classmethod
    def of(cls, item: Item, reason: str) -> HostStep:
        """Describe an item that runs on the host."""
        if isinstance(item.node, KernelCall):
            return cls("kernel", reason, "")
        return cls(item.node.primitive.name, reason, str(item.node.source or ""))

    def __str__(self) -> str:
        return f"{self.primitive} runs on the host ({self.reason}){f', at {self.source}' if self.source else ''}"


class LoweredProgram(NamedTuple):
    """A program, or the body or branch of control flow, ready for code generation."""

    target: Target
    closed: ClosedJaxpr
    items: tuple[Item, ...]
    #: Aliases (reshapes of values in memory), each with the variable whose memory it shares.
    roots: dict[Var, Var]
    #: The number of the item that reads a root last; for outputs, the number of items.
    last_use: dict[Var, int]
    #: The number of the item that computes a root.
    producers: dict[Var, int]

    def root(self, var: Var) -> Var:
        """Return the variable whose memory a variable has."""
        return self.roots.get(var, var)

    @property
    def results(self) -> list[Var]:
        """The roots of the outputs that the program computes itself, each once."""
        roots = [self.root(v) for v in self.closed.jaxpr.outvars if isinstance(v, Var)]
        return list(dict.fromkeys([v for v in roots if v in self.producers]))

    def routine_keys(self) -> list[RoutineKey]:
        """Return the keys of all routines, those of nested programs included."""
        keys = [item.key for item in self.items if item.key is not None]
        return keys + [key for item in self.items for program in item.programs for key in program.routine_keys()]

    def host_steps(self) -> Iterator[HostStep]:
        """Yield the equations that run on the host, those of nested programs included.

        This generates all routines.
        """
        for item in self.items:
            if item.is_needed and (reason := self.target.host_reason(item)) is not None:
                yield HostStep.of(item, reason)
            for program in item.programs:
                yield from program.host_steps()

    def outputs(self) -> list[Output]:
        """Return the outputs as results, arguments or constants."""
        results = {var: number for number, var in enumerate(self.results)}
        return [self._output(v, results) for v in self.closed.jaxpr.outvars]

    def _output(self, atom: Atom, results: dict[Var, int]) -> Output:
        if isinstance(atom, Literal):
            return Output(None, None, atom.val, atom.aval.shape)
        root, jaxpr = self.root(atom), self.closed.jaxpr
        if root in results:
            return Output(results[root], None, None, atom.aval.shape)
        if root in jaxpr.constvars:
            return Output(None, None, self.closed.consts[jaxpr.constvars.index(root)], atom.aval.shape)
        return Output(None, jaxpr.invars.index(root), None, atom.aval.shape)


class Passes(Protocol):
    """The interface of `compiler/pipeline.py`.

    `jit` passes it to targets, so that neither `core` nor `targets` imports the passes.
    """

    def lower(self, closed: ClosedJaxpr, target: Target) -> LoweredProgram:
        """Lower a program for a target."""

    def early_routine_keys(self, closed: ClosedJaxpr, target: Target) -> Iterator[RoutineKey]:
        """Yield the keys of equations that fusion leaves alone."""

    def optimize(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Simplify a program and move products out of scans."""

    def plan(self, closed: ClosedJaxpr, donated: Sequence[bool], writes: Callable[[Equation], Sequence[int]]) -> Plan:
        """Return the straight-line program that NumPy runs."""
