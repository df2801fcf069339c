"""The rules of `cond`: derived branches take and return the same types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var, program_cache
from volta_fn.core.primitive import AxisData, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Tracer, bind
from volta_fn.dtypes import INEXACT
from volta_fn.primitives.call import stop_gradient
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


def _any(rows: Sequence[Sequence[bool]]) -> list[bool]:
    """Combine rows of marks by `or`."""
    return [any(column) for column in zip(*rows, strict=True)]


def _derived(branches: Branches, derive: Derive) -> tuple[Branches, list[bool]]:
    """Derive all branches, with an output marked in all of them if it is in any."""
    free = [False] * len(branches[0].out_avals)
    forced = _any([derive(b, free)[1] for b in branches])
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
    free = [False] * len(first.out_avals)
    out_unknown = _any([split_program(b, is_unknown, free)[2] for b in branches])
    splits = [split_program(b, is_unknown, out_unknown) for b in branches]
    count = out_unknown.count(False)
    slots = _residual_slots([[v.aval for v in known_program.jaxpr.outvars[count:]] for known_program, _, _ in splits])
    pairs = [_with_slots(known_program, unknown_program, count, slots) for known_program, unknown_program, _ in splits]
    return tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs]), out_unknown


def _residual_slots(types: Sequence[Sequence[ShapedArray]]) -> list[ShapedArray]:
    """Return types in which any branch's residuals fit; only one branch runs."""
    most: Counter[ShapedArray] = Counter()
    for avals in types:
        most |= Counter([a.strip_weak_type() for a in avals])
    return list(most.elements())


def _with_slots(
    known_program: ClosedJaxpr, unknown_program: ClosedJaxpr, count: int, slots: Sequence[ShapedArray]
) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Assign a branch's residuals to slots; the known program fills others with zeros."""
    residuals = known_program.jaxpr.outvars[count:]
    free = list(range(len(residuals)))
    assigned: list[int | None] = []
    for slot in slots:
        assigned.append(next((i for i in free if residuals[i].aval.strip_weak_type() is slot), None))
        if assigned[-1] is not None:
            free.remove(assigned[-1])

    def run(*args: Array) -> list[Array]:
        outs = eval_jaxpr(known_program, *args)
        return [*outs[:count], *[instantiate(Zero(s)) if i is None else outs[count + i] for i, s in zip(assigned, slots, strict=True)]]

    jaxpr = unknown_program.jaxpr
    inputs = [Var(s) if i is None else jaxpr.invars[i] for i, s in zip(assigned, slots, strict=True)]
    waits = Jaxpr(jaxpr.constvars, [*inputs, *jaxpr.invars[len(residuals) :]], jaxpr.outvars, jaxpr.eqns)
    return trace_to_jaxpr(run, known_program.in_avals, "known"), ClosedJaxpr(waits, unknown_program.consts)


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
    has_cotangent = _any([g for _, g in pairs])
    avals = marked(first.in_avals, linear)
    return tuple([_with_required_cotangents(backward, computed, has_cotangent, avals) for backward, computed in pairs]), has_cotangent


def _with_required_cotangents(
    backward: ClosedJaxpr, computed: Sequence[bool], required: Sequence[bool], avals: Sequence[ShapedArray]
) -> ClosedJaxpr:
    """Add zeros to a backward program for wanted cotangents that it does not compute."""
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

    Of the examples of other branches, a branch gets constants: their derivatives may be infinite, and zero times that is NaN. Operands
    that are the same for all examples stay as they are, since these would have to be repeated.
    """
    index, operands = args[0], args[1:]
    everything = [True] * len(branches[0].out_avals)
    results = []
    for number, branch in enumerate(branches):
        chosen = eq(index, np.asarray(number, index.dtype))
        branch_operands = [_constant_unless(chosen, x) if s else x for x, s in zip(operands, stacked, strict=True)]
        results.append(eval_jaxpr(batch_jaxpr(branch, axis, stacked, everything)[0], *branch_operands))
    outs = [select_n(reshape(index, (axis.size, *(1,) * (cases[0].ndim - 1))), *cases) for cases in zip(*results, strict=True)]
    return outs, [0] * len(outs)


def _constant_unless(chosen: Array, operand: Array) -> Array:
    """Return an operand whose examples are constants, except the chosen ones."""
    if operand.dtype not in INEXACT or not isinstance(operand, Tracer):
        return operand
    mask = broadcast_in_dim(chosen, operand.shape, (0,))
    return select_n(mask, stop_gradient(operand), operand)
