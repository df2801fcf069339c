"""The rules of `cond`: derived branches take and return the same types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Var, program_cache
from volta_fn.core.primitive import AxisData, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Tracer, bind
from volta_fn.dtypes import INEXACT
from volta_fn.primitives.barriers import stop_gradient
from volta_fn.primitives.control_flow.loops import cond_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim, instantiate, reshape, to_front
from volta_fn.primitives.elementwise.selection import eq, select_n
from volta_fn.transforms.linearize import (
    PartialEvalTrace,
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    partial_eval_rules,
    per_operand,
    split_tangents,
    transpose_jaxpr,
    transpose_rules,
)
from volta_fn.transforms.rules.programs import split_program
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules

Branches = tuple[ClosedJaxpr, ...]
#: (branch, marks to force on its outputs) -> (derived branch, marks of its outputs)
Derive = Callable[[ClosedJaxpr, list[bool]], tuple[ClosedJaxpr, list[bool]]]


def _union(marks_of_branches: Sequence[Sequence[bool]]) -> list[bool]:
    """Mark what is marked in any branch."""
    return [any(marks) for marks in zip(*marks_of_branches, strict=True)]


def _derived(branches: Branches, derive: Derive) -> tuple[Branches, list[bool]]:
    """Derive all branches, with an output marked in all of them if it is in any."""
    not_forced = [False] * len(branches[0].out_avals)
    forced = _union([derive(b, not_forced)[1] for b in branches])
    return tuple([derive(b, forced)[0] for b in branches]), forced


@jvp_rules.register(cond_p)
def _cond_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, branches: Branches) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = nonzero_marks(tangents[1:])
    forward, out_nonzero = _derived(branches, lambda b, forced: jvp_jaxpr(b, nonzero, forced))
    return split_tangents(bind(cond_p, *primals, *marked(tangents[1:], nonzero), branches=forward), out_nonzero)


@partial_eval_rules.register(cond_p)
def _cond_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    index, operands = args[0], args[1:]
    if trace.is_unknown(index):
        return trace.record(cond_p, args, params)
    is_unknown = [trace.is_unknown(a) for a in operands]
    known_branches, unknown_branches, out_unknown = _split_branches(params["branches"][0], params["branches"][1:], is_unknown)
    flat = bind(cond_p, index, *marked(operands, is_unknown, False), branches=known_branches)
    residuals = flat[out_unknown.count(False) :]
    recorded = trace.record(cond_p, [index, *residuals, *marked(operands, is_unknown)], {"branches": unknown_branches})
    return tuple(merge(out_unknown, recorded, flat))


@program_cache
def _split_branches(first: ClosedJaxpr, others: Branches, is_unknown: Sequence[bool]) -> tuple[Branches, Branches, list[bool]]:
    """Split every branch, with equal unknown outputs and types of residuals."""
    branches = (first, *others)
    not_forced = [False] * len(first.out_avals)
    out_unknown = _union([split_program(b, is_unknown, not_forced)[2] for b in branches])
    splits = [split_program(b, is_unknown, out_unknown) for b in branches]
    count = out_unknown.count(False)
    slots = _residual_slots([[v.aval for v in known_program.jaxpr.outvars[count:]] for known_program, _, _ in splits])
    pairs = [_with_slots(known_program, unknown_program, count, slots) for known_program, unknown_program, _ in splits]
    return tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs]), out_unknown


def _residual_slots(types: Sequence[Sequence[ShapedArray]]) -> list[ShapedArray]:
    """Return the fewest types that have room for the residuals of any one branch."""
    slots: Counter[ShapedArray] = Counter()
    for avals in types:
        slots |= Counter([a.strip_weak_type() for a in avals])
    return list(slots.elements())


def _with_slots(
    known_program: ClosedJaxpr, unknown_program: ClosedJaxpr, count: int, slots: Sequence[ShapedArray]
) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Assign a branch's residuals to slots; the known program fills others with zeros.

    The residuals are the known program's outputs from `count` on.
    """
    residuals = known_program.jaxpr.outvars[count:]
    unassigned = list(range(len(residuals)))
    #: For each slot, the position of a residual, or None.
    assignment: list[int | None] = []
    for slot in slots:
        position = next((i for i in unassigned if residuals[i].aval.strip_weak_type() is slot), None)
        assignment.append(position)
        if position is not None:
            unassigned.remove(position)

    def run(*args: Array) -> list[Array]:
        outs = eval_jaxpr(known_program, *args)
        return [*outs[:count], *[instantiate(Zero(s)) if i is None else outs[count + i] for i, s in zip(assignment, slots, strict=True)]]

    jaxpr = unknown_program.jaxpr
    inputs = [Var(s) if i is None else jaxpr.invars[i] for i, s in zip(assignment, slots, strict=True)]
    with_slots = unknown_program.replace(invars=[*inputs, *jaxpr.invars[len(residuals) :]])
    return trace_to_jaxpr(run, known_program.in_avals, "known"), with_slots


