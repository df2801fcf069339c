"""Running a partition: kernels by the interpreter, other equations by their evaluation rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn.compiler.fusion.fuse import Fused, Limits, Partition, fuse
from volta_fn.compiler.ir.check import check_kernel
from volta_fn.compiler.ir.interpret import interpret
from volta_fn.compiler.passes.inline import inline_calls
from volta_fn.core.jaxpr import Equation, Literal
from volta_fn.targets.numpy.backend import make_kernel


def partition_of(function: Callable[..., Any], *args: Any, limits: Limits | None = None) -> Partition:
    """The partition of a function's program."""
    return fuse(inline_calls(vf.make_jaxpr(function)(*args)), limits)


def run(partition: Partition, *inputs: Any) -> list[np.ndarray]:
    """The results of a partition. Checks on the way that every item finds its operands and every kernel is well formed."""
    jaxpr = partition.program.jaxpr
    values: dict[Any, np.ndarray] = dict(zip(jaxpr.constvars, map(np.asarray, partition.program.consts), strict=True))
    values.update(zip(jaxpr.invars, map(np.asarray, inputs), strict=True))

    def read(atom: Any) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else values[atom]

    for item in partition.items:
        names = item.results if isinstance(item, Fused) else item.outvars
        found = run_item(item, [read(v) for v in (item.operands if isinstance(item, Fused) else item.invars)])
        for name, value in zip(names, found, strict=True):
            assert name not in values, "a variable is computed twice"
            assert (value.shape, value.dtype) == (name.aval.shape, name.aval.dtype)
            values[name] = value
    return [read(v) for v in jaxpr.outvars]


def run_item(item: Fused | Equation, operands: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """The results of a kernel or an equation."""
    if isinstance(item, Fused):
        check_kernel(item.kernel)
        return interpret(item.kernel, *operands)
    with np.errstate(all="ignore"):
        found = make_kernel(item.primitive, tuple([v.aval for v in item.invars]), item.params)(*operands)
    return [np.asarray(f) for f in (found if item.primitive.multiple_results else (found,))]


def equations_apart(partition: Partition) -> list[str]:
    """The names of the primitives that are in no kernel."""
    return [item.primitive.name for item in partition.items if isinstance(item, Equation)]
