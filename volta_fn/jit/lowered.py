"""`Lowered`: a traced function to inspect; loaded on use, with the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import tree
from volta_fn.compiler import pipeline
from volta_fn.compiler.buffers.memory_layout import Memory
from volta_fn.compiler.buffers.plan import Plan, bytes_of
from volta_fn.compiler.program import HostStep
from volta_fn.core.array import as_value
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, format_jaxpr
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentTypeError, TracerError
from volta_fn.jit.compile import Traced, compiled
from volta_fn.jit.eager import PIPELINE, check_usable
from volta_fn.jit.texts import code_of


class Lowered:
    """A traced function: its program, the simplified program, its memory, its code.

    `jaxpr` and `simplified` are the same for all targets. `plan` is what the NumPy target runs: a straight line of steps. The CPU and GPU
    targets fuse the simplified program into kernels instead, and `memory` and `compile` ask the target of the default device.
    """

    def __init__(self, traced: Traced, in_tree: Any, device: Device) -> None:
        self._traced = traced
        self._in_tree = in_tree
        self._device = device

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as it was traced."""
        return self._traced.jaxpr

    @property
    def simplified(self) -> ClosedJaxpr:
        """The program after simplification, which is the same for all targets."""
        return pipeline.simplify(self._traced.jaxpr)

    @property
    def out_info(self) -> Any:
        """The results' shapes and dtypes, as a pytree of `ShapeDtypeStruct`."""
        return tree.unflatten(self._traced.out_tree, [struct_of(a) for a in self._traced.jaxpr.out_avals])

    @property
    def plan(self) -> Plan:
        """The steps that the NumPy target runs; other targets compile kernels instead."""
        return pipeline.plan(self._traced.jaxpr, self._traced.donated)

    def memory(self) -> Memory:
        """Return the bytes that the compiled program needs, known without running it.

        >>> import volta_fn as vf
        >>> vf.jit(lambda x: x @ x + 1.0).lower(vf.numpy.ones((16, 16))).memory().results
        1024
        """
        program = self._traced.jaxpr
        arguments, results = (sum(bytes_of(a) for a in avals) for avals in (program.in_avals, program.out_avals))
        return Memory(arguments, results, self._device.backend.temporaries(program, self._traced.donated, PIPELINE))

    def host_steps(self) -> list[HostStep]:
        """Return the equations that NumPy computes on the host, each with the reason.

        The device's target has no code for them.

        On a GPU each such step copies its operands to the host and its results back. On the CPU without llvmlite NumPy runs all
        equations, and the list is empty.

        >>> import volta_fn as vf
        >>> steps = vf.jit(lambda x: vf.pure_callback(abs, x, x)).lower(-1.0).host_steps()
        >>> {step.reason for step in steps} <= {"it calls a Python function"}
        True
        """
        target = self._device.backend.target
        return [] if target is None else list(pipeline.lower(self._traced.jaxpr, target).host_steps())

    def as_text(self, dialect: str = "jaxpr", *, debug_info: bool = False) -> str:
        """Return the program as text.

        Args:
            dialect: "jaxpr" is the program in JAX's notation, with a comment for each host step; "kernels" the loops that it is fused
                into; "llvm" and "wgsl" the code of these for the CPU and for GPUs, of whatever kind the default device is.
            debug_info: whether each equation of the jaxpr has the user's line after it.

        Raises `ArgumentError` for another dialect.

        >>> import volta_fn as vf
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
        if dialect != "jaxpr":
            return code_of(self._traced.jaxpr, dialect, self._device)
        return "\n".join([format_jaxpr(self._traced.jaxpr.jaxpr, sources=debug_info), *[f"# {step}" for step in self.host_steps()]])

    def compile(self) -> Callable[..., Any]:
        """Return the compiled function of the dynamic arguments.

        It raises `ArgumentTypeError` for types other than those it was lowered for, and `TracerError` inside of a transform.
        """
        traced, in_tree = self._traced, self._in_tree
        run = compiled(traced, self._device)
        avals = traced.jaxpr.in_avals[: len(traced.jaxpr.in_avals) - len(traced.in_full)]
        wanted = [(a.shape, a.dtype) for a in avals]

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree.flatten((args, kwargs))
            values = [as_value(x) for x in leaves]
            if structure != in_tree or [(v.shape, v.dtype) for v in values] != wanted:
                raise ArgumentTypeError(
                    f"{traced.name} was compiled for arguments of structure {in_tree} and types {avals}, "
                    f"but called with {structure} and {[v.aval for v in values]}"
                )
            if any(isinstance(v, Tracer) for v in values):
                raise TracerError(
                    f"{traced.name} was lowered and compiled, so no transform can see into it, but it was called with traced arrays. "
                    "Transform the function itself, or its jit, and call the compiled one with arrays."
                )
            check_usable(values)
            return run(values)

        return call


def struct_of(aval: ShapedArray) -> ShapeDtypeStruct:
    """Return the public description of an aval."""
    return ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
