"""The rules of `while`: forward mode, partial evaluation, batching. Its number of steps is unknown, so it cannot be transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import GradientError
from volta_fn.primitives.control_flow.loops import while_p
from volta_fn.primitives.joining import instantiate
from volta_fn.primitives.movement import moveaxis, reshape
from volta_fn.primitives.reduction import reduce_or
from volta_fn.primitives.selection import select
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace
from volta_fn.transforms.subprograms import chosen, fixed_point, rearranged, split_program, stack_if, with_unused
from volta_fn.transforms.vmap import batch_jaxpr


def _divided(values: Sequence[Any], params: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Something per operand, by roles: the condition's constants, the body's constants, the carry."""
    start, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return values[:start], values[start:end], values[end:]


def _bind_while(
    cond: ClosedJaxpr, body: ClosedJaxpr, cond_consts: Sequence[Array], body_consts: Sequence[Array], carry: Sequence[Array]
) -> Any:
    return bind(
        while_p, *cond_consts, *body_consts, *carry,
        cond_jaxpr=cond, body_jaxpr=body, cond_nconsts=len(cond_consts), body_nconsts=len(body_consts),
    )  # fmt: skip


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], Sequence[Any]]:
    cond_consts, body_consts, carry = _divided(primals, params)
    _, const_rates, carry_rates = _divided(tangents, params)
    consts_nonzero = [type(t) is not Zero for t in const_rates]

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        return jvp_jaxpr(params["body_jaxpr"], [*consts_nonzero, *marks], marks)

    (forward, nonzero) = fixed_point([type(t) is not Zero for t in carry_rates], step)
    given = chosen(const_rates, consts_nonzero)
    rates = [instantiate(t) for t in chosen(carry_rates, nonzero)]
    start, end = len(body_consts), len(body_consts) + len(carry)
    order = [*range(start), *range(end, end + len(given)), *range(start, end), *range(end + len(given), end + len(given) + len(rates))]
    body = rearranged(forward, order, range(len(forward.out_avals)))
    cond = with_unused(params["cond_jaxpr"], [r.aval for r in rates])
    flat = _bind_while(cond, body, cond_consts, [*body_consts, *given], [*carry, *rates])
    outs, found = flat[: len(carry)], iter(flat[len(carry) :])
    return outs, [next(found) if nz else Zero(o.aval.at_least_vspace()) for nz, o in zip(nonzero, outs, strict=True)]


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    """The known part of the carry runs now, if the condition needs no other; the loop that waits computes it again."""
    cond_unknown, consts_unknown, start_unknown = _divided([trace.is_unknown(a) for a in args], params)

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        known, _, out = split_program(params["body_jaxpr"], [*consts_unknown, *marks], marks)
        return known, out

    known, unknown = fixed_point(start_unknown, step)
    stops, _, (stops_unknown,) = split_program(params["cond_jaxpr"], [*cond_unknown, *unknown], [False])
    recorded = trace.record(while_p, args, params)
    if stops_unknown or all(unknown):
        return recorded
    body = rearranged(known, range(len(known.in_avals)), range(unknown.count(False)))
    cond = rearranged(stops, range(len(stops.in_avals)), [0])
    parts = [chosen(p, u, False) for p, u in zip(_divided(args, params), (cond_unknown, consts_unknown, unknown), strict=True)]
    flat = iter(_bind_while(cond, body, *parts))
    return tuple([r if u else next(flat) for u, r in zip(unknown, recorded, strict=True)])


def _transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> NoReturn:
    raise GradientError(
        "reverse-mode differentiation cannot pass a while_loop (or a fori_loop with bounds that are traced): the number of its steps is "
        "unknown, so there is no room for what the way back needs. Use lax.scan, or lax.fori_loop with bounds that are Python integers; or "
        "forward mode (jvp, jacfwd); or give the function a custom_vjp."
    )


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Sequence[Array], list[int | None]]:
    cond_consts, body_consts, carry = _divided(args, params)
    cond_dims, body_dims, carry_dims = _divided(dims, params)
    cond_stacked, body_stacked = [d is not None for d in cond_dims], [d is not None for d in body_dims]
    cond_front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(cond_consts, cond_dims, strict=True)]
    body_front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(body_consts, body_dims, strict=True)]

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        return batch_jaxpr(params["body_jaxpr"], axis, [*body_stacked, *marks], marks)

    body, stacked = fixed_point([d is not None for d in carry_dims], step)
    cond, (differs,) = batch_jaxpr(params["cond_jaxpr"], axis, [*cond_stacked, *stacked])
    if not differs:
        start = [stack_if(s, a, d, axis.size) for s, a, d in zip(stacked, carry, carry_dims, strict=True)]
        return _bind_while(cond, body, cond_front, body_front, start), [0 if s else None for s in stacked]
    everything = [True] * len(carry)
    start = [stack_if(True, a, d, axis.size) for a, d in zip(carry, carry_dims, strict=True)]
    cond = batch_jaxpr(params["cond_jaxpr"], axis, [*cond_stacked, *everything], [True])[0]
    body = batch_jaxpr(params["body_jaxpr"], axis, [*body_stacked, *everything], everything)[0]
    outs = _run_until_all_stop(cond, body, cond_front, body_front, start)
    return outs, [0] * len(outs)


def _run_until_all_stop(
    cond: ClosedJaxpr, body: ClosedJaxpr, cond_consts: Sequence[Array], body_consts: Sequence[Array], start: Sequence[Array]
) -> Sequence[Array]:
    """A loop whose carry begins with each example's condition; a step changes the examples for which it holds."""
    (running,) = eval_jaxpr(cond, *cond_consts, *start)
    count, end = len(cond_consts), len(cond_consts) + len(body_consts)

    def step(*flat: Array) -> list[Array]:
        consts, own, going, carry = flat[:count], flat[count:end], flat[end], flat[end + 1 :]
        moved = eval_jaxpr(body, *own, *carry)
        kept = [select(reshape(going, (*going.shape, *(1,) * (old.ndim - 1))), new, old) for old, new in zip(carry, moved, strict=True)]
        return [*eval_jaxpr(cond, *consts, *kept), *kept]

    key = ("while_batch", body)
    if key not in cond.cache:
        avals = [x.aval for x in (*cond_consts, *body_consts, running, *start)]
        anyone = trace_to_jaxpr(lambda going, *_: [reduce_or(going, (0,))], avals[end:], "any")
        cond.cache[key] = anyone, trace_to_jaxpr(step, avals, "step")
    anyone, masked = cond.cache[key]
    return _bind_while(anyone, masked, [], [*cond_consts, *body_consts], [running, *start])[1:]


while_p.jvp = _jvp
while_p.partial_eval = _partial_eval
while_p.transpose = _transpose
while_p.batch = _batch
