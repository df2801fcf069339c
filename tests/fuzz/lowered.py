"""Run lowered programs in NumPy: passes, fusion and lifetimes of each target without its code.

Kernels are interpreted and equations evaluated. A value is dropped after its last use, so that reading it later raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.ir.kernel import KernelCall, interpret
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import CONTROL_FLOW, Item, LoweredProgram, Target, TargetCapabilities
from volta_fn.core.jaxpr import ClosedJaxpr, Literal, Var, sub_jaxprs
from volta_fn.jit.eager import PIPELINE
from volta_fn.runtime.native_calls import silenced
from volta_fn.targets.cpu.target import CpuTarget
from volta_fn.targets.numpy.backend import make_kernel
from volta_fn.targets.wgsl.target import WgslTarget


class _EagerCpuTarget(CpuTarget):
    """The CPU, for which values of few elements are recomputed, too, as otherwise those of many are."""

    capabilities = CpuTarget.capabilities._replace(recompute_above=64)


#: Targets by name: machine code, and GPUs with as much as one may have and as little as each one has.
TARGETS: dict[str, Target] = {
    "lowered for the CPU": _EagerCpuTarget(),
    "lowered for a rich GPU": WgslTarget(
        TargetCapabilities(
            float16=True, float64=True, int64=True, fma=True, subgroups=True, buffers=64, kernel_buffers=64, recompute_above=64
        )
    ),
    "lowered for a plain GPU": WgslTarget(TargetCapabilities(subnormals=False)),
}


def run(closed: ClosedJaxpr, target: Target, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a program gives as it is lowered for a target."""
    return _run(lower(closed, target), [np.asarray(x) for x in arguments])


def _run(program: LoweredProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    jaxpr = program.closed.jaxpr
    memory: dict[Var, np.ndarray] = dict(zip(jaxpr.constvars, map(np.asarray, program.closed.consts), strict=True))
    memory.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> np.ndarray:
        if isinstance(atom, Literal):
            return np.asarray(atom.val)
        return memory[program.root(atom)].reshape(atom.aval.shape)

    for number, item in enumerate(program.items):
        results = _item(item, [read(v) for v in item.operands], program.target)
        for var, result in zip(item.results, results, strict=True):
            assert (result.size, result.dtype) == (var.aval.size, var.aval.dtype), f"{result.dtype}{result.shape} for {var.aval}"
            memory[var] = result  # in another shape where it is the copy of an alias
        for var in {program.root(v) for v in (*item.operands, *item.results) if isinstance(v, Var)}:
            if program.last_use.get(var, -1) <= number:
                del memory[var]
    return [read(v) for v in jaxpr.outvars]


def _item(item: Item, operands: list[np.ndarray], target: Target) -> Sequence[np.ndarray]:
    node = item.node
    if isinstance(node, KernelCall):
        return interpret(node.kernel, *operands)
    name = node.primitive.name
    if node.primitive in CONTROL_FLOW and not item.programs:  # a loop that is one routine
        item = item._replace(programs=tuple([lower(p, target, True) for p in sub_jaxprs(node.params)]))
    if name == "scan":
        return _scan(item, operands, **node.params)
    if name == "while":
        first, before = node.params["cond_nconsts"], node.params["cond_nconsts"] + node.params["body_nconsts"]
        carry = operands[before:]
        while bool(_run(item.programs[0], [*operands[:first], *carry])[0]):
            carry = _run(item.programs[1], [*operands[first:before], *carry])
        return carry
    if name == "cond":
        return _run(item.programs[min(max(int(operands[0]), 0), len(item.programs) - 1)], operands[1:])
    results = silenced(make_kernel(node.primitive, tuple([v.aval for v in node.invars]), node.params, PIPELINE))(*operands)
    return [np.asarray(x) for x in (results if node.primitive.multiple_results else (results,))]


def _scan(item: Item, operands: Sequence[np.ndarray], *, length: int, reverse: bool, num_consts: int, num_carry: int, **_: Any) -> Any:
    consts, carry, rows = operands[:num_consts], [*operands[num_consts : num_consts + num_carry]], operands[num_consts + num_carry :]
    stacked = [np.empty(v.aval.shape, v.aval.dtype) for v in item.results[num_carry:]]
    for step in reversed(range(length)) if reverse else range(length):
        results = _run(item.programs[0], [*consts, *carry, *[row[step] for row in rows]])
        carry = results[:num_carry]
        for stack, value in zip(stacked, results[num_carry:], strict=True):
            stack[step] = value.reshape(stack.shape[1:])
    return [*carry, *stacked]
