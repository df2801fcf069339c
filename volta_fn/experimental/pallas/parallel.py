"""Axes of a grid along which a kernel's steps do not depend on each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from volta_fn.compiler.pipeline import simplify
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, called_program, sub_jaxprs
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.experimental.pallas.grid import Axis, KernelProgram
from volta_fn.experimental.pallas.specs import Blocked, Squeezed, size_of
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.control_flow.loops import cond_p, while_p
from volta_fn.primitives.control_flow.scan import scan_p

#: The most elements that the products in a kernel may have in all steps that run at once, where they are more than the outputs.
_MOST_ELEMENTS = 1 << 22


def forwarded(closed: ClosedJaxpr) -> list[int | None]:
    """Return, for each result of a program, the input that it is, if it is one."""
    source: dict[Atom, int] = {var: i for i, var in enumerate(closed.invars)}
    for eqn in closed.eqns:
        for out, position in zip(eqn.outvars, _forwarded_operands(eqn), strict=True):
            if position is not None and eqn.invars[position] in source:
                source[out] = source[eqn.invars[position]]
    return [source.get(atom) for atom in closed.outvars]


def _forwarded_operands(eqn: Equation) -> list[int | None]:
    """Return, for each result of an equation, the operand that it is, if it is one."""
    params = eqn.params
    if eqn.primitive is cond_p:
        results = zip(*[forwarded(branch) for branch in params["branches"]], strict=True)
        return [None if rows[0] is None or len({*rows}) > 1 else rows[0] + 1 for rows in results]
    if eqn.primitive is scan_p or eqn.primitive is while_p:
        is_scan = eqn.primitive is scan_p
        body = params["jaxpr"] if is_scan else params["body_jaxpr"]
        constants = params["num_consts"] if is_scan else params["body_nconsts"]
        before = constants if is_scan else params["cond_nconsts"] + constants
        return [before + i if source == constants + i else None for i, source in enumerate(forwarded(body))]
    program = called_program(eqn)
    return [None] * len(eqn.outvars) if program is None else forwarded(program)


def _axes_of_control(closed: ClosedJaxpr, masks: Sequence[int]) -> tuple[list[int], int]:
    """Return the axes that results depend on, and those that decide what runs.

    Axes are bits; `masks` are those of the inputs.
    """
    axes: dict[Atom, int] = dict(zip(closed.invars, masks, strict=True))
    control = 0
    for eqn in closed.eqns:
        operands = [axes.get(atom, 0) for atom in eqn.invars]
        results, decisive = _axes_of_equation(eqn, operands)
        control |= decisive
        axes.update(zip(eqn.outvars, results, strict=True))
    return [axes.get(atom, 0) for atom in closed.outvars], control


def _axes_of_equation(eqn: Equation, operands: list[int]) -> tuple[list[int], int]:
    params = eqn.params
    if eqn.primitive is cond_p:
        branches = [_axes_of_control(branch, operands[1:]) for branch in params["branches"]]
        results = [operands[0] | _union(rows) for rows in zip(*[outs for outs, _ in branches], strict=True)]
        return results, operands[0] | _union([control for _, control in branches])
    if eqn.primitive is while_p:
        n, m = params["cond_nconsts"], params["body_nconsts"]
        carry, decisive = operands[n + m :], 0
        while True:
            [test], control = _axes_of_control(params["cond_jaxpr"], [*operands[:n], *carry])
            outs, inner = _axes_of_control(params["body_jaxpr"], [*operands[n : n + m], *carry])
            decisive |= test | control | inner
            wider = [a | b | test for a, b in zip(carry, outs, strict=True)]
            if wider == carry:
                return carry, decisive
            carry = wider
    if eqn.primitive is scan_p:
        n, m = params["num_consts"], params["num_carry"]
        carry = operands[n : n + m]
        while True:
            outs, decisive = _axes_of_control(params["jaxpr"], [*operands[:n], *carry, *operands[n + m :]])
            wider = [a | b for a, b in zip(carry, outs[:m], strict=True)]
            if wider == carry:
                return [*carry, *outs[m:]], decisive
            carry = wider
    program = called_program(eqn)
    if program is not None:
        return _axes_of_control(program, operands)
    return [_union(operands)] * len(eqn.outvars), 0


def _union(masks: Sequence[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def parallel_axes(kernel: KernelProgram) -> list[int]:
    """Return the axes of the grid along which steps may run at once.

    These are axes that number the blocks of every output, and that decide neither branches nor the lengths of loops, since a mapped
    conditional runs both branches. There are none if the kernel writes to an input or a reference from outside, has effects, or finds in
    scratch memory what a step before left. Axes whose products would take much memory are left out, the outermost first.
    """
    reads_only = not any(kernel.writes[: kernel.scalars + len(kernel.inputs)])
    if not reads_only or kernel.references or kernel.program.effects or not kernel.outputs:
        return []
    axes = [axis for axis, size in enumerate(kernel.grid) if isinstance(size, int) and size > 1 and _numbers_outputs(kernel, axis)]
    control = _control(kernel, axes) if axes else 0
    axes = _within_memory(kernel, [axis for axis in axes if not control >> axis & 1])
    return axes if axes and _resets_scratch(kernel, axes) else []


def _numbers_outputs(kernel: KernelProgram, axis: int) -> bool:
    """Return True if an axis numbers blocks of every output, and all of them."""
    for blocks in kernel.outputs:
        shape = [low + size + high for size, (low, high, _) in zip(blocks.aval.shape, blocks.padding, strict=True)]
        if not any(
            component == Axis(axis) and isinstance(dim, (Blocked, Squeezed)) and kernel.grid[axis] * size_of(dim) == size
            for component, dim, size in zip(blocks.components, blocks.dims, shape, strict=True)
        ):
            return False
    return True


def _control(kernel: KernelProgram, axes: Sequence[int]) -> int:
    """Return the axes that decide which equations of a kernel run."""
    indices = [1 << axis for axis in range(len(kernel.grid))]
    scalars = [0] * kernel.scalars
    inputs = [_union(_axes_of_control(b.index_map, [*indices, *scalars])[0]) for b in kernel.inputs]
    rest = [_union([1 << axis for axis in axes])] * (len(kernel.outputs) + len(kernel.scratch))
    return _axes_of_control(kernel.program, [*indices, *scalars, *inputs, *rest])[1]


def _within_memory(kernel: KernelProgram, axes: list[int]) -> list[int]:
    largest = _largest_product(kernel.program)
    if largest <= sum(math.prod(b.shape) for b in kernel.outputs):
        return axes
    while axes and largest * math.prod([kernel.grid[axis] for axis in axes]) > _MOST_ELEMENTS:
        axes = axes[1:]
    return axes


def _largest_product(closed: ClosedJaxpr) -> int:
    sizes = [eqn.outvars[0].aval.size for eqn in closed.eqns if eqn.primitive is dot_general_p]
    return max([0, *sizes, *[_largest_product(program) for eqn in closed.eqns for program in sub_jaxprs(eqn.params)]])


def _resets_scratch(kernel: KernelProgram, axes: Sequence[int]) -> bool:
    """Return True if scratch memory is written before it is read.

    That is asked of the first step along all other axes.
    """
    if not kernel.scratch:
        return True
    avals = kernel.program.in_avals
    rank, last = len(kernel.grid), len(avals) - len(kernel.scratch)

    def first_step(*values: Array) -> list[Array]:
        indices = [values[i] if i in axes else as_value(np.int32(0)) for i in range(rank)]
        return eval_jaxpr(kernel.program, *indices, *values[rank:])

    closed = simplify(trace_to_jaxpr(first_step, avals))
    used: set[Atom] = {atom for eqn in closed.eqns for atom in eqn.invars if isinstance(atom, Var)}
    used.update(closed.outvars)
    return not used.intersection(closed.invars[last:])
