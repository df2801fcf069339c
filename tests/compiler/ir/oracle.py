"""Running a fused program: kernels by the interpreter, other equations by their evaluation rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn.compiler import pipeline
from volta_fn.compiler.fusion import fuse
from volta_fn.compiler.ir.kernel import FusedProgram, Kernel, KernelCall, check_kernel, interpret, writes
from volta_fn.compiler.target import Target, TargetCapabilities
from volta_fn.core.jaxpr import Equation, Literal, inline_calls
from volta_fn.targets.numpy.backend import make_kernel


class SimpleTarget(Target):
    """A target with some capabilities of core WebGPU changed, which computes the equations and products that it is told to."""

    def __init__(
        self,
        computes: Callable[[Equation], bool] | None = None,
        keeps_as_kernel: Callable[[Kernel], bool] | None = None,
        **capabilities: int,
    ) -> None:
        self.capabilities = TargetCapabilities()._replace(**capabilities)  # type: ignore[arg-type]
        self._computes, self._keeps_as_kernel = computes, keeps_as_kernel

    def computes(self, eqn: Equation) -> bool:
        return True if self._computes is None else self._computes(eqn)

    def keeps_as_kernel(self, kernel: Kernel) -> bool:
        return False if self._keeps_as_kernel is None else self._keeps_as_kernel(kernel)


def fuse_function(function: Callable[..., Any], *args: Any, target: Target | None = None) -> FusedProgram:
    """Fuse a function's program."""
    return fuse(inline_calls(vf.make_jaxpr(function)(*args)), target or SimpleTarget())


def run(program: FusedProgram, *inputs: Any) -> list[np.ndarray]:
    """Return the results of a fused program, after a check that every item finds its operands and every kernel is well formed."""
    jaxpr = program.closed.jaxpr
    values: dict[Any, np.ndarray] = dict(zip(jaxpr.constvars, map(np.asarray, program.closed.consts), strict=True))
    values.update(zip(jaxpr.invars, map(np.asarray, inputs), strict=True))

    def read(atom: Any) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else values[program.root(atom)].reshape(atom.aval.shape)

    for node in program.nodes:
        result = run_item(node, [read(v) for v in (node.operands if isinstance(node, KernelCall) else node.invars)])
        for name, value in zip(writes(node), result, strict=True):
            assert name not in values, "a variable is computed twice"
            assert (value.shape, value.dtype) == (name.aval.shape, name.aval.dtype)
            values[name] = value
    return [read(v) for v in jaxpr.outvars]


def run_item(item: KernelCall | Equation, operands: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return the results of a kernel or an equation."""
    if isinstance(item, KernelCall):
        check_kernel(item.kernel)
        return interpret(item.kernel, *operands)
    with np.errstate(all="ignore"):
        result = make_kernel(item.primitive, tuple([v.aval for v in item.invars]), item.params, pipeline)(*operands)
    return [np.asarray(f) for f in (result if item.primitive.multiple_results else (result,))]


def equations_apart(program: FusedProgram) -> list[str]:
    """Return the names of the primitives that are in no kernel."""
    return [node.primitive.name for node in program.nodes if isinstance(node, Equation)]
