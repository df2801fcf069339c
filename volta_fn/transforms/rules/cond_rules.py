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
from volta_fn.primitives.barriers import stop_gradient
from volta_fn.primitives.control_flow.conditionals import cond_p
from volta_fn.primitives.data_movement.joining import instantiate
from volta_fn.primitives.data_movement.movement import broadcast_in_dim, reshape
from volta_fn.primitives.elementwise.comparison import eq
from volta_fn.primitives.elementwise.selection import select_n
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace
from volta_fn.transforms.marks import is_linear, is_nonzero, marked, merge, split_tangents, spread
from volta_fn.transforms.rules.subprograms import split_program
from volta_fn.transforms.transpose import transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr, to_front

Branches = tuple[ClosedJaxpr, ...]
#: (branch, marks to force on its outputs) -> (derived branch, marks of its outputs)
Derive = Callable[[ClosedJaxpr, list[bool]], tuple[ClosedJaxpr, list[bool]]]


def _any(rows: Sequence[Sequence[bool]]) -> list[bool]:
    """Mark what any of the rows marks."""
    return [any(column) for column in zip(*rows, strict=True)]


def _derived(branches: Branches, derive: Derive) -> tuple[Branches, list[bool]]:
    """Derive all branches, with an output marked in all of them if it is in any."""
    free = [False] * len(branches[0].out_avals)
    wanted = _any([derive(b, free)[1] for b in branches])
    return tuple([derive(b, wanted)[0] for b in branches]), wanted


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, branches: Branches) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = is_nonzero(tangents[1:])
    forward, out_nonzero = _derived(branches, lambda b, wanted: jvp_jaxpr(b, nonzero, wanted))
    return split_tangents(bind(cond_p, *primals, *marked(tangents[1:], nonzero), branches=forward), out_nonzero)


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    index, operands = args[0], args[1:]
    if trace.is_unknown(index):
        return trace.record(cond_p, args, params)
    unknown = [trace.is_unknown(a) for a in operands]
    known, waiting, out_unknown = _split_branches(params["branches"][0], params["branches"][1:], unknown)
    flat = bind(cond_p, index, *marked(operands, unknown, False), branches=known)
    residuals = flat[out_unknown.count(False) :]
    recorded = trace.record(cond_p, [index, *residuals, *marked(operands, unknown)], {"branches": waiting})
    return tuple(merge(out_unknown, recorded, flat))


@program_cache
def _split_branches(first: ClosedJaxpr, others: Branches, unknown: Sequence[bool]) -> tuple[Branches, Branches, list[bool]]:
    """Split every branch, with equal unknown outputs and types of residuals."""
    branches = (first, *others)
    free = [False] * len(first.out_avals)
    out_unknown = _any([split_program(b, unknown, free)[2] for b in branches])
    splits = [split_program(b, unknown, out_unknown) for b in branches]
    count = out_unknown.count(False)
    slots = _residual_slots([[v.aval for v in known.jaxpr.outvars[count:]] for known, _, _ in splits])
    pairs = [_with_slots(known, waiting, count, slots) for known, waiting, _ in splits]
    return tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs]), out_unknown


def _residual_slots(types: Sequence[Sequence[ShapedArray]]) -> list[ShapedArray]:
    """Return types in which any branch's residuals fit; only one branch runs."""
    most: Counter[ShapedArray] = Counter()
    for avals in types:
        most |= Counter([a.strip_weak_type() for a in avals])
    return list(most.elements())


def _with_slots(known: ClosedJaxpr, waiting: ClosedJaxpr, count: int, slots: Sequence[ShapedArray]) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Assign a branch's residuals to slots; the known program fills others with zeros."""
    residuals = known.jaxpr.outvars[count:]
    free = list(range(len(residuals)))
    assigned: list[int | None] = []
    for slot in slots:
        assigned.append(next((i for i in free if residuals[i].aval.strip_weak_type() is slot), None))
        if assigned[-1] is not None:
            free.remove(assigned[-1])

    def run(*args: Array) -> list[Array]:
        outs = eval_jaxpr(known, *args)
        return [*outs[:count], *[instantiate(Zero(s)) if i is None else outs[count + i] for i, s in zip(assigned, slots, strict=True)]]

    jaxpr = waiting.jaxpr
    inputs = [Var(s) if i is None else jaxpr.invars[i] for i, s in zip(assigned, slots, strict=True)]
    waits = Jaxpr(jaxpr.constvars, [*inputs, *jaxpr.invars[len(residuals) :]], jaxpr.outvars, jaxpr.eqns)
    return trace_to_jaxpr(run, known.in_avals, "known"), ClosedJaxpr(waits, waiting.consts)


def _transpose(cotangents: Sequence[Any], index: Any, *operands: Any, branches: Branches) -> list[Any]:
    linear, nonzero = is_linear(operands), is_nonzero(cotangents)
    backward, given = _transpose_branches(branches[0], branches[1:], linear, nonzero)
    flat = bind(cond_p, index, *marked(operands, linear, False), *marked(cotangents, nonzero), branches=backward)
    return [None, *spread(flat, linear, given)]


@program_cache
def _transpose_branches(
    first: ClosedJaxpr, others: Branches, linear: Sequence[bool], nonzero: Sequence[bool]
) -> tuple[Branches, list[bool]]:
    pairs = [transpose_jaxpr(b, linear, nonzero) for b in (first, *others)]
    given = _any([g for _, g in pairs])
    avals = marked(first.in_avals, linear)
    return tuple([_giving(backward, own, given, avals) for backward, own in pairs]), given


def _giving(backward: ClosedJaxpr, own: Sequence[bool], wanted: Sequence[bool], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """Add zeros to a backward program for wanted cotangents that it does not compute."""
    if list(own) == list(wanted):
        return backward

    def run(*args: Array) -> list[Array]:
        cotangents = merge(own, eval_jaxpr(backward, *args), map(Zero, marked(avals, own, False)))
        return [instantiate(ct) for ct in marked(cotangents, wanted)]

    return trace_to_jaxpr(run, backward.in_avals, "backward")


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, branches: Branches
) -> tuple[Sequence[Array], list[int | None]]:
    front = to_front(args, dims)
    stacked = [d is not None for d in dims[1:]]
    if dims[0] is not None:
        return _select_branch(axis, front, stacked, branches)
    batched, out_stacked = _derived(branches, lambda b, wanted: batch_jaxpr(b, axis, stacked, wanted))
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
        own = [_constant_unless(chosen, x) if s else x for x, s in zip(operands, stacked, strict=True)]
        results.append(eval_jaxpr(batch_jaxpr(branch, axis, stacked, everything)[0], *own))
    outs = [select_n(reshape(index, (axis.size, *(1,) * (cases[0].ndim - 1))), *cases) for cases in zip(*results, strict=True)]
    return outs, [0] * len(outs)


def _constant_unless(chosen: Array, operand: Array) -> Array:
    """Return an operand whose examples are constants, but those that are chosen."""
    if operand.dtype not in INEXACT or not isinstance(operand, Tracer):
        return operand
    mask = broadcast_in_dim(chosen, operand.shape, (0,))
    return select_n(mask, stop_gradient(operand), operand)


cond_p.jvp = _jvp
cond_p.partial_eval = _partial_eval
cond_p.transpose = _transpose
cond_p.batch = _batch
