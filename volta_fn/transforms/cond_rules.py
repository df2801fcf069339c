"""The rules of `cond`: each transform is applied to every branch, and the branches made to agree in what they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from volta_fn.core.primitive import AxisData, Linear, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.primitives.control_flow.conditionals import cond_p
from volta_fn.primitives.joining import instantiate
from volta_fn.primitives.movement import moveaxis, reshape
from volta_fn.primitives.selection import select_n
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace
from volta_fn.transforms.subprograms import split_program
from volta_fn.transforms.transpose import transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr

Branches = tuple[ClosedJaxpr, ...]
#: (branch, what is wanted of each output) -> (derived branch, what holds for each output)
Derive = Callable[[ClosedJaxpr, list[bool]], tuple[ClosedJaxpr, list[bool]]]


def _any(columns: Sequence[Sequence[bool]]) -> list[bool]:
    """Where any of the rows is true."""
    return [any(column) for column in zip(*columns, strict=True)]


def _derived(branches: Branches, derive: Derive) -> tuple[Branches, list[bool]]:
    """The derived branches, all forced to have the property that any of them has of its own, output by output."""
    free = [False] * len(branches[0].out_avals)
    wanted = _any([derive(b, free)[1] for b in branches])
    return tuple([derive(b, wanted)[0] for b in branches]), wanted


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, branches: Branches) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = [type(t) is not Zero for t in tangents[1:]]
    forward, out_nonzero = _derived(branches, lambda b, wanted: jvp_jaxpr(b, nonzero, wanted))
    flat = bind(cond_p, *primals, *[t for t in tangents[1:] if type(t) is not Zero], branches=forward)
    outs, rates = flat[: len(out_nonzero)], iter(flat[len(out_nonzero) :])
    return outs, [next(rates) if nz else Zero(o.aval.at_least_vspace()) for nz, o in zip(out_nonzero, outs, strict=True)]


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    index, operands = args[0], args[1:]
    if trace.is_unknown(index):
        return trace.record(cond_p, args, params)
    unknown = [trace.is_unknown(a) for a in operands]
    known_branches, waiting_branches, out_unknown = _split_branches(params["branches"], unknown)
    known_operands = [a for a, u in zip(operands, unknown, strict=True) if not u]
    flat = bind(cond_p, index, *known_operands, branches=known_branches)
    count = out_unknown.count(False)
    known_outs, residuals = iter(flat[:count]), flat[count:]
    waiting_args = [index, *residuals, *[a for a, u in zip(operands, unknown, strict=True) if u]]
    waiting_outs = iter(trace.record(cond_p, waiting_args, {"branches": waiting_branches}))
    return tuple([next(waiting_outs) if u else next(known_outs) for u in out_unknown])


def _split_branches(branches: Branches, unknown: Sequence[bool]) -> tuple[Branches, Branches, list[bool]]:
    """Every branch split in two, with the same outputs unknown and the same types of residuals."""
    key = ("cond_split", branches[1:], tuple(unknown))
    cache = branches[0].cache
    if key not in cache:
        free = [False] * len(branches[0].out_avals)
        out_unknown = _any([split_program(b, unknown, free)[2] for b in branches])
        splits = [split_program(b, unknown, out_unknown) for b in branches]
        count = out_unknown.count(False)
        slots = _residual_slots([[v.aval for v in known.jaxpr.outvars[count:]] for known, _, _ in splits])
        pairs = [_with_slots(known, waiting, count, slots) for known, waiting, _ in splits]
        cache[key] = tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs]), out_unknown
    return cache[key]


def _residual_slots(kinds: Sequence[Sequence[ShapedArray]]) -> list[ShapedArray]:
    """Types such that every branch finds one for each of its residuals. Branches share them: only one branch runs."""
    most: Counter[ShapedArray] = Counter()
    for avals in kinds:
        most |= Counter([a.strip_weak_type() for a in avals])
    return list(most.elements())


def _with_slots(known: ClosedJaxpr, waiting: ClosedJaxpr, count: int, slots: Sequence[ShapedArray]) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """The two halves of a branch with their residuals in the slots of their types, and zeros in the other slots."""
    residuals = known.jaxpr.outvars[count:]
    free = list(range(len(residuals)))
    chosen: list[int | None] = []
    for slot in slots:
        chosen.append(next((i for i in free if residuals[i].aval.strip_weak_type() is slot), None))
        if chosen[-1] is not None:
            free.remove(chosen[-1])

    def run(*args: Array) -> list[Array]:
        outs = eval_jaxpr(known, *args)
        return [*outs[:count], *[instantiate(Zero(s)) if i is None else outs[count + i] for i, s in zip(chosen, slots, strict=True)]]

    jaxpr = waiting.jaxpr
    inputs = [Var(s) if i is None else jaxpr.invars[i] for i, s in zip(chosen, slots, strict=True)]
    waits = Jaxpr(jaxpr.constvars, [*inputs, *jaxpr.invars[len(residuals) :]], jaxpr.outvars, jaxpr.eqns)
    return trace_to_jaxpr(run, known.in_avals, "known"), ClosedJaxpr(waits, waiting.consts)


def _transpose(cotangents: Sequence[Any], index: Any, *operands: Any, branches: Branches) -> list[Any]:
    linear = [type(a) is Linear for a in operands]
    nonzero = [type(c) is not Zero for c in cotangents]
    backward, gives = _transpose_branches(branches, linear, nonzero)
    known = [a for a, is_linear in zip(operands, linear, strict=True) if not is_linear]
    flat = iter(bind(cond_p, index, *known, *[c for c in cotangents if type(c) is not Zero], branches=backward))
    given = iter(gives)
    return [None, *[next(flat) if is_linear and next(given) else None for is_linear in linear]]


def _transpose_branches(branches: Branches, linear: Sequence[bool], nonzero: Sequence[bool]) -> tuple[Branches, list[bool]]:
    key = ("cond_transpose", branches[1:], tuple(linear), tuple(nonzero))
    cache = branches[0].cache
    if key not in cache:
        pairs = [transpose_jaxpr(b, linear, nonzero) for b in branches]
        gives = _any([g for _, g in pairs])
        avals = [a for a, is_linear in zip(branches[0].in_avals, linear, strict=True) if is_linear]
        cache[key] = tuple([_giving(backward, own, gives, avals) for backward, own in pairs]), gives
    return cache[key]


def _giving(backward: ClosedJaxpr, own: Sequence[bool], wanted: Sequence[bool], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The backward program with zeros for the wanted cotangents that are not its own."""
    if list(own) == list(wanted):
        return backward

    def run(*args: Array) -> list[Array]:
        outs = iter(eval_jaxpr(backward, *args))
        everything = [next(outs) if o else Zero(a) for o, a in zip(own, avals, strict=True)]
        return [instantiate(ct) for ct, w in zip(everything, wanted, strict=True) if w]

    return trace_to_jaxpr(run, backward.in_avals, "backward")


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, branches: Branches
) -> tuple[Sequence[Array], list[int | None]]:
    front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    stacked = [d is not None for d in dims[1:]]
    if dims[0] is not None:
        return _select_branch(axis, front, stacked, branches)
    batched, out_stacked = _derived(branches, lambda b, wanted: batch_jaxpr(b, axis, stacked, wanted))
    return bind(cond_p, *front, branches=batched), [0 if s else None for s in out_stacked]


def _select_branch(
    axis: AxisData, args: Sequence[Array], stacked: Sequence[bool], branches: Branches
) -> tuple[list[Array], list[int | None]]:
    """Examples differ in their branch: compute all branches for all examples, and take from each example's own."""
    index, operands = args[0], args[1:]
    everything = [True] * len(branches[0].out_avals)
    results = [eval_jaxpr(batch_jaxpr(b, axis, stacked, everything)[0], *operands) for b in branches]
    outs = [select_n(reshape(index, (axis.size, *(1,) * (cases[0].ndim - 1))), *cases) for cases in zip(*results, strict=True)]
    return outs, [0] * len(outs)


cond_p.jvp = _jvp
cond_p.partial_eval = _partial_eval
cond_p.transpose = _transpose
cond_p.batch = _batch