@transpose_rules.register(cond_p)
def _cond_transpose(cotangents: Sequence[Any], index: Any, *operands: Any, branches: Branches) -> list[Any]:
    linear, nonzero = linear_marks(operands), nonzero_marks(cotangents)
    backward, has_cotangent = _transpose_branches(branches[0], branches[1:], linear, nonzero)
    flat = bind(cond_p, index, *marked(operands, linear, False), *marked(cotangents, nonzero), branches=backward)
    return [None, *per_operand(flat, linear, has_cotangent)]


@program_cache
def _transpose_branches(
    first: ClosedJaxpr, others: Branches, linear: Sequence[bool], nonzero: Sequence[bool]
) -> tuple[Branches, list[bool]]:
    pairs = [transpose_jaxpr(b, linear, nonzero) for b in (first, *others)]
    has_cotangent = _union([marks for _, marks in pairs])
    avals = marked(first.in_avals, linear)
    return tuple([_with_required_cotangents(backward, computed, has_cotangent, avals) for backward, computed in pairs]), has_cotangent


def _with_required_cotangents(
    backward: ClosedJaxpr, computed: Sequence[bool], required: Sequence[bool], avals: Sequence[ShapedArray]
) -> ClosedJaxpr:
    """Let a backward program return zeros for cotangents that it does not compute."""
    if list(computed) == list(required):
        return backward

    def run(*args: Array) -> list[Array]:
        cotangents = merge(computed, eval_jaxpr(backward, *args), map(Zero, marked(avals, computed, False)))
        return [instantiate(ct) for ct in marked(cotangents, required)]

    return trace_to_jaxpr(run, backward.in_avals, "backward")


@batching_rules.register(cond_p)
def _cond_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, branches: Branches
) -> tuple[Sequence[Array], list[int | None]]:
    front = to_front(args, dims)
    stacked = [d is not None for d in dims[1:]]
    if dims[0] is not None:
        return _select_branch(axis, front, stacked, branches)
    batched, out_stacked = _derived(branches, lambda b, forced: batch_jaxpr(b, axis, stacked, forced))
    return bind(cond_p, *front, branches=batched), [0 if s else None for s in out_stacked]


def _select_branch(
    axis: AxisData, args: Sequence[Array], stacked: Sequence[bool], branches: Branches
) -> tuple[list[Array], list[int | None]]:
    """Run all branches for all examples, and select each example's branch.

    A branch gets the examples of other branches as constants: their derivatives may be infinite, and zero times infinity is NaN. Operands
    that are the same for all examples stay as they are; as constants for some examples they would have to be stacked.
    """
    index, operands = args[0], args[1:]
    all_stacked = [True] * len(branches[0].out_avals)
    results = []
    for number, branch in enumerate(branches):
        mask = eq(index, np.asarray(number, index.dtype))
        branch_operands = [_constant_unless(mask, x) if s else x for x, s in zip(operands, stacked, strict=True)]
        results.append(eval_jaxpr(batch_jaxpr(branch, axis, stacked, all_stacked)[0], *branch_operands))
    outs = [select_n(reshape(index, (axis.size, *(1,) * (cases[0].ndim - 1))), *cases) for cases in zip(*results, strict=True)]
    return outs, [0] * len(outs)


def _constant_unless(mask: Array, operand: Array) -> Array:
    """Return an operand whose examples are constants, except those in the mask."""
    if operand.dtype not in INEXACT or not isinstance(operand, Tracer):  # nothing is differentiated
        return operand
    return select_n(broadcast_in_dim(mask, operand.shape, (0,)), stop_gradient(operand), operand)
