"""What the compiler knows of a target: capabilities, routines, and passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from volta_fn.compiler.ir.analysis import overwritable
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.ir.nodes import FusedProgram, KernelCall
from volta_fn.compiler.ir.views import is_elementwise, reduces
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.dtypes import STORAGE

if TYPE_CHECKING:
    from volta_fn.compiler.program import Item

#: How an equation becomes a routine: (operands' types, parameters) -> routine, or None if the target has none for these.
RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any]], Any]

#: Why callbacks, and collectives between processes, run on the host.
CALLS_PYTHON = "it calls a Python function"
CALLS_PROCESSES = "it talks to other processes"

CONTROL_FLOW = frozenset({"scan", "while", "cond"})


class TargetCapabilities(NamedTuple):
    """What a target offers: limits, dtypes and features.

    The defaults are what every WebGPU device has.
    """

    #: 16-bit floats (WGSL's ``enable f16``), 64-bit floats, and 64-bit integers.
    float16: bool = False
    float64: bool = False
    int64: bool = False
    #: Whether ``fma`` rounds once: WGSL lets it round twice.
    fma: bool = False
    #: Whether compilers may round a product and a sum once, in one kernel and not in another.
    contraction: bool = True
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
    #: The adapter's name, by which tuned schedules are found.
    adapter: str = ""
    #: Inputs and outputs that fusion gives a kernel, at most.
    kernel_buffers: int = 8
    #: Equations that fusion gives a kernel, at most: code generators may recurse over them.
    kernel_equations: int = 200
    #: Elements of the longest row that a kernel visits again after a reduction over it.
    longest_row: int = 1 << 16
    #: Bytes up to which a value is stored rather than recomputed.
    recompute_above: int = 4096


def forced(options: Any) -> str:
    """Return the fields of options that differ from their defaults, as text."""
    fields = {name: value for name, value in options._asdict().items() if value != options._field_defaults[name]}
    return ", ".join(f"{name}=({forced(value)})" if hasattr(value, "_asdict") else f"{name}={value}" for name, value in fields.items())


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline, with a one-line description of what it does."""

    name: str
    description: str
    run: Callable[..., Any]


@dataclass(frozen=True)
class ProgramPass(Pass):
    """A pass from jaxpr to jaxpr, before fusion."""

    run: Callable[[ClosedJaxpr], ClosedJaxpr]
    #: Whether it leaves work for the simplification passes, which run again if it changed the program.
    simplify_after: bool = False


@dataclass(frozen=True)
class NodePass(Pass):
    """A pass over the kernel calls and equations of a fused program."""

    run: Callable[[FusedProgram], FusedProgram]


@dataclass(frozen=True)
class CommandPass(Pass):
    """A pass over the target's own commands, which the target runs."""


class Target:
    """What code is generated for.

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

    def contracts(self, kernel: Kernel) -> bool:
        """Return True if a matrix product is worth being a kernel.

        Such a kernel has an epilogue, and reads its operands through the views in it.
        """
        return False

    def kernel_routine(self, kernel: Kernel, batch_products: int = 0) -> Any:
        """Generate the routine of a kernel; None if there is none.

        For `batch_products` see `KernelCall`.
        """
        return None

    def loop_key(self, eqn: Equation, programs: Sequence[Any]) -> Any:
        """Return the key of a routine for control flow, of its lowered programs; or None."""
        return None

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

    def overwritable(self, item: Item, result: int) -> list[int]:
        """Return the positions of an item's operands whose memory may hold a result.

        They must be read there for the last time.
        """
        if isinstance(item.node, KernelCall):
            return overwritable(item.node.kernel, result)
        name = item.node.primitive.name
        return [self.in_place[name]] if item.key is not None and name in self.in_place and result == 0 else []

    def host_reason(self, item: Item) -> str | None:
        """Return why NumPy computes an item; None if the target generates code for it."""
        if item.key is None and isinstance(item.node, Equation) and item.node.primitive.name in CONTROL_FLOW:
            return None
        return None if item.key is not None and item.key.make() is not None else self.explain_host(item)

    def explain_host(self, item: Item) -> str:
        """Explain why an item that the target generates no code for runs on the host."""
        if isinstance(item.node, Equation) and (item.node.primitive.effectful or item.node.primitive.name == "pure_callback"):
            return CALLS_PYTHON
        if isinstance(item.node, Equation) and ("axis_names" in item.node.params or item.node.primitive.name == "psum_done"):
            return CALLS_PROCESSES
        if item.key is None:
            return f"the {self.name} target has no routine for it"
        return f"the {self.name} target has no routine for {', '.join(str(v.aval) for v in item.operands)} with these parameters"
